# SPDX-License-Identifier: Apache-2.0
"""Sums of position encodings, which the Transformer calls. Shape letters as in encodings/base.py.

An attention has one context, and each encoding has its own: with its cached state, and with what it has prepared.
Hooks are called through the `forward` of an encoding, or of the adapter that stands in for it at its index: offloading,
FSDP and PEFT wrap that method alone (PositionEncoding.forward).
"""

import math
from collections.abc import Container, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers.utils.generic import maybe_autocast

from .base import HOOKS, PositionEncoding
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
        self.rotation_indices = sorted({*self.hook_table["rotate_queries"], *self.hook_table["rotate_keys"]})
        self.attention_indices = sorted({*self.rotation_indices, *self.bias_indices})
        self.modifies_attention = bool(self.attention_indices)
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

    if TYPE_CHECKING:  # An adapter at an index takes the same calls.

        def __getitem__(self, index: int) -> PositionEncoding: ...  # type: ignore[override]

        def __iter__(self) -> Iterator[PositionEncoding]: ...

    def hook_indices(self, hook: str) -> list[int]:
        """The encodings that have this hook, as indices."""
        return [index for index, encoding in enumerate(self.encodings) if getattr(encoding, hook) is not None]

    def has_hook(self, hook: str) -> bool:
        """Whether any of the encodings has this hook."""
        return bool(self.hook_table[hook])

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

    def split(self, ctx: AttentionContext) -> list[AttentionContext]:
        """The context of each encoding: that of the attention, with the encoding's own cached state."""
        if ctx.state is None:
            return [ctx] * len(self.names)
        return [ctx.replace(state=ctx.state.scoped(name)) for name in self.names]

    def augment_positions(self, pos_BT: Tensor, ctx: AttentionContext) -> Tensor:
        """Positions for training (B, T)."""
        contexts = self.split(ctx)
        for index in self.hook_table["augment_positions"]:
            pos_BT = self[index]("augment_positions", pos_BT, contexts[index])
        return pos_BT

    def embed(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """The embedded tokens with their positions (B, T, D)."""
        contexts = self.split(ctx)
        for index in self.hook_table["embed"]:
            x_BTD = self[index]("embed", x_BTD, contexts[index])
        return x_BTD

    def prepare(
        self,
        x_BTD: Tensor,
        ctx: AttentionContext,
        pruned_ctx: AttentionContext | None = None,
        prepared_by_plan: Container[int] = (),
    ) -> list[AttentionContext]:
        """The context of each encoding for attention, with what it has prepared for all layers.

        `pruned_ctx` is the same context without the keys that a window hides (plans/local_attention.py). An encoding
        that has a `max_distance` prepares for those keys; the others prepare for all of them, as their state covers
        all. On a long input no encoding sees all L x L distances: the attention's plan prepares some for its blocks.
        """
        all_keys = contexts = self.split(ctx)
        if pruned_ctx is not None:
            contexts = self.split(pruned_ctx)
        for index, encoding in enumerate(self.encodings):
            if encoding.prepare is not None and index not in prepared_by_plan:
                own_ctx = all_keys[index] if encoding.max_distance is None else contexts[index]
                contexts[index] = contexts[index].replace(prepared=self.prepare_one(index, x_BTD, own_ctx))
        return contexts

    def prepare_one(self, index: int, x_BTD: Tensor, ctx: AttentionContext) -> object:
        """The result of one `prepare`, outside of autocast, which would round products of positions."""
        with maybe_autocast(x_BTD.device.type, enabled=False):
            return self[index]("prepare", x_BTD, ctx)

    def prepare_biases(self, x_BTD: Tensor, contexts: list[AttentionContext]) -> list[AttentionContext]:
        """The contexts with what the encodings that have biases prepare for their positions.

        `x_BTD` are their tokens; encodings with a `max_distance` read no more than dtype, device and width.
        """
        contexts = list(contexts)
        for index in self.bias_indices:
            if self.encodings[index].prepare is not None:
                contexts[index] = contexts[index].replace(prepared=self.prepare_one(index, x_BTD, contexts[index]))
        return contexts

    def prepare_layer(self, contexts: list[AttentionContext]) -> list[AttentionContext]:
        """The contexts with what each encoding computes once for all blocks of queries of a layer."""
        contexts = list(contexts)
        for index in self.hook_table["prepare_layer"]:
            prepared_layer = self[index]("prepare_layer", contexts[index])
            contexts[index] = contexts[index].replace(prepared_layer=prepared_layer)
        return contexts

    def at_layer(self, contexts: list[AttentionContext], layer: int, x_BTD: Tensor) -> list[AttentionContext]:
        """The contexts in a layer, whose query projection has the input `x_BTD`."""
        contexts = list(contexts)
        for index in self.attention_indices:
            state = contexts[index].state if self.encodings[index].is_stateful else None
            state = None if state is None else state.scoped(f"layer {layer}")
            contexts[index] = contexts[index].replace(layer=layer, inputs_BTD=x_BTD, state=state)
        return contexts

    def rotate_queries(self, q_BHQK: Tensor, contexts: list[AttentionContext]) -> Tensor:
        """The queries at their positions (B, H, Q, K), wider where `preserves_head_dim` is False."""
        for index in self.hook_table["rotate_queries"]:
            q_BHQK = self[index]("rotate_queries", q_BHQK, contexts[index])
        return q_BHQK

    def rotate_keys(self, k_BHTK: Tensor, contexts: list[AttentionContext]) -> Tensor:
        """The new keys at their positions (B, H, T, K), as they are cached."""
        for index in self.hook_table["rotate_keys"]:
            k_BHTK = self[index]("rotate_keys", k_BHTK, contexts[index])
        return k_BHTK

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, contexts: list[AttentionContext]) -> Tensor:
        """The sum of the score biases, which broadcasts to (B, H, Q, S). Call it only if `has_score_bias`."""
        indices = self.hook_table["score_bias"]
        return reduce(torch.add, [self[index]("score_bias", q_BHQK, k_BHSK, contexts[index]) for index in indices])

    def value_bias(self, p_BHQS: Tensor, contexts: list[AttentionContext]) -> Tensor:
        """The sum of the value biases, which broadcasts to (B, H, Q, K). Call it only if `has_value_bias`."""
        indices = self.hook_table["value_bias"]
        return reduce(torch.add, [self[index]("value_bias", p_BHQS, contexts[index]) for index in indices])

    def distance_bias(self, distance_N: Tensor) -> Tensor:
        """The sum of the biases of these distances (H or 1, N). Call it only if `has_distance_bias`."""
        return reduce(torch.add, [self[index]("distance_bias", distance_N) for index in self.bias_indices])

    def bias_requires_grad(self) -> bool:
        """Whether a bias has parameters that are trained."""
        parameters = [parameter for index in self.bias_indices for parameter in self[index].parameters()]
        return any(parameter.requires_grad for parameter in parameters)
