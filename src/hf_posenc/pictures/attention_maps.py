"""A sentence, its translation, and where each attention of a model looks while it translates: arrays and labels."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ..modeling.looked_at import looked_at
from ..modeling.text_checks import check_utf8
from ..modeling.translation import check_tokenizer

# A picture of more tokens has labels that nobody can read.
MOST_TOKENS = 100


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one attention by layer (L, H, Q, S), and what its queries and keys are called."""

    weights: np.ndarray
    queries: list[str]
    keys: list[str]
    queries_are: str
    keys_are: str


@torch.no_grad()
def attention_maps(model: Any, tokenizer: Any, sentence: str, *, beams: int = 5) -> tuple[str, dict[str, AttentionMap]]:
    """The translation of a sentence by beam search, and the maps of each attention that the model has: `encoder`,
    `decoder` and `cross`.

    The weights are those of one pass over the sentence and its translation. A decoder's row is the step that writes a
    token: in its self-attention it looks at what it has read, which begins with the start token. A ValueError for a
    sentence without words, or of more tokens than the model or a picture can take, before anything is computed.
    """
    check_tokenizer(model.config, tokenizer)
    check_utf8(sentence, "the sentence")
    inputs = tokenizer([sentence], return_tensors="pt", truncation=False)
    check_length(sentence, inputs["input_ids"].shape[1], model.config)
    longest = min(model.config.longest_target or MOST_TOKENS + 1, MOST_TOKENS + 1)
    with looked_at(model):
        search = {"num_beams": beams, "do_sample": False, "max_length": longest, "forced_eos_token_id": None}
        (written,) = model.generate(**inputs, **search)
    translation = tokenizer.decode(written, skip_special_tokens=True)
    if int(written[-1]) not in model.end_tokens()[0]:
        translation += (
            f" ... (cut at {len(written) - 1} tokens, the most that a picture has labels for or the model takes)"
        )
    return translation, maps_of(model, tokenizer, inputs, written)


@torch.no_grad()
def maps_of(model: Any, tokenizer: Any, inputs: Any, written: torch.Tensor) -> dict[str, AttentionMap]:
    """The maps of one pass over a sentence, which the tokenizer has made `inputs`, and the ids of its translation, from
    the start token on; those that the model has."""
    with looked_at(model):
        outputs = model(**inputs, decoder_input_ids=written[None, :-1], use_cache=False, output_attentions=True)
    source = marked([str(one) for one in tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])])
    target = marked(pieces(tokenizer, written.tolist()))
    sides: dict[str, tuple[Any, ...]] = {
        "encoder": (outputs.encoder_attentions, source, source, "source token", "source token it looks at"),
        "decoder": (outputs.decoder_attentions, target[1:], target[:-1], "token written", "token read before"),
        "cross": (outputs.cross_attentions, target[1:], source, "token written", "source token it looks at"),
    }
    return {
        name: AttentionMap(torch.stack(list(weights))[:, 0].cpu().double().numpy(), *labels)
        for name, (weights, *labels) in sides.items()
        if weights
    }


def check_length(sentence: str, tokens: int, config: Any) -> None:
    if not sentence.strip():
        raise ValueError("A picture of attention needs a sentence, but this one has no words; give it some.")
    limits = {"a picture has labels for": MOST_TOKENS, "the encoder's position encoding has": config.longest_source}
    for what, limit in limits.items():
        if limit is not None and tokens > limit:
            raise ValueError(
                f"A sentence must have at most as many tokens as {what}, {limit}, but this one has {tokens} with </s>; "
                "shorten it."
            )


def pieces(tokenizer: Any, ids: list[int]) -> list[str]:
    """The text that each token adds to the translation, with the blanks that a token alone would lose."""
    texts = [tokenizer.decode(ids[:number], clean_up_tokenization_spaces=False) for number in range(len(ids) + 1)]
    return [after[len(before) :] for before, after in pairwise(texts)]


def marked(tokens: list[str]) -> list[str]:
    """Tokens as labels: without the blank before a word, and with a dot before what goes on with one; a blank that is a
    token is a bracket."""
    labels, inside = [], False
    for token in tokens:
        plain = "".join(letter if letter.isprintable() else "\ufffd" for letter in token)
        word = plain.replace("\u2581", " ")
        goes_on = inside and word[:1].isalnum()
        labels.append(f"\u00b7{word}" if goes_on else word.strip() or "\u2423")
        inside = word[-1:].isalnum()
    return labels
