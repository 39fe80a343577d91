# SPDX-License-Identifier: Apache-2.0
"""Self-attention on the CPU with a bias of the distance alone: one vector for each head, no Q x S tensor.

    output_i = sum_j p_ij v_j,    p_i = softmax_j(scale q_i . k_j + bias[h, j - i])

The bias of a head is a Toeplitz matrix: one number on each diagonal. With the keys in reverse order it becomes a Hankel
matrix, whose rows are windows of a vector, each one step further than the row above. `Tensor.unfold` makes such rows as
a view, without a copy, and torch's kernel takes the view as its mask. Distances 3 ... -3 of four queries and keys:

    vector      3  2  1  0 -1 -2 -3
    query 0     3  2  1  0
    query 1        2  1  0 -1              columns are keys 3, 2, 1, 0
    query 2           1  0 -1 -2
    query 3              0 -1 -2 -3

A bias of -inf hides a distance, as causal attention hides the future and a window hides the rest. Queries go through in
blocks, and a block leaves out the keys that none of its queries sees. Therefore a window w takes time O(L w).

For a fixed vector the backward pass is torch's kernel, too. A trained vector needs the gradients of the scores, which
the kernel does not return. Therefore that backward pass computes the weights again, a tile at a time. So do both passes
with dropout, which the kernel does not have.

Shape letters are those of encodings/base.py. L is the length and D = 2 L - 1 the number of distances, W the keys of a
tile and C its queries.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

MIN_BLOCK_SIZE, MAX_BLOCK_SIZE = 64, 256  # queries of a block; a small one leaves out more keys, a large one is faster
TILE_SIZE = 2**17  # scores of a tile that is computed explicitly; it should stay in the cache of a core

# torch's CPU kernels. Queries, keys, values and output need a last stride of 1, which they do not check.
KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
KERNEL_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

KeyRanges = Sequence[tuple[int, int]]


def distance_attention(
    q_BHLK: Tensor,
    k_BHLK: Tensor,
    v_BHLK: Tensor,
    bias_HD: Tensor,
    *,
    is_causal: bool,
    key_ranges: KeyRanges | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """The attended values (B, H, L, K) of queries, keys and values at positions 0 ... L - 1.

    `bias_HD`: the score bias of each head at distances (key minus query) -(L - 1) ... L - 1, D = 2 L - 1 numbers; one
    row may serve all heads. Distance 0 must be visible. The bias may be float32 where the queries are bfloat16.
    `key_ranges`: the first token of each sentence and the one after its last; the others are padding, on any side.
    Padding is neither attended to nor computed: its output is zero. None without padding.
    `dropout`: the probability of dropping a weight; torch's seed decides which ones.
    `scale`: what the products q . k are multiplied by, 1 / sqrt(K) by default.

    Gradients are computed for q, k, v, and for the bias if it requires them; there are no second derivatives. Raises a
    ValueError if the bias does not have these distances or hides distance 0.
    """
    batch, heads, length, width = q_BHLK.shape
    validate_bias(bias_HD, heads, length)
    ranges = [(0, length)] * batch if key_ranges is None else key_ranges
    bias_HD = bias_HD.to(torch.promote_types(q_BHLK.dtype, torch.float32)).expand(heads, -1)
    if is_causal:
        bias_HD = nn.functional.pad(bias_HD[:, :length], (0, length - 1), value=-math.inf)
    visible = (bias_HD > -math.inf).any(0).nonzero()[[0, -1], 0] - (length - 1)
    seed = int(torch.randint(2**63 - 1, ())) if dropout else None
    first, last = visible.tolist()
    tiling = Tiling(ranges, heads, length, first, last, width**-0.5 if scale is None else scale, dropout, seed)
    q_BHLK, k_BHLK, v_BHLK = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHLK, k_BHLK, v_BHLK))
    return DistanceAttentionFunction.apply(tiling, bias_HD.flip(1), q_BHLK, k_BHLK.flip(2), v_BHLK.flip(2))


def validate_bias(bias_HD: Tensor, heads: int, length: int) -> None:
    """Raise a ValueError unless the bias has a number for each distance, and each query has a key: itself."""
    if bias_HD.ndim != 2 or bias_HD.shape[0] not in (1, heads) or bias_HD.shape[1] != 2 * length - 1:
        raise ValueError(
            f"bias_HD must be (1 or {heads} heads, {2 * length - 1} distances) for {length} queries, but it is "
            f"{tuple(bias_HD.shape)}; give one number for each distance from -{length - 1} to {length - 1}."
        )
    if bool(bias_HD[:, length - 1].isneginf().any()):
        raise ValueError("bias_HD must not hide distance 0, but it is -inf there; let every query attend to itself.")


class Tile(NamedTuple):
    """Some queries of one sentence, the keys that they see, and the heads in which they do, as indices.

    `queries` selects (H, C, ...) of a tensor (B, H, L, ...), and `keys` (H, W, ...) of a tensor in reverse order.
    """

    queries: tuple[int, slice, slice]
    keys: tuple[int, slice, slice]

    def select(self, q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The tile's queries (H, C, K), keys and values (H, W, K)."""
        return q_BHLK[self.queries], k_BHLK[self.keys], v_BHLK[self.keys]

    def add(self, d_qkv: Sequence[Tensor], tile_d_qkv: Sequence[Tensor]) -> None:
        """Add the tile's gradients to those of all queries, keys and values."""
        for whole, part in zip(self.select(*d_qkv), tile_d_qkv, strict=True):
            whole += part

    @property
    def distances(self) -> tuple[slice, slice]:
        """Selects the tile's C + W - 1 distances of the reversed vectors (H, D)."""
        _, heads, queries = self.queries
        keys = self.keys[2]
        return heads, slice(queries.start + keys.start, queries.stop + keys.stop - 1)

    def bias(self, reversed_HD: Tensor) -> Tensor:
        """The bias of each query and key (H, C, W): a view, whose row c starts at number c of the vector."""
        keys = self.keys[2]
        return reversed_HD[self.distances].unfold(1, keys.stop - keys.start, 1)


@dataclass(frozen=True)
class Tiling:
    """What both passes share: the sentences, the visible distances `first` ... `last`, dropout and its seed."""

    ranges: KeyRanges
    num_heads: int
    length: int
    first: int
    last: int
    scale: float
    dropout: float
    seed: int | None  # None without dropout

    def blocks(self) -> Iterator[Tile]:
        """Tiles of all heads for torch's kernel: blocks of queries, or whole sentences if no distance is hidden."""
        hides_nothing = self.last - self.first == 2 * (self.length - 1)
        return self.split_queries(self.length if hides_nothing else self.block_size)

    def tiles(self) -> Iterator[Tile]:
        """Tiles of about TILE_SIZE scores, computed explicitly: blocks of queries and some of the heads."""
        for (sentence, _, queries), (_, _, keys) in self.split_queries(self.block_size):
            step = max(1, TILE_SIZE // ((queries.stop - queries.start) * (keys.stop - keys.start)))
            for head in range(0, self.num_heads, step):
                heads = slice(head, head + step)
                yield Tile((sentence, heads, queries), (sentence, heads, keys))

    @property
    def block_size(self) -> int:
        """A quarter of the visible distances, within bounds: a block's keys are few more than those of a query."""
        return min(MAX_BLOCK_SIZE, max(MIN_BLOCK_SIZE, (self.last - self.first + 1) // 4))

    def split_queries(self, size: int) -> Iterator[Tile]:
        """Blocks of `size` queries, with the keys that any of them sees, sentence by sentence."""
        for sentence, (start, end) in enumerate(self.ranges):
            for query in range(start, end, size):
                stop = min(end, query + size)
                first_key, end_key = max(start, query + self.first), min(end, stop + self.last)
                reversed_keys = slice(self.length - end_key, self.length - first_key)
                yield Tile((sentence, slice(None), slice(query, stop)), (sentence, slice(None), reversed_keys))

    def generator(self) -> torch.Generator | None:
        """The source of the dropout masks, the same in both passes; None without dropout."""
        return None if self.seed is None else torch.Generator().manual_seed(self.seed)

    def draw_mask(self, p_HCW: Tensor, generator: torch.Generator) -> Tensor:
        """By what dropout multiplies each weight: 0 or 1 / (1 - dropout)."""
        kept = 1 - self.dropout
        return torch.empty_like(p_HCW).bernoulli_(kept, generator=generator).div_(kept)


class SavedForBackward(FunctionCtx):
    """The attributes of torch's context of one call, which the backward pass reads."""

    tiling: Tiling
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]


class DistanceAttentionFunction(torch.autograd.Function):
    """Attention tile by tile. Keys, values and bias are in reverse order; what is in no tile is zero."""

    @staticmethod
    def forward(ctx: SavedForBackward, tiling: Tiling, bias_HD: Tensor, *qkv: Tensor) -> Tensor:
        """Output (B, H, L, K) of queries, keys and values (B, H, L, K)."""
        batch, heads, length, width = qkv[0].shape
        out_BHLK = qkv[0].new_zeros(batch, length, heads, width).transpose(1, 2)  # the layout that joining heads needs
        lse_BHL = bias_HD.new_zeros(batch, heads, length)
        generator = tiling.generator()
        if generator is None:
            for tile in tiling.blocks():
                tile_qkv = (x[None] for x in tile.select(*qkv))
                out, lse = KERNEL(*tile_qkv, 0.0, False, attn_mask=tile.bias(bias_HD)[None], scale=tiling.scale)
                out_BHLK[tile.queries], lse_BHL[tile.queries] = out[0], lse[0]
        else:
            explicit_forward(tiling, generator, bias_HD, qkv, out_BHLK)
        ctx.tiling = tiling
        is_explicit = generator is not None or ctx.needs_input_grad[1]
        ctx.save_for_backward(bias_HD, *qkv, *(() if is_explicit else (out_BHLK, lse_BHL)))
        return out_BHLK

    @staticmethod
    @once_differentiable
    def backward(ctx: SavedForBackward, d_out_BHLK: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the bias, queries, keys and values, summed over tiles in float32 or wider."""
        bias_HD, *saved = ctx.saved_tensors  # read once: under checkpointing a second access would fail
        qkv, out_and_lse = saved[:3], saved[3:]
        d_qkv = [torch.zeros_like(x, dtype=bias_HD.dtype) for x in qkv]
        d_bias_HD = torch.zeros_like(bias_HD) if ctx.needs_input_grad[1] else None
        if out_and_lse:
            for tile in ctx.tiling.blocks():
                d_out, out, lse = (x[tile.queries][None] for x in (d_out_BHLK, *out_and_lse))
                tile_qkv = (x[None] for x in tile.select(*qkv))
                options = {"attn_mask": tile.bias(bias_HD)[None], "scale": ctx.tiling.scale}
                grads = KERNEL_BACKWARD(d_out, *tile_qkv, out, lse, 0.0, False, **options)
                tile.add(d_qkv, [grad[0] for grad in grads])
        else:
            explicit_backward(ctx.tiling, bias_HD, qkv, d_out_BHLK, d_qkv, d_bias_HD)
        return None, d_bias_HD, *(grad.to(x.dtype) for grad, x in zip(d_qkv, qkv, strict=True))


def tile_weights(tile: Tile, scale: float, q_HCK: Tensor, k_HWK: Tensor, bias_HD: Tensor) -> Tensor:
    """The weights of a tile before dropout (H, C, W).

    A tile has all keys of its queries, so this is a softmax. exp(score - lse) with torch's exp takes up to thirty times
    as long where it underflows, as for remote keys.
    """
    return torch.baddbmm(tile.bias(bias_HD), q_HCK, k_HWK.mT, alpha=scale).softmax(-1)


@torch.autocast("cpu", enabled=False)
def explicit_forward(
    tiling: Tiling, generator: torch.Generator, bias_HD: Tensor, qkv: Sequence[Tensor], out_BHLK: Tensor
) -> None:
    """Writes the output with dropout to `out_BHLK`."""
    for tile in tiling.tiles():
        q_HCK, k_HWK, v_HWK = (x.to(bias_HD.dtype) for x in tile.select(*qkv))
        p_HCW = tile_weights(tile, tiling.scale, q_HCK, k_HWK, bias_HD)
        out_BHLK[tile.queries] = (p_HCW * tiling.draw_mask(p_HCW, generator)) @ v_HWK


@torch.autocast("cpu", enabled=False)
def explicit_backward(
    tiling: Tiling,
    bias_HD: Tensor,
    qkv: Sequence[Tensor],
    d_out_BHLK: Tensor,
    d_qkv: Sequence[Tensor],
    d_bias_HD: Tensor | None,
) -> None:
    """Adds the gradients to `d_qkv` and `d_bias_HD`:

        d v = (m p)^T d output,    d p = m (d output v^T),    d score = p (d p - sum(p d p)),
        d q = scale d score k,    d k = scale d score^T q,    d bias = sums of d score over its antidiagonals

    m is the mask of dropout.
    """
    generator = tiling.generator()
    for tile in tiling.tiles():
        q_HCK, k_HWK, v_HWK = (x.to(bias_HD.dtype) for x in tile.select(*qkv))
        d_out_HCK = d_out_BHLK[tile.queries].to(bias_HD.dtype)
        p_HCW = tile_weights(tile, tiling.scale, q_HCK, k_HWK, bias_HD)
        dropped_p_HCW, d_p_HCW = p_HCW, d_out_HCK @ v_HWK.mT
        if generator is not None:
            mask_HCW = tiling.draw_mask(p_HCW, generator)
            dropped_p_HCW, d_p_HCW = p_HCW * mask_HCW, d_p_HCW * mask_HCW
        d_score_HCW = torch._softmax_backward_data(d_p_HCW, p_HCW, -1, p_HCW.dtype)
        d_q_HCK, d_k_HWK = d_score_HCW @ k_HWK * tiling.scale, d_score_HCW.mT @ q_HCK * tiling.scale
        tile.add(d_qkv, (d_q_HCK, d_k_HWK, dropped_p_HCW.mT @ d_out_HCK))
        if d_bias_HD is not None:
            d_bias_HD[tile.distances] += sum_antidiagonals(d_score_HCW)


def sum_antidiagonals(x_HCW: Tensor) -> Tensor:
    """The sums over each c + w (H, C + W - 1), the adjoint of `Tile.bias`.

    Rows are padded to C + W numbers and read as rows of one less. Thereby row c moves c places to the right, and an
    antidiagonal becomes a column. This is how Music Transformer skews its scores (Huang et al., 2018,
    https://arxiv.org/abs/1809.04281).
    """
    num_rows = x_HCW.shape[1]
    return nn.functional.pad(x_HCW, (0, num_rows)).flatten(1)[:, :-num_rows].unflatten(1, (num_rows, -1)).sum(1)
