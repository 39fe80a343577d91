"""Threads that share a model write what each writes alone, and leave the model as it was."""

from typing import Any

import pytest
import torch
from support.models import ALIGNED, translator
from support.streams import random_text, varied_translator
from support.threads import NUM_THREADS, together

from hf_posenc import PosEncTokenizer, StreamingTranslator
from hf_posenc.lab.figures.attention_figures import translate_with_attention
from hf_posenc.transformer.encoder_decoder import ConditionalGeneration

TEXTS = [random_text(2 + number, seed=number) for number in range(NUM_THREADS)]
FAST = "relative+window by length_ratio"
ALIGNMENTS = {name: name if name == FAST else pytest.param(name, marks=pytest.mark.full) for name in ALIGNED}
LOCAL = [ALIGNMENTS[name] for name, alignment in ALIGNED.items() if alignment.next_source_position]
FULL: list[dict[str, Any]] = [{"num_beams": 3}, {"use_cache": False}, {"max_tokens_per_source_position": 3}]
OPTIONS = [{}, *(pytest.param(options, marks=pytest.mark.full) for options in FULL)]


def model_that_ends_late(aligned: str) -> ConditionalGeneration:
    """An aligned model that would end at once if the rules by source position did not read its own source."""
    model = varied_translator(aligned)
    with torch.no_grad():
        model.final_logits_bias[:, model.config.eos_token_id] += 3
    return model


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("aligned", ALIGNMENTS.values())
def test_generate_and_translate(aligned: str, options: dict[str, Any], tokenizer: PosEncTokenizer) -> None:
    model = model_that_ends_late(aligned)
    options = {"num_beams": 1, "eos_requires_source_end": True, "max_new_tokens": 8} | options

    def generate(text: str) -> tuple[Any, Any]:
        batch = tokenizer([text] * (1 + len(text) % 3), return_tensors="pt")
        return model.generate(**batch, **options).tolist(), model.translations([text], tokenizer, **options)

    alone = [generate(text) for text in TEXTS]
    assert len({str(output) for output in alone}) > NUM_THREADS // 2
    assert together(model.lm_head, generate, TEXTS) == alone


@pytest.mark.parametrize("aligned", LOCAL)
def test_streams(aligned: str, tokenizer: PosEncTokenizer) -> None:
    model = model_that_ends_late(aligned)

    def stream(text: str) -> str:
        return "".join(StreamingTranslator(model, tokenizer).translate(text.split(" ")))

    alone = [stream(text) for text in TEXTS]
    assert together(model.lm_head, stream, TEXTS) == alone


def test_a_model_in_training_is_left_in_training(tokenizer: PosEncTokenizer) -> None:
    """Without dropout in what is translated, and with dropout in a step of training at the same time."""
    model = translator("relative", dropout=0.5)
    alone = [model.translate([text], tokenizer, num_beams=1, max_new_tokens=8) for text in TEXTS]
    model.train()
    model.model.encoder.eval()  # frozen by its user
    modes = [module.training for module in model.modules()]
    training = []

    def translate(text: str) -> list[str]:
        training.append([module.training for module in model.modules()] == modes)
        return model.translate([text], tokenizer, num_beams=1, max_new_tokens=8)

    assert together(model.lm_head, translate, TEXTS) == alone
    assert all(training) and [module.training for module in model.modules()] == modes


def test_reading_attention_weights_leaves_the_back_end(tokenizer: PosEncTokenizer) -> None:
    model = translator("relative", encoder_layers=1, decoder_layers=1).train()
    before = model.config._attn_implementation
    back_ends = []
    handle = model.lm_head.register_forward_hook(lambda *_: back_ends.append(model.config._attn_implementation))
    translate_with_attention(model, tokenizer, TEXTS[0], num_beams=1)
    handle.remove()
    assert {*back_ends, model.config._attn_implementation} == {before} and model.training
