# SPDX-License-Identifier: Apache-2.0
"""A stack of Transformer layers with position encodings: the base class of encoder, decoder and decoder-only model.

It calls hooks, never an encoding by name. Shape letters as in encodings/base.py.
"""

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.masking_utils import create_causal_mask

from ..encodings.base import StackSpec
from ..encodings.cache import EncodingState, cached_seq_length, evict_outside_window, state_of_cache
from ..encodings.masks import AttentionMask, new_valid_mask, positions_from_mask
from ..encodings.positions import AttentionContext
from ..encodings.registry import build_position_encodings
from .attention import validate_attn_implementation
from .configuration_posenc import PosEncConfig
from .layers import PosEncDecoderLayer, PosEncEncoderLayer
from .plans.selection import choose_plan
from .plans.window_pruning import MIN_KEYS, prune_to_window
from .pretrained import Stack


# Its subclasses call post_init when they are whole. trf-ignore: TRF013
class PosEncStack(Stack):
    """Base class of encoder and decoder: position encodings and layers."""

    config: PosEncConfig
    layer_class: type[PosEncEncoderLayer] | type[PosEncDecoderLayer]
    needs_state_cache = False
    # From this number of cached keys on, hidden keys are pruned. Outputs do not depend on it; the tests set it to 0.
    min_keys_to_prune = MIN_KEYS

    def __init__(self, config: PosEncConfig, side: StackSpec) -> None:
        super().__init__(config, vocab_size=side.vocab_size)
        self.side = side
        self.positions = build_position_encodings(config, side)
        self.layernorm_embedding = (
            nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if config.normalize_embedding else None
        )
        self.layers = nn.ModuleList(self.layer_class(config, side, layer) for layer in range(side.layers))
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if config.norm_first else None
        self.gradient_checkpointing = False

    def validate_attn_implementation(self) -> None:
        """Raise a ValueError for a back end that cannot compute an encoding; transformers' default always can."""
        validate_attn_implementation(self.config, self.side, self.positions)

    def attention_context(
        self,
        x_BTD: Tensor,
        mask: AttentionMask,
        position_ids: Tensor,
        state: EncodingState | None = None,
        num_cached: int | Tensor = 0,
        *,
        output_attentions: object = False,
    ) -> tuple[Tensor, AttentionContext]:
        """The embedded tokens with their positions (B, T, D), and the context of this stack's self-attention.

        Appends the positions, and the states of encodings, to the cached `state`.
        """
        valid_mask_BT = new_valid_mask(mask, x_BTD.shape[1], num_cached)
        attn_implementation = self.config._attn_implementation
        need_weights = bool(output_attentions) or attn_implementation == "flex_attention"
        ctx = AttentionContext(
            position_ids, position_ids, valid_mask_BT, mask, num_cached, self.side.is_causal, need_weights=need_weights
        )
        if self.training and self.positions.has_hook("augment_positions"):
            pos_BT = self.positions.augment_positions(position_ids.expand(x_BTD.shape[0], -1), ctx)
            ctx = ctx.replace(query_pos_BQ=pos_BT, key_pos_BS=pos_BT)
        if state is not None:
            key_pos_BS = state.append("positions", ctx.query_pos_BQ.expand(x_BTD.shape[0], -1))
            ctx = ctx.replace(key_pos_BS=key_pos_BS, state=state)
        if state is None and attn_implementation == "sdpa" and not need_weights:
            dropout = self.config.attention_dropout if self.training else 0.0
            plan = choose_plan(self.positions, x_BTD, ctx, dropout)
            ctx = ctx.replace(plan=plan, is_contiguous=plan is not None and plan.is_contiguous)
        x_BTD = self.positions.embed(x_BTD, ctx)
        if self.layernorm_embedding is not None:
            x_BTD = self.layernorm_embedding(x_BTD)
        pruned_ctx = prune_to_window(ctx, self.positions.sliding_window, self.min_keys_to_prune)
        return x_BTD, self.positions.prepare(x_BTD, ctx, pruned_ctx)

    def causal_context(
        self,
        x_BTD: Tensor,
        attention_mask: AttentionMask,
        position_ids: Tensor | None,
        cache: Cache | None,
        output_attentions: object,
    ) -> tuple[Tensor, Tensor, AttentionContext, AttentionMask]:
        """Of a causal self-attention: the tokens with their positions (B, T, D), their position ids, the context and
        the mask. `cache` is that of this self-attention."""
        # State and number of cached tokens are read here, before the first layer adds its keys to the cache.
        state, num_cached = self.read_state(cache, output_attentions), cached_seq_length(cache)
        if position_ids is None:
            position_ids = positions_from_mask(attention_mask, x_BTD.shape[1], num_cached, x_BTD.device)
        x_BTD, ctx = self.attention_context(
            x_BTD, attention_mask, position_ids, state, num_cached, output_attentions=output_attentions
        )
        mask = None if ctx.plan is not None else create_causal_mask(self.config, x_BTD, attention_mask, cache)
        return x_BTD, position_ids, ctx, ctx.gather_mask(mask)

    def read_state(self, own_cache: Cache | None, output_attentions: object) -> EncodingState | None:
        """The encodings' state in the self-attention's cache, None if nothing needs one.

        Tokens that are hidden by their distance are evicted first, unless the weights of all keys are wanted.
        """
        if own_cache is None or not self.needs_state_cache:
            return None
        evict_outside_window(own_cache, None if output_attentions else self.positions.hiding_distance)
        return state_of_cache(own_cache)

    def refuse_cache_under_checkpointing(self, cache: Cache | None) -> None:
        """Raise a ValueError for a cache in training with gradient checkpointing."""
        if cache is not None and self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            raise ValueError(
                "Gradient checkpointing computes each layer twice, and therefore a layer must not write into a cache, "
                "but one was given; leave the cache out, or turn gradient checkpointing off."
            )
