# SPDX-License-Identifier: Apache-2.0
"""Relative: a trained vector for each clipped distance, added to keys and values.

Each layer has tables of 2 tau + 1 vectors, which its heads share. Three presets: keys and values; keys alone; and fixed
vectors instead of trained ones, the sinusoids PE(d) of width K.

Departures from Rosendahl et al. (eq. 3-9): the distance is key minus query, and theirs is query minus key. For trained
tables this only reorders the rows. Positions are counted from 0. The fixed vectors are PE of width K at the signed
distance; theirs are the first K channels of the PE of width D. (Their toolkit also has width K and key minus query, but
takes PE(d + tau).)

No (L, L, K) tensor is built. The key term is q times the 2 tau + 1 vectors, gathered by distance. The value term is the
weights, summed by distance, times the 2 tau + 1 vectors. For one query, as in a decoding step, both are matrix products
with a matrix that selects each key's row.
"""

from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import ROSENDAHL, EncodingConfig, EncodingParameter, PositionEncoding, Reference, StackSpec
from .positions import AttentionContext, at_least_float32, interpolation_weights, scale_by
from .relative_shift import clip_distances, distance_range, extend_distances, select_distances, select_keys
from .sinusoidal import sinusoids


class RelativeRows(NamedTuple):
    """What all layers share.

    `fixed_RK`: the fixed vectors, None for trained ones.
    `weighted_rows`: the row of the tables for each query and key, with its interpolation weight (B, 1, Q, S). A query
        between two tokens has two rows; any other has one, of weight None.
    `selection_BSR`: for one query the same as a matrix, whose row for each key has these weights; else None.
    """

    fixed_RK: Tensor | None
    weighted_rows: list[tuple[Tensor, Tensor | None]]
    selection_BSR: Tensor | None = None


class TableParametrizations(nn.ModuleDict):
    """torch's parametrizations of the tables. A ModuleDict refuses the names of its methods, such as `keys`."""

    def add_module(self, name: str, module: nn.Module | None) -> None:
        self._modules[name] = module  # type: ignore[assignment]


class Relative(PositionEncoding):
    """2 x layers x (2 `relative_clip` + 1) x K parameters, half of them without values, none when fixed.

    Shift-invariant; defined at every length. Beyond `relative_clip` tokens only the direction matters.
    """

    summary = "A trained vector for each clipped distance, added to keys and values."
    aliases = ("shaw",)
    KEY_ONLY = {"values": False, "summary": "A trained vector for each clipped distance, added to keys alone."}
    SINUSOIDAL = {
        "trained": False,
        "zero_init_is_identity": False,
        "summary": "The sinusoid of each clipped distance, added to keys and values.",
    }
    shift_invariant = True
    zero_init_is_identity = True
    config_parameters = (
        EncodingParameter(
            "relative_clip",
            16,
            "a whole number of tokens, 1 or more",
            lambda value: value >= 1,
            meaning="Distances of more tokens share the vector of this distance.",
        ),
    )
    formula = """
        score(i, j) = q_i . (k_j + aK[d]) / sqrt(K)
        output(i) = sum_j p_ij (v_j + aV[d])
        d = clip(j - i, -tau, tau)
    """
    references = (
        Reference(
            "Shaw, Uszkoreit & Vaswani",
            "Self-Attention with Relative Position Representations",
            "NAACL",
            2018,
            "https://arxiv.org/abs/1803.02155",
            full_authors="Peter Shaw and Jakob Uszkoreit and Ashish Vaswani",
        ),
        ROSENDAHL,
    )

    def __init__(self, config: EncodingConfig, side: StackSpec, *, values: bool = True, trained: bool = True) -> None:
        super().__init__(config, side)
        self.clip = self.max_distance = config.relative_clip
        shape = (side.layers, 2 * self.clip + 1, side.head_dim)
        self.keys = nn.Parameter(torch.empty(shape)) if trained else None
        self.values = nn.Parameter(torch.empty(shape)) if trained and values else None
        if not values:
            self.value_bias = None  # type: ignore[assignment, method-assign]  # before a PositionEncodingSum is built

    def __setattr__(self, name: str, value: Any) -> None:
        # torch sets this attribute when a table is parametrized, as PEFT does for an adapter of one parameter.
        super().__setattr__(name, TableParametrizations() if name == "parametrizations" else value)

    def prepare(self, x_BTD: Tensor, ctx: AttentionContext) -> "RelativeRows":
        """The rows of the tables for each query and key."""
        # Of a block of queries, relative_shift.py reads the rows without an index.
        distances_B1QS = [] if ctx.is_contiguous else interpolation_weights(ctx.distance_BQS[:, None], x_BTD.dtype)
        weighted_rows = [
            (distance_B1QS.clamp(-self.clip, self.clip) + self.clip, weight) for distance_B1QS, weight in distances_B1QS
        ]
        fixed_RK = None
        if self.keys is None:
            distances = torch.arange(-self.clip, self.clip + 1, device=x_BTD.device)
            fixed_RK = sinusoids(distances, self.side.head_dim, at_least_float32(x_BTD))
        if ctx.is_contiguous or ctx.query_pos_BQ.shape[1] > 1 or torch.compiler.is_compiling():
            return RelativeRows(fixed_RK, weighted_rows)
        rows_R = torch.arange(2 * self.clip + 1, device=x_BTD.device)
        selections = [
            scale_by((rows.mT == rows_R).to(x_BTD.dtype), None if weight is None else weight.mT)
            for rows, weight in weighted_rows
        ]
        return RelativeRows(fixed_RK, weighted_rows, reduce(torch.add, selections)[:, 0])

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        """q times the vector of each distance, divided by sqrt(K) (B, H, Q, S)."""
        vectors_RK = ctx.prepared.fixed_RK.to(q_BHQK.dtype) if self.keys is None else self.keys[ctx.layer]
        scores_BHQR = nn.functional.linear(q_BHQK * self.scaling, vectors_RK)
        if ctx.is_contiguous:
            return select_keys(extend_distances(scores_BHQR, -self.clip, distance_range(ctx)))
        heads = q_BHQK.shape[:3]
        terms = [
            scale_by(scores_BHQR.gather(-1, rows.expand(*heads, -1)), weight)
            for rows, weight in ctx.prepared.weighted_rows
        ]
        return reduce(torch.add, terms)

    def value_bias(self, p_BHQS: Tensor, ctx: AttentionContext) -> Tensor:
        """The weights, summed by distance, times the vectors (B, H, Q, K)."""
        vectors_RK = ctx.prepared.fixed_RK.to(p_BHQS.dtype) if self.values is None else self.values[ctx.layer]
        if ctx.is_contiguous:
            first, _ = distance_range(ctx)
            return clip_distances(select_distances(p_BHQS), first, -self.clip, self.clip) @ vectors_RK
        if ctx.prepared.selection_BSR is not None:
            # Matrix products of three axes take fewer calls of torch.
            selection_BSR = ctx.prepared.selection_BSR.to(p_BHQS.dtype)
            weight_BHR = torch.bmm(p_BHQS.flatten(1, 2), selection_BSR.expand(len(p_BHQS), -1, -1))
            return torch.mm(weight_BHR.flatten(0, 1), vectors_RK).view(*p_BHQS.shape[:3], -1)
        weight_BHQR = p_BHQS.new_zeros(*p_BHQS.shape[:3], vectors_RK.shape[0])
        for rows_B1QS, weight in ctx.prepared.weighted_rows:
            weight_BHQR = weight_BHQR.scatter_add(
                -1, rows_B1QS.expand(p_BHQS.shape), scale_by(p_BHQS, weight).to(p_BHQS.dtype)
            )
        return weight_BHQR @ vectors_RK

    def init_weights(self) -> None:
        """Xavier's bound for one layer's table."""
        for table in (self.keys, self.values):
            if table is not None:
                bound = (6 / (table.shape[1] + table.shape[2])) ** 0.5  # Xavier's, of one layer's table
                if self.config.initializer == "torch":
                    init.normal_(table)
                else:
                    init.uniform_(table, -bound, bound)
