"""Training of a decoder-only model on blocks of plain text, in which several documents can follow each other.

No token attends to another document: positions begin again at each `<s>`, and the attention mask is block-diagonal. The
losses of a document are therefore those of the document in a row of its own.
"""

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import BatchEncoding, PreTrainedTokenizerBase

from ...encodings.positions import document_mask
from ..data.lengths import lengths
from .trainer import LengthTrainer


class TextBlockCollator:
    """Batches of blocks of one length, with `input_ids` and `labels` (B, T), and labels already at the tokens before.

    `shift_labels` are the same: the name by which models read such labels. Batches in which a document begins after the
    first token have `position_ids` (B, T) and a Boolean `attention_mask` (B, 1, T, T). Other batches have neither,
    because causal attention without a mask takes less time.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.bos_token_id = tokenizer.bos_token_id

    def __call__(self, blocks: list[dict[str, list[int]]]) -> BatchEncoding:
        ids_BT = torch.tensor([block["input_ids"] for block in blocks])
        labels_BT = torch.tensor([block["labels"] for block in blocks])
        batch = {"input_ids": ids_BT, "labels": labels_BT, "shift_labels": labels_BT}
        starts_BT = ids_BT == self.bos_token_id
        if starts_BT[:, 1:].any():
            batch |= document_inputs(starts_BT)
        return BatchEncoding(batch)


def document_inputs(starts_BT: Tensor) -> dict[str, Tensor]:
    """Positions (B, T) that begin again at each start, and a causal mask (B, 1, T, T) that no document crosses."""
    index_T = torch.arange(starts_BT.shape[1])
    start_BT = torch.where(starts_BT, index_T, 0).cummax(1).values
    return {"position_ids": index_T - start_BT, "attention_mask": document_mask(starts_BT)}


class TextTrainer(LengthTrainer):
    """LengthTrainer for a decoder-only model and the batches of a TextBlockCollator, which have no padding.

    `tokens_per_batch` limits the tokens of a batch.
    """

    def count_tokens(self, inputs: dict[str, Tensor]) -> tuple[Tensor, int]:
        tokens = inputs["input_ids"]
        return torch.tensor(tokens.numel(), device=tokens.device), tokens.numel()

    @staticmethod
    def budgeted_lengths(pairs: Dataset, num_special_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        return lengths(pairs, "source"), lengths(pairs, "target")  # a block has its special tokens already
