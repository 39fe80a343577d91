# SPDX-License-Identifier: Apache-2.0
"""Relative shift: numbers for each distance to numbers for each key, and back, for queries that follow each other.

Queries a, a + 1, ... of a block and keys 0, 1, ... have C + S - 1 distances. A matrix of C rows has a column for each
distance, in ascending order. In row c the distance of key j is in column j + C - 1 - c. The keys of the next row start
one column earlier. Therefore they are a view with another stride, and no index is needed (Transformer-XL, appendix B,
https://arxiv.org/abs/1901.02860).

Shape letters are those of position_base.py; C the queries of a block, R columns, one for each distance.
"""

import torch
from torch import Tensor, nn

from .positions import AttentionContext

BLOCK_SIZE = 128  # the most queries of a block, C


def distance_range(ctx: AttentionContext) -> tuple[int, int]:
    """The lowest and the highest distance, key minus query, of a block. Some keys of a causal block are hidden."""
    first_query = int(ctx.num_cached)
    return 1 - ctx.query_pos_BQ.shape[1] - first_query, ctx.key_pos_BS.shape[1] - 1 - first_query


def query_blocks(length: int) -> list[tuple[int, int]]:
    """The first query of each block, and the first one after it."""
    return [(start, min(start + BLOCK_SIZE, length)) for start in range(0, length, BLOCK_SIZE)]


def layer_distances(ctx: AttentionContext) -> range:
    """The distances of all blocks, in ascending order; `ctx` is that of the whole attention."""
    length = ctx.query_pos_BQ.shape[1]
    return range(1 - length, min(BLOCK_SIZE, length) if ctx.is_causal else length)


def select_keys(x_CR: Tensor) -> Tensor:
    """The numbers of each key (..., C, S), of numbers for each distance (..., C, R) with R = C + S - 1."""
    num_queries, num_distances = x_CR.shape[-2:]
    x_CR = x_CR.contiguous()
    shape = *x_CR.shape[:-1], num_distances - num_queries + 1
    strides = *x_CR.stride()[:-2], num_distances - 1, 1
    return x_CR.as_strided(shape, strides, x_CR.storage_offset() + num_queries - 1)


def select_distances(x_CS: Tensor) -> Tensor:
    """The inverse of `select_keys`: (..., C, R) of (..., C, S), with zeros for distances that no key has."""
    num_queries, num_keys = x_CS.shape[-2:]
    x_CR = x_CS.new_zeros(*x_CS.shape[:-1], num_queries + num_keys - 1)
    select_keys(x_CR).copy_(x_CS)
    return x_CR


def extend_distances(x_R: Tensor, lowest: int, wanted: tuple[int, int]) -> Tensor:
    """Columns for the distances `wanted`, first and last, of columns (..., R) that start at the distance `lowest`.

    Distances beyond either end have the column of that end.
    """
    first, last = wanted
    highest = lowest + x_R.shape[-1] - 1
    inner = x_R[..., max(first, lowest) - lowest : min(last, highest) - lowest + 1]
    before = max(0, min(lowest, last + 1) - first)
    after = max(0, last - max(highest, first - 1))
    left, right = x_R[..., :1], x_R[..., -1:]
    return torch.cat((left.expand(*x_R.shape[:-1], before), inner, right.expand(*x_R.shape[:-1], after)), dim=-1)


def clip_distances(x_R: Tensor, first: int, lowest: int, highest: int) -> Tensor:
    """The transpose of `extend_distances`: columns from distance `first` on, summed into `lowest` to `highest`."""
    last = first + x_R.shape[-1] - 1
    low, high = lowest + 1 - first, highest - first
    columns = x_R.shape[-1]
    low_end, high_start = min(max(low, 0), columns), min(max(high, 0), columns)
    left = x_R[..., :low_end].sum(-1, keepdim=True)
    right = x_R[..., high_start:].sum(-1, keepdim=True)
    inner = x_R[..., low_end:high_start]
    missing = max(0, min(first, highest) - lowest - 1), max(0, highest - 1 - max(last, lowest))
    return torch.cat((left, nn.functional.pad(inner, missing), right), dim=-1)
