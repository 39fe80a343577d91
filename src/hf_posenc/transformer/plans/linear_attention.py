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
2023, https://arxiv.org/abs/2310.01889), and computes the band again. The parts are computed in
transformer/plans/blockwise_attention.py, which has the shape letters.

This function is not in transformers' ALL_ATTENTION_FUNCTIONS. Those are chosen by the config and take bias tensors;
this one is chosen by the input (its length, its holes) and takes hooks, because the biases would fill L x L. Also, that
registry is global: code that travels with a checkpoint would replace the function of the installed package.
"""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from ...encodings.masks import has_contiguous_positions
from ...encodings.positions import AttentionContext
from ...encodings.sum import PositionEncodingSum
from .blockwise_attention import BlockwiseAttention

MIN_LENGTH = 512  # in tokens; below it, computing all scores at once is faster


def supports_linear_attention(positions: PositionEncodingSum, ctx: AttentionContext) -> bool:
    """True on CPU for long inputs with contiguous positions, if every bias is constant from `max_distance` on."""
    length, clip = ctx.query_pos_BQ.shape[1], positions.max_distance
    if clip is None or length < max(MIN_LENGTH, 4 * clip) or ctx.query_pos_BQ.device.type != "cpu":
        return False
    if not all(
        encoding.preserves_head_dim for encoding in positions.encodings
    ):  # the kernel needs keys as wide as values
        return False
    if torch.compiler.is_compiling() or (isinstance(ctx.mask, Tensor) and ctx.mask.ndim != 2):
        return False
    return has_contiguous_positions(ctx.query_pos_BQ, ctx.valid_mask_BT)


def linear_attention_forward(
    q_BHLK: Tensor,
    k_BHLK: Tensor,
    v_BHLK: Tensor,
    unrotated_q_BHLK: Tensor,
    positions: PositionEncodingSum,
    ctx: AttentionContext,
) -> Tensor:
    """The attended values (B, L, H, K) of queries, keys and values (B, H, L, K).

    `unrotated_q_BHLK` are the queries before `rotate_queries`, which the score bias takes. Call this function only if
    `supports_linear_attention`.
    """
    blockwise = BlockwiseAttention(positions, ctx, v_BHLK)
    return LinearAttentionFunction.apply(
        blockwise, q_BHLK, k_BHLK, v_BHLK, unrotated_q_BHLK, *positions.parameters()
    ).transpose(1, 2)


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
