"""Training of a decoder-only model on pairs: each is one sequence, and the loss is that of the target.

    source </s> target </s>

A source and its target follow each other as tokenized, so that a source with its `</s>` is the prompt at test time
(generation/translate.py).
"""

import sys

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import BatchEncoding, DataCollatorForSeq2Seq, PreTrainedTokenizerBase

from ...generation.translate import max_continuation_lengths
from ..data.lengths import lengths
from .losses import next_token_labels
from .trainer import LengthTrainer


class PromptedPairCollator:
    """Joins the `input_ids` and `labels` of each pair into one sequence, with padding on the right.

    A batch has `input_ids`, `attention_mask` and `labels` (B, T), where labels are -100 at the source and at padding.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.pad = DataCollatorForSeq2Seq(tokenizer)

    def __call__(self, pairs: list[dict[str, list[int]]]) -> BatchEncoding:
        rows = []
        for pair in pairs:
            source, target = list(pair["input_ids"]), list(pair["labels"])
            rows.append({"input_ids": source + target, "labels": [-100] * len(source) + target})
        batch: BatchEncoding = self.pad(rows)
        return batch


class PromptedTrainer(LengthTrainer):
    """LengthTrainer for a decoder-only model and the batches of a PromptedPairCollator.

    `tokens_per_batch` limits the tokens of whole sequences, source and target together.
    """

    def predicted_labels(self, labels: Tensor) -> Tensor:
        return next_token_labels(labels)

    def count_tokens(self, inputs: dict[str, Tensor]) -> tuple[Tensor, int]:
        mask = inputs["attention_mask"]
        return mask.sum(), mask.numel()

    @staticmethod
    def budgeted_lengths(pairs: Dataset, num_special_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        both = lengths(pairs, "source") + lengths(pairs, "target") + 2 * num_special_tokens
        return both, both

    def generate_targets(self, inputs: dict[str, Tensor]) -> Tensor:
        is_source_BT = (inputs["attention_mask"] != 0) & (inputs["labels"] == -100)
        sources = [ids[is_source].tolist() for ids, is_source in zip(inputs["input_ids"], is_source_BT, strict=True)]
        prompts = self.processing_class.pad({"input_ids": sources}, padding_side="left", return_tensors="pt")
        prompts = prompts.to(inputs["input_ids"].device)
        width = prompts["input_ids"].shape[1]
        limit = self.args.generation_max_length or max(max_continuation_lengths(self.model.config, sources)) + 1
        limit = min(limit, (self.model.config.max_sequence_length or sys.maxsize) - width)
        sequences: Tensor = self.model.generate(
            **prompts, num_beams=self.args.generation_num_beams or 1, max_new_tokens=limit, do_sample=False
        )
        return sequences[:, width:]
