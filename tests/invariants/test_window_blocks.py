"""Cross-attention that computes the keys in its window equals attention over all keys, by blocks of a whole target and
in cached steps; it is used exactly where nothing needs all keys."""

from collections.abc import Iterator

import pytest
import torch
from support.decoding import LargestTensor
from support.models import gradients_after_a_step, padded, sentences, tiny_config, tiny_model
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from hf_posenc import POSITION_ENCODINGS, PosEncForConditionalGeneration
from hf_posenc.encodings.registry import build_position_encodings
from hf_posenc.generation.model_inputs import CACHE_NAME, get_cache
from hf_posenc.transformer.attention import Attention, eager_attention_forward
from hf_posenc.transformer.plans import local_attention as window_blocks
from hf_posenc.transformer.plans.local_attention import keys_in_window

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def windowed_encodings() -> Iterator[str]:
    """The registry's encodings in a sum with a window, where cross-attention takes it and leaves out hidden keys."""
    for name in POSITION_ENCODINGS:
        encoding = name if name == "window" else f"{name}+window"
        try:
            config = tiny_config("relative by length_ratio", cross_position_encoding_type=encoding)
            if build_position_encodings(config, config.side("cross")).sliding_window is not None:
                yield encoding
        except ValueError:  # its cross-attention cannot have this encoding
            pass


WINDOWED = list(windowed_encodings())
FAST = {"rotary+window", "relative+window", "t5+window"}
EACH = [name if name in FAST else pytest.param(name, marks=pytest.mark.full) for name in WINDOWED]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every length is long, a tiny sentence has several blocks, and the numbers of keys in a block are recorded.

    These are patched, because a model's forward takes no such arguments, and float64 at 512 tokens would take minutes.
    """
    monkeypatch.setattr(window_blocks, "MIN_LENGTH", 0)
    monkeypatch.setattr(window_blocks, "BLOCK_SIZE", 4)
    widths: list[int] = []
    join = window_blocks.WindowBlocks.join_queries

    def recorded(blocks: window_blocks.WindowBlocks, out: Tensor) -> Tensor:
        widths.append(blocks.key_rows_MW.shape[1])
        return join(blocks, out)

    monkeypatch.setattr(window_blocks.WindowBlocks, "join_queries", recorded)
    return widths


def aligned(encoding: str = "rotary+window", alignment: str = "length_ratio") -> PosEncForConditionalGeneration:
    return tiny_model(f"relative+window by {alignment}", cross_position_encoding_type=encoding)


def pairs(padding: str) -> dict[str, Tensor]:
    """Two sentence pairs of different lengths, with masks and labels."""
    source, source_mask = padded([sentences(1, 41)[0], sentences(1, 29, seed=3)[0]], padding)
    target, target_mask = padded([sentences(1, 33)[0], sentences(1, 21, seed=2)[0]], padding)
    labels = target.masked_fill(target_mask == 0, -100)
    inputs = {"input_ids": source, "attention_mask": source_mask, "decoder_input_ids": target}
    return inputs | {"decoder_attention_mask": target_mask, "labels": labels}


def test_most_encodings_can_be_in_a_window():
    assert {*FAST, "window", "alibi_symmetric+window"} <= {*WINDOWED}


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("encoding", EACH)
def test_blocks_equal_all_keys_in_values_and_gradients(encoding, padding, taken, monkeypatch):
    model, inputs = aligned(encoding), pairs(padding)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tokens = inputs["decoder_attention_mask"] == 1
    blocks = model(**inputs).logits[tokens], gradients_after_a_step(model, **inputs)
    assert taken and max(taken) <= 41 // 2
    model.load_state_dict(start)
    taken.clear()
    monkeypatch.setattr(window_blocks, "MIN_LENGTH", 1000)
    torch.testing.assert_close(
        blocks, (model(**inputs).logits[tokens], gradients_after_a_step(model, **inputs)), **EXACT
    )
    assert not taken


@pytest.mark.full
def test_gradients_reach_the_source_positions(taken, monkeypatch):
    """Those of an alignment with parameters."""
    model, inputs = aligned("t5+window", "recurrent"), pairs("right")
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    by_blocks = gradients_after_a_step(model, **inputs)
    model.load_state_dict(start)
    monkeypatch.setattr(window_blocks, "MIN_LENGTH", 1000)
    torch.testing.assert_close(by_blocks, gradients_after_a_step(model, **inputs), **EXACT)
    assert taken


HOLE = torch.tensor([[1] * 20 + [0] + [1] * 20])
ALL_KEYS_NEEDED = {
    "requested weights": {"output_attentions": True},
    "a hole in the source": {"attention_mask": HOLE},
    "a gap in the positions": {"position_ids": 2 * torch.arange(41)[None]},
    "source positions far apart": {"cross_position_ids": torch.tensor([[0.0, 39.0] * 16])},
    "a cache": {"use_cache": True},
}


@torch.no_grad()
@pytest.mark.parametrize("inputs", ALL_KEYS_NEEDED.values(), ids=ALL_KEYS_NEEDED)
def test_all_keys_are_computed_where_they_are_needed(inputs, taken):
    model = tiny_model("relative+window by recurrent")
    source, target = sentences(1, 41), sentences(1, 32, seed=2)
    plain = {"use_cache": False, "cross_position_ids": torch.linspace(0, 39, 32)[None]}
    model(source, decoder_input_ids=target, **plain)
    assert len(taken) == 3
    model(source, decoder_input_ids=target, **(plain | inputs))
    assert len(taken) == 3


@torch.no_grad()
def test_a_target_that_leaves_the_source_attends_to_all_keys(taken, monkeypatch):
    """Without an alignment target position t is source position t, and a long target has no key in its window."""
    model, source, target = aligned(alignment="none"), sentences(1, 20), sentences(1, 41, seed=2)
    by_blocks = model(source, decoder_input_ids=target, use_cache=False).logits
    assert not taken
    monkeypatch.setattr(window_blocks, "MIN_LENGTH", 1000)
    torch.testing.assert_close(by_blocks, model(source, decoder_input_ids=target, use_cache=False).logits, **EXACT)


def test_short_inputs_compute_all_keys(monkeypatch):
    model, length = aligned(), window_blocks.MIN_LENGTH
    monkeypatch.setattr(window_blocks.WindowBlocks, "join_queries", lambda *_: pytest.fail("blocks were used"))
    model(sentences(1, length + 10), labels=sentences(1, 5))
    model(sentences(1, length - 1), labels=sentences(1, 5))


def test_no_tensor_of_training_grows_with_the_product_of_both_lengths(taken):
    largest = []
    for length in (256, 512):
        model = tiny_model("relative+window by length_ratio", encoder_layers=1, decoder_layers=1, dtype=torch.float32)
        source = sentences(1, length)
        states = model.model.encoder(source).last_hidden_state.detach()
        with LargestTensor() as found:
            model(encoder_outputs=BaseModelOutput(states), labels=source[:, :length]).loss.backward()
        largest.append(found.numel)
    assert taken and largest[1] <= 2 * largest[0]


@torch.no_grad()
@pytest.mark.parametrize("encoding", EACH)
def test_cached_steps_of_beams_equal_those_over_all_keys(encoding):
    """Two sentences of three beams, with left padding and a cache that is reordered as by a beam search."""
    model = aligned(encoding)
    source, mask = padded([sentences(1, 60)[0], sentences(1, 41, seed=3)[0]], "left")
    picks = [torch.tensor([0, 0, 2, 5, 4, 3]), torch.tensor([1, 0, 1, 3, 3, 4])]

    def decoded(min_keys: int) -> list[Tensor]:
        model.model.decoder.min_keys_to_prune = min_keys
        states = model.model.encoder(source, attention_mask=mask).last_hidden_state.repeat_interleave(3, 0)
        cache, logits = {}, []
        for step in range(12):
            tokens = sentences(6, 1, seed=step)
            outputs = model(
                encoder_outputs=BaseModelOutput(states), attention_mask=mask.repeat_interleave(3, 0),
                decoder_input_ids=tokens, use_cache=True, **cache,
            )  # fmt: skip
            kept = get_cache(outputs)
            kept.reorder_cache(picks[step % 2])
            if min_keys:  # what all keys need is copied
                for layer in kept.cross_attention_cache.layers:
                    layer.row_ids = None
            cache = {CACHE_NAME: kept}
            logits.append(outputs.logits)
        return logits

    torch.testing.assert_close(decoded(0), decoded(1000), **EXACT)


@torch.no_grad()
def test_beams_share_the_keys_of_their_source_until_sentences_change_places():
    model, source = aligned(), sentences(2, 9)
    states = BaseModelOutput(model.model.encoder(source).last_hidden_state.repeat_interleave(2, 0))
    cache = get_cache(model(encoder_outputs=states, decoder_input_ids=sentences(4, 1), use_cache=True))
    layers = cache.cross_attention_cache.layers
    before = [layer.keys for layer in layers]
    cache.reorder_cache(torch.tensor([1, 1, 2, 2]))
    assert all(layer.keys is keys for layer, keys in zip(layers, before, strict=True))
    cache.reorder_cache(torch.tensor([2, 3, 0, 1]))
    for layer, keys in zip(layers, before, strict=True):
        torch.testing.assert_close(layer.keys, keys[[2, 3, 0, 1]])
    torch.testing.assert_close(layers[0].states["positions"][0], layers[0].states["positions"][2])


def test_keys_in_a_window_are_a_slice_where_the_windows_are_near_each_other():
    def window(*starts: int) -> Tensor:
        index = torch.arange(40)
        return torch.stack([(index >= start) & (index < start + 5) for start in starts])

    assert keys_in_window(window(7), 20) == slice(7, 12)
    assert keys_in_window(window(7, 11), 20) == slice(7, 16)
    expected = torch.tensor([[0, 1, 2, 3, 4], [30, 31, 32, 33, 34]])
    torch.testing.assert_close(keys_in_window(window(0, 30), 20), expected)
    assert keys_in_window(window(0, 50), 20) is None
    assert keys_in_window(window(0) | window(35), 20) is None


@pytest.mark.parametrize("mask", [None, "bool", "additive"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_attention_of_one_query_equals_that_of_several(has_bias, mask):
    """The last of two equal queries, with the biases of either shape."""
    torch.manual_seed(0)
    module = Attention(tiny_config("relative"), num_heads=4, is_causal=False, layer=0)
    q, k, v = (torch.randn(2, 4, size, 8, dtype=torch.float64) for size in (1, 6, 6))
    bias = torch.randn(2, 1, 1, 6, dtype=torch.float64) if has_bias else None
    masks = {"bool": torch.tensor([True] * 4 + [False] * 2).expand(2, 1, 1, 6)}
    masks["additive"] = torch.where(masks["bool"], 0.0, -1e4).double()
    table = nn.functional.one_hot(torch.arange(6) % 3, 3).double() @ torch.randn(3, 8, dtype=torch.float64)
    given = {"scaling": 0.3, "position_bias": bias, "value_bias": lambda p: p @ table}
    out, p = eager_attention_forward(module, q, k, v, masks.get(mask), **given)
    expected, expected_p = eager_attention_forward(module, q.expand(-1, -1, 2, -1), k, v, masks.get(mask), **given)
    torch.testing.assert_close((out, p), (expected[:, 1:], expected_p[:, :, 1:]), **EXACT)


def test_attention_of_one_query_takes_a_bias_of_another_dtype():
    """A bias in float32 on scores in bfloat16."""
    module = Attention(tiny_config("relative"), num_heads=2, is_causal=False, layer=0)
    q, k = torch.ones(1, 2, 1, 8, dtype=torch.bfloat16), torch.ones(1, 2, 3, 8, dtype=torch.bfloat16)
    bias = torch.tensor([0.0, 0.0, -1e4]).view(1, 1, 1, 3)
    out, p = eager_attention_forward(module, q, k, k, None, scaling=0.3, position_bias=bias)
    assert p[0, 0, 0].tolist() == [0.5, 0.5, 0.0] and out.dtype == torch.bfloat16
