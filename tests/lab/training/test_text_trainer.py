"""Training on blocks of plain text: documents in one row have the losses of rows of their own."""

import json
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from support.causal import tiny_causal_model
from support.models import TEXTS_VOCABULARY, entries
from torch import nn

from hf_posenc import PosEncTokenizer
from hf_posenc.lab.training.arguments import training_arguments
from hf_posenc.lab.training.callbacks import JsonLogger
from hf_posenc.lab.training.trainer import TextBlockCollator, document_inputs
from hf_posenc.lab.training.training_run import train
from hf_posenc.utils.run_folder import SystemPaths


class Tokens:
    """The only property of a tokenizer that the collator reads."""

    bos_token_id = 1


def block(*documents: list[int]) -> dict[str, list[int]]:
    """One row of documents with its labels. The last token has no label."""
    tokens = [token for document in documents for token in document]
    labels = [-100 if token == 1 else token for token in tokens[1:]]
    return {"input_ids": tokens, "labels": [*labels, -100]}


@torch.no_grad()
def test_packed_documents_have_the_losses_of_separate_ones(decoder_only: str) -> None:
    """In float64. The first row begins in the middle of a document."""
    if any(entry.is_sequential for entry in entries(decoder_only)):
        pytest.skip("a recurrent layer reads over the end of a document; prepare.py refuses it")
    model = tiny_causal_model(decoder_only)
    rows = [[[7, 8, 9], [1, 5, 6, 7], [1, 4]], [[1, 9, 8, 7, 6, 5], [1, 3, 4]]]
    batch = TextBlockCollator(Tokens())([block(*documents) for documents in rows])
    outputs = model(**batch)
    nll_BT = nn.functional.cross_entropy(outputs.logits.transpose(1, 2), batch["labels"], reduction="none")
    separate, num_labels = [], 0
    for documents in rows:
        for document in documents:
            ids = torch.tensor([document])
            logits = model(ids).logits[0, :-1]
            separate += [*nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").tolist(), 0.0]
            num_labels += len(document) - 1
    torch.testing.assert_close(nll_BT.flatten(), torch.tensor(separate, dtype=torch.float64), rtol=1e-10, atol=1e-10)
    mean = nll_BT.sum() / num_labels
    torch.testing.assert_close(outputs.loss.double(), mean, rtol=1e-6, atol=1e-6)  # transformers' loss is in float32


def test_positions_and_mask_are_those_of_a_plain_loop() -> None:
    starts_BT = torch.rand(4, 9, generator=torch.Generator().manual_seed(0)) < 0.3
    inputs = document_inputs(starts_BT)
    for row, starts in enumerate(starts_BT.tolist()):
        document, position = 0, -1
        documents = []
        for token, is_start in enumerate(starts):
            document += is_start
            position = 0 if is_start else position + 1
            documents.append(document)
            assert inputs["position_ids"][row, token] == position
            visible = [other == document for other in documents] + [False] * (8 - token)
            assert inputs["attention_mask"][row, 0, token].tolist() == visible


def test_a_batch_of_one_document_a_row_has_no_mask() -> None:
    batch = TextBlockCollator(Tokens())([block([1, 5, 6]), block([7, 8, 9])])
    assert set(batch) == {"input_ids", "labels", "shift_labels"}


@pytest.mark.full
@pytest.mark.parametrize("settings", [{}, {"label_smoothing_factor": 0.1}, {"tokens_per_batch": 24}], ids=str)
def test_training_learns_a_text_and_evaluates_it(tokenizer: PosEncTokenizer, tmp_path: Path, settings: dict) -> None:
    """The log's perplexity is that of all labels, and each update has all of its labels in the mean."""
    ids = [tokenizer.bos_token_id, *tokenizer("Ein Hund. Zwei Kinder im Schnee")["input_ids"]]
    stream = ids * 20
    rows = [block(stream[start : start + 12]) for start in range(0, len(stream) - 12, 12)]
    lengths = {"source_length": 12, "target_length": 12}
    blocks = Dataset.from_list([row | lengths for row in rows])
    model = tiny_causal_model("rotary", vocab_size=TEXTS_VOCABULARY, dtype=torch.float32, dropout=0.0)
    steps = {"max_steps": 40, "learning_rate": 1e-2, "per_device_train_batch_size": 4, "logging_steps": 10}
    evaluation = {"eval_strategy": "steps", "eval_steps": 40, "save_strategy": "no"}
    args = training_arguments({"use_cpu": True} | steps | evaluation | settings, tmp_path)
    log = JsonLogger(SystemPaths(tmp_path).training_log)
    trained, _ = train(model, tokenizer, blocks, blocks, args, log, name="s", is_text=True)
    lines = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    [scores] = [line for line in lines if "eval_perplexity" in line]
    assert losses[-1] < 0.5 * losses[0]
    assert all(line["padding"] == 0 for line in lines if "padding" in line)
    batch = TextBlockCollator(tokenizer)(rows)
    with torch.no_grad():
        perplexity = trained.eval()(**batch).loss.exp()
    assert scores["eval_perplexity"] == pytest.approx(float(perplexity), rel=1e-3)
