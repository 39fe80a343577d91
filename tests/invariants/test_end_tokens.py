"""Limits of length, end tokens and padding of generated sentences are those of the call."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import TEXTS, TEXTS_VOCABULARY, padded, sentences, tiny_model
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    StoppingCriteria,
)

from hf_posenc.lab.analysis.diagnosis import decode_batch
from hf_posenc.lab.figures.attention_figures import translate_with_attention
from hf_posenc.transformer.encoder_decoder import ConditionalGeneration

START, END, OTHER, PAD = 1, 2, 9, 0
ENDS = {"one": OTHER, "several": [OTHER, END], "a tensor": torch.tensor([OTHER, END]), "none": None}
TOKENS = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": START}
SYSTEMS = ["relative", pytest.param("rnn_nmt", marks=pytest.mark.full)]
TOLD_BY = ["the call", "its generation config", "the model's"]


def model_of(system: str, **changes: Any) -> ConditionalGeneration:
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY}
    return tiny_model(system, output_bias=True, encoder_layers=1, decoder_layers=1, **sizes, **changes)


def make_likely(model: ConditionalGeneration, token: int, bias: float = 1e3) -> None:
    with torch.no_grad():
        model.final_logits_bias[0, token] += bias


def told(model: ConditionalGeneration, by: str, **options: Any) -> dict[str, Any]:
    """Options of a call, when that is where they are given."""
    if by == "the call":
        return options
    if by == "its generation config":
        return {"generation_config": GenerationConfig(**options)}
    model.generation_config.update(**options)
    return {}


def ids_of(ends: Any) -> list[int]:
    return [] if ends is None else torch.as_tensor(ends).flatten().tolist()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("by", TOLD_BY)
@pytest.mark.parametrize("ends", [OTHER, [END, OTHER], torch.tensor([END, OTHER])], ids=["one", "several", "a tensor"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_sentence_that_ended_is_not_truncated(system, ends, by, beams, tokenizer):
    model = model_of(system)
    make_likely(model, OTHER)
    options = told(model, by, eos_token_id=ends)
    found = model.translations(TEXTS, tokenizer, num_beams=beams, **options)
    assert found.truncated == [False] * len(TEXTS)
    assert found.texts == [tokenizer.decode([OTHER])] * len(TEXTS), "what ends a sentence is part of it"


@pytest.mark.parametrize("how", [{"num_beams": 1}, {"num_beams": 3}, {"do_sample": True}], ids=str)
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.full
def test_at_its_limit_a_sentence_has_one_end_token_and_then_padding(system, ends, how):
    model, limits = model_of(system), [2 * (length - 1) + 50 for length in (3, 6)]
    source, mask = padded([sentences(1, length)[0] for length in (3, 6)], "right")
    never = {"suppress_tokens": [PAD, END, OTHER]}
    rows = model.generate(source, attention_mask=mask, eos_token_id=ends, **never, **how).tolist()
    behind = ids_of(ends)[:1]
    for row, limit in zip(rows, limits, strict=True):
        assert not {PAD, END, OTHER} & set(row[1 : limit + 1])
        rest = row[limit + 1 :]
        assert rest == behind + [PAD] * (len(rest) - len(behind))
    assert len(rows[0]) == 1 + max(limits) + len(behind)


@pytest.mark.parametrize("beams", [1, 4])
def test_what_ended_before_a_given_length_is_padded(beams):
    model = model_of("relative")

    class FirstEnds(LogitsProcessor):
        def __call__(self, input_ids, scores):
            ends = input_ids.shape[1] == 3
            scores[:, END] = -torch.inf
            scores[:beams, END] = 1e4 if ends else -torch.inf
            return scores

    options = {"max_new_tokens": 9, "num_beams": beams, "logits_processor": LogitsProcessorList([FirstEnds()])}
    made = model.generate(sentences(2, 5), return_dict_in_generate=True, **options).sequences.tolist()
    assert made[0][3:] == [END] + [PAD] * 6
    assert END not in made[1] and len(made[1]) == 10


@pytest.mark.full
def test_an_end_token_in_the_prompt_ends_nothing():
    model = model_of("relative")
    options = {"min_new_tokens": 9, "suppress_tokens": [PAD]}
    for prompt in ([[START, END, 7]], [[END, 7]]):  # to the second one the start token is added
        (row,) = model.generate(sentences(1, 5), decoder_input_ids=torch.tensor(prompt), **options).tolist()
        assert row[:3] == [START, END, 7]
        assert not {PAD, END} & set(row[3:12])


@pytest.mark.full
@pytest.mark.parametrize("ends", [[END, OTHER], None], ids=["several", "none"])
def test_a_config_may_have_several_end_tokens_or_none(ends, tokenizer):
    model = model_of("relative", eos_token_id=ends)
    make_likely(model, OTHER)
    found = model.translations(TEXTS, tokenizer, num_beams=1)
    assert found.truncated == [ends is None] * len(TEXTS)
    limits = model.max_target_lengths(len(tokenizer(text)["input_ids"]) for text in TEXTS)
    assert [len(text) for text in found.texts] == [1 if ends else limit for limit in limits]
    model.config.eos_token_id = [OTHER]
    with pytest.raises(ValueError, match=r"eos_token_id is 2 .* model's \[9\]"):
        model.translate(TEXTS, tokenizer)


@pytest.mark.parametrize("by", TOLD_BY)
def test_a_source_is_as_long_as_its_padding_says(by):
    model, filler = model_of("relative"), TEXTS_VOCABULARY - 1
    source = torch.tensor([[5, 6, 7, filler, filler], [5, 6, 7, 8, 9]])
    options = told(model, by, pad_token_id=filler)
    (first, second) = model.generate(source, suppress_tokens=[END, filler], **options).tolist()
    assert (first.index(END), second.index(END)) == (1 + 54, 1 + 58)
    assert set(first[56:]) == {filler}


@pytest.mark.parametrize("by", TOLD_BY)
def test_an_end_that_was_forced_is_a_truncation(by, tokenizer):
    model = model_of("relative")
    make_likely(model, END, -1e3)
    forced = told(model, by, forced_eos_token_id=END)
    assert model.translations(TEXTS, tokenizer, max_new_tokens=4, **forced).truncated == [True] * len(TEXTS)


def test_what_another_criterion_stops_is_not_truncated(tokenizer):
    class AtThree(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.full((len(input_ids),), input_ids.shape[1] == 3)

    model = model_of("relative")
    make_likely(model, END, -1e3)
    assert model.translations(TEXTS, tokenizer, stopping_criteria=[AtThree()]).truncated == [False] * len(TEXTS)


@pytest.mark.parametrize("by", TOLD_BY[1:])
@pytest.mark.parametrize("length", [{"max_length": 7}, {"max_new_tokens": 6}], ids=str)
def test_a_length_of_none_leaves_the_generation_configs(length, by):
    model = model_of("relative")
    make_likely(model, END, -1e3)
    options = told(model, by, **length)
    made = model.generate(sentences(2, 5), max_length=None, max_new_tokens=None, **options)
    assert made.shape == (2, 7)
    other = {"max_length": 4} if "max_new_tokens" in length else {"max_new_tokens": 3}
    assert model.generate(sentences(2, 5), **other, **options).shape == (2, 4), "the call's comes first"


@pytest.mark.full
def test_translate_has_limits_of_its_own_unless_the_call_says(tokenizer):
    model = model_of("relative")
    make_likely(model, END, -1e3)
    expected = model.translations(TEXTS, tokenizer, num_beams=1)
    model.generation_config.max_new_tokens = 3
    assert model.translations(TEXTS, tokenizer, num_beams=1) == expected
    assert max(map(len, model.translate(TEXTS, tokenizer, num_beams=1, max_new_tokens=3))) <= 3


@pytest.mark.parametrize("length", [{"max_length": 90}, {"max_new_tokens": 90}], ids=str)
def test_translate_ends_where_a_table_does_whatever_limit_is_given(length, tokenizer):
    model = model_of("learned", learned_max_positions=24)
    make_likely(model, END, -1e3)
    made = model.translations(TEXTS, tokenizer, num_beams=1, **length)
    assert made.truncated == [True] * len(TEXTS)
    assert made == model.translations(TEXTS, tokenizer, num_beams=1)


# What else decodes


@pytest.mark.full
@pytest.mark.parametrize("forced", [None, END], ids=["", "forced"])
@pytest.mark.parametrize("ends", [[OTHER, END], None], ids=["several", "none"])
def test_a_plot_of_an_unbounded_encoding_says_that_it_is_truncated(ends, forced, tokenizer):
    model = model_of("relative")
    make_likely(model, OTHER)
    model.generation_config.update(eos_token_id=ends, forced_eos_token_id=forced)
    text, maps = translate_with_attention(model, tokenizer, TEXTS[0], num_beams=2)
    assert ("truncated at 100 tokens" in text) == (ends is None)
    assert maps["cross"].weights.shape[2] == (100 if ends is None else 1)


@pytest.mark.parametrize("may_end", [True, False])
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_an_analysis_of_decoding_ends_where_generate_does(system, ends, may_end):
    model, sources, limits = model_of(system), sentences(2, 5), [3, 6]
    model.generation_config.update(eos_token_id=ids_of(ends) or None, decoder_start_token_id=7)
    make_likely(model, OTHER)
    made = decode_batch(model, sources.tolist(), limits, may_end=may_end)
    if ends is not None and may_end:
        assert [(one.ids, one.end_ids, one.ended) for one in made] == [([], (OTHER,), True)] * 2
        return
    assert [(len(one.ids), one.end_ids, one.ended) for one in made] == [(limit, (), False) for limit in limits]
    never = {"suppress_tokens": ids_of(ends) or None, "max_new_tokens": 6}
    assert made[1].ids == model.generate(sources, **never)[1, 1:].tolist()


# An evaluation by Seq2SeqTrainer


def evaluate(model: ConditionalGeneration, tokenizer: Any, folder: Path, **options: Any) -> list[int]:
    """One evaluation, and how many tokens each translation had: as a script calls it, that names no length."""
    pairs = [dict(tokenizer(text, text_target=text)) for text in TEXTS]
    args = Seq2SeqTrainingArguments(
        str(folder), predict_with_generate=True, per_device_eval_batch_size=1, report_to="none", use_cpu=True, **options
    )
    counted: list[int] = []

    def count(prediction: Any) -> dict[str, float]:
        counted.extend((prediction.predictions > 0).sum(1).tolist())
        return {}

    trainer = Seq2SeqTrainer(
        model, args, DataCollatorForSeq2Seq(tokenizer, model), eval_dataset=pairs, processing_class=tokenizer,
        compute_metrics=count,
    )  # fmt: skip
    trainer.evaluate()
    trainer.save_model(str(folder))
    return counted


def longest(model: ConditionalGeneration) -> int:
    return model.generate(sentences(1, 9)).shape[1]


@pytest.fixture
def endless() -> ConditionalGeneration:
    model = model_of("relative").float()
    make_likely(model, END, -1e3)
    make_likely(model, PAD, -1e3)
    return model


@pytest.mark.full
def test_an_evaluation_limits_nothing(endless, tokenizer, tmp_path):
    before, chosen = longest(endless), copy.deepcopy(endless.generation_config)
    limits = endless.max_target_lengths(len(tokenizer(text)["input_ids"]) for text in TEXTS)
    assert evaluate(endless, tokenizer, tmp_path) == [limit + 2 for limit in limits]
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert (longest(endless), longest(again)) == (before, before)
    assert endless.generation_config == chosen
    assert not {"max_length", "num_beams"} & json.loads((tmp_path / "generation_config.json").read_text()).keys()
    own, short = endless.generation_config, {"max_new_tokens": 30}
    beams = endless.translate(TEXTS, tokenizer, num_beams=5, **short)
    assert endless.translate(TEXTS, tokenizer, generation_config=own, **short) == beams
    assert beams != endless.translate(TEXTS, tokenizer, num_beams=1, **short)


@pytest.mark.full
def test_nor_does_one_with_a_generation_config_of_its_own(endless, tokenizer, tmp_path):
    before = longest(endless)
    evaluate(endless, tokenizer, tmp_path, generation_config=GenerationConfig(num_beams=2, **TOKENS))
    assert (endless.generation_config.num_beams, longest(endless)) == (2, before)
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generation_config.num_beams == 2


@pytest.mark.full
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_length_that_was_chosen_stays_even_if_it_is_the_default(endless, when, tokenizer, tmp_path):
    if when == "before":
        endless.generation_config.update(max_length=20, defaults_only=True)
    evaluate(endless, tokenizer, tmp_path)
    if when == "after":
        endless.generation_config.max_length = 20
        endless.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert (longest(endless), longest(again), again.generation_config.max_length) == (20, 20, 20)


def test_a_generation_config_that_a_model_is_given_stays_the_callers(endless):
    endless.generation_config = given = GenerationConfig(**TOKENS)
    given.max_new_tokens = 4
    assert longest(endless) == 5
    assert endless.generation_config is given and given == GenerationConfig(max_new_tokens=4, **TOKENS)
