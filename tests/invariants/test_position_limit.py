"""`max_tokens_per_source_position`: a translation ends after so many tokens at one source position."""

import itertools
import math

import pytest
import torch
from support.models import padded, sentences, tiny_model
from support.streams import OFFLINE, assert_streams_exactly, random_text, varied_translator
from test_streaming import source_positions_of
from torch import Tensor

from hf_posenc import PosEncForConditionalGeneration, StreamingTranslator, convert_encodings
from hf_posenc.generation.limits import SourcePositionLimit

pytestmark = [pytest.mark.invariant, pytest.mark.decoding]

LIMIT = "max_tokens_per_source_position"
SLOW = {"length_ratio_step": 0.4, "length_ratio_gain": 0.5, "length_ratio_min_step": 0.0}


def run_lengths(model: PosEncForConditionalGeneration, source: Tensor, target: list[int]) -> list[int]:
    """For each token behind the start token, how many in a row were written at its source position, itself included."""
    nearest = [
        min(math.floor(position + 0.5), len(source) - 1) for position in source_positions_of(model, source, target)
    ]
    return [number for _, run in itertools.groupby(nearest) for number, _ in enumerate(run, 1)]


@torch.no_grad()
def slow_model() -> PosEncForConditionalGeneration:
    """It writes one to many tokens at a source position, and ends where it can."""
    model = tiny_model("relative+window by length_ratio", output_bias=True, cross_window_size=3, **SLOW)
    model.final_logits_bias[:, model.config.eos_token_id] += 3
    return model


@pytest.mark.full
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_translation_ends_at_the_limit_in_a_batch_as_alone(num_beams, side):
    model = slow_model()
    end, options = model.config.eos_token_id, {"do_sample": False, "num_beams": num_beams}
    sources = [sentences(size, seed=size) for size in (12, 7, 2)]
    ids, mask = padded(sources, side)
    without_limit = [model.generate(source[None], **options)[0].tolist() for source in sources]
    ended = []
    for limit in (1, 3, 100):
        batch = model.generate(ids, attention_mask=mask, **{LIMIT: limit}, **options)
        for source, free, row in zip(sources, without_limit, batch.tolist(), strict=True):
            alone = model.generate(source[None], **{LIMIT: limit}, **options)[0].tolist()
            assert row[: len(alone)] == alone and alone[-1] == end
            runs = run_lengths(model, source, alone[:-1])
            assert max(runs[:-1], default=0) <= limit and runs[-1] <= limit + 1
            free_runs = run_lengths(model, source, free[:-1])
            ended.append(max(free_runs) > limit)
            if num_beams == 1:
                num_written = next((t for t, run in enumerate(free_runs) if run > limit), len(free) - 2)
                assert alone == [*free[: num_written + 1], end]
            elif not ended[-1]:
                assert max(runs) <= limit
    assert any(ended) and not all(ended)


@pytest.mark.full
@pytest.mark.parametrize("end_bias", [0, 5])
def test_a_streamed_translation_ends_at_the_limit_as_that_of_the_whole_text(end_bias, tokenizer):
    """Also within the text, and in pieces that are smaller than the window."""
    quick = {"length_ratio_step": 1.0, "length_ratio_gain": 1.0}
    model = varied_translator("relative+window by length_ratio", **SLOW | quick)
    with torch.no_grad():
        model.final_logits_bias[:, model.config.eos_token_id] += end_bias
    for limit, words in ((2, 4), (3, 8)):
        model.generation_config.max_tokens_per_source_position = limit
        text = random_text(words, seed=words + 2)
        assert_streams_exactly(model, tokenizer, text, tokens_per_piece=3, max_origin_distance=5)


def test_tokens_are_counted_along_each_hypothesis():
    """Random hypotheses of two sentences, which drop and double each other, against the history of each."""
    generator = torch.Generator().manual_seed(0)
    processor, last = SourcePositionLimit([2], 2, num_sentences=2), torch.tensor([[40.0]])
    ids, histories, num_over = torch.ones(6, 1, dtype=torch.long), [[] for _ in range(6)], 0
    for number in range(30):
        positions = torch.rand(6, 1, generator=generator) * 2 + number / 3
        histories = [
            [*history, math.floor(position + 0.5)] for history, position in zip(histories, positions, strict=True)
        ]
        processor.steps.append((number, last, positions))
        forced = processor(ids, torch.zeros(6, 5))[:, 0] == float("-inf")
        expected = [len(history) > 2 and len(set(history[-3:])) == 1 for history in histories]
        assert forced.tolist() == expected
        num_over += sum(expected)
        parents = torch.randint(3, (2, 3), generator=generator) + torch.tensor([[0], [3]])
        histories = [histories[parent] for parent in parents.flatten().tolist()]
        ids = torch.cat((ids[parents.flatten()], torch.arange(3, 9)[:, None]), 1)
    assert 10 < num_over < 170


def test_a_sentence_that_has_ended_is_recorded_once():
    """A batch goes on with padding in its row until the longest sentence ends."""
    processor, last = SourcePositionLimit([2], 2, num_sentences=2), torch.tensor([[9.0]])
    ids = torch.ones(2, 1, dtype=torch.long)
    for number, token in enumerate([5, 6, 2, 0, 0, 0, 0, 0]):
        processor.steps.append((number, last, torch.tensor([[3.0], [float(number)]])))
        processor(ids, torch.zeros(2, 7))
        ids = torch.cat((ids, torch.tensor([[token], [5]])), 1)
    assert processor.ended == {(0, 1, 5, 6)}
    assert processor.has_ended(0, [1, 5, 6, 2]) and not processor.has_ended(1, [1, 5, 6, 2])


def test_a_stream_that_has_ended_at_the_limit_keeps_no_more_of_its_source(tokenizer):
    model = varied_translator("relative+window by length_ratio", **SLOW)
    model.generation_config.max_tokens_per_source_position = 1
    translator = StreamingTranslator(model, tokenizer)
    written = translator.feed(random_text(30) + " ")
    assert translator.has_ended and translator.truncated
    num_kept = len(translator.source.ids)
    assert translator.feed(random_text(30) + " ") + translator.finish() in ("", "\ufffd")
    assert len(translator.source.ids) == num_kept and len(written) < 30


@pytest.mark.full
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_translation_that_ends_at_the_limit_is_truncated(num_beams, tokenizer):
    model = varied_translator("relative+window by length_ratio", **SLOW)
    texts = [random_text(words, seed=words) for words in (1, 2, 12)]
    options = OFFLINE | {"num_beams": num_beams}
    free = model.translations(texts, tokenizer, **options)
    for limit in (1, 1000):
        limited = model.translations(texts, tokenizer, **options, **{LIMIT: limit})
        changed = [one != other for one, other in zip(limited.texts, free.texts, strict=True)]
        assert limited.truncated == ([True] * 3 if limit == 1 else free.truncated)
        assert all(changed) if limit == 1 else not any(changed)


@pytest.mark.full
def test_the_limit_is_that_of_assisted_decoding_and_of_decoding_without_a_cache():
    """One forward computes several tokens, of which some are rejected."""
    model, source = slow_model(), sentences(1, 14)
    draft = tiny_model("relative+window by length_ratio", output_bias=True, seed=5)
    for limit in (2, 4):
        options = {"do_sample": False, LIMIT: limit}
        alone = model.generate(source, **options)
        assert alone.shape[1] > 3
        assert model.generate(source, assistant_model=draft, **options).equal(alone)
        assert model.generate(source, use_cache=False, **options).equal(alone)


@pytest.mark.full
@pytest.mark.parametrize("min_step, step", [(0.2, 1.0), (0.5, 0.7), (0.1, 0.5)])
def test_the_minimum_step_of_length_ratio_is_a_limit_before_the_source_s_end(min_step, step):
    """Whatever the attention: ceil(1 / (min_step x step)) tokens at one source position. At the end there is none."""
    model = tiny_model(
        "relative+window by length_ratio", length_ratio_step=step, length_ratio_gain=1.0, length_ratio_min_step=min_step
    )
    source = sentences(1, 12)
    target = model.generate(source, do_sample=False, eos_token_id=-1, max_new_tokens=150)[0].tolist()
    nearest = [math.floor(position + 0.5) for position in source_positions_of(model, source[0], target)]
    counts = {token: nearest.count(token) for token in nearest}
    assert nearest[-1] == 11 and counts.pop(11) > 20
    assert max(counts.values()) <= math.ceil(1 / (min_step * step))


@pytest.mark.parametrize("unaligned", ["relative", "relative+window", "rnn_nmt"])
def test_the_limit_is_refused_where_no_source_position_is_known(unaligned):
    with pytest.raises(ValueError, match=rf"{LIMIT} must .*; leave"):
        tiny_model(unaligned).generate(sentences(1, 5), **{LIMIT: 5})


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "5"])
def test_a_limit_is_a_whole_number(limit, tokenizer):
    model = varied_translator("relative+window by length_ratio")
    with pytest.raises(ValueError, match=rf"{LIMIT} must be a whole number from 1 on.*{limit!r}"):
        model.generate(sentences(1, 5), **{LIMIT: limit})
    model.generation_config.max_tokens_per_source_position = limit
    for use in (lambda: StreamingTranslator(model, tokenizer), lambda: model.translate(["Ein Hund"], tokenizer)):
        with pytest.raises(ValueError, match=rf"{LIMIT} must be a whole number"):
            use()


def test_the_limit_needs_an_end_token():
    with pytest.raises(ValueError, match=rf"{LIMIT} must .* end token"):
        slow_model().generate(sentences(1, 5), **{LIMIT: 3}, eos_token_id=None)


@pytest.mark.full
def test_the_limit_is_saved_and_leaves_with_the_alignment(tmp_path):
    model, source = slow_model(), sentences(1, 14)
    assert getattr(model.generation_config, LIMIT, None) is None
    model.generation_config.max_tokens_per_source_position = 1
    model.save_pretrained(tmp_path)
    loaded = PosEncForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float64)
    limited = loaded.generate(source, do_sample=False)
    assert limited.equal(model.generate(source, do_sample=False, **{LIMIT: 1}))
    assert not limited.equal(model.generate(source, do_sample=False, **{LIMIT: None}))
    rotary = convert_encodings(model, position_encoding_type="rotary+window")
    assert rotary.generation_config.max_tokens_per_source_position == 1
    plain = convert_encodings(model, alignment_type="none", cross_position_encoding_type="none")
    assert plain.generation_config.max_tokens_per_source_position is None
    plain.generate(source, max_new_tokens=2)
