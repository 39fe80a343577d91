"""`expected_length_range`: a translation has between so many times the tokens that the fertilities expect."""

import math
from typing import Any

import pytest
import torch
from support.models import TEXTS, TEXTS_VOCABULARY, padded, sentences, tiny_model
from torch import nn
from transformers import GenerationConfig

from hf_posenc import PosEncForConditionalGeneration, StreamingTranslator, convert_encodings

pytestmark = [pytest.mark.invariant, pytest.mark.decoding]

RANGE = "expected_length_range"
END, PAD = 2, 0
TOKENS = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": 1}


@torch.no_grad()
def model_that_ends(end_bias: float, **changes: Any) -> PosEncForConditionalGeneration:
    """Its fertilities differ from token to token; a high bias ends each sentence at once, a low one none."""
    model = tiny_model("relative+window by fertility", output_bias=True, cross_window_size=30, **changes)
    torch.manual_seed(1)
    nn.init.normal_(model.model.decoder.alignment.weight)
    model.final_logits_bias[:, END] += end_bias
    return model


def num_tokens(row: list[int]) -> int:
    """Target tokens, `</s>` included."""
    return row[1:].index(END) + 1


@pytest.mark.full
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_translation_keeps_to_both_limits_in_a_batch_as_alone(num_beams, side):
    sources = [sentences(size, seed=size) for size in (12, 7, 3)]
    ids, mask = padded(sources, side)
    low, high = 0.8, 1.4
    options = {RANGE: (low, high), "num_beams": num_beams, "do_sample": False}
    # A limit of the generation config gives way to that of the call.
    configs = [{}, {"generation_config": GenerationConfig(max_length=4, **TOKENS)}]
    for end_bias, config in zip((30.0, -30.0), configs, strict=True):
        model = model_that_ends(end_bias)
        rows = model.generate(ids, attention_mask=mask, **options, **config).tolist()
        for source, row in zip(sources, rows, strict=True):
            expected = model.expected_target_lengths(source[None]).item()
            limit = math.floor(low * expected) if end_bias > 0 else math.ceil(high * expected)
            assert num_tokens(row) == max(limit, 1)
            alone = model.generate(source[None], **options, **config)[0].tolist()
            assert row[: len(alone)] == alone and set(row[len(alone) :]) <= {PAD}


@pytest.mark.full
def test_without_a_mask_padding_is_no_token_of_a_source():
    ids, mask = padded([sentences(size, seed=size) for size in (12, 3)], "right")
    model, options = model_that_ends(-30.0), {RANGE: (1.0, 1.0), "do_sample": False}
    assert torch.equal(model.generate(ids, **options), model.generate(ids, attention_mask=mask, **options))


@pytest.mark.full
def test_a_generation_config_may_have_the_limits(tokenizer, tmp_path):
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY}
    source, options, model = sentences(12, seed=1)[None], {"do_sample": False}, model_that_ends(30.0, **sizes)
    text = "Zwei Kinder spielen im Schnee mit dem Hund"
    free, limited = model.generate(source, **options), model.generate(source, **options, **{RANGE: (1.2, 1.4)})
    assert limited.shape[1] > free.shape[1]
    limited_text = model.translate([text], tokenizer, **{RANGE: (1.2, 1.4)})
    given = GenerationConfig(**{RANGE: (1.2, 1.4)}, max_length=40, **TOKENS)
    assert torch.equal(model.generate(source, generation_config=given, **options), limited)
    setattr(model.generation_config, RANGE, [1.2, 1.4])
    model.save_pretrained(tmp_path)
    loaded = PosEncForConditionalGeneration.from_pretrained(tmp_path, dtype=model.dtype)
    assert torch.equal(loaded.generate(source, **options), limited)
    assert torch.equal(loaded.generate(source, **options, **{RANGE: None}), free)
    assert loaded.translate([text], tokenizer) == limited_text
    converted = convert_encodings(loaded, alignment_type="length_ratio")
    assert getattr(converted.generation_config, RANGE, None) is None
    with pytest.raises(ValueError, match=rf"Streaming must .* has {RANGE}=.*set it to None"):
        StreamingTranslator(loaded, tokenizer)


@pytest.mark.full
def test_embeddings_have_the_limits_of_their_tokens():
    ids, mask = padded([sentences(size, seed=size) for size in (12, 3)], "right")
    model, options = model_that_ends(-30.0), {RANGE: (0.8, 1.4), "do_sample": False, "attention_mask": mask}
    embeds = model.get_encoder().embed_tokens(ids)
    assert torch.equal(model.generate(inputs_embeds=embeds, **options), model.generate(ids, **options))


@pytest.mark.full
def test_a_translation_within_the_limits_is_that_without_them():
    source = sentences(9, seed=4)
    for end_bias in torch.arange(
        0, 8, 0.25
    ).tolist():  # some model between one that never ends and one that does at once
        model = model_that_ends(end_bias)
        free = model.generate(source[None], do_sample=False)
        if num_tokens(free[0].tolist()) < 2 * 8 + 50:
            break
    assert num_tokens(free[0].tolist()) > 1
    assert torch.equal(model.generate(source[None], do_sample=False, **{RANGE: [0, 100.0]}), free)
    limited = model.generate(source[None], do_sample=False, max_new_tokens=1, **{RANGE: [0, 100.0]})
    assert torch.equal(limited, free[:, :2])  # the call's own limit


@pytest.mark.full
def test_texts_that_reach_the_limit_are_truncated(tokenizer):
    sizes = {"vocab_size": TEXTS_VOCABULARY, "decoder_vocab_size": TEXTS_VOCABULARY}
    never, at_once = model_that_ends(-30.0, **sizes), model_that_ends(30.0, **sizes)
    options: dict[str, Any] = {"num_beams": 1, RANGE: (0.5, 1.2)}
    texts, expected = list(TEXTS[:3]), []
    for text in texts:
        expected.append(never.expected_target_lengths(tokenizer([text], return_tensors="pt")["input_ids"]).item())
    long, short = (model.translations(texts, tokenizer, **options) for model in (never, at_once))
    assert all(long.truncated) and not any(short.truncated)
    for text, one in zip(texts, expected, strict=True):
        ids = tokenizer([text], return_tensors="pt")["input_ids"]
        (row,) = never.generate(ids, num_beams=1, do_sample=False, max_new_tokens=math.ceil(1.2 * one) - 1)
        assert long.texts[texts.index(text)] == tokenizer.decode(row, skip_special_tokens=True)


@pytest.mark.parametrize(
    "value", [1.2, (1.2,), (1.2, 0.8), (-0.1, 1.0), (0, 0), (0.5, math.inf), ("a", "b"), (True, 2)]
)
def test_a_range_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match=r"expected_length_range must be two multiples .* the lower one first"):
        model_that_ends(0.0).generate(sentences(1, 5), **{RANGE: value})


@pytest.mark.parametrize(
    ("system", "reason"),
    [
        ("relative+window by length_ratio", "alignment_type is 'length_ratio'; train a model with `fertility`"),
        ("rnn_nmt", "this is a RnnNmtForConditionalGeneration; leave expected_length_range out"),
    ],
)
def test_a_model_that_expects_no_length_is_refused_before_any_compute(system, reason):
    model = tiny_model(system)
    model.get_encoder().forward = None
    with pytest.raises(ValueError, match=reason):
        model.generate(sentences(1, 5), **{RANGE: (0.8, 1.2)})
