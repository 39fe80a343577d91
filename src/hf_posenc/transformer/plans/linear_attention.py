# SPDX-License-Identifier: Apache-2.0
"""Linear-memory attention: exact self-attention on the CPU for encodings whose biases depend on the distance alone.

From its `max_distance` on, the biases of such an encoding are the same for every key. The keys of query i are

    near:    |j - i| < max_distance. A band: blocks of queries against the few keys around each block, by the hooks.
    past:    j <= i - max_distance. A query's score_bias is one number for all of them and its value_bias one vector:
             what is left is causal attention without positions, for which torch has a kernel of linear memory.
    future:  the same, read from the end. Causal attention has no such keys, and a window hides past and future.

Each part p has its output and its log-sum-exp, and together they are the softmax over all keys:

    lse = log(sum_p exp(lse_p)),    output = sum_p exp(lse_p - lse) output_p

The backward pass evaluates a kernel's gradients at the output and lse of the whole, as in ring attention (Liu et al.,
2023, https://arxiv.org/abs/2310.01889), and computes the band again.

Shape letters are those of encodings/base.py; L is the length, N the number of blocks, C the queries of a block, W the
keys that they see.

This function is not in transformers' ALL_ATTENTION_FUNCTIONS. Those are chosen by the config and take bias tensors;
this one is chosen by the input (its length, its holes) and takes hooks, because the biases would fill L x L. Also, that
registry is global: code that travels with a checkpoint would replace the function of the installed package.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from ...encodings.positions import AttentionContext
from ...encodings.sum import PositionEncodingSum

BLOCK_SIZE = 32  # queries of a block, C

# torch's CPU kernels, which take and return the log-sum-exp.
KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
KERNEL_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class SavedWeights(FunctionCtx):
    """The attribute of torch's context of one call, which the backward pass reads."""

    saved_tensors: tuple[Tensor]


class SoftmaxWithLSE(torch.autograd.Function):
    """Softmax and log-sum-exp over the last axis.

    It avoids torch's exp, which takes thirty times as long where it underflows, as for a hidden key; torch's softmax
    does not. The lse is read off the largest score: lse = max(score) - log(max(p)).
    """

    @staticmethod
    def forward(ctx: SavedWeights, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (..., S) and lse (...) of scores (..., S)."""
        p = scores.softmax(-1)
        ctx.save_for_backward(p)
        return p, scores.amax(-1) - p.amax(-1).log()

    @staticmethod
    @once_differentiable
    def backward(ctx: SavedWeights, d_p: Tensor, d_lse: Tensor) -> Tensor:
        """p (d_p - sum(p d_p)) of the softmax, plus p d_lse, because the gradient of lse is p."""
        (p,) = ctx.saved_tensors
        return p * (d_p + (d_lse - (p * d_p).sum(-1))[..., None])


@dataclass(frozen=True)
class FarKeys:
    """All keys from `clip` tokens on to one side, as a causal attention without positions.

    Query i attends to keys up to i - clip: without the first `clip` queries and the last `clip` keys this is a causal
    mask. The future is the same with queries and keys in reverse order.
    """

    clip: int
    is_past: bool

    @property
    def distance(self) -> int:
        """The distance for which the hooks compute the tail's biases; all its keys share them."""
        return -self.clip if self.is_past else self.clip

    def select_qkv(self, q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries that have such keys, and those keys and values (B, H, L - clip, K)."""
        return self.select_queries(q_BHLK), self.select_keys(k_BHLK), self.select_keys(v_BHLK)

    def select_queries(self, x: Tensor) -> Tensor:
        """The queries of (B, H, L, ...) that have such keys, in the order of the causal mask."""
        return x[:, :, self.clip :] if self.is_past else x[:, :, : -self.clip].flip(2)

    def select_keys(self, x: Tensor) -> Tensor:
        """The keys of (B, H, L, ...) that some query sees, in the order of the causal mask."""
        return x[:, :, : -self.clip] if self.is_past else x[:, :, self.clip :].flip(2)

    def restore_queries(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """The inverse of `select_queries` (B, H, L, ...), with `fill` for the other queries."""
        return pad_time(x, self.clip, 0, fill) if self.is_past else pad_time(x.flip(2), 0, self.clip, fill)

    def restore_keys(self, x: Tensor) -> Tensor:
        """The inverse of `select_keys` (B, H, L, ...), with zeros for the other keys."""
        return pad_time(x, 0, self.clip) if self.is_past else pad_time(x.flip(2), self.clip, 0)


def pad_time(x: Tensor, before: int, after: int, value: float = 0.0) -> Tensor:
    """Padding along the third axis."""
    return nn.functional.pad(x, (0, 0) * (x.ndim - 3) + (before, after), value=value)


class BlockwiseAttention:
    """The parts of one attention, each with its own queries and keys.

    Masks are additive and finite (`mask_value`): a row of -inf would make its lse, and then all of it, NaN.
    """

    def __init__(self, positions: PositionEncodingSum, contexts: list[AttentionContext], like_BHLK: Tensor) -> None:
        ctx = contexts[0]  # positions and masks are those of all
        device, self.length, self.scaling = like_BHLK.device, like_BHLK.shape[2], like_BHLK.shape[-1] ** -0.5
        self.positions, self.mask_value = positions, torch.finfo(like_BHLK.dtype).min / 4
        self.autocast_state = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
        clip = min(int(positions.max_distance or 1), self.length)
        sides = [True] if ctx.is_causal else [True, False]
        self.tails = [FarKeys(clip, is_past) for is_past in sides if positions.is_global and clip < self.length]
        self.before, self.after = clip - 1, 0 if ctx.is_causal else clip - 1
        self.num_blocks = -(-self.length // BLOCK_SIZE)
        queries_C = torch.arange(BLOCK_SIZE, device=device)
        keys_W = torch.arange(-self.before, BLOCK_SIZE + self.after, device=device)
        is_key_B1L = (
            like_BHLK.new_ones(1, 1, self.length).bool() if ctx.valid_mask_BT is None else ctx.valid_mask_BT[:, None]
        )
        distance_CW = keys_W - queries_C[:, None]
        is_near_CW = (-clip < distance_CW) & (distance_CW <= self.after)
        is_near_B1NCW = self.windows(is_key_B1L)[..., None, :] & is_near_CW
        self.mask_B1NCW = self.additive_mask(is_near_B1NCW, torch.promote_types(like_BHLK.dtype, torch.float32))
        self.mask_B1L = None if ctx.valid_mask_BT is None else self.additive_mask(is_key_B1L, like_BHLK.dtype)
        # Distances are the same in every block, and so are positions that count from its first query.
        like_B1D = like_BHLK[:, :, :1].transpose(1, 2).flatten(2)

        def contexts_for(queries_Q: Tensor, keys_S: Tensor) -> list[AttentionContext]:
            pos = {"query_pos_BQ": queries_Q[None], "key_pos_BS": keys_S[None]}
            block_contexts = [ctx.replace(valid_mask_BT=None, mask=None, inputs_BTD=None, **pos) for ctx in contexts]
            return positions.prepare_biases(like_B1D, block_contexts)

        self.near_contexts = contexts_for(queries_C.repeat(self.num_blocks), keys_W)
        self.far_contexts = {tail: contexts_for(queries_C[:1], queries_C[:1] + tail.distance) for tail in self.tails}

    def additive_mask(self, is_attendable: Tensor, dtype: torch.dtype) -> Tensor:
        """Zero where a key may be attended to, `mask_value` elsewhere."""
        return torch.zeros_like(is_attendable, dtype=dtype).masked_fill(~is_attendable, self.mask_value)

    def autocast(self) -> AbstractContextManager:
        """The autocast state of the forward pass, in which the backward pass recomputes."""
        enabled, dtype = self.autocast_state
        return torch.autocast("cpu", dtype=dtype, enabled=enabled)

    def blocks(self, x_BHLK: Tensor) -> Tensor:
        """The queries by blocks (B, H, N, C, K), the last block padded."""
        return pad_time(x_BHLK, 0, self.num_blocks * BLOCK_SIZE - self.length).unflatten(2, (-1, BLOCK_SIZE))

    def windows(self, x: Tensor) -> Tensor:
        """The keys around each block, of (B, H, L, ...): (B, H, N, W, ...).

        A window is its own block with the blocks before and after it, cropped to `before` and `after` tokens. Windows
        overlap, so they are concatenated from shifted views of the blocks.
        """
        left, right = -(-self.before // BLOCK_SIZE), -(-self.after // BLOCK_SIZE)
        padded = pad_time(x, left * BLOCK_SIZE, (self.num_blocks + right) * BLOCK_SIZE - self.length).unflatten(
            2, (-1, BLOCK_SIZE)
        )
        shifted = [padded[:, :, first : first + self.num_blocks] for first in range(left + 1 + right)]
        shifted[0] = shifted[0][:, :, :, left * BLOCK_SIZE - self.before :]
        shifted[-1] = shifted[-1][:, :, :, : shifted[-1].shape[3] - (right * BLOCK_SIZE - self.after)]
        return torch.cat(shifted, 3)

    def near_attention(
        self, q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, unrotated_q_BHLK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Output (B, H, L, K) and log-sum-exp (B, H, L) of the band."""
        scores_BHNCW = self.blocks(q_BHLK * self.scaling) @ self.windows(k_BHLK).transpose(3, 4)
        unrotated_BHQK = self.blocks(unrotated_q_BHLK).flatten(2, 3)
        scores_BHNCW = scores_BHNCW + self.bias(unrotated_BHQK, k_BHLK, self.near_contexts).unflatten(
            2, (-1, BLOCK_SIZE)
        )
        p_BHNCW, lse_BHNC = SoftmaxWithLSE.apply(scores_BHNCW + self.mask_B1NCW)
        p_BHNCW = p_BHNCW.to(v_BHLK.dtype)
        out_BHQK = (p_BHNCW @ self.windows(v_BHLK)).flatten(2, 3)
        if self.positions.has_value_bias:
            out_BHQK = out_BHQK + self.positions.value_bias(p_BHNCW.flatten(2, 3), self.near_contexts)
        return out_BHQK[:, :, : self.length], lse_BHNC.flatten(2)[:, :, : self.length]

    def tail_bias(self, tail: FarKeys, unrotated_q_BHLK: Tensor, v_BHLK: Tensor) -> tuple[Tensor, Tensor]:
        """The biases that all keys of a tail share: one score for each query (B, H, L), and values with their bias."""
        bias_BHL = self.bias(unrotated_q_BHLK, v_BHLK, self.far_contexts[tail])[..., 0].expand(
            unrotated_q_BHLK.shape[:3]
        )
        if self.positions.has_value_bias:
            all_weight_BHQ1 = torch.ones_like(v_BHLK[:1, :, :1, :1])
            v_BHLK = v_BHLK + self.positions.value_bias(all_weight_BHQ1, self.far_contexts[tail])
        return bias_BHL, v_BHLK

    def bias(self, q_BHQK: Tensor, k_BHSK: Tensor, contexts: list[AttentionContext]) -> Tensor:
        """The score bias for the positions of `contexts`, zeros if no encoding has one."""
        if not self.positions.has_score_bias:
            return q_BHQK.new_zeros(1, 1, q_BHQK.shape[2], 1)
        return self.positions.score_bias(q_BHQK, k_BHSK, contexts)

    def far_attention(self, tail: FarKeys, qkv: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Output (B, H, L, K) and log-sum-exp (B, H, L) of a tail, without its score bias."""
        out, lse = KERNEL(*tail.select_qkv(*qkv), 0.0, True, attn_mask=self.mask(tail), scale=self.scaling)
        return tail.restore_queries(out), tail.restore_queries(lse, self.mask_value)

    def far_attention_backward(
        self, tail: FarKeys, qkv: tuple[Tensor, ...], d_out_BHLK: Tensor, out_BHLK: Tensor, lse_BHL: Tensor
    ) -> tuple[Tensor, ...]:
        """A tail's share of the gradients of q, k and v, given output and log-sum-exp of the whole."""
        d_out, *whole = (tail.select_queries(x).contiguous() for x in (d_out_BHLK, out_BHLK, lse_BHL))
        inputs = tail.select_qkv(*qkv)
        grads = KERNEL_BACKWARD(d_out, *inputs, *whole, 0.0, True, attn_mask=self.mask(tail), scale=self.scaling)
        return tail.restore_queries(grads[0]), tail.restore_keys(grads[1]), tail.restore_keys(grads[2])

    def mask(self, tail: FarKeys) -> Tensor | None:
        """The additive mask of a tail's padding (B, 1, 1, S), None without padding."""
        return None if self.mask_B1L is None else tail.select_keys(self.mask_B1L)[:, :, None]


def linear_attention_forward(
    attend: Callable,
    qkv: tuple[Tensor, Tensor, Tensor],
    unrotated_q_BHLK: Tensor,
    positions: PositionEncodingSum,
    contexts: list[AttentionContext],
) -> Tensor:
    """The attended values (B, L, H, K) of queries, keys and values (B, H, L, K).

    `unrotated_q_BHLK` are the queries before `rotate_queries`, which the score bias takes. Here no `attend` is needed.
    """
    blockwise = BlockwiseAttention(positions, contexts, qkv[2])
    return LinearAttentionFunction.apply(blockwise, *qkv, unrotated_q_BHLK, *positions.parameters()).transpose(1, 2)


class SavedForBackward(FunctionCtx):
    """The attributes of torch's context of one call, which the backward pass reads."""

    blockwise: BlockwiseAttention
    num_inputs: int
    saved_tensors: tuple[Tensor, ...]


class LinearAttentionFunction(torch.autograd.Function):
    """The merged softmax over all parts, with a backward pass in linear memory.

    It saves as much as torch's kernel saves for one attention, and the output and lse of a second tail.
    """

    @staticmethod
    def forward(ctx: SavedForBackward, blockwise: BlockwiseAttention, *inputs: Tensor) -> Tensor:
        """Output (B, H, L, K). `inputs` are q, k, v, unrotated q, then the encodings' parameters."""
        q_BHLK, k_BHLK, v_BHLK, unrotated_q_BHLK = inputs[:4]
        out_BHLK, lse_BHL = blockwise.near_attention(q_BHLK, k_BHLK, v_BHLK, unrotated_q_BHLK)
        last: tuple[Tensor, ...] = ()
        for tail in blockwise.tails:  # each is merged into the output so far
            bias_BHL, values_BHLK = blockwise.tail_bias(tail, unrotated_q_BHLK, v_BHLK)
            far_BHLK, far_BHL = blockwise.far_attention(tail, (q_BHLK, k_BHLK, values_BHLK))
            last = far_BHLK, far_BHL + bias_BHL
            whole_BHL = torch.logaddexp(lse_BHL, last[1])
            out_BHLK = rescale(out_BHLK, lse_BHL, whole_BHL) + rescale(*last, whole_BHL)
            lse_BHL = whole_BHL
        ctx.blockwise, ctx.num_inputs = blockwise, len(inputs)
        ctx.save_for_backward(*inputs, out_BHLK, lse_BHL, *(last if len(blockwise.tails) > 1 else ()))
        return out_BHLK

    @staticmethod
    @once_differentiable
    def backward(ctx: SavedForBackward, d_out_BHLK: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all inputs, from those of output and lse of each part p:

        d output_p = exp(lse_p - lse) d output
        d lse_p = exp(lse_p - lse) (d output . output_p - d output . output)
        """
        blockwise, inputs = ctx.blockwise, ctx.saved_tensors[: ctx.num_inputs]
        out_BHLK, lse_BHL, *last = ctx.saved_tensors[ctx.num_inputs :]
        # The band and the tails' biases are cheap, and are computed again with a graph; the kernels are not.
        recomputed = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs[:4]]
        q_BHLK, k_BHLK, v_BHLK, unrotated_q_BHLK = recomputed
        with torch.enable_grad(), blockwise.autocast():
            near_part = blockwise.near_attention(q_BHLK, k_BHLK, v_BHLK, unrotated_q_BHLK)
            biases = [blockwise.tail_bias(tail, unrotated_q_BHLK, v_BHLK) for tail in blockwise.tails]
        with torch.no_grad():
            mean_BHL = (d_out_BHLK * out_BHLK).sum(-1)

            def lse_gradient(part_BHLK: Tensor, part_BHL: Tensor) -> Tensor:
                """The gradient of a part's lse: the sum of those of its scores."""
                return (part_BHL - lse_BHL).exp() * ((d_out_BHLK * part_BHLK).sum(-1) - mean_BHL)

            d_lses = [lse_gradient(*part) for part in (near_part, last) if part]
            tensors_and_grads = [(near_part[0], rescale(d_out_BHLK, near_part[1], lse_BHL)), (near_part[1], d_lses[0])]
            # The lse gradients of all parts sum to zero: a softmax does not change when a number is added to all
            # scores. Therefore the first tail's is minus the sum of the others, and its output was not saved.
            d_lses[0] = -torch.stack(d_lses).sum(0)
            for tail, d_lse_BHL, (bias_BHL, values_BHLK) in zip(blockwise.tails, d_lses, biases, strict=False):
                qkv = q_BHLK, k_BHLK, values_BHLK
                # The kernel computes exp(score - lse). The tail's scores lack their bias, so it is taken off the lse.
                d_qkv = blockwise.far_attention_backward(tail, qkv, d_out_BHLK, out_BHLK, lse_BHL - bias_BHL)
                tensors_and_grads += [(bias_BHL, d_lse_BHL.to(bias_BHL.dtype)), *zip(qkv, d_qkv, strict=True)]
        # From the parts' inputs back to q, k, v, unrotated q, and the parameters.
        outputs, d_outputs = zip(
            *((tensor, grad) for tensor, grad in tensors_and_grads if tensor.requires_grad), strict=True
        )
        recomputed += inputs[4:]
        differentiable = [tensor for tensor in recomputed if tensor.requires_grad]
        grads = iter(torch.autograd.grad(outputs, differentiable, d_outputs, allow_unused=True))
        return None, *(next(grads) if tensor.requires_grad else None for tensor in recomputed)


def rescale(part_BHLK: Tensor, part_BHL: Tensor, whole_BHL: Tensor) -> Tensor:
    """A part's output (B, H, L, K) times exp(lse_p - lse), its share of the softmax."""
    return part_BHLK * (part_BHL - whole_BHL).exp()[..., None].to(part_BHLK.dtype)
