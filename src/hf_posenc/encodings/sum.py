# SPDX-License-Identifier: Apache-2.0
"""Sums of position encodings, which the Transformer calls. Shape letters as in encodings/base.py."""

import math
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils.generic import maybe_autocast

from .base import HOOKS, PositionEncoding
from .cache import EncodingState
from .positions import AttentionContext


class PositionEncodingSum(nn.ModuleList):
    """The encodings of one attention, by their registered names, in the order of the sum.

    Embeddings, queries and keys pass through the encodings from left to right; biases are added. One encoding is a sum
    of one.
    """

    def __init__(self, encodings: Mapping[str, PositionEncoding]) -> None:
        super().__init__(encodings.values())
        # Where properties are read: an adapter may replace the module at an index, and has no attributes of it.
        self.encodings = tuple(encodings.values())
        # Cached state has these names: two encodings may have classes of one name, or be wrapped in one class.
        self.names = list(encodings)
        # Which encoding has which hook is computed once, so that a missing hook takes no time in a decoding step. Hooks
        # that a constructor sets to None are None by now.
        self.hook_table = {hook: self.hook_indices(hook) for hook in (*HOOKS, "augment_positions", "prepare_layer")}
        self.has_score_bias, self.has_value_bias = self.has_hook("score_bias"), self.has_hook("value_bias")
        self.bias_indices = sorted({*self.hook_table["score_bias"], *self.hook_table["value_bias"]})
        self.modifies_attention = any(self.has_hook(hook) for hook in HOOKS if hook != "embed")
        self.embeds, self.rotates_queries, self.rotates_keys = map(
            self.has_hook, ("embed", "rotate_queries", "rotate_keys")
        )
        biases = [self.encodings[index] for index in self.bias_indices]
        # Whether there are biases, and all of them depend on head and distance alone.
        self.has_distance_bias = bool(biases) and not self.has_value_bias
        self.has_distance_bias &= all(encoding.distance_bias is not None for encoding in biases)
        # Whether no encoding hides keys by their distance, and from which distance on keys can be left out.
        self.is_global = all(encoding.is_global for encoding in self.encodings)
        self.max_distance = self.find_max_distance()
        self.sliding_window = None if self.is_global else self.max_distance
        self.hiding_distance, self.hiding_lookahead = self.find_hiding_distances()

    def __iter__(self) -> Iterator[PositionEncoding]:
        return super().__iter__()  # type: ignore[return-value]

    def encoding_at(self, index: int) -> PositionEncoding:
        """The encoding at an index, or the adapter that stands in for it: the module whose hooks are called."""
        return self._modules[str(index)]  # type: ignore[return-value]

    def hook_indices(self, hook: str) -> list[int]:
        """The encodings that have this hook, as indices."""
        return [index for index, encoding in enumerate(self.encodings) if getattr(encoding, hook) is not None]

    def has_hook(self, hook: str) -> bool:
        """Whether any of the encodings has this hook."""
        return bool(self.hook_table[hook])

    def contexts_for(self, hook: str, ctx: AttentionContext) -> list[tuple[PositionEncoding, AttentionContext]]:
        """The encodings that have this hook, each with its own context: its prepared values and its state."""
        contexts: list[Any] = []
        for index in self.hook_table[hook]:
            state = self.state_of(index, ctx) if self.encodings[index].is_stateful else None
            # None where `prepare` has not run: `augment_positions` and `embed` come before it.
            prepared = None if ctx.prepared is None else ctx.prepared[index]
            layer = None if ctx.prepared_layer is None else ctx.prepared_layer[index]
            own_ctx = ctx.replace(prepared=prepared, prepared_layer=layer, state=state)
            contexts.append((self._modules[str(index)], own_ctx))
        return contexts

    def state_of(self, index: int, ctx: AttentionContext) -> EncodingState | None:
        """The cached state of one encoding, None where nothing is cached."""
        return None if ctx.state is None else ctx.state.scoped(self.names[index], ctx.layer)

    def find_max_distance(self) -> int | None:
        """The distance in tokens from which every bias is constant or every key is hidden; None without one."""
        distances, windows = [], []
        for index in self.bias_indices:
            encoding = self.encodings[index]
            if encoding.max_distance is None:
                return None
            distances.append(encoding.max_distance)
            if not encoding.is_global:
                windows.append(encoding.max_distance)
        if not distances:
            return None
        # Beyond the smallest window all keys are hidden, whatever the other biases are there.
        clip = min(windows) if windows else max(distances)
        return None if clip == math.inf else int(clip)

    def find_hiding_distances(self) -> tuple[int | None, int | None]:
        """The distances from which keys before and after the query are hidden, None if no encoding hides them."""
        before, after = [], []
        for encoding in self.encodings:
            if not encoding.is_global and encoding.max_distance is not None:
                before.append(int(encoding.max_distance))
                after.append(encoding.lookahead_distance or int(encoding.max_distance))
        return min(before, default=None), min(after, default=None)

    def augment_positions(self, pos_BT: Tensor, ctx: AttentionContext) -> Tensor:
        """Positions for training (B, T)."""
        for encoding, own_ctx in self.contexts_for("augment_positions", ctx):
            pos_BT = encoding("augment_positions", pos_BT, own_ctx)
        return pos_BT

    def prepare(
        self, x_BTD: Tensor, ctx: AttentionContext, pruned_ctx: AttentionContext | None = None
    ) -> AttentionContext:
        """The context for attention, with what each encoding has prepared for all layers.

        `pruned_ctx` is the same context without the keys that a window hides (local_attention.py). An encoding that has
        a `max_distance` prepares for those keys; the others prepare for all of them, as their state covers all.
        """
        pruned_ctx = ctx if pruned_ctx is None else pruned_ctx
        prepared = [self.prepare_one(index, x_BTD, ctx, pruned_ctx) for index in range(len(self))]
        embedded_BTD = x_BTD if ctx.is_contiguous else None
        return pruned_ctx.replace(prepared=prepared, embedded_BTD=embedded_BTD)

    def prepare_one(self, index: int, x_BTD: Tensor, ctx: AttentionContext, pruned_ctx: AttentionContext) -> object:
        """The result of one encoding's `prepare`; None if it has none, or if attention calls it by blocks."""
        encoding = self.encodings[index]
        has_max_distance = encoding.max_distance is not None
        # On a long input an encoding never sees all L x L distances: plans prepare it for the positions of blocks.
        if encoding.prepare is None or (ctx.plan is not None and ctx.plan.prepares(self, index)):
            return None
        own_ctx = pruned_ctx if has_max_distance else ctx
        return run_prepare(self.encoding_at(index), x_BTD, own_ctx.replace(state=self.state_of(index, own_ctx)))

    def rotates(self, index: int) -> bool:
        """Whether an encoding changes queries or keys."""
        return index in self.hook_table["rotate_queries"] or index in self.hook_table["rotate_keys"]

    def prepare_biases(self, x_BTD: Tensor, ctx: AttentionContext) -> AttentionContext:
        """The context with what the encodings that have biases prepare for its positions.

        `x_BTD` are its tokens; those with a `max_distance` read no more than dtype, device and width. Rotations, which
        other encodings prepare, are not computed in this context.
        """
        prepared = [
            run_prepare(self.encoding_at(index), x_BTD, ctx)
            if encoding.prepare is not None and index in self.bias_indices
            else None
            for index, encoding in enumerate(self.encodings)
        ]
        return ctx.replace(prepared=prepared)

    def prepare_layer(self, ctx: AttentionContext) -> AttentionContext:
        """The context with what each encoding computes once for all blocks of queries of a layer."""
        prepared_layer: list[object] = [None] * len(self)
        for index in self.hook_table["prepare_layer"]:
            prepared_layer[index] = self.encoding_at(index)("prepare_layer", ctx)
        return ctx.replace(prepared_layer=prepared_layer)

    @property
    def bias_requires_grad(self) -> bool:
        """Whether a bias has parameters that are trained."""
        modules = [self.encoding_at(index) for index in self.bias_indices]
        return any(parameter.requires_grad for module in modules for parameter in module.parameters())

    def distance_bias(self, distance_N: Tensor) -> Tensor:
        """The sum of the biases of these distances (H or 1, N). Call it only if `has_distance_bias`."""
        modules = [self.encoding_at(index) for index in self.bias_indices]
        return reduce(torch.add, [module("distance_bias", distance_N) for module in modules])

    def embed(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """The embedded tokens with their positions (B, T, D)."""
        for encoding, own_ctx in self.contexts_for("embed", ctx):
            x_BTD = encoding("embed", x_BTD, own_ctx)
        return x_BTD

    def rotate_queries(self, q_BHQK: Tensor, ctx: AttentionContext) -> Tensor:
        """The queries at their positions (B, H, Q, K), wider where `preserves_head_dim` is False."""
        for encoding, own_ctx in self.contexts_for("rotate_queries", ctx):
            q_BHQK = encoding("rotate_queries", q_BHQK, own_ctx)
        return q_BHQK

    def rotate_keys(self, k_BHTK: Tensor, ctx: AttentionContext) -> Tensor:
        """The new keys at their positions (B, H, T, K), as they are cached."""
        for encoding, own_ctx in self.contexts_for("rotate_keys", ctx):
            k_BHTK = encoding("rotate_keys", k_BHTK, own_ctx)
        return k_BHTK

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        """The sum of the score biases, which broadcasts to (B, H, Q, S). Call it only if `has_score_bias`."""
        contexts = self.contexts_for("score_bias", ctx)
        return reduce(torch.add, [encoding("score_bias", q_BHQK, k_BHSK, own_ctx) for encoding, own_ctx in contexts])

    def value_bias(self, p_BHQS: Tensor, ctx: AttentionContext) -> Tensor:
        """The sum of the value biases, which broadcasts to (B, H, Q, K). Call it only if `has_value_bias`."""
        contexts = self.contexts_for("value_bias", ctx)
        return reduce(torch.add, [encoding("value_bias", p_BHQS, own_ctx) for encoding, own_ctx in contexts])


def run_prepare(encoding: PositionEncoding, x_BTD: Tensor, ctx: AttentionContext) -> object:
    """The result of an encoding's `prepare`, outside of autocast, which would round products of positions."""
    with maybe_autocast(x_BTD.device.type, enabled=False):
        return encoding("prepare", x_BTD, ctx)
