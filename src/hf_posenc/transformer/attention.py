# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention for encoder, decoder and cross-attention. It calls the hooks of position encodings.

    output(i) = sum_j p_ij v_j + value_bias,    p = softmax(q k^T / sqrt(K) + score_bias + mask)

The shape letters are those of encodings/base.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..encodings.base import StackSpec
from ..encodings.positions import AttentionContext, AttentionMask
from ..encodings.sum import PositionEncodingSum
from .configuration_encodings import EncodingsConfig
from .plans.selection import AttentionPlan

# A function of transformers' registry: from module, queries, keys, values and mask it computes the output (B, Q, H, K)
# and the weights, None where it does not return them.
AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class AttentionInputs:
    """What all layers of a stack share in one call, for self-attention or for cross-attention.

    `ctx` has the positions, `contexts` the same for each encoding, with what it has prepared. `mask` is transformers'
    mask of the keys that are attended to; None if all are, or if the `plan` masks them. `needs_weights`: whether the
    alignment reads the weights.
    """

    positions: PositionEncodingSum
    ctx: AttentionContext
    contexts: list[AttentionContext]
    mask: AttentionMask = None
    plan: AttentionPlan | None = None
    needs_weights: bool = False

    def to(self, device: torch.device | str, **options: bool) -> "AttentionInputs":
        """The inputs on another device; accelerate calls it where a model is on several devices."""
        mask = self.mask.to(device) if self.mask is not None else None
        contexts = [ctx.to(device, **options) for ctx in self.contexts]
        return replace(self, ctx=self.ctx.to(device, **options), contexts=contexts, mask=mask)


class Attention(nn.Module):
    """Self-attention, or cross-attention over the `key_value_states_BSD` of an encoder."""

    def __init__(self, config: EncodingsConfig, *, num_heads: int, is_causal: bool, layer: int) -> None:
        super().__init__()
        self.config = config
        self.head_dim = config.d_model // num_heads
        self.scaling = self.head_dim**-0.5
        self.dropout = config.attention_dropout
        self.is_causal = is_causal
        self.layer_idx = layer
        self.k_proj = nn.Linear(config.d_model, config.d_model)
        self.v_proj = nn.Linear(config.d_model, config.d_model)
        self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)

    def forward(
        self,
        x_BTD: Tensor,
        inputs: AttentionInputs,
        *,
        key_value_states_BSD: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor | None]:
        """The attended tokens (B, T, D) and the attention weights (B, H, Q, S), None where the back end has none."""
        positions, contexts, ctx = inputs.positions, inputs.contexts, inputs.ctx
        if positions.modifies_attention:
            contexts = positions.at_layer(contexts, self.layer_idx, x_BTD)
        unrotated_q_BHQK = self.q_proj(x_BTD).view(*x_BTD.shape[:2], -1, self.head_dim).transpose(1, 2)
        k_BHSK, v_BHSK = self.project_keys_and_values(x_BTD, key_value_states_BSD, positions, contexts, cache)
        if ctx.attended_keys is not None:
            k_BHSK, v_BHSK = ctx.gather_keys(k_BHSK, 2), ctx.gather_keys(v_BHSK, 2)
        q_BHQK = positions.rotate_queries(unrotated_q_BHQK, contexts) if positions.rotates_queries else unrotated_q_BHQK
        qkv, p_BHQS = (q_BHQK, k_BHSK, v_BHSK), None
        attend = partial(self.attend, inputs=inputs, kwargs=kwargs)
        if inputs.plan is None:
            out_BQHK, p_BHQS = attend(qkv, unrotated_q_BHQK, inputs.mask, contexts)
        else:
            out_BQHK = inputs.plan.run(attend, qkv, unrotated_q_BHQK, positions, contexts)
        return self.out_proj(out_BQHK.flatten(2)), p_BHQS

    def attend(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],
        unrotated_q_BHQK: Tensor,
        mask: AttentionMask,
        contexts: list[AttentionContext],
        *,
        inputs: AttentionInputs,
        kwargs: Mapping[str, object],
    ) -> tuple[Tensor, Tensor | None]:
        """The attended values (B, Q, H, K) by the back end, with the biases of all encodings, and the weights.

        `unrotated_q_BHQK` are the queries before `rotate_queries`, which the score bias takes.
        """
        positions, k_BHSK, implementation = inputs.positions, qkv[1], self.config._attn_implementation
        needs_weights = positions.has_value_bias or inputs.needs_weights
        needs_weights |= bool(kwargs.get("output_attentions")) and implementation == "sdpa"  # which has none
        biases: dict[str, object] = {}
        if positions.has_score_bias:
            bias = positions.score_bias(unrotated_q_BHQK, k_BHSK, contexts)
            # torch's CPU kernel has no gradient of a bias: without the kernel, explicit weights take fewer passes.
            needs_weights |= inputs.plan is not None and bias.requires_grad
            # flex_attention indexes the bias, where the others broadcast it.
            if not needs_weights and implementation == "flex_attention":
                bias = bias.expand(*unrotated_q_BHQK.shape[:3], k_BHSK.shape[2])
            biases["position_bias"] = bias
        if positions.has_value_bias:
            biases["value_bias"] = partial(positions.value_bias, contexts=contexts)
        attention_forward: AttentionFunction = eager_attention_forward
        if not needs_weights:
            attention_forward = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        return attention_forward(
            self, *qkv, mask,
            dropout=self.dropout if self.training else 0.0, scaling=self.scaling, **biases, **kwargs,
        )  # fmt: skip

    def project_keys_and_values(
        self,
        x_BTD: Tensor,
        key_value_states_BSD: Tensor | None,
        positions: PositionEncodingSum,
        contexts: list[AttentionContext],
        cache: Cache | None,
    ) -> tuple[Tensor, Tensor]:
        """Keys and values, cached ones included (B, H, S, K).

        `cache` is that of the self-attention, or for cross-attention an EncoderDecoderCache.

        Those of the encoder states are computed at the first step of cached decoding only.
        """
        is_cross, layer = key_value_states_BSD is not None, self.layer_idx
        if is_cross and cache is not None and cache.is_updated.get(layer):
            cached = cache.cross_attention_cache.layers[layer]
            return cached.keys, cached.values
        inputs_BSD = x_BTD if key_value_states_BSD is None else key_value_states_BSD
        shape = *inputs_BSD.shape[:2], -1, self.head_dim
        k_BHSK = self.k_proj(inputs_BSD).view(shape).transpose(1, 2)
        v_BHSK = self.v_proj(inputs_BSD).view(shape).transpose(1, 2)
        if positions.rotates_keys:
            k_BHSK = positions.rotate_keys(k_BHSK, contexts)
        if cache is None:
            return k_BHSK, v_BHSK
        if not is_cross:
            return cache.update(k_BHSK, v_BHSK, layer)
        cache.is_updated[layer] = True
        return cache.cross_attention_cache.update(k_BHSK, v_BHSK, layer)


def eager_attention_forward(
    module: nn.Module,
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    value_bias: Callable[[Tensor], Tensor] | None = None,
    **kwargs: object,
) -> tuple[Tensor, Tensor]:
    """Attention by explicit weights: `eager`, and every back end under a value bias.

    The mask is Boolean (True for keys that may be attended to), additive, or None. None means causal for a causal
    module with several queries. Returns the output (B, Q, H, K) and the weights (B, H, Q, S) after dropout.
    """
    if q_BHQK.shape[2] == 1 and not dropout and not torch.compiler.is_compiling():
        return one_query_attention(q_BHQK, k_BHSK, v_BHSK, attention_mask, scaling, position_bias, value_bias)
    scores_BHQS = (q_BHQK * scaling) @ k_BHSK.transpose(2, 3)
    if position_bias is not None:
        scores_BHQS = scores_BHQS + position_bias
    num_queries, num_keys = scores_BHQS.shape[2:]
    if attention_mask is None and module.is_causal and num_queries > 1:
        attention_mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q_BHQK.device).tril()
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores_BHQS = scores_BHQS.masked_fill(~attention_mask, torch.finfo(scores_BHQS.dtype).min)
    elif attention_mask is not None:
        scores_BHQS = scores_BHQS + attention_mask
    softmax_dtype = torch.promote_types(scores_BHQS.dtype, torch.float32)
    p_BHQS = nn.functional.softmax(scores_BHQS, dim=-1, dtype=softmax_dtype).to(v_BHSK.dtype)
    if dropout:
        p_BHQS = nn.functional.dropout(p_BHQS, p=dropout, training=module.training)
    out_BHQK = p_BHQS @ v_BHSK
    if value_bias is not None:
        out_BHQK = out_BHQK + value_bias(p_BHQS)
    return out_BHQK.transpose(1, 2).contiguous(), p_BHQS


def one_query_attention(
    q_BHQK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    position_bias: Tensor | None,
    value_bias: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """`eager_attention_forward` for one query, as in a decoding step, whose time goes to calls of torch.

    Scaling, product and bias are one call. Batch and heads are one axis N of matrix products.
    """
    batch, heads, num_keys = k_BHSK.shape[:3]
    q_N1K, k_NKS = q_BHQK.flatten(0, 1), k_BHSK.flatten(0, 1).transpose(1, 2)
    bias_N1S = None
    if position_bias is not None:
        if position_bias.shape[:2] != (batch, heads):
            position_bias = position_bias.expand(batch, heads, -1, -1)
        bias_N1S = position_bias.flatten(0, 1)
    if bias_N1S is not None and bias_N1S.dtype == q_BHQK.dtype:
        scores_N1S = torch.baddbmm(bias_N1S, q_N1K, k_NKS, alpha=scaling)
    else:
        scores_N1S = torch.bmm(q_N1K * scaling, k_NKS)
        scores_N1S = scores_N1S if bias_N1S is None else scores_N1S + bias_N1S
    if attention_mask is not None:
        scores_BH1S = scores_N1S.view(batch, heads, 1, num_keys)
        if attention_mask.dtype == torch.bool:
            scores_BH1S = torch.where(attention_mask, scores_BH1S, torch.finfo(scores_BH1S.dtype).min)
        else:
            scores_BH1S = scores_BH1S + attention_mask
        scores_N1S = scores_BH1S.flatten(0, 1)
    # `at_least_float32` of it would be a call of torch.
    softmax_dtype = torch.float32 if scores_N1S.dtype.itemsize < 4 else None
    p_N1S = scores_N1S.softmax(-1, dtype=softmax_dtype).to(v_BHSK.dtype)
    out = torch.bmm(p_N1S, v_BHSK.flatten(0, 1))
    p_BHQS = p_N1S.view(batch, heads, 1, num_keys)
    if value_bias is not None:
        out = out.view(batch, heads, 1, -1) + value_bias(p_BHQS)
    return out.view(batch, 1, heads, -1), p_BHQS


def validate_attn_implementation(
    config: EncodingsConfig, side: StackSpec, positions: PositionEncodingSum, tracks_attention: bool = False
) -> None:
    """Raise a ValueError if the back end that the config names would leave out a bias, or weights that an alignment
    tracks."""
    name = config._attn_implementation or ""
    if tracks_attention and (name.startswith("flex") or "flash" in name):
        raise ValueError(
            f"attn_implementation={name!r} does not return the attention weights, which alignment_type="
            f"{config.alignment_type!r} follows; leave attn_implementation out, or choose sdpa or eager."
        )
    if positions.has_value_bias and name.startswith("flex"):
        needs, instead = "the attention weights, which it does not return", "sdpa or eager"
    elif (positions.has_value_bias or positions.has_score_bias) and "flash" in name:
        needs, instead = "a bias on the attention scores, which it does not take", "sdpa, flex_attention or eager"
    else:
        return
    raise ValueError(
        f"attn_implementation={name!r} cannot compute `{side.encoding}`, which needs {needs}; leave "
        f"attn_implementation out, or choose {instead}."
    )
