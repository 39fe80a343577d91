# SPDX-License-Identifier: Apache-2.0
"""Reading sentences in order: one call of a recurrent network over a batch whose sentences are padded anywhere."""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def read_in_order(rnn: nn.RNNBase, x_BTD: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, Any]:
    """What `rnn` (batch first) gives for each sentence alone: its outputs (B, T, N) in the tokens' places, N being its
    width times its directions, and its last states as torch returns them.

    `mask_BT` is True on tokens, wherever they stand, and None if there is no padding. One direction reads the tokens of
    every sentence first and the padding after them, in one dense call, whose last states then are those of the padding;
    two directions are torch's packed sequences, which never read padding. Outputs in padded places are of no use.
    """
    if mask_BT is None:
        return rnn(x_BTD)
    order_BT = (~mask_BT).long().argsort(dim=1, stable=True)  # the tokens of each sentence, then its padding
    tokens_BTD = x_BTD.gather(1, order_BT[..., None].expand_as(x_BTD))
    if rnn.bidirectional:
        lengths_B = mask_BT.sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(tokens_BTD, lengths_B, batch_first=True, enforce_sorted=False)
        read, last = rnn(packed)
        read_BTN, _ = pad_packed_sequence(read, batch_first=True, total_length=mask_BT.shape[1])
    else:
        read_BTN, last = rnn(tokens_BTD)
    places_BTN = order_BT.argsort(dim=1)[..., None].expand_as(read_BTN)
    return read_BTN.gather(1, places_BTN), last
