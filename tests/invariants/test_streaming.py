"""Streaming is exact: a stream's translation, however its text is cut, is that of the whole text."""

import itertools

import pytest
import torch
from support.models import ALIGNED, padded, sentences, tiny_model
from support.streams import OFFLINE, assert_streams_exactly, random_text, varied_translator
from torch import Tensor

from hf_posenc import (
    POSITION_ENCODINGS,
    PosEncForConditionalGeneration,
    StreamingTranslator,
    convert_encodings,
)
from hf_posenc.inference.streaming import compute_source_reach

pytestmark = [pytest.mark.invariant, pytest.mark.decoding]

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def windowed(name: str) -> str:
    """A sum of an encoding and a window, as the tests' models take it."""
    return "window by length_ratio" if name in ("none", "window") else f"{name}+window by length_ratio"


def can_stream(name: str) -> bool:
    """What the registry's properties say of an encoding, with a window, on both sides."""
    entry = POSITION_ENCODINGS[name]
    encoding = tiny_model(windowed(name)).model.encoder.positions[0]
    return entry.shift_invariant and encoding.left_context is not None and encoding.lookahead is not None


def encode_in_pieces(encoder: torch.nn.Module, source: Tensor, left: int, right: int, size: int = 5) -> Tensor:
    """The encoder's states, a few tokens at a time, each piece with margins and with positions from 0."""
    pieces = []
    for start in range(0, source.shape[1], size):
        first = max(0, start - left)
        states = encoder(source[:, first : start + size + right]).last_hidden_state
        pieces.append(states[:, start - first : start - first + size])
    return torch.cat(pieces, dim=1)


@torch.no_grad()
def test_encoder_reads_a_source_in_pieces_exactly_if_its_reach_is_finite(registered):
    """And only if: what is refused for its reach depends on more than the margin. A smaller margin is too small."""
    model, source = tiny_model(windowed(registered)), sentences(1, 33)
    encoder, margin = model.model.encoder, 2 * 2  # two layers with a window of 2 tokens
    whole = encoder(source).last_hidden_state
    pieces = encode_in_pieces(encoder, source, margin, margin)
    if not can_stream(registered):
        assert (pieces - whole).abs().max() > 1e-6
        with pytest.raises(ValueError, match=rf"Streaming must .*`{registered}`.*'relative\+window'"):
            compute_source_reach(model.config)
        return
    reach = compute_source_reach(model.config)
    assert (reach.encoder_left, reach.encoder_right) == (margin, margin)
    torch.testing.assert_close(pieces, whole, **EXACT)
    for left, right in ((margin - 1, margin), (margin, margin - 1)):
        assert (encode_in_pieces(encoder, source, left, right) - whole).abs().max() > 1e-6


def test_streamed_translation_is_that_of_the_whole_text(registered, tokenizer):
    """For every encoding, in self-attention and where it can be in cross-attention."""
    if not can_stream(registered):
        with pytest.raises(ValueError, match=r"Streaming must "):
            StreamingTranslator(varied_translator(windowed(registered)), tokenizer)
        return
    model = varied_translator(windowed(registered))
    assert_streams_exactly(model, tokenizer, random_text(12))


CROSS = ["relative", "t5", "deberta", "transformer_xl", "pope", "kerple"]


@pytest.mark.slow
@pytest.mark.parametrize("cross", CROSS)
def test_streamed_translation_is_that_of_the_whole_text_whatever_the_cross_attention(cross, tokenizer):
    model = varied_translator("relative+window by length_ratio", cross_position_encoding_type=f"{cross}+window")
    assert_streams_exactly(model, tokenizer, random_text(12, seed=3))


@pytest.mark.full
@pytest.mark.parametrize("decoder", ["gru+rotary+window", "lstm+rotary+window", "forgetting+window"])
def test_streamed_decoder_may_be_recurrent(decoder, tokenizer):
    """Its state is in the cache. Only an encoder must not be."""
    assert_streams_exactly(
        varied_translator(f"relative+window to {decoder} by length_ratio"), tokenizer, random_text(12)
    )


@pytest.mark.full
def test_streamed_fertilities_are_those_of_the_whole_text(tokenizer):
    """The fertilities of the source tokens that a step passes are in the window."""
    model = varied_translator("relative+window by fertility", fertility_gain=0.5)
    with torch.no_grad():
        model.model.decoder.alignment.weight.normal_()
    assert_streams_exactly(model, tokenizer, random_text(12))


# With these the first source position is 3.5.
SMALL_FERTILITIES = {
    "cross_window_size": 10,
    "cross_window_lookahead": 8,
    "fertility_step": 7.0,
    "fertility_max_step": 8.0,
}


@pytest.mark.full
def test_first_token_of_a_stream_may_be_its_end_where_that_of_the_whole_text_may(tokenizer):
    """The end of a text is in the window of the first source position, which the fertilities give."""
    model = varied_translator("relative+window by fertility", **SMALL_FERTILITIES)
    with torch.no_grad():
        model.final_logits_bias[:, model.config.eos_token_id] = 50  # ends at once where it may
    text = "Kinder im Hund. "
    assert len(tokenizer(text).input_ids) == 12  # the end is 11 after the first source token, and 8 after 3
    assert assert_streams_exactly(model, tokenizer, text).num_target_tokens == 0


@pytest.mark.full
def test_first_step_waits_for_the_source_position_that_fertilities_give(tokenizer):
    """Before the first token, source tokens of small fertility are passed."""
    text, first_logits = random_text(12), []
    for pieces in ([text], list(text)):
        model = varied_translator("relative+window by fertility", **SMALL_FERTILITIES)
        stream = StreamingTranslator(model, tokenizer)
        assert stream.decoder.alignment.max_first_position == 3.5
        step, logits = stream.decoder.step, []
        stream.decoder.step = lambda *args, step=step, logits=logits: logits.append(step(*args)) or logits[-1]
        "".join(stream.translate(pieces))
        first_logits.append(logits[0])
    torch.testing.assert_close(*first_logits, **EXACT)


SMALL_PIECES = {"tokens_per_piece": 3, "max_origin_distance": 5}


@pytest.mark.slow
@pytest.mark.parametrize("step", [0.3, 3.5])
def test_streamed_translation_is_that_of_the_whole_text_at_any_pace(step, tokenizer):
    """Also in pieces of the source that are smaller than the window, where source positions are often counted from
    another token, and where a length limit ends a translation."""
    model = varied_translator("relative+window by length_ratio", length_ratio_step=step, length_ratio_gain=0.5)
    for words in (1, 2, 20):
        assert_streams_exactly(model, tokenizer, "Ein " + random_text(words, seed=words), **SMALL_PIECES)


# The end


@pytest.mark.full
@torch.no_grad()
def test_end_token_comes_only_where_the_source_s_end_is_in_the_window():
    """In a batch with padding on either side, as alone; greedily and by beams."""
    model = tiny_model("relative+window by length_ratio", output_bias=True)
    end, window = model.config.eos_token_id, compute_source_reach(model.config).cross_window
    model.final_logits_bias[:, end] = 50  # ends at once where it may
    sources = [sentences(size, seed=size) for size in (30, 9, 3)]
    ids, mask = padded(sources, "right")
    for num_beams in (1, 3):
        options = {"do_sample": False, "num_beams": num_beams}
        free = model.generate(ids, attention_mask=mask, eos_requires_source_end=False, **options)
        assert (free[:, 1] == end).all()
        batch = model.generate(ids, attention_mask=mask, eos_requires_source_end=True, **options)
        for source, row in zip(sources, batch.tolist(), strict=True):
            alone = model.generate(source[None], eos_requires_source_end=True, **options)[0].tolist()
            assert row[: len(alone)] == alone
            positions = source_positions_of(model, source, alone[:-1])
            assert alone[-1] == end and len(source) - 1 - positions[-1] < window
            assert all(len(source) - 1 - position >= window for position in positions[:-1])


@pytest.mark.full
def test_end_rule_holds_for_each_token_of_assisted_decoding():
    """One forward computes several tokens, and each has a source position of its own."""
    model, source = tiny_model("relative+window by length_ratio", output_bias=True), sentences(1, 14)
    draft = tiny_model("relative+window by length_ratio", output_bias=True, seed=5)
    with torch.no_grad():
        for translator in (model, draft):
            translator.final_logits_bias[:, model.config.eos_token_id] += 3
    options = {"do_sample": False, "eos_requires_source_end": True}
    alone = model.generate(source, **options)
    assert alone[0, -1] == model.config.eos_token_id and alone.shape[1] > 10
    assert model.generate(source, assistant_model=draft, **options).equal(alone)
    assert model.generate(source, use_cache=False, **options).equal(alone)


def source_positions_of(model: PosEncForConditionalGeneration, source: Tensor, target: list[int]) -> list[float]:
    """The source position of each target token, when the target is read token by token."""
    positions: list[Tensor] = []
    handle = model.model.decoder.alignment.register_forward_hook(
        lambda _, arguments, output: positions.append(output) if arguments[0] == "source_positions" else None
    )
    model(input_ids=source[None], decoder_input_ids=torch.tensor([target]), track_attention=True)
    handle.remove()
    return torch.cat(positions, 1)[0].tolist()


@torch.no_grad()
def test_end_rule_is_read_from_a_generation_config_and_leaves_forced_ends():
    model, source = tiny_model("relative+window by length_ratio"), sentences(1, 40)
    limited = {"max_new_tokens": 3, "do_sample": False}
    free = model.generate(source, eos_requires_source_end=True, **limited)
    model.generation_config.eos_requires_source_end = True
    assert model.generate(source, **limited).equal(free)
    forced = model.generate(source, forced_eos_token_id=model.config.eos_token_id, **limited)
    assert forced[0, -1] == model.config.eos_token_id and forced[0, :-1].equal(free[0, :-1])


@pytest.mark.parametrize("unaligned", ["relative", "relative+window", "rnn_nmt"])
def test_end_rule_is_refused_where_no_source_position_is_known(unaligned):
    with pytest.raises(ValueError, match=r"eos_requires_source_end must .*; leave"):
        tiny_model(unaligned).generate(sentences(1, 5), eos_requires_source_end=True)


@pytest.mark.full
@pytest.mark.parametrize("stacks", [*ALIGNED, "relative", "relative+window"])
def test_end_rule_is_on_in_new_models_with_an_alignment(stacks, tmp_path):
    """And stays as it was in a saved model, also in one that was saved without the rule."""
    model = tiny_model(stacks)
    rule = True if stacks in ALIGNED else None
    assert getattr(model.generation_config, "eos_requires_source_end", None) is rule
    for saved in (rule, False, None):
        if rule is not None:
            model.generation_config.eos_requires_source_end = saved
        model.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path)
        assert getattr(loaded.generation_config, "eos_requires_source_end", None) is saved or rule is None
        loaded.generate(sentences(1, 5), max_new_tokens=2)


def test_end_rule_follows_the_alignment_of_a_converted_model():
    aligned, relative = tiny_model("relative+window by length_ratio"), tiny_model("relative+window")
    for origin in (aligned, relative):
        converted = convert_encodings(
            origin, alignment_type="length_ratio", cross_position_encoding_type="rotary+window"
        )
        assert converted.generation_config.eos_requires_source_end is True
    plain = convert_encodings(aligned, alignment_type="none", cross_position_encoding_type="none")
    assert plain.generation_config.eos_requires_source_end is None
    aligned.generation_config.eos_requires_source_end = False
    converted = convert_encodings(aligned, position_encoding_type="rotary+window")
    assert converted.generation_config.eos_requires_source_end is False


@pytest.mark.parametrize(("owner", "name"), [("decoder", "step"), ("writer", "write"), ("reader", "feed")])
@pytest.mark.parametrize("call", [1, 3])
def test_a_stream_in_which_a_step_failed_says_so_at_each_later_call(owner, name, call, tokenizer):
    """Wherever the step failed: in the model, after it, or while the text was read."""
    translator = StreamingTranslator(varied_translator("relative+window by length_ratio"), tokenizer)
    part = getattr(translator, owner)
    function, calls = getattr(part, name), itertools.count(1)

    def fail(*arguments):
        if next(calls) == call:
            raise MemoryError("no memory")
        return function(*arguments)

    setattr(part, name, fail)
    with pytest.raises(MemoryError):
        for word in random_text(12).split(" "):
            translator.feed(f"{word} ")
    for later in (lambda: translator.feed("Ei"), translator.finish, translator.finish):
        with pytest.raises(MemoryError, match="no memory") as raised:
            later()
        assert len(raised.value.__notes__) == 1


def test_a_refused_piece_leaves_the_stream_as_it_was(tokenizer):
    model, text = varied_translator("relative+window by length_ratio"), random_text(12)
    translator = StreamingTranslator(model, tokenizer)
    begin = translator.feed(text[:20])
    with pytest.raises(ValueError, match="UTF-8"):
        translator.feed("\ud83d")
    assert begin + translator.feed(text[20:]) + translator.finish() == model.translate([text], tokenizer, **OFFLINE)[0]


def test_text_is_read_once_however_its_tokens_are_taken(tokenizer):
    """A piece whose tokens nobody takes, one whose first token is taken, and an end of which that is so."""
    model, text = varied_translator("relative+window by length_ratio"), random_text(12)
    translator = StreamingTranslator(model, tokenizer)
    translator.feed_tokens(text[:20])
    pieces = [next(translator.feed_tokens(text[20:40])), translator.feed(text[40:])]
    pieces += [next(translator.finish_tokens()), translator.finish(), translator.finish()]
    assert "".join(pieces) == model.translate([text], tokenizer, **OFFLINE)[0]
    assert pieces[-1] == ""
