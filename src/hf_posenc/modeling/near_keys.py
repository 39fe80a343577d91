# SPDX-License-Identifier: Apache-2.0
"""What a window leaves of the keys in a cache, so that a step of decoding costs the same however long the text is."""

import torch
from torch import Tensor

from .place import Place

# Of fewer cached keys than these, all are attended to as fast as some.
FEW = 256


def near_keys(at: Place, clip: int | None) -> Place:
    """The place with the keys that a new token may see, and those between them, where all that are `clip` tokens away
    or more are hidden; the place as it is where nothing is cached, or all keys are wanted."""
    num_keys = at.keys_BS.shape[1]
    if clip is None or at.memory is None or at.all_keys or num_keys < FEW or torch.compiler.is_compiling():
        return at
    if not isinstance(at.memory.length, int):  # a cache that keeps its size
        return at
    is_near_BS = (at.distance_BQS.abs() < clip).any(1)
    if isinstance(at.mask, Tensor) and at.mask.ndim == 2:
        is_near_BS = is_near_BS & (at.mask[:, -num_keys:] != 0)
    first_B, behind_B = is_near_BS.long().argmax(1), num_keys - is_near_BS.flip(1).long().argmax(1)
    width = int((behind_B - first_B).max())
    if 2 * width > num_keys:
        return at
    slots_BN = first_B.clamp(max=num_keys - width)[:, None] + torch.arange(width, device=first_B.device)
    return at.but(keys_BS=at.keys_BS.expand(slots_BN.shape[0], -1).gather(1, slots_BN), slots_BN=slots_BN)
