"""Blockwise attention in linear memory equals attention with the full score matrix, in outputs and gradients; it
is used exactly when nothing needs the full matrix."""

import math
from collections.abc import Iterator

import pytest
import torch
from support.decoding import LargestTensor
from support.models import gradients_after_a_step, padded, sentences, tiny_config, tiny_model
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import Seq2SeqLMOutput

from hf_posenc import POSITION_ENCODINGS, AttentionContext, PositionEncoding, register_position_encoding
from hf_posenc.encodings.cache import EVICTION_SLACK
from hf_posenc.encodings.positions import has_contiguous_positions
from hf_posenc.encodings.registry import build_position_encodings
from hf_posenc.encodings.sum import PositionEncodingSum
from hf_posenc.transformer import attention, stack
from hf_posenc.transformer.attention import Attention, eager_attention_forward
from hf_posenc.transformer.plans import linear_attention, selection
from hf_posenc.transformer.plans.linear_attention import linear_attention_forward

EXACT = {"rtol": 1e-10, "atol": 1e-10}
BY_DISTANCE = [
    "relative",
    "relative_key",
    "relative_sinusoidal",
    "t5",
    "window",
    "relative+window",
    "alibi+window",
    "kerple+window",
    "rotary+window",
    "t5+relative",
    "sinusoidal+relative",
    "gru+relative",
    "relative+log_n",
]
SIDES = pytest.mark.parametrize("side", ["encoder", "decoder"])


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every length is long, and even a tiny sentence has several blocks.

    These are patched, because a model's forward takes no such arguments, and float64 at 512 tokens would take minutes.
    """
    monkeypatch.setattr(selection, "MIN_LENGTHS", {"distance": 10**6, "linear": 0, "blocked": 10**6})
    monkeypatch.setattr(linear_attention, "BLOCK_SIZE", 4)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """On which sides a forward attends by distance."""
    found: list[str] = []

    def watched(positions: PositionEncodingSum, x: Tensor, ctx: AttentionContext, dropout: float) -> object:
        plan = selection.choose_plan(positions, x, ctx, dropout)
        found.extend(["decoder" if ctx.is_causal else "encoder"] * (getattr(plan, "name", None) == "linear"))
        return plan

    monkeypatch.setattr(stack, "choose_plan", watched)
    return found


def encodings_of(name: str, side: str) -> PositionEncodingSum:
    torch.manual_seed(0)
    config = tiny_config(name)
    made = build_position_encodings(config, config.side(side)).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def tokens_of(padding: str | None, length: int) -> Tensor | None:
    """Three sentences in a batch: of all tokens, of one less, of half as many."""
    if padding is None:
        return None
    sizes = [length, max(1, length - 1), max(1, length // 2)]
    return padded([torch.ones(size, dtype=torch.long) for size in sizes], padding)[1].bool()


def whole_and_parts(
    name: str, side: str, length: int, padding: str | None = None
) -> tuple[PositionEncodingSum, list[AttentionContext], list[Tensor], Tensor, Tensor]:
    """The encodings, where they are, q, k and v, and what is attended by all scores at once and in parts."""
    positions, is_causal = encodings_of(name, side), side == "decoder"
    heads, width = positions[0].side.heads, positions[0].side.head_dim
    qkv = [torch.randn(3, heads, length, width, dtype=torch.float64, requires_grad=True) for _ in "qkv"]
    valid_mask_BT, pos_BT = tokens_of(padding, length), torch.arange(length)[None]
    ctx = AttentionContext(pos_BT, pos_BT, valid_mask_BT, valid_mask_BT, is_causal=is_causal, layer=0)
    contexts = positions.prepare(torch.randn(3, length, heads * width, dtype=torch.float64), ctx)
    q, k, v = positions.rotate_queries(qkv[0], contexts), positions.rotate_keys(qkv[1], contexts), qkv[2]
    biases = {}
    if positions.has_score_bias:
        biases["position_bias"] = positions.score_bias(qkv[0], k, contexts)
    if positions.has_value_bias:
        biases["value_bias"] = lambda p: positions.value_bias(p, contexts)
    mask = None if valid_mask_BT is None else valid_mask_BT[:, None, None]
    if mask is not None and is_causal:
        mask = mask & torch.ones(length, length, dtype=torch.bool).tril()
    module = Attention(tiny_config(name), num_heads=heads, is_causal=is_causal, layer=0)
    whole, _ = eager_attention_forward(module, q, k, v, mask, scaling=width**-0.5, **biases)
    return positions, contexts, qkv, whole, linear_attention_forward(None, (q, k, v), qkv[0], positions, contexts)


@pytest.mark.full
@SIDES
@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", BY_DISTANCE)
def test_blockwise_attention_equals_the_full_score_matrix_in_values_and_gradients(name, padding, side):
    for length in (1, 2, 3, 4, 5, 9, 16, 23):
        positions, contexts, qkv, whole, parts = whole_and_parts(name, side, length, padding)
        mask = contexts[0].valid_mask_BT
        tokens = torch.ones(3, length, dtype=torch.bool) if mask is None else mask
        torch.testing.assert_close(parts[tokens], whole[tokens], **EXACT)
        d_out = torch.randn_like(whole) * tokens[..., None, None]
        options = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
        arguments = [*qkv, *positions.parameters()]
        expected = torch.autograd.grad(whole, arguments, d_out, **options)
        torch.testing.assert_close(torch.autograd.grad(parts, arguments, d_out, **options), expected, **EXACT)


@pytest.mark.slow
@SIDES
def test_gradients_are_those_of_finite_differences(side):
    positions, contexts, qkv, _, _ = whole_and_parts("relative", side, 9)

    def attended(*given: Tensor) -> Tensor:
        return linear_attention_forward(None, given[:3], given[0], positions, contexts)

    assert torch.autograd.gradcheck(attended, (*qkv, *positions.parameters()), fast_mode=True)  # in random directions


@SIDES
def test_beyond_max_distance_the_bias_is_constant(entry_name, side):
    """And before it what depends on nothing but the distance."""
    if POSITION_ENCODINGS[entry_name].is_modifier:
        assert POSITION_ENCODINGS[entry_name].encoding.max_distance is None
        return
    [encoding] = positions = encodings_of(entry_name, side)
    if encoding.max_distance is None:
        assert positions.max_distance is None
        return
    clip = 9 if encoding.max_distance == math.inf else encoding.max_distance
    q, k = torch.randn(2, 3, encoding.side.heads, 1, encoding.side.head_dim, dtype=torch.float64)
    signs = [-1] if side == "decoder" else [-1, 1]

    def said(distance: int, k: Tensor, start: int = 100) -> tuple[Tensor, ...]:
        ctx = AttentionContext(
            torch.tensor([[start]]), torch.tensor([[start + distance]]), is_causal=side == "decoder", layer=0
        )
        contexts = positions.prepare(q[:, 0], ctx)
        score = positions.score_bias(q, k, contexts).expand(3, encoding.side.heads, 1, 1)
        ones = torch.ones(3, encoding.side.heads, 1, 1, dtype=torch.float64)
        return score, positions.value_bias(ones, contexts) if positions.has_value_bias else score

    for sign in signs:
        for distance in range(clip + 3):
            torch.testing.assert_close(said(sign * distance, k), said(sign * distance, k + 1, start=200), **EXACT)
        if encoding.max_distance != math.inf:
            for distance in (clip + 1, clip + 7, 10 * clip):
                torch.testing.assert_close(said(sign * distance, k), said(sign * clip, k), **EXACT)
            hidden = said(sign * clip, k)[0] < -1000
            assert bool(hidden.all()) != encoding.is_global


def test_a_sum_goes_by_distance_where_all_its_biases_do():
    clips = {"relative": 3, "t5": 7, "t5+relative": 7, "t5+window": 3, "sinusoidal+relative": 3, "alibi+window": 3}
    clips |= {
        "alibi": None,
        "none": None,
        "rotary": None,
        "deberta": None,
        "deberta+window": None,
        "fire+relative": None,
    }
    assert {name: encodings_of(name, "encoder").max_distance for name in clips} == clips


@pytest.mark.full
@pytest.mark.parametrize(
    "name", [*BY_DISTANCE, "relative to none", "none to t5", "alibi", "relative+window by recurrent"]
)
def test_blockwise_attention_gives_the_same_model_outputs(name, taken, monkeypatch):
    model = tiny_model(name)
    ids, mask = padded([sentences(1, 31)[0], sentences(1, 21, seed=2)[0]], "right")
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_attention_mask": mask}
    inputs |= {"decoder_input_ids": ids, "labels": ids.masked_fill(mask == 0, -100)}
    start, parts = {name: tensor.clone() for name, tensor in model.state_dict().items()}, model(**inputs).logits
    both = {"encoder": model.model.encoder.positions, "decoder": model.model.decoder.positions}
    assert set(taken) == {side for side, positions in both.items() if positions.max_distance is not None}
    gradients = gradients_after_a_step(model, **inputs)
    model.load_state_dict(start)
    monkeypatch.setitem(selection.MIN_LENGTHS, "linear", 1000)
    torch.testing.assert_close(parts[mask == 1], model(**inputs).logits[mask == 1], **EXACT)
    torch.testing.assert_close(gradients, gradients_after_a_step(model, **inputs), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["pope+window", "pope+relative", "pope+relative_key"])
def test_blockwise_attention_is_off_for_keys_wider_than_values(name, taken):
    model = tiny_model(name)
    inputs = {"input_ids": sentences(1, 31), "labels": sentences(1, 21, seed=2)}
    given = model(**inputs).logits, gradients_after_a_step(model, **inputs)
    assert not taken
    model = tiny_model(name)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(given, (model(**inputs).logits, gradients_after_a_step(model, **inputs)), **EXACT)


@pytest.mark.parametrize("name", BY_DISTANCE)
def test_autocast_uses_blockwise_attention(name, taken):
    model = tiny_model(name, dtype=torch.float32)
    inputs = {"input_ids": sentences(2, 31), "labels": sentences(2, 21, seed=2)}
    exact = model(**inputs).loss
    assert taken
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**inputs).loss
    loss.backward()
    torch.testing.assert_close(loss, exact, rtol=0.05, atol=0.05)


@pytest.mark.usefixtures("unregistered_after")
def test_encodings_without_max_distance_are_prepared_for_the_whole_sentence(taken):
    class Own(PositionEncoding):
        summary = "Every token knows how many there are."
        shift_invariant = True

        def prepare(self, x_BTD, ctx):
            assert x_BTD.shape[1:] == (12, 16)
            return x_BTD.shape[1]

        def embed(self, x_BTD, ctx):
            return x_BTD + 12

        def rotate_queries(self, q_BHQK, ctx):
            return q_BHQK * ctx.prepared / 12

    register_position_encoding("own", Own)
    ids, found = sentences(1, 12), []
    for name in ("relative", "own+relative"):
        found.append(tiny_model(name)(ids, decoder_input_ids=ids, use_cache=False).logits)
    assert taken == ["encoder", "decoder"] * 2
    assert not torch.allclose(*found)


HOLE = torch.tensor([[1] * 3 + [0] + [1] * 8])
NOT_SO = {
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


@pytest.mark.parametrize("inputs", NOT_SO.values(), ids=NOT_SO)
def test_the_full_score_matrix_is_computed_when_needed(inputs, taken):
    model, ids = tiny_model("relative"), sentences(1, 12)
    model(ids, decoder_input_ids=ids, use_cache=False)
    assert taken == ["encoder", "decoder"]
    model(ids, decoder_input_ids=ids, use_cache=False, **inputs)
    assert taken == ["encoder", "decoder"]


def test_blockwise_attention_is_off_with_dropout_a_cache_or_another_backend(taken):
    model, ids = tiny_model("relative", attention_dropout=0.5), sentences(1, 12)
    model.train()(ids, labels=ids)
    assert taken == []
    model.eval()(ids, decoder_input_ids=ids)
    assert taken == ["encoder"]
    model.set_attn_implementation("eager")
    model(ids, decoder_input_ids=ids, use_cache=False)
    assert taken == ["encoder"]


def test_short_inputs_use_the_full_score_matrix(taken, monkeypatch):
    monkeypatch.undo()
    assert selection.plan_name(encodings_of("relative", "encoder"), 500) is None
    assert selection.plan_name(encodings_of("relative", "encoder"), 1000) == "linear"
    far = build_position_encodings(config := tiny_config("relative", relative_clip=300), config.side("encoder"))
    assert selection.plan_name(far, 1000) == "blocked", "most of it would be the band"


@pytest.mark.parametrize(
    ("positions", "tokens", "row"),
    [
        ([[0, 1, 2]], None, True),
        ([[5, 6, 7]], None, True),
        ([[0, 2, 3]], None, False),
        ([[0, 0, 1]], [[0, 1, 1]], True),
        ([[0, 1, 0]], [[1, 1, 0]], True),
        ([[0, 0, 1]], [[1, 0, 1]], False),
        ([[0, 1, 2], [0, 0, 2]], [[1, 1, 1], [0, 1, 1]], False),
        ([[0, 0, 0]], [[0, 0, 0]], True),
    ],
)
def test_gaps_in_the_mask_or_the_positions_are_detected(positions, tokens, row):
    valid_mask_BT = None if tokens is None else torch.tensor(tokens).bool()
    assert has_contiguous_positions(torch.tensor(positions), valid_mask_BT) is row


def test_blockwise_half_precision_is_as_close_as_the_full_score_matrix(taken, monkeypatch):
    model, ids = tiny_model("relative", dtype=torch.float32), sentences(2, 40)

    def computed(dtype: torch.dtype | None = None) -> list[Tensor]:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            outputs = model(ids, labels=ids)
        model.zero_grad()
        outputs.loss.backward()
        return [outputs.logits, *(parameter.grad.clone() for parameter in model.parameters())]

    exact, parts = computed(), computed(torch.bfloat16)
    assert taken == ["encoder", "decoder"] * 2
    monkeypatch.setitem(selection.MIN_LENGTHS, "linear", 1000)
    for one, half, right in zip(parts, computed(torch.bfloat16), exact, strict=True):
        assert (one - right).norm() <= 1.5 * (half - right).norm() + 1e-3  # that of a bias of keys is nothing


@pytest.mark.parametrize("name", ["relative", "t5", "relative+window"])
def test_no_tensor_grows_with_the_square_of_the_length(name):
    """Those of the cross-attention apart, whose source is short."""
    largest = []
    for length in (256, 512):
        model = tiny_model(name, encoder_layers=1, decoder_layers=1, dtype=torch.float32)
        ids = sentences(1, length)
        with LargestTensor() as found:
            model.model.encoder(ids).last_hidden_state.sum().backward()
            model(ids[:, :4], labels=ids).loss.backward()
        largest.append(found.numel)
    assert largest[1] <= 2 * largest[0]


@torch.no_grad()
def test_a_step_of_decoding_attends_to_no_more_keys_than_the_windows_show(monkeypatch):
    """However long the text is; requested weights are those of all keys."""
    model, ids = tiny_model("relative+window by recurrent"), sentences(2, 40)
    steps = model(ids, decoder_input_ids=ids[:, :30])
    seen: set[int] = set()

    def watched(module: nn.Module, q: Tensor, k: Tensor, *arguments: Tensor, **options) -> tuple[Tensor, Tensor]:
        seen.add(k.shape[2])
        return eager_attention_forward(module, q, k, *arguments, **options)

    monkeypatch.setattr(attention, "eager_attention_forward", watched)
    step = {"encoder_outputs": (steps.encoder_last_hidden_state,), "cache": steps.past_key_values}
    model.set_attn_implementation("eager")
    model(**step, decoder_input_ids=ids[:, :1])
    window, cross = model.config.window_size, model.config.cross_window_size
    assert seen <= set(range(window + 1, 2 * cross + 4)) and min(seen) == window + 1
    asked = model(**step, decoder_input_ids=ids[:, :1], output_attentions=True)
    assert (asked.decoder_attentions[0].shape[-1], asked.cross_attentions[0].shape[-1]) == (32, 40)


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[140] + [1] * 60, [140, 1, 1, 7, 1, 50]], ids=["token by token", "in chunks"])
@pytest.mark.parametrize(
    "name", ["window", "relative+window", "rotary+window", "gru+window", "relative+window by recurrent"]
)
@pytest.mark.full
def test_a_cache_that_evicts_keys_outside_the_window_decodes_the_same(name, chunks):
    model, source, target = tiny_model(name), sentences(2, 8), sentences(2, 200, seed=2)
    mask = torch.ones(2, 200, dtype=torch.long)
    mask[1, :4] = 0
    kept, start = None, 0
    memory, logits = model.model.encoder(source), []
    for chunk in chunks:
        step = model(
            encoder_outputs=memory,
            decoder_input_ids=target[:, start : start + chunk],
            decoder_attention_mask=mask[:, : start + chunk],
            cache=kept,
            use_cache=True,
        )
        kept, start = step.past_key_values, start + chunk
        logits.append(step.logits)
    whole = model(source, decoder_input_ids=target, decoder_attention_mask=mask, use_cache=False)
    torch.testing.assert_close(torch.cat(logits, 1)[mask == 1], whole.logits[mask == 1], **EXACT)
    own = kept.self_attention_cache
    assert own.get_seq_length() == 200
    (held,) = {layer.keys.shape[2] for layer in own.layers}
    assert held <= 2 * (model.config.window_size + 1 + EVICTION_SLACK) < 200


@torch.no_grad()
def test_a_cache_with_evicted_tokens_can_be_cropped_by_its_slack():
    model, source, target = tiny_model("relative+window"), sentences(2, 8), sentences(2, 210, seed=2)
    memory = model.model.encoder(source)

    def read(tokens: Tensor, kept: EncoderDecoderCache | None) -> Seq2SeqLMOutput:
        return model(encoder_outputs=memory, decoder_input_ids=tokens, cache=kept, use_cache=True)

    kept = read(target[:, 139:140], read(target[:, :139], None).past_key_values).past_key_values
    assert kept.self_attention_cache.layers[0].keys.shape[2] < 140
    kept = read(target[:, :EVICTION_SLACK], kept).past_key_values
    kept.crop(-EVICTION_SLACK)
    found = read(target[:, 140:], kept).logits
    expected = model(source, decoder_input_ids=target, use_cache=False).logits[:, 140:]
    torch.testing.assert_close(found, expected, **EXACT)
    with pytest.raises(ValueError, match=r"it has dropped .* begin with a new cache"):
        kept.crop(-140)


@pytest.mark.full
def test_beam_search_with_an_evicting_cache_finds_the_same():
    """As with plain cache layers, which evict nothing."""
    model, source = tiny_model("relative+window by length_ratio"), sentences(2, 30)
    options = {"max_new_tokens": 40, "min_new_tokens": 40, "num_beams": 3, "return_dict_in_generate": True}
    options["decoder_input_ids"] = sentences(2, 120, seed=2)
    plain = model.generate(source, **options, past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache()))
    found = model.generate(source, **options)
    torch.testing.assert_close(found.sequences, plain.sequences)
    sizes = [cached.past_key_values.self_attention_cache.layers[1].keys.shape[2] for cached in (plain, found)]
    assert sizes[0] == 160 > sizes[1]
