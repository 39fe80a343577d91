"""Saved checkpoints load and give the same logits, which the stability policy promises.

`saved/checkpoints.json.xz` has tiny checkpoints of each encoding, of some sums and of RNN-NMT: their configs, and
the names and shapes of their weights. The weights are drawn from a seed. The code that saved them has computed the
logits, in float64, from the same weights and inputs.
"""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForSeq2SeqLM

import hf_posenc

SAVED = Path(__file__).parent / "saved" / "checkpoints.json.xz"
CHECKPOINTS = json.loads(lzma.decompress(SAVED.read_bytes()))


def write_checkpoint(folder: Path, saved: dict[str, Any]) -> None:
    """A folder as `save_pretrained` writes it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(saved["config"] | {"dtype": "float64"}))
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in sorted(saved["shapes"].items())
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
@pytest.mark.full
@pytest.mark.parametrize("saved", CHECKPOINTS, ids=lambda saved: saved["name"])
def test_a_saved_checkpoint_gives_the_same_logits(saved: dict[str, Any], tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", saved)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", dtype="auto").eval()
    assert type(model).__name__ in hf_posenc.__all__
    source, target = torch.arange(27).reshape(3, 9) * 7 % 25 + 4, torch.arange(21).reshape(3, 7) * 5 % 25 + 4
    mask = torch.ones_like(source)
    mask[0, 6:] = mask[1, 8:] = 0
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits[:, -1]
    torch.testing.assert_close(logits, torch.tensor(saved["logits"], dtype=torch.float64), rtol=1e-9, atol=1e-9)
