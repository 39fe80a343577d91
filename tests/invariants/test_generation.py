"""Generated tokens are equal with and without a cache, in a batch, and with assisted decoding."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from support.models import ALIGNED, padded, sentences, tiny_model
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.utils import logging

from hf_posenc import PosEncForConditionalGeneration, PosEncTokenizer
from hf_posenc.encodings.cache import StatefulLayer
from hf_posenc.generation.model_inputs import CACHE_NAME, CACHE_NAMES, get_cache
from hf_posenc.generation.translate import encode_texts

pytestmark = pytest.mark.decoding

CACHES = {
    "no cache": {"use_cache": False},
    "a dynamic cache": {"use_cache": True},
    "a static cache": {"use_cache": True, "cache_implementation": "static"},
}
SEARCHES = {
    "greedy": {"do_sample": False},
    "beams": {"do_sample": False, "num_beams": 4, "num_return_sequences": 2},
    "samples": {"do_sample": True, "top_k": 0, "num_return_sequences": 3},
    "sampled beams": {"do_sample": True, "top_k": 0, "num_beams": 3, "num_return_sequences": 2},
}
EXACT = {"rtol": 1e-9, "atol": 1e-9}
NOT_VACUOUS = {"min_new_tokens": 6, "max_new_tokens": 10, "no_repeat_ngram_size": 2, "suppress_tokens": [0, 1]}


def generated(model: PosEncForConditionalGeneration, source: Tensor, **options) -> Tensor:
    """The generated ids; never one token over and over, or their equality would say nothing."""
    torch.manual_seed(5)
    ids = model.generate(source, **(NOT_VACUOUS | {"do_sample": False} | options))
    for row in ids.tolist():
        assert len(set(row[1:7])) >= 3, row
    return ids


def sentence(ids: Tensor) -> list[int]:
    """The tokens before the end; transformers fills a row up with padding or, in beam search, with further ends."""
    return [token for token in itertools.takewhile(lambda token: token != 2, ids.tolist()) if token != 0]


@pytest.fixture
def ragged() -> tuple[Tensor, Tensor]:
    return padded([sentences(n, seed=n) for n in (7, 3, 5)], "right")


class PaddingEveryThirdToken(LogitsProcessor):
    """Makes a model write its padding token, as an untrained one does by chance."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] % 3:
            return scores
        padding = torch.full_like(scores, float("-inf"))
        padding[:, 0] = 0
        return padding


WITH_STATE = [*ALIGNED, "lstm", "gru+relative", "forgetting", "rnn_nmt"]


@pytest.mark.parametrize("stateful", WITH_STATE)
@pytest.mark.full
def test_generated_padding_tokens_count_with_a_cache_and_without(stateful):
    """Without a cache the decoder reads them again: they are no padding then either."""
    model, source = tiny_model(stateful, seed=1), sentences(2, 7)
    prompt = torch.tensor([[1, 5], [1, 6]])
    options = {"max_new_tokens": 9, "eos_token_id": None, "logits_processor": [PaddingEveryThirdToken()]}
    for search in ({"do_sample": False}, {"do_sample": False, "num_beams": 3}):
        for given in ({}, {"decoder_input_ids": prompt}):
            cached = model.generate(source, **given, **search, **options)
            assert model.generate(source, use_cache=False, **given, **search, **options).equal(cached)


@pytest.mark.capability("dynamic and static cache")
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_every_cache_gives_the_tokens_of_no_cache(family, search, ragged):
    model, (source, mask) = tiny_model(family, seed=1), ragged
    without, *withs = (generated(model, source, attention_mask=mask, **search, **cache) for cache in CACHES.values())
    assert all(torch.equal(without, ids) for ids in withs)
    assert len({tuple(row) for row in without.tolist()}) > 1


@pytest.mark.parametrize("side", ["left", "right"])
def test_generating_in_a_batch_equals_generating_each_sentence_separately(family, side):
    model, rows = tiny_model(family), [sentences(n, seed=n) for n in (7, 3, 5)]
    source, mask = padded(rows, side)
    batch = generated(model, source, attention_mask=mask, num_beams=4)
    for row, ids in zip(rows, batch, strict=True):
        alone = generated(model, row[None], num_beams=4)[0]
        assert sentence(ids) == sentence(alone)


@pytest.mark.full
@pytest.mark.capability("assisted")
@pytest.mark.parametrize("draft_seed", [0, 1], ids=["itself", "another model"])
def test_assisted_decoding_does_not_change_the_tokens(family, draft_seed):
    model, draft = tiny_model(family), tiny_model(family, seed=draft_seed)
    source = sentences(1, 6, seed=3)
    assert torch.equal(generated(model, source, assistant_model=draft), generated(model, source))


@pytest.mark.full
@pytest.mark.parametrize("draft_seed", [0, 1], ids=["itself", "another model"])
@pytest.mark.parametrize("alignment", ALIGNED)
def test_assisted_decoding_evicts_from_the_cache_of_a_draft(alignment, draft_seed):
    """A draft that read its prompt again in each round would have a cache of twice the tokens, and could not crop."""
    sizes = {"window_size": 3, "cross_window_size": 5, "decoder_layers": 1, "eos_token_id": None}
    model, draft = tiny_model(alignment, **sizes), tiny_model(alignment, seed=draft_seed, **sizes)
    source, options = sentences(1, 20, seed=3), {"do_sample": False, "max_new_tokens": 80}
    assert torch.equal(model.generate(source, assistant_model=draft, **options), model.generate(source, **options))


@pytest.mark.parametrize("side", ["left", "right"])
def test_generating_on_from_a_cache_does_not_change_the_tokens(family, side):
    model, rows = tiny_model(family, eos_token_id=None), [sentences(n, seed=n) for n in (7, 3, 5)]
    source, mask = padded(rows, side)
    options = {"attention_mask": mask, "do_sample": False, "logits_processor": [PaddingEveryThirdToken()]}
    whole = model.generate(source, max_new_tokens=9, **options)
    first = model.generate(source, max_new_tokens=4, return_dict_in_generate=True, **options)
    given = {CACHE_NAME: get_cache(first), "decoder_input_ids": first.sequences}
    assert torch.equal(model.generate(source, max_new_tokens=5, **given, **options), whole)


def test_looking_up_candidates_in_the_prompt_does_not_change_the_tokens(family):
    # transformers counts candidates in the source's vocabulary, so here the two are of one size.
    model, source = tiny_model(family, decoder_vocab_size=29), sentences(1, 6, seed=3)
    options = {"no_repeat_ngram_size": 0, "repetition_penalty": 1.3, "max_new_tokens": 14}
    prompt = torch.tensor([[1, 5, 6, 7, 5, 6, 7, 5, 6]])
    plain = model.generate(source, decoder_input_ids=prompt, do_sample=False, **options)
    looked_up = model.generate(source, decoder_input_ids=prompt, do_sample=False, prompt_lookup_num_tokens=3, **options)
    assert torch.equal(looked_up, plain)


@pytest.mark.full
@pytest.mark.parametrize("search", [SEARCHES["greedy"], {"num_beams": 3}], ids=["greedy", "beams"])
def test_a_padded_prompt_without_a_start_token_generates_the_same_as_unpadded(family, search):
    """transformers puts the start token before the padding, so that the mask has a hole between it and the prompt."""
    model, source = tiny_model(family), sentences(3, 6, seed=1)
    prompts = [sentences(n, seed=20 + n) for n in (4, 2, 1)]
    prompt, mask = padded(prompts, "left")
    options = search | {"max_new_tokens": 7}
    alone = [
        generated(model, one[None], decoder_input_ids=row[None], use_cache=False, **options)[0]
        for one, row in zip(source, prompts, strict=True)
    ]
    for kind, cache in CACHES.items():
        batch = generated(model, source, decoder_input_ids=prompt, decoder_attention_mask=mask, **options, **cache)
        assert [sentence(ids) for ids in batch] == [sentence(ids) for ids in alone], kind


@pytest.mark.full
def test_a_padded_prompt_with_a_start_token_generates_the_same_as_unpadded(family):
    model, source = tiny_model(family), sentences(3, 6, seed=1)
    prompts = [torch.cat((torch.tensor([1]), sentences(n, seed=20 + n))) for n in (4, 2, 1)]
    prompt, mask = padded(prompts, "left")
    prompt[:, 0] = 1  # every row must begin with the start token, or transformers adds one
    alone = [
        generated(model, one[None], decoder_input_ids=row[None], use_cache=False)[0, len(row) :]
        for one, row in zip(source, prompts, strict=True)
    ]
    for kind, cache in CACHES.items():
        batch = generated(model, source, decoder_input_ids=prompt, decoder_attention_mask=mask, **cache)
        new = batch[:, prompt.shape[1] :]
        assert [sentence(ids) for ids in new] == [sentence(ids) for ids in alone], kind


def test_one_model_generates_with_several_caches_in_turn(family, ragged):
    """transformers keeps a static cache on the model and resets it for the next batch."""
    model, (source, mask) = tiny_model(family), ragged
    expected = generated(model, source.flip(0), attention_mask=mask.flip(0))
    generated(model, source, attention_mask=mask, cache_implementation="static")
    again = generated(model, source.flip(0), attention_mask=mask.flip(0), cache_implementation="static")
    assert torch.equal(again, expected)


@pytest.mark.parametrize("recurrent", ["lstm", "gru", "none to lstm", "gru+relative", "rnn_nmt"])
def test_the_tests_detect_beams_without_reordered_state(recurrent, ragged, monkeypatch):
    """The control of the tests above: if they could not fail, they would say nothing of the reordering."""
    model, (source, mask) = tiny_model(recurrent), ragged
    options = {"attention_mask": mask, "num_beams": 4, "num_return_sequences": 4}
    expected = generated(model, source, use_cache=False, **options)
    assert torch.equal(generated(model, source, **options), expected)
    monkeypatch.setattr(StatefulLayer, "batch_select_states", lambda layer, indices: None)
    assert not torch.equal(generated(model, source, **options), expected)


# What generate tells, and what it can be given

TOLD = {
    "return_dict_in_generate": True,
    "output_logits": True,
    "output_scores": True,
    "output_attentions": True,
    "output_hidden_states": True,
}
FULL_LENGTH = {"max_new_tokens": 6, "suppress_tokens": [0, 1, 2]}


def one_forward(model: PosEncForConditionalGeneration, source: Tensor, mask: Tensor, ids: Tensor):
    return model(
        input_ids=source,
        attention_mask=mask,
        decoder_input_ids=ids[:, :-1],
        output_attentions=True,
        output_hidden_states=True,
        track_attention=True,
    )


@pytest.mark.parametrize("cache", CACHES.values(), ids=CACHES)
@torch.no_grad()
def test_outputs_of_generation_steps_equal_one_forward(family, cache, ragged):
    """Logits, hidden states and attention weights of all layers; what a model does not have, it has in no step."""
    model, (source, mask) = tiny_model(family), ragged
    found = model.generate(source, attention_mask=mask, do_sample=False, **FULL_LENGTH, **TOLD, **cache)
    whole = one_forward(model, source, mask, found.sequences)
    assert found.sequences.shape == (3, 7)
    assert [step.shape for step in found.scores] == [(3, model.config.decoder_vocab_size)] * 6
    torch.testing.assert_close(torch.stack(found.logits, dim=1), whole.logits.float())
    for name in ("encoder_hidden_states", "encoder_attentions"):
        torch.testing.assert_close(found.get(name), whole.get(name), **EXACT)
    for name in ("decoder_hidden_states", "decoder_attentions", "cross_attentions"):
        steps = found.get(name)
        if whole.get(name) is None:
            assert not steps or set(steps) == {None}
            continue
        assert len(steps) == 6
        for t, layers in enumerate(steps):
            assert len(layers) == len(whole[name])
            for layer, all_at_once in zip(layers, whole[name], strict=True):
                newest, expected = layer[..., -1, :], all_at_once[..., t, :]
                if name == "decoder_attentions":
                    # A static cache has places for tokens to come, and nothing may be attended to there.
                    assert not newest[..., t + 1 :].any()
                    newest, expected = newest[..., : t + 1], expected[..., : t + 1]
                torch.testing.assert_close(newest, expected, **EXACT)


@torch.no_grad()
def test_a_beams_score_is_the_log_probability_of_its_sentence(family, ragged):
    # transformers finds a step's scores by the source's vocabulary, so here the two are of one size.
    model, (source, mask) = tiny_model(family, decoder_vocab_size=29), ragged
    beams = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.0, "do_sample": False}
    found = model.generate(source, attention_mask=mask, **beams, **FULL_LENGTH, **TOLD)
    assert found.sequences.shape == (12, 7)
    assert [step.shape for step in found.scores] == [(12, model.config.decoder_vocab_size)] * 6
    assert found.beam_indices.shape == (12, 6)
    assert all(layer.shape[0] == 12 for step in found.cross_attentions for layer in step)
    assert all(layer.shape[0] == 3 for layer in found.get("encoder_attentions") or ())
    whole = one_forward(model, source.repeat_interleave(4, 0), mask.repeat_interleave(4, 0), found.sequences)
    said = whole.logits.log_softmax(-1).gather(-1, found.sequences[:, 1:, None])[..., 0].float()
    torch.testing.assert_close(found.sequences_scores, said.sum(1))
    steps = model.compute_transition_scores(found.sequences, found.scores, found.beam_indices, normalize_logits=False)
    torch.testing.assert_close(steps, said)


@pytest.mark.parametrize("cache", list(CACHES.values())[1:], ids=list(CACHES)[1:])
@torch.no_grad()
def test_the_cache_holds_keys_and_values_of_what_was_read(sides, cache, ragged):
    model, (source, mask) = tiny_model(sides), ragged
    found = model.generate(source, attention_mask=mask, **FULL_LENGTH, return_dict_in_generate=True, **cache)
    own, cross = get_cache(found).self_attention_cache, get_cache(found).cross_attention_cache
    assert int(own.get_seq_length()) == 6
    heads, layers = model.config.decoder_attention_heads, model.config.decoder_layers
    for part, length in ((own, 6), (cross, 7)):
        assert len(part.layers) == layers
        for layer in part.layers:
            assert layer.values.shape[3] == 16 // heads
            assert layer.keys.shape[3] % (16 // heads) == 0  # an encoding may widen them
            for filled in (layer.keys, layer.values):
                assert filled.shape[:2] == (3, heads)
                assert filled.shape[2] == length or ("cache_implementation" in cache and filled.shape[2] > length)


@pytest.mark.parametrize("name", CACHE_NAMES)
@torch.no_grad()
def test_generation_continues_from_a_returned_cache(family, name, ragged):
    """The second part of a sentence, from the first part and the cache that it left."""
    model, (source, mask) = tiny_model(family), ragged
    options = {"attention_mask": mask, "no_repeat_ngram_size": 2, "suppress_tokens": [0, 1, 2], "do_sample": False}
    expected = model.generate(source, max_new_tokens=8, **options)
    half = model.generate(source, max_new_tokens=3, return_dict_in_generate=True, **options)
    # By this mask transformers sees which of the tokens are in the cache already.
    options |= {"decoder_attention_mask": torch.ones_like(half.sequences)}
    options |= {"decoder_input_ids": half.sequences, name: get_cache(half)}
    torch.testing.assert_close(model.generate(source, max_new_tokens=5, **options), expected)


@pytest.mark.full
@pytest.mark.parametrize("search", [SEARCHES["greedy"], {"num_beams": 3}], ids=["greedy", "beams"])
@torch.no_grad()
def test_source_embeddings_and_encoder_outputs_generate_the_same(family, search, ragged):
    model, (source, mask) = tiny_model(family), ragged
    expected = generated(model, source, attention_mask=mask, **search)
    embedded, encoded = model.get_input_embeddings()(source), model.model.encoder(source, attention_mask=mask)
    for given in ({"inputs_embeds": embedded}, {"encoder_outputs": encoded}):
        assert torch.equal(generated(model, None, attention_mask=mask, **search, **given), expected)


@pytest.mark.full
@pytest.mark.parametrize("help_by", ["a draft", "its prompt"])
def test_sampled_candidates_are_those_of_the_model(family, help_by):
    """At a temperature near nothing a sample is the best token, whoever proposed it."""
    model, source = tiny_model(family, decoder_vocab_size=29), sentences(1, 6, seed=3)
    draft = tiny_model(family, decoder_vocab_size=29, seed=1)
    helps = {"a draft": {"assistant_model": draft}, "its prompt": {"prompt_lookup_num_tokens": 3}}
    expected = model.generate(source, do_sample=False, **FULL_LENGTH)
    cold = {"do_sample": True, "temperature": 1e-6, "top_k": 0}
    assert torch.equal(model.generate(source, **cold, **FULL_LENGTH, **helps[help_by]), expected)


def test_without_a_source_generating_starts_from_the_first_token(family):
    model = tiny_model(family)
    expected = model.generate(torch.tensor([[1]]), do_sample=False, **FULL_LENGTH)
    assert torch.equal(model.generate(do_sample=False, **FULL_LENGTH), expected)


# From text to text

TEXTS = ["the cat sat", "a dog", "the dog and the cat sat on the mat", "mat", "on and on and on the cat sat", ""]


@pytest.fixture(scope="module")
def tokenizer() -> PosEncTokenizer:
    return PosEncTokenizer.train(TEXTS, vocab_size=290)


def translator(tokenizer: PosEncTokenizer, sides: str = "relative", **changes) -> PosEncForConditionalGeneration:
    size = len(tokenizer)
    return tiny_model(
        sides, vocab_size=size, decoder_vocab_size=size, output_bias=True, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id, learned_max_positions=200, **changes,
    )  # fmt: skip


def set_end(model: PosEncForConditionalGeneration, tokenizer: PosEncTokenizer, bias: float) -> None:
    """Make the end of a sentence certain or impossible."""
    model.final_logits_bias.data[0, tokenizer.eos_token_id] = bias


@pytest.mark.full
def test_translations_keep_the_order_and_do_not_depend_on_the_batch(registered, tokenizer):
    model = translator(tokenizer, registered)
    model.final_logits_bias.data[:, 4:260] = -30.0  # no byte tokens, which would not be seen in a text
    set_end(model, tokenizer, 5.0)
    for layer in model.model.decoder.layers:
        layer.encoder_attn.out_proj.weight.data *= 4  # so that the translations of two sources differ
    options = {"num_beams": 2, "no_repeat_ngram_size": 2, "min_new_tokens": 5}
    together = model.translate(TEXTS, tokenizer, **options)
    assert len(set(together)) >= 3
    assert together == [model.translate([text], tokenizer, **options)[0] for text in TEXTS]
    assert together == model.translate(iter(TEXTS), tokenizer, batch_size=4, **options)


@pytest.mark.full
@pytest.mark.parametrize("num_beams", [1, 5])
def test_a_translation_has_at_most_twice_the_source_tokens_and_50(tokenizer, num_beams, monkeypatch):
    model, rows, generate = translator(tokenizer), [], PosEncForConditionalGeneration.generate

    def recorded(self, *args, **kwargs):
        rows.append(generate(self, *args, **kwargs))
        return rows[-1]

    monkeypatch.setattr(PosEncForConditionalGeneration, "generate", recorded)
    texts = TEXTS[:3]
    set_end(model, tokenizer, -1e4)
    found = model.translations(texts, tokenizer, num_beams=num_beams, no_repeat_ngram_size=3)
    assert found.truncated == [True] * len(texts)
    special = {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
    lengths = sorted(sum(token not in special for token in row) for row in rows[0].tolist())
    sources = [len(tokenizer(text)["input_ids"]) - 1 for text in texts]
    assert all(
        most - 8 <= length <= most for length, most in zip(lengths, sorted(2 * n + 50 for n in sources), strict=True)
    )
    set_end(model, tokenizer, 1e4)
    found = model.translations(texts, tokenizer, num_beams=num_beams)
    assert (found.texts, found.truncated) == ([""] * len(texts), [False] * len(texts))


@pytest.mark.full
@pytest.mark.parametrize("num_beams", [1, 5])
def test_only_the_truncated_sentences_are_flagged(tokenizer, num_beams, monkeypatch):
    """A sentence shares its batch with longer ones, which must not count as its own length."""
    model, generate = translator(tokenizer), PosEncForConditionalGeneration.generate

    class OnlyTheSecondEnds(LogitsProcessor):
        """The second sentence of a batch, the shorter one, ends at once, and the first one never."""

        def __call__(self, input_ids, scores):
            scores[:num_beams, tokenizer.eos_token_id] = -1e4
            scores[num_beams:, tokenizer.eos_token_id] = 1e4
            return scores

    def generated_so(self, *args, logits_processor, **kwargs):
        both = LogitsProcessorList([OnlyTheSecondEnds(), *logits_processor])
        return generate(self, *args, logits_processor=both, **kwargs)

    monkeypatch.setattr(PosEncForConditionalGeneration, "generate", generated_so)
    texts = ["", "the dog and the cat sat on the mat and on and on"]
    assert model.translations(texts, tokenizer, num_beams=num_beams).truncated == [False, True]


def test_translate_refuses_a_bare_string(tokenizer):
    with pytest.raises(TypeError, match=r"translate\(\[text\]"):
        translator(tokenizer).translate("the cat", tokenizer)


@pytest.mark.full
def test_translate_leaves_the_mode_of_the_model_alone(tokenizer):
    model = translator(tokenizer)
    for mode in (True, False):
        model.train(mode)
        model.translate(TEXTS[:1], tokenizer, num_beams=1)
        assert model.training == mode


def test_translate_gives_back_the_mode_of_a_model_that_fails(tokenizer):
    class Fails(LogitsProcessor):
        def __call__(self, input_ids, scores):
            raise RuntimeError("in the midst of it")

    model = translator(tokenizer).train()
    with pytest.raises(RuntimeError, match="in the midst of it"):
        model.translate(TEXTS[:1], tokenizer, logits_processor=LogitsProcessorList([Fails()]))
    assert model.training


@pytest.mark.parametrize("option", [{"num_return_sequences": 2}, {"return_dict_in_generate": True}])
def test_translate_refuses_what_is_more_than_a_text(tokenizer, option):
    for given in (option, {"generation_config": GenerationConfig(num_beams=2, **option)}):
        with pytest.raises(ValueError, match=f"but {next(iter(option))}=.*; call generate"):
            translator(tokenizer).translate(TEXTS[:1], tokenizer, **given)


@pytest.mark.full
def test_translate_gives_a_text_for_each_source_whatever_the_model_generates_by_itself(tokenizer):
    model = translator(tokenizer)
    expected = model.translate(TEXTS, tokenizer, num_beams=2)
    own = model.generation_config
    own.num_beams, own.num_return_sequences, own.return_dict_in_generate = 2, 2, True
    assert model.translate(TEXTS, tokenizer, num_beams=2) == expected


@pytest.mark.full
def test_a_translation_that_ends_within_the_callers_length_is_whole(tokenizer):
    """However much longer it is than `translate` would have let it become."""

    class EndsAt100(LogitsProcessor):
        def __call__(self, input_ids, scores):
            ends = input_ids.shape[1] == 100
            scores[:, 2] = torch.finfo(scores.dtype).max if ends else -torch.inf
            return scores

    model, given = translator(tokenizer), {"num_beams": 1, "logits_processor": LogitsProcessorList([EndsAt100()])}
    assert model.translations(["the"], tokenizer, **given).truncated == [True]
    assert model.translations(["the"], tokenizer, max_new_tokens=200, **given).truncated == [False]
    assert model.translations(["the"], tokenizer, max_new_tokens=60, **given).truncated == [True]


def test_translate_takes_the_beams_of_a_generation_config(tokenizer):
    model = translator(tokenizer, seed=1)
    given = GenerationConfig(num_beams=1, max_new_tokens=5)
    greedy = model.translate(TEXTS, tokenizer, num_beams=1, max_new_tokens=5)
    assert model.translate(TEXTS, tokenizer, generation_config=given) == greedy
    beams = model.translate(TEXTS, tokenizer, max_new_tokens=5)
    assert beams != greedy
    assert model.translate(TEXTS, tokenizer, generation_config=GenerationConfig(max_new_tokens=5)) == beams


@pytest.mark.full
def test_translating_nothing_gives_nothing(tokenizer):
    model = translator(tokenizer)
    assert model.translate([], tokenizer) == []
    assert model.translate(["", " \t", *TEXTS[:1], ""], tokenizer) == [
        "",
        "",
        *model.translate(TEXTS[:1], tokenizer),
        "",
    ]


class StartAndEnd:
    """A tokenizer that adds a token on either side."""

    def __call__(self, texts: list[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [[1, *map(ord, text), 2] for text in texts]}

    def num_special_tokens_to_add(self) -> int:
        return 2


def test_a_blank_text_has_no_tokens_whatever_a_tokenizer_adds():
    assert encode_texts([], None) == []
    assert encode_texts(["", "x", " "], StartAndEnd()) == [[], [1, 120, 2], []]


class NeverEnds(LogitsProcessor):
    """The same token again and again."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[:, 2], scores[:, 5] = -1e4, 1e4
        return scores


def endless(model: PosEncForConditionalGeneration, *args, **options) -> list[int]:
    """How many tokens there are before the end, of what would have none."""
    ids = model.generate(*args, logits_processor=LogitsProcessorList([NeverEnds()]), **options)
    return [len(sentence(row[1:])) for row in ids]


@pytest.fixture
def saved(tmp_path):
    """Of either family, a model that has been saved and loaded again."""

    def make(system: str, **changes) -> PosEncForConditionalGeneration:
        tiny_model(system, **changes).save_pretrained(tmp_path / system)
        return AutoModelForSeq2SeqLM.from_pretrained(tmp_path / system)

    return make


@pytest.fixture
def warned(caplog) -> Iterator[pytest.LogCaptureFixture]:
    """What transformers has logged as a warning."""
    before = logging.get_verbosity()  # which the command line lowers
    logging.set_verbosity_warning()
    logging.enable_propagation()
    yield caplog
    logging.disable_propagation()
    logging.set_verbosity(before)


def test_two_lengths_are_warned_of(saved, warned):
    """As the tests below rely on it."""
    saved("relative").generate(sentences(1, 3), max_length=9, max_new_tokens=4)
    assert "Both `max_new_tokens`" in warned.records[0].message


@pytest.mark.full
@pytest.mark.parametrize(
    ("told_by", "how"),
    [
        ("a mask", {}),
        ("padding", {}),
        ("embeddings", {"num_beams": 3}),
        ("the encoder's outputs", {"num_beams": 4, "num_return_sequences": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("system", ["relative", "rnn_nmt"])
def test_the_default_limit_of_a_sentence_is_twice_its_source_and_50_tokens(saved, system, how, told_by):
    model = saved(system)
    source, mask = padded([sentences(1, n, seed=n)[0] for n in (3, 9)], "left")
    given = {"attention_mask": mask}
    if told_by == "padding":
        given = {"input_ids": source}
    elif told_by == "a mask":
        given |= {"input_ids": source}
    elif told_by == "embeddings":
        given |= {"inputs_embeds": model.get_input_embeddings()(source)}
    else:
        given |= {"encoder_outputs": model.model.encoder(source, mask)}
    expected = [2 * (n - 1) + 50 for n in (3, 9) for _ in range(how.get("num_return_sequences", 1))]
    assert endless(model, **given, do_sample=False, **how) == expected
    alone = endless(model, source[1:], do_sample=False, **how)
    assert set(alone) == {2 * 8 + 50}


def test_no_sentence_is_longer_than_the_decoder_can_tell_apart(saved):
    model = saved("learned", learned_max_positions=20)
    assert endless(model, sentences(1, 6)) == [19]


@pytest.mark.parametrize("place", ["argument", "generation_config", "the model's"])
@pytest.mark.parametrize(("name", "new"), [("max_new_tokens", 7), ("max_length", 6)])
@pytest.mark.full
def test_a_length_that_is_given_is_kept_and_no_warning_given(saved, warned, place, name, new):
    model, given = saved("relative"), {name: 7}
    if place == "the model's":
        model.generation_config.update(**given)
    options = {"argument": given, "generation_config": {"generation_config": GenerationConfig(**given)}}.get(place, {})
    assert endless(model, sentences(2, 9), **options) == [new, new]
    assert not warned.records


def test_translate_accepts_a_length_like_generate(tokenizer, warned, monkeypatch):
    model, rows, generate = translator(tokenizer), [], PosEncForConditionalGeneration.generate

    def recorded(self, *args, **kwargs):
        rows.append(generate(self, *args, **kwargs))
        return rows[-1]

    monkeypatch.setattr(PosEncForConditionalGeneration, "generate", recorded)
    for given in ({"max_new_tokens": 4}, {"max_length": 5}):
        never = LogitsProcessorList([NeverEnds()])
        texts = [text for text in TEXTS if text]
        found = model.translations(texts, tokenizer, num_beams=2, logits_processor=never, **given)
        assert found.truncated == [True] * len(texts)
        assert rows[-1].shape == (len(texts), 5)
    assert not warned.records


def test_generation_starts_from_the_configs_tokens():
    generation = tiny_model("none").generation_config
    assert isinstance(generation, GenerationConfig)
    assert (generation.decoder_start_token_id, generation.eos_token_id, generation.pad_token_id) == (1, 2, 0)
