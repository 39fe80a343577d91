"""Blocked attention equals attention with the full score matrix, in outputs and gradients, in linear memory; it is
used exactly when nothing needs the full matrix."""

from collections.abc import Iterator

import pytest
import torch
from support.models import REGISTERED, gradients_after_a_step, padded, sentences, tiny_config, tiny_model
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from hf_posenc import AttentionContext, PositionEncoding, register_position_encoding
from hf_posenc.encodings import relative_shift
from hf_posenc.encodings.registry import build_position_encodings
from hf_posenc.encodings.relative_shift import clip_distances, extend_distances, select_distances, select_keys
from hf_posenc.encodings.sum import PositionEncodingSum
from hf_posenc.transformer import stack
from hf_posenc.transformer.plans import blocked_attention, selection

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SUMS = ["transformer_xl+relative", "deberta+t5", "fire+window", "rotary+relative_key", "cope+log_n", "gru+deberta"]


def takes_blocks(name: str, side: str) -> bool:
    """Whether an encoding has a bias that needs no state."""
    config = tiny_config(name)
    positions = build_position_encodings(config, config.side(side))
    biases = [positions.encodings[index] for index in positions.bias_indices]
    return bool(biases) and not any(encoding.is_stateful for encoding in biases)


BLOCKED = [name for name in [*REGISTERED, *SUMS] if takes_blocks(name, "encoder")]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every length is long, even a tiny sentence has several blocks, and linear attention takes none of them."""
    monkeypatch.setattr(selection, "MIN_LENGTHS", {"distance": 10**6, "linear": 10**6, "blocked": 0})
    monkeypatch.setattr(relative_shift, "BLOCK_SIZE", 4)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """On which sides a forward attends by blocks."""
    sides: list[str] = []

    def watched(positions: PositionEncodingSum, x: Tensor, ctx: AttentionContext, dropout: float) -> object:
        plan = selection.choose_plan(positions, x, ctx, dropout)
        sides.extend(["decoder" if ctx.is_causal else "encoder"] * (getattr(plan, "name", None) == "blocked"))
        return plan

    monkeypatch.setattr(stack, "choose_plan", watched)
    return sides


def batch_of(lengths: list[int], padding: str | None) -> dict[str, Tensor]:
    ids, mask = padded([sentences(1, length, seed=length)[0] for length in lengths], padding or "right")
    masks = {} if padding is None else {"attention_mask": mask, "decoder_attention_mask": mask}
    return {"input_ids": ids, "decoder_input_ids": ids, "labels": ids.masked_fill(mask == 0, -100), **masks}


@pytest.mark.full
@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", BLOCKED)
def test_blocks_give_the_outputs_and_gradients_of_the_full_score_matrix(name, padding, taken, monkeypatch):
    """Lengths of one block, of whole blocks, of a last block of one query."""
    for lengths in ([1, 1], [4, 3], [8, 5], [13, 2]):
        batch = batch_of(lengths if padding else [max(lengths)] * 2, padding)
        results = []
        for min_length in (0, 10**6):
            monkeypatch.setitem(selection.MIN_LENGTHS, "blocked", min_length)
            model, taken[:] = tiny_model(name), []
            logits = model(**batch, use_cache=False).logits
            assert taken == (["encoder", "decoder"] if min_length == 0 else [])
            results.append((logits[batch["labels"] != -100], gradients_after_a_step(model, **batch)))
        torch.testing.assert_close(results[0][0], results[1][0], **EXACT)
        torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-8, atol=1e-9)


def loss_and_gradients(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(3)
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", ["relative", "transformer_xl", "deberta", "fire", "cope"])
def test_dropout_is_the_same_when_a_block_is_computed_again(name, taken, monkeypatch):
    """The gradients are those of a forward that keeps all blocks."""
    model, batch = tiny_model(name, attention_dropout=0.4).train(), batch_of([11, 11], None)
    computed_again = loss_and_gradients(model, batch)
    assert taken == ["encoder", "decoder"]
    monkeypatch.setattr(blocked_attention, "checkpoint", lambda function, *block, use_reentrant: function(*block))
    torch.testing.assert_close(computed_again, loss_and_gradients(model, batch), **EXACT)


@pytest.mark.parametrize("name", ["relative", "transformer_xl", "deberta"])
def test_gradient_checkpointing_of_layers_changes_nothing(name):
    model, batch = tiny_model(name).train(), batch_of([11, 7], "left")
    plain = loss_and_gradients(model, batch)
    (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    torch.testing.assert_close(plain, loss_and_gradients(model, batch), **EXACT)


@pytest.mark.full
@pytest.mark.parametrize("name", BLOCKED)
def test_autocast_is_the_same_when_a_block_is_computed_again(name):
    model, batch = tiny_model(name, dtype=torch.float32), batch_of([11, 7], "right")
    exact, exact_gradients = loss_and_gradients(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).loss
    model.zero_grad()
    loss.backward()  # outside of autocast, as usual
    torch.testing.assert_close(loss.detach(), exact, rtol=0.05, atol=0.05)
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    expected = torch.cat([gradient.flatten() for gradient in exact_gradients.values()])
    assert torch.cosine_similarity(gradients, expected, dim=0) > 0.98


def saved_numbers(name: str, length: int) -> int:
    """How many numbers a forward saves for its backward pass, without the logits."""
    model, ids = tiny_model(name).model, sentences(1, length)
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model.encoder(ids)
        kept = sum(sizes.values())
    return kept


@pytest.mark.full
@pytest.mark.parametrize("name", BLOCKED)
def test_memory_grows_linearly(name, monkeypatch):
    monkeypatch.setattr(relative_shift, "BLOCK_SIZE", 64)
    assert saved_numbers(name, 1024) < 2.2 * saved_numbers(name, 512)
    monkeypatch.setitem(selection.MIN_LENGTHS, "blocked", 10**6)
    if name not in ("alibi", "alibi_symmetric"):  # all layers share one bias without a gradient
        assert saved_numbers(name, 1024) > 2.2 * saved_numbers(name, 512)


HOLE = torch.tensor([[1] * 3 + [0] + [1] * 8])
NEEDS_ALL_SCORES = {
    "weights that are asked for": {"output_attentions": True},
    "a hole in the mask": {"attention_mask": HOLE, "decoder_attention_mask": HOLE},
    "a gap in the positions": {
        "position_ids": 2 * torch.arange(12)[None],
        "decoder_position_ids": 2 * torch.arange(12)[None],
    },
    "a mask of its own for each query": {
        "attention_mask": torch.ones(1, 1, 12, 12, dtype=torch.bool).triu(),
        "decoder_attention_mask": torch.ones(1, 1, 12, 12, dtype=torch.bool).tril(),
    },
}


@pytest.mark.parametrize("inputs", NEEDS_ALL_SCORES.values(), ids=NEEDS_ALL_SCORES)
def test_all_scores_are_computed_at_once_when_needed(inputs, taken):
    model, ids = tiny_model("transformer_xl"), sentences(1, 12)
    model(ids, decoder_input_ids=ids, use_cache=False, **inputs)
    assert taken == []


def test_blocks_are_off_with_a_cache_or_another_backend_or_state(taken):
    model, ids = tiny_model("deberta"), sentences(1, 12)
    model(ids, decoder_input_ids=ids)
    assert taken == ["encoder"]
    model.set_attn_implementation("eager")
    model(ids, decoder_input_ids=ids, use_cache=False)
    tiny_model("forgetting")(ids, decoder_input_ids=ids, use_cache=False)
    tiny_model("rotary")(ids, decoder_input_ids=ids, use_cache=False)
    assert taken == ["encoder"]


@pytest.mark.usefixtures("unregistered_after")
def test_a_bias_may_read_the_tokens_of_its_queries(taken, monkeypatch):
    class Own(PositionEncoding):
        summary = "Each token has a slope."
        shift_invariant = True

        def prepare(self, x_BTD, ctx):
            return x_BTD.mean(-1)[:, None, :, None] * ctx.distance_BQS[:, None]

        def score_bias(self, q_BHQK, k_BHSK, ctx):
            return ctx.prepared + ctx.inputs_BTD.mean(-1)[:, None, :, None] * ctx.distance_BQS[:, None]

    register_position_encoding("own", Own)
    batch, results = batch_of([11, 7], "left"), []
    for min_length in (0, 10**6):
        monkeypatch.setitem(selection.MIN_LENGTHS, "blocked", min_length)
        results.append(loss_and_gradients(tiny_model("own"), batch))
    assert taken == ["encoder", "decoder"]
    torch.testing.assert_close(*results, **EXACT)


@pytest.mark.parametrize(("num_queries", "num_keys", "start"), [(1, 1, 0), (1, 7, 3), (4, 7, 2), (4, 4, 0), (5, 5, 0)])
def test_relative_shift_is_an_index_by_distance(num_queries, num_keys, start):
    """And its way back sums the weights of each distance."""
    first, last = 1 - num_queries - start, num_keys - 1 - start
    distance_QS = torch.arange(num_keys) - torch.arange(start, start + num_queries)[:, None]
    x_QR = torch.randn(2, num_queries, last - first + 1, dtype=torch.float64, requires_grad=True)
    index = (distance_QS - first).expand(2, -1, -1)
    shifted, gathered = select_keys(x_QR), x_QR.gather(-1, index)
    torch.testing.assert_close(shifted, gathered)
    d_out = torch.randn_like(gathered)
    gradients = [torch.autograd.grad(x, x_QR, d_out)[0] for x in (shifted, gathered)]
    torch.testing.assert_close(*gradients)
    torch.testing.assert_close(select_distances(d_out), gradients[0])
    for lowest, highest in [(-3, 3), (-9, 9), (-1, 2), (-2, 0), (0, 3)]:
        clipped = torch.arange(first, last + 1).clamp(lowest, highest) - lowest
        table = torch.randn(2, num_queries, highest - lowest + 1, dtype=torch.float64)
        torch.testing.assert_close(extend_distances(table, lowest, (first, last)), table[..., clipped])
        sums = torch.zeros_like(table).index_add(-1, clipped, x_QR)
        torch.testing.assert_close(clip_distances(x_QR, first, lowest, highest), sums)
