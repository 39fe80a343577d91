# SPDX-License-Identifier: Apache-2.0
"""What attention masks say of the tokens: which ones are there, and at what positions they stand."""

from typing import Any

import torch
from torch import Tensor


def positions_of(mask_BT: Tensor) -> Tensor:
    """The position of each token among the tokens that the mask lets through; padding is at 0 (B, T)."""
    tokens = mask_BT != 0
    return (tokens.long().cumsum(-1) - 1).masked_fill(~tokens, 0)


def new_tokens(attention_mask: Any, num_new: int, num_cached: int | Tensor = 0) -> Tensor | None:
    """Which of the new tokens are no padding (B, T); in a 4-D mask, those that may attend to themselves."""
    if not isinstance(attention_mask, Tensor):
        return None
    if attention_mask.ndim == 2:
        return attention_mask[:, -num_new:] != 0
    new = torch.arange(num_new, device=attention_mask.device)
    itself_BT = attention_mask[:, 0, new, new + num_cached]
    return itself_BT if itself_BT.dtype == torch.bool else itself_BT == 0
