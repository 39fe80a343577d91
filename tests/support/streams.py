"""Models and texts for streams, and the assertion that a stream's translation is that of the whole text."""

import random

import torch

from hf_posenc import PosEncForConditionalGeneration, PosEncTokenizer, StreamingTranslator
from hf_posenc.inference.stream_decoder import EncodedSource
from support.models import TEXTS, translator

# Greedy search with the end token where the source's end is in sight, as streaming has it.
OFFLINE = {"num_beams": 1, "eos_requires_source_end": True}


@torch.no_grad()
def varied_translator(sides: str, **changes) -> PosEncForConditionalGeneration:
    """A tiny model that repeats itself little: what it writes depends more on the source than on itself, and is no
    bytes."""
    model = translator(sides, output_bias=True, **changes)
    for layer in model.model.decoder.layers:
        layer.encoder_attn.out_proj.weight *= 12
        layer.encoder_attn.q_proj.weight *= 4
    model.final_logits_bias[:, :2] = model.final_logits_bias[:, 3:260] = -50
    model.final_logits_bias[:, 2] += 2  # and often the end token
    return model


def random_text(words: int, seed: int = 1) -> str:
    """Words, names that the tokenizer spells in characters and bytes, punctuation, and runs of spaces."""
    rng = random.Random(seed)
    vocabulary = [word for text in TEXTS for word in text.split()] + ["Ei", "xy,", "ß", "(Hund)", "-", ""]
    return " ".join(rng.choice(vocabulary) for _ in range(words))


def random_cuts(text: str, seed: int) -> list[str]:
    """The text in pieces of 0 to 12 characters."""
    rng, pieces = random.Random(seed), []
    while text:
        size = rng.randrange(13)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def assert_streams_exactly(
    model: PosEncForConditionalGeneration,
    tokenizer: PosEncTokenizer,
    text: str,
    tokens_per_piece: int = EncodedSource.tokens_per_piece,
    max_origin_distance: int | None = None,
) -> StreamingTranslator:
    """Returns the last stream."""
    offline = model.translations([text], tokenizer, **OFFLINE)
    assert len(text) < 40 or len(set(offline.texts[0])) >= 3  # or the equality would say nothing
    for pieces in ([text], list(text), random_cuts(text, len(text))):
        translator = StreamingTranslator(model, tokenizer)
        translator.source.tokens_per_piece = tokens_per_piece
        if max_origin_distance is not None:
            translator.decoder.max_origin_distance = max_origin_distance
        assert "".join(translator.translate(pieces)) == offline.texts[0]
        assert [translator.truncated] == offline.truncated
    return translator
