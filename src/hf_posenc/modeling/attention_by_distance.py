# SPDX-License-Identifier: Apache-2.0
"""Exact self-attention in memory that grows with the length and not with its square, for encodings that go by distance.

From some distance on, its `clip_distance`, such an encoding says the same of every key. So the keys of query i are

    near:    |j - i| < clip_distance. A band: blocks of queries against the few keys around each block, by the hooks.
    past:    j <= i - clip_distance. A query's score_bias is one number for all of them and its value_bias one vector:
             what is left is causal attention without positions, for which torch has a kernel of linear memory.
    future:  the same from the end. Causal attention has none, and a window hides both.

Each part p has its output and its log-sum-exp, and together they are the softmax over all keys:

    lse = log(sum_p exp(lse_p)),    output = sum_p exp(lse_p - lse) output_p

On the way back a kernel's gradients are taken at the output and lse of the whole, as in ring attention (Liu et al.,
2023, https://arxiv.org/abs/2310.01889), and the band is computed again. Shape letters are those of position.py; L is
the length, N the number of blocks, C the queries of a block, W the keys that they see.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .place import Place
from .position import PositionEncodings

BLOCK = 32
SHORT = 512  # below it, all scores at once take less time

KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
KERNEL_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def goes_by_distance(positions: PositionEncodings, at: Place) -> bool:
    """Whether the new tokens can attend to each other so, and are enough for it to be of use: they stand in a row, and
    so do their positions."""
    length, clip = at.queries_BQ.shape[1], positions.clip_distance
    if clip is None or length < max(SHORT, 4 * clip) or at.queries_BQ.device.type != "cpu":
        return False
    if not all(encoding.keeps_width for encoding in positions):  # torch's kernel takes one width for all
        return False
    if torch.compiler.is_compiling() or (isinstance(at.mask, Tensor) and at.mask.ndim != 2):
        return False
    return stands_in_a_row(at.queries_BQ, at.tokens_BT)


def stands_in_a_row(pos_BT: Tensor, tokens_BT: Tensor | None) -> bool:
    """Whether no sentence has a hole, in its mask or in the positions of its tokens."""
    follows = pos_BT.diff() == 1
    if tokens_BT is None:
        return bool(follows.all())
    begins_B = tokens_BT[:, 0] + (tokens_BT[:, 1:] & ~tokens_BT[:, :-1]).sum(1)
    return bool((follows | ~(tokens_BT[:, 1:] & tokens_BT[:, :-1])).all() and (begins_B <= 1).all())


def attend_by_distance(
    q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, plain_q_BHLK: Tensor, positions: PositionEncodings, at: Place
) -> Tensor:
    """The attended values (B, L, H, K). `plain_q` are the queries before rotate_queries."""
    parts = Parts(positions, at, v_BHLK)
    return Merged.apply(parts, q_BHLK, k_BHLK, v_BHLK, plain_q_BHLK, *positions.parameters()).transpose(1, 2)


class Merged(torch.autograd.Function):
    """All parts as one. It keeps what torch's kernel would, and of a second tail the output."""

    @staticmethod
    def forward(ctx: Any, parts: "Parts", *given: Tensor) -> Tensor:
        q_BHLK, k_BHLK, v_BHLK, plain_q_BHLK = given[:4]
        out_BHLK, lse_BHL = parts.near(q_BHLK, k_BHLK, v_BHLK, plain_q_BHLK)
        last: tuple[Tensor, ...] = ()
        for tail in parts.tails:
            bias_BHL, values_BHLK = parts.said_of(tail, plain_q_BHLK, v_BHLK)
            far_BHLK, far_BHL = parts.far(tail, (q_BHLK, k_BHLK, values_BHLK))
            last = far_BHLK, far_BHL + bias_BHL
            whole_BHL = torch.logaddexp(lse_BHL, last[1])
            out_BHLK = share(out_BHLK, lse_BHL, whole_BHL) + share(*last, whole_BHL)
            lse_BHL = whole_BHL
        ctx.parts, ctx.num_given = parts, len(given)
        ctx.save_for_backward(*given, out_BHLK, lse_BHL, *(last if len(parts.tails) > 1 else ()))
        return out_BHLK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_BHLK: Tensor) -> tuple[Tensor | None, ...]:
        parts, given = ctx.parts, ctx.saved_tensors[: ctx.num_given]
        out_BHLK, lse_BHL, *last = ctx.saved_tensors[ctx.num_given :]
        again = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in given[:4]]
        q_BHLK, k_BHLK, v_BHLK, plain_q_BHLK = again
        with torch.enable_grad(), parts.autocast():
            near = parts.near(q_BHLK, k_BHLK, v_BHLK, plain_q_BHLK)
            said = [parts.said_of(tail, plain_q_BHLK, v_BHLK) for tail in parts.tails]
        with torch.no_grad():
            mean_BHL = (d_out_BHLK * out_BHLK).sum(-1)

            def of_lse(part_BHLK: Tensor, part_BHL: Tensor) -> Tensor:
                """The gradient of a part's lse: the sum of those of its scores."""
                return (part_BHL - lse_BHL).exp() * ((d_out_BHLK * part_BHLK).sum(-1) - mean_BHL)

            slopes = [of_lse(*part) for part in (near, last) if part]
            made = [(near[0], share(d_out_BHLK, near[1], lse_BHL)), (near[1], slopes[0])]
            slopes[0] = -torch.stack(slopes).sum(0)  # the gradients of all scores together are nothing
            for tail, slope_BHL, (bias_BHL, values_BHLK) in zip(parts.tails, slopes, said, strict=False):
                qkv = q_BHLK, k_BHLK, values_BHLK
                d_qkv = parts.far_backward(tail, qkv, d_out_BHLK, out_BHLK, lse_BHL - bias_BHL)
                made += [(bias_BHL, slope_BHL.to(bias_BHL.dtype)), *zip(qkv, d_qkv, strict=True)]
        outputs, d_outputs = zip(*((one, d_one) for one, d_one in made if one.requires_grad), strict=True)
        again += given[4:]
        wanted = [tensor for tensor in again if tensor.requires_grad]
        found = iter(torch.autograd.grad(outputs, wanted, d_outputs, allow_unused=True))
        return None, *(next(found) if tensor.requires_grad else None for tensor in again)


class WeightsAndSum(torch.autograd.Function):
    """Softmax and log-sum-exp over the last axis, without torch's exp, which takes thirty times as long where it
    underflows, as a hidden key's weight does; its softmax does not."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> tuple[Tensor, Tensor]:
        p = scores.softmax(-1)
        ctx.save_for_backward(p)
        return p, scores.amax(-1) - p.amax(-1).log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_p: Tensor, d_lse: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        return p * (d_p + (d_lse - (p * d_p).sum(-1))[..., None])


def share(part_BHLK: Tensor, part_BHL: Tensor, whole_BHL: Tensor) -> Tensor:
    """A part's share of the whole."""
    return part_BHLK * (part_BHL - whole_BHL).exp()[..., None].to(part_BHLK.dtype)


@dataclass(frozen=True)
class Tail:
    """All keys from `clip` tokens on to one side, as a causal attention: which queries have any, and the keys, one
    more for each next query. The future is read from the end."""

    clip: int
    is_past: bool

    @property
    def distance(self) -> int:
        return -self.clip if self.is_past else self.clip

    def queries_and_keys(self, q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.queries(q_BHLK), self.keys(k_BHLK), self.keys(v_BHLK)

    def queries(self, x: Tensor) -> Tensor:
        return x[:, :, self.clip :] if self.is_past else x[:, :, : -self.clip].flip(2)

    def keys(self, x: Tensor) -> Tensor:
        return x[:, :, : -self.clip] if self.is_past else x[:, :, self.clip :].flip(2)

    def all_queries(self, x: Tensor, missing: float = 0.0) -> Tensor:
        """What `queries` took, in its place among all."""
        return longer(x, self.clip, 0, missing) if self.is_past else longer(x.flip(2), 0, self.clip, missing)

    def all_keys(self, x: Tensor) -> Tensor:
        return longer(x, 0, self.clip) if self.is_past else longer(x.flip(2), self.clip, 0)


def longer(x: Tensor, before: int, behind: int, value: float = 0.0) -> Tensor:
    """With so many more along the third axis."""
    return nn.functional.pad(x, (0, 0) * (x.ndim - 3) + (before, behind), value=value)


class Parts:
    """The parts of one attention, each with its own queries and keys."""

    def __init__(self, positions: PositionEncodings, at: Place, like_BHLK: Tensor) -> None:
        device, self.length, self.scaling = like_BHLK.device, like_BHLK.shape[2], like_BHLK.shape[-1] ** -0.5
        self.positions, self.lowest = positions, torch.finfo(like_BHLK.dtype).min / 4
        self.autocasting = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
        clip = min(int(positions.clip_distance or 1), self.length)
        sides = [True] if at.is_causal else [True, False]
        self.tails = [Tail(clip, is_past) for is_past in sides if positions.sees_far and clip < self.length]
        self.before, self.behind = clip - 1, 0 if at.is_causal else clip - 1
        self.num_blocks = -(-self.length // BLOCK)
        queries_C = torch.arange(BLOCK, device=device)
        keys_W = torch.arange(-self.before, BLOCK + self.behind, device=device)
        is_key_B1L = like_BHLK.new_ones(1, 1, self.length).bool() if at.tokens_BT is None else at.tokens_BT[:, None]
        apart_CW = keys_W - queries_C[:, None]
        is_near_CW = (-clip < apart_CW) & (apart_CW <= self.behind)
        is_near_B1NCW = self.windows(is_key_B1L)[..., None, :] & is_near_CW
        self.mask_B1NCW = self.hiding(is_near_B1NCW, torch.promote_types(like_BHLK.dtype, torch.float32))
        self.mask_B1L = None if at.tokens_BT is None else self.hiding(is_key_B1L, like_BHLK.dtype)
        # Distances are the same in every block, and so are positions that count from its first query.
        at = at.but(tokens_BT=None, mask=None, inputs_BTD=None, by_distance=False)

        like_B1D = like_BHLK[:, :, :1].transpose(1, 2).flatten(2)

        def place(queries_Q: Tensor, keys_S: Tensor) -> Place:
            here = at.but(queries_BQ=queries_Q[None], keys_BS=keys_S[None])
            asked = [e.prepare is not None and e.clip_distance is not None for e in positions]
            made = [e("prepare", like_B1D, here) if ask else None for e, ask in zip(positions, asked, strict=True)]
            return here.but(prepared=made)

        self.at_near = place(queries_C.repeat(self.num_blocks), keys_W)
        self.at_far = {tail: place(queries_C[:1], queries_C[:1] + tail.distance) for tail in self.tails}

    def hiding(self, is_seen: Tensor, dtype: torch.dtype) -> Tensor:
        """What is added to scores."""
        return torch.zeros_like(is_seen, dtype=dtype).masked_fill(~is_seen, self.lowest)

    def autocast(self) -> AbstractContextManager:
        """The precision in which the forward was computed."""
        enabled, dtype = self.autocasting
        return torch.autocast("cpu", dtype=dtype, enabled=enabled)

    def blocks(self, x_BHLK: Tensor) -> Tensor:
        """The queries of each block (B, H, N, C, K)."""
        return longer(x_BHLK, 0, self.num_blocks * BLOCK - self.length).unflatten(2, (-1, BLOCK))

    def windows(self, x: Tensor) -> Tensor:
        """What the queries of each block may see of (B, H, L, ...): (B, H, N, W, ...)."""
        left, right = -(-self.before // BLOCK), -(-self.behind // BLOCK)
        whole = longer(x, left * BLOCK, (self.num_blocks + right) * BLOCK - self.length).unflatten(2, (-1, BLOCK))
        seen = [whole[:, :, first : first + self.num_blocks] for first in range(left + 1 + right)]
        seen[0] = seen[0][:, :, :, left * BLOCK - self.before :]
        seen[-1] = seen[-1][:, :, :, : seen[-1].shape[3] - (right * BLOCK - self.behind)]
        return torch.cat(seen, 3)

    def near(self, q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, plain_q_BHLK: Tensor) -> tuple[Tensor, Tensor]:
        """Output (B, H, L, K) and log-sum-exp (B, H, L) of the band."""
        scores_BHNCW = self.blocks(q_BHLK * self.scaling) @ self.windows(k_BHLK).transpose(3, 4)
        asked_BHQK = self.blocks(plain_q_BHLK).flatten(2, 3)
        scores_BHNCW = scores_BHNCW + self.bias(asked_BHQK, k_BHLK, self.at_near).unflatten(2, (-1, BLOCK))
        p_BHNCW, lse_BHNC = WeightsAndSum.apply(scores_BHNCW + self.mask_B1NCW)
        p_BHNCW = p_BHNCW.to(v_BHLK.dtype)
        out_BHQK = (p_BHNCW @ self.windows(v_BHLK)).flatten(2, 3)
        if self.positions.values:
            out_BHQK = out_BHQK + self.positions.value_bias(p_BHNCW.flatten(2, 3), self.at_near)
        return out_BHQK[:, :, : self.length], lse_BHNC.flatten(2)[:, :, : self.length]

    def said_of(self, tail: Tail, plain_q_BHLK: Tensor, v_BHLK: Tensor) -> tuple[Tensor, Tensor]:
        """What all keys of a tail have in common: a number for each query (B, H, L), and in their values a vector."""
        bias_BHL = self.bias(plain_q_BHLK, v_BHLK, self.at_far[tail])[..., 0].expand(plain_q_BHLK.shape[:3])
        if self.positions.values:
            all_weight_BHQ1 = torch.ones_like(v_BHLK[:1, :, :1, :1])
            v_BHLK = v_BHLK + self.positions.value_bias(all_weight_BHQ1, self.at_far[tail])
        return bias_BHL, v_BHLK

    def bias(self, q_BHQK: Tensor, k_BHSK: Tensor, at: Place) -> Tensor:
        if not self.positions.scores:
            return q_BHQK.new_zeros(1, 1, q_BHQK.shape[2], 1)
        return self.positions.score_bias(q_BHQK, k_BHSK, at)

    def far(self, tail: Tail, qkv: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of a tail, but for its bias."""
        out, lse = KERNEL(*tail.queries_and_keys(*qkv), 0.0, True, attn_mask=self.mask(tail), scale=self.scaling)
        return tail.all_queries(out), tail.all_queries(lse, self.lowest)

    def far_backward(
        self, tail: Tail, qkv: tuple[Tensor, ...], d_out_BHLK: Tensor, out_BHLK: Tensor, lse_BHL: Tensor
    ) -> tuple[Tensor, ...]:
        """What q, k and v have of their gradients from a tail, given output and log-sum-exp of the whole."""
        d_out, *whole = (tail.queries(x).contiguous() for x in (d_out_BHLK, out_BHLK, lse_BHL))
        given = tail.queries_and_keys(*qkv)
        made = KERNEL_BACKWARD(d_out, *given, *whole, 0.0, True, attn_mask=self.mask(tail), scale=self.scaling)
        return tail.all_queries(made[0]), tail.all_keys(made[1]), tail.all_keys(made[2])

    def mask(self, tail: Tail) -> Tensor | None:
        """What is added to the scores of padding (B, 1, 1, S)."""
        return None if self.mask_B1L is None else tail.keys(self.mask_B1L)[:, :, None]
