"""A window that is smaller after the query than before it: its reach, streaming, caches and linear attention."""

import pytest
import torch
from support.models import sentences, tiny_config, tiny_model
from support.streams import assert_streams_exactly, random_text, varied_translator
from test_linear_attention import EXACT, short, whole_and_parts  # noqa: F401  (`short` is a fixture)
from test_streaming import encode_in_pieces

from hf_posenc import PosEncConfig, PosEncForConditionalGeneration
from hf_posenc.inference.streaming import compute_source_reach

pytestmark = [pytest.mark.invariant, pytest.mark.decoding]
SMALLER = pytest.mark.parametrize("lookahead", [0, 1])


@SMALLER
@torch.no_grad()
def test_encoder_reads_no_further_than_its_lookahead(lookahead):
    model, source = tiny_model("relative+window by length_ratio", window_lookahead=lookahead), sentences(1, 33)
    reach, encoder = compute_source_reach(model.config), model.model.encoder
    assert (reach.encoder_left, reach.encoder_right) == (2 * 2, 2 * lookahead)  # two layers with a window of 2 tokens
    assert reach.lookahead == 2 * lookahead + lookahead + 1  # the cross-attention takes the same field
    whole = encoder(source).last_hidden_state
    pieces = encode_in_pieces(encoder, source, reach.encoder_left, reach.encoder_right)
    torch.testing.assert_close(pieces, whole, **EXACT)
    for left, right in ((reach.encoder_left - 1, reach.encoder_right), (reach.encoder_left, reach.encoder_right - 1)):
        if right >= 0:
            assert (encode_in_pieces(encoder, source, left, right) - whole).abs().max() > 1e-6


@pytest.mark.parametrize(("lookahead", "cross"), [(1, 0), (0, 2)])
@pytest.mark.full
def test_streamed_translation_is_that_of_the_whole_text(lookahead, cross, tokenizer):
    changes = {"window_lookahead": lookahead, "cross_window_lookahead": cross}
    model = varied_translator("relative+window by length_ratio", **changes)
    assert compute_source_reach(model.config).cross_lookahead == cross + 1
    assert_streams_exactly(model, tokenizer, random_text(8))


@torch.no_grad()
def test_cached_decoding_is_uncached_decoding():
    model = tiny_model("relative+window by recurrent", window_lookahead=1, cross_window_lookahead=0)
    source, target = sentences(2, 8), sentences(2, 20, seed=2)
    whole = model(source, decoder_input_ids=target).logits
    memory, cache, steps = model.model.encoder(source), None, []
    for token in target.split(1, dim=1):
        step = model(encoder_outputs=memory, decoder_input_ids=token, cache=cache, use_cache=True)
        cache = step.past_key_values
        steps.append(step.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, **EXACT)


@torch.no_grad()
def test_a_decoder_has_no_lookahead():
    models = [tiny_model("window", window_lookahead=lookahead) for lookahead in (None, 0)]
    memory, target = torch.randn(1, 5, 16, dtype=torch.float64), sentences(1, 12)
    logits = [model(encoder_outputs=(memory,), decoder_input_ids=target).logits for model in models]
    torch.testing.assert_close(*logits, **EXACT)


@pytest.mark.parametrize("name", ["window", "relative+window"])
def test_linear_attention_hides_the_same_keys(name, monkeypatch):
    monkeypatch.setattr(
        "test_linear_attention.tiny_config", lambda sides: tiny_config(sides, window_size=3, window_lookahead=1)
    )
    for length in (1, 5, 16, 23):
        _, _, _, whole, parts = whole_and_parts(name, "encoder", length)
        torch.testing.assert_close(parts, whole, **EXACT)


@torch.no_grad()
def test_end_token_comes_only_where_the_source_s_end_can_be_attended_to():
    model = tiny_model("relative+window by length_ratio", output_bias=True, cross_window_lookahead=1)
    end = model.config.eos_token_id
    model.final_logits_bias[:, end] = 50  # ends at once where it may
    for size in (2, 4):
        target = model.generate(sentences(size, seed=size)[None], eos_requires_source_end=True, do_sample=False)[0]
        assert target[-1] == end and (len(target) == 2) == (size == 2)


def test_a_window_that_is_larger_after_the_query_is_refused():
    with pytest.raises(ValueError, match=r"`window_lookahead` must be .* encoder .* 5 and 4;"):
        PosEncConfig(position_encoding_type="window", window_size=4, window_lookahead=5)
    aligned = {"cross_position_encoding_type": "window", "alignment_type": "length_ratio", "cross_window_size": 2}
    with pytest.raises(ValueError, match=r"`cross_window_lookahead` must be .* 3 and 2;"):
        PosEncConfig(position_encoding_type="window", window_lookahead=3, **aligned)
    with pytest.raises(ValueError, match=r"`window_lookahead` must be .* 0 to .* -1"):
        PosEncConfig(position_encoding_type="window", window_lookahead=-1)


def test_lookahead_is_saved(tmp_path):
    model = tiny_model("window by length_ratio", window_lookahead=1, cross_window_lookahead=0)
    model.save_pretrained(tmp_path)
    loaded = PosEncForConditionalGeneration.from_pretrained(tmp_path)
    assert compute_source_reach(loaded.config) == compute_source_reach(model.config)
