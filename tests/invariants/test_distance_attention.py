"""Attention with a bias of the distance alone equals that with the bias materialised, in outputs and gradients."""

import math
from collections.abc import Sequence

import pytest
import torch
from support.decoding import LargestTensor
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from hf_posenc.transformer.plans import distance_attention as module
from hf_posenc.transformer.plans.distance_attention import distance_attention

HEADS, WIDTH = 3, 8
EXACT = {"rtol": 1e-12, "atol": 1e-12}
CAUSAL = pytest.mark.parametrize("is_causal", [True, False])
TRAINED = pytest.mark.parametrize("is_trained", [True, False])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a tiny sentence has several blocks, and a block several tiles.

    These are patched, because callers choose no sizes, and float64 over many blocks would take minutes.
    """
    monkeypatch.setattr(module, "MIN_BLOCK_SIZE", 3)
    monkeypatch.setattr(module, "MAX_BLOCK_SIZE", 5)
    monkeypatch.setattr(module, "TILE_SIZE", 50)


class LargestStorage(TorchDispatchMode):
    """Records the bytes of the largest tensor; a view counts as the tensor that it views."""

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.untyped_storage().nbytes() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.nbytes = max([self.nbytes, *sizes])
        return result


def random_qkv(batch: int, length: int, width: int = WIDTH) -> list[Tensor]:
    """Queries, keys and values (B, H, L, K), laid out as projections give them."""
    shape = (batch, length, HEADS, width)
    return [torch.randn(shape, dtype=torch.float64).transpose(1, 2).requires_grad_() for _ in "qkv"]


def random_bias(kind: str, length: int) -> Tensor:
    """A vector for each head, one for all, one steep enough for weights of zero, or windows that differ by head."""
    bias = torch.randn(1 if kind == "shared" else HEADS, 2 * length - 1, dtype=torch.float64)
    distance = torch.arange(2 * length - 1) - (length - 1)
    if kind == "steep":
        bias = bias - 100 * distance.abs()
    if kind == "window":
        before, after = torch.tensor([0, 2, 4])[:, None], torch.tensor([3, 1, 0])[:, None]
        bias = bias.masked_fill((distance < -before) | (distance > after), -math.inf)
    return bias.requires_grad_()


def ranges_of(padding: str | None, length: int) -> list[tuple[int, int]] | None:
    """The tokens of three sentences: all, one less, half as many."""
    if padding is None:
        return None
    sizes = [length, max(1, length - 1), max(1, length // 2)]
    return [(length - size, length) if padding == "left" else (0, size) for size in sizes]


def tokens_of(ranges: Sequence[tuple[int, int]] | None, batch: int, length: int) -> Tensor:
    """True for tokens, False for padding (B, L)."""
    first_B, end_B = torch.tensor(ranges or [(0, length)] * batch).unbind(1)
    position_L = torch.arange(length)
    return (first_B[:, None] <= position_L) & (position_L < end_B[:, None])


def dense_weights(
    q: Tensor, k: Tensor, bias_HD: Tensor, *, is_causal: bool, tokens_BL: Tensor, scale: float | None = None
) -> Tensor:
    """The weights by the equation, with all scores (B, H, L, L)."""
    length = q.shape[2]
    distance_LL = torch.arange(length) - torch.arange(length)[:, None]
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias_HD[:, distance_LL + length - 1]
    hidden_B1LL = ~(tokens_BL[:, None, :] & tokens_BL[:, :, None])[:, None]
    if is_causal:
        hidden_B1LL = hidden_B1LL | (distance_LL > 0)
    # A query that is padding attends to itself, which its gradient of zero makes irrelevant.
    hidden_B1LL = hidden_B1LL & ~torch.eye(length, dtype=torch.bool)
    return scores.masked_fill(hidden_B1LL, -math.inf).softmax(-1)


@CAUSAL
@TRAINED
@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("kind", ["by head", "shared", "steep", "window"])
def test_output_and_gradients_equal_those_of_a_materialised_bias(kind, padding, is_trained, is_causal):
    for length in (1, 2, 3, 6, 11, 23):
        torch.manual_seed(length)
        qkv, bias, ranges = random_qkv(3, length), random_bias(kind, length), ranges_of(padding, length)
        tokens = tokens_of(ranges, 3, length)
        expected = dense_weights(*qkv[:2], bias, is_causal=is_causal, tokens_BL=tokens) @ qkv[2]
        given_bias = bias if is_trained else bias.detach()
        out = distance_attention(*qkv, given_bias, is_causal=is_causal, key_ranges=ranges)
        torch.testing.assert_close(out.transpose(1, 2)[tokens], expected.transpose(1, 2)[tokens], **EXACT)
        assert not out.transpose(1, 2)[~tokens].any()
        d_out = torch.randn_like(out) * tokens[:, None, :, None]
        arguments = [*qkv, bias] if is_trained else qkv
        grads = torch.autograd.grad(out, arguments, d_out)
        torch.testing.assert_close(grads, torch.autograd.grad(expected, arguments, d_out), **EXACT)


@CAUSAL
@TRAINED
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_padding_has_no_influence_even_where_it_is_nan(dropout, is_trained, is_causal):
    length, ranges = 13, [(0, 9), (4, 13), (0, 0)]  # the last is all padding
    bias = random_bias("by head", length).detach().requires_grad_(is_trained)
    qkv, tokens = random_qkv(3, length), tokens_of(ranges, 3, length)[:, None, :, None]
    d_out = torch.randn(3, HEADS, length, WIDTH, dtype=torch.float64)

    def outputs_and_gradients(qkv: Sequence[Tensor], d_out: Tensor) -> list[Tensor]:
        torch.manual_seed(0)
        qkv = [x.detach().requires_grad_() for x in qkv]
        out = distance_attention(*qkv, bias, is_causal=is_causal, key_ranges=ranges, dropout=dropout)
        return [out, *torch.autograd.grad(out, [*qkv, bias] if is_trained else qkv, d_out)]

    expected = outputs_and_gradients(qkv, d_out * tokens)
    found = outputs_and_gradients([x.masked_fill(~tokens, math.nan) for x in qkv], d_out.masked_fill(~tokens, math.nan))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@CAUSAL
@TRAINED
def test_dropout_scales_or_drops_each_weight_and_the_gradients_follow_the_same_mask(is_trained, is_causal):
    length, dropout, ranges = 12, 0.3, [(0, 12), (3, 12), (0, 7)]
    q, k, v = random_qkv(3, length, width=length)
    bias, tokens = random_bias("by head", length), tokens_of(ranges, 3, length)
    p = dense_weights(q, k, bias, is_causal=is_causal, tokens_BL=tokens)

    def attend(v: Tensor, seed: int = 0) -> Tensor:
        torch.manual_seed(seed)
        given_bias = bias if is_trained else bias.detach()
        return distance_attention(q, k, v, given_bias, is_causal=is_causal, key_ranges=ranges, dropout=dropout)

    unit_vectors = torch.eye(length, dtype=torch.float64).expand_as(v)
    dropped_p = attend(unit_vectors).detach()  # the output of unit vectors is the weights
    is_token = tokens[:, None, :, None]
    is_kept = dropped_p > 0
    torch.testing.assert_close(dropped_p, p.detach() / (1 - dropout) * is_kept, **EXACT)
    visible = (p > 0) & is_token
    assert abs(is_kept[visible].double().mean() - (1 - dropout)) < 0.1
    assert not torch.equal(attend(v), attend(v, seed=1))
    out, expected = attend(v), (p * is_kept / (1 - dropout)) @ v
    torch.testing.assert_close(out, expected, **EXACT)
    d_out = torch.randn_like(out)
    arguments = [q, k, v, bias] if is_trained else [q, k, v]
    grads = torch.autograd.grad(out, arguments, d_out)
    torch.testing.assert_close(grads, torch.autograd.grad(expected, arguments, d_out), **EXACT)


@TRAINED
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_checkpointed_attention_has_the_same_gradients(dropout, is_trained):
    qkv, bias = random_qkv(2, 11), random_bias("by head", 11)
    arguments = [*qkv, bias] if is_trained else qkv

    def attend(*qkv: Tensor) -> Tensor:
        given_bias = bias if is_trained else bias.detach()
        return distance_attention(*qkv, given_bias, is_causal=True, dropout=dropout)

    torch.manual_seed(0)
    expected = torch.autograd.grad(attend(*qkv).sum(), arguments)
    torch.manual_seed(0)
    out = checkpoint(attend, *qkv, use_reentrant=False)
    torch.rand(7)  # The backward pass recomputes from the seed of then, not of now.
    torch.testing.assert_close(torch.autograd.grad(out.sum(), arguments), expected, rtol=0, atol=0)


@CAUSAL
@TRAINED
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_narrow_types_are_near_float64_and_autocast_changes_nothing(dtype, tolerance, dropout, is_trained, is_causal):
    torch.manual_seed(0)
    qkv = [x.detach().to(dtype).requires_grad_() for x in random_qkv(2, 23)]
    bias = random_bias("by head", 23).detach().float().requires_grad_(is_trained)
    d_out = torch.randn(2, HEADS, 23, WIDTH).to(dtype)

    def outputs_and_gradients(*arguments: Tensor) -> list[Tensor]:
        torch.manual_seed(0)
        out = distance_attention(*arguments, is_causal=is_causal, dropout=dropout)
        grads = torch.autograd.grad(out, [x for x in arguments if x.requires_grad], d_out.to(out.dtype))
        return [out, *grads]

    wide = [x.detach().double().requires_grad_(x.requires_grad) for x in (*qkv, bias)]
    found = outputs_and_gradients(*qkv, bias)
    assert [x.dtype for x in found] == [dtype] * 4 + [torch.float32] * is_trained
    if not dropout or dtype == torch.float32:  # a mask of another type is another mask
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(outputs_and_gradients(*qkv, bias), found, rtol=0, atol=0)
    if not dropout:
        expected = [x.to(y.dtype) for x, y in zip(outputs_and_gradients(*wide), found, strict=True)]
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@TRAINED
def test_strides_and_scale_are_free(is_trained):
    qkv = [x.detach().mT.contiguous().mT.requires_grad_() for x in random_qkv(2, 9)]
    bias = random_bias("by head", 9).detach().requires_grad_(is_trained)
    assert all(x.stride(-1) != 1 for x in qkv)
    tokens = tokens_of(None, 2, 9)
    expected = dense_weights(*qkv[:2], bias, is_causal=True, tokens_BL=tokens, scale=0.7) @ qkv[2]
    out = distance_attention(*qkv, bias, is_causal=True, scale=0.7)
    torch.testing.assert_close(out, expected, **EXACT)
    d_out = torch.randn(2, HEADS, WIDTH, 9, dtype=torch.float64).mT
    grads = torch.autograd.grad(out, qkv, d_out)
    torch.testing.assert_close(grads, torch.autograd.grad(expected, qkv, d_out), **EXACT)


@TRAINED
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_nothing_holds_a_number_for_each_query_and_key(dropout, is_trained):
    length = 96
    qkv, bias = random_qkv(1, length, width=1), random_bias("by head", length).detach().requires_grad_(is_trained)
    with LargestStorage() as largest:
        distance_attention(*qkv, bias, is_causal=False, dropout=dropout).sum().backward()
    assert largest.nbytes < 8 * HEADS * length**2 / 4


@TRAINED
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_window_leaves_out_the_keys_outside_of_a_block(dropout, is_trained):
    length, qkv = 96, random_qkv(1, 96, width=1)
    bias = random_bias("window", length).detach().requires_grad_(is_trained)
    with LargestTensor() as largest:
        distance_attention(*qkv, bias, is_causal=False, dropout=dropout).sum().backward()
    assert largest.numel == bias.numel() < HEADS * length * 3


def test_no_graph_is_kept_without_gradients():
    with torch.no_grad():
        assert not distance_attention(*random_qkv(1, 5), random_bias("by head", 5), is_causal=True).requires_grad


def test_a_bias_of_other_distances_or_without_distance_0_is_refused():
    qkv = random_qkv(2, 5)
    for shape in ((HEADS, 5), (2, 9), (9,)):
        with pytest.raises(ValueError, match=r"bias_HD must be \(1 or 3 heads, 9 distances\)"):
            distance_attention(*qkv, torch.zeros(shape), is_causal=True)
    with pytest.raises(ValueError, match="must not hide distance 0"):
        distance_attention(*qkv, torch.full((1, 9), -math.inf), is_causal=True)
