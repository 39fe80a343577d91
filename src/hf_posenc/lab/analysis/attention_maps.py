"""Attention maps of a sentence and its translation: arrays and labels."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from ...generation.translate import evaluation_view, validate_tokenizer
from ...hub.errors import is_blank, validate_utf8
from ...transformer.configuration_base import SharedConfig

# With more tokens the labels of a figure are illegible.
MAX_TOKENS = 100


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one attention by layer (L, H, Q, S), with the labels of queries and keys."""

    weights: np.ndarray
    queries: list[str]
    keys: list[str]
    query_label: str
    key_label: str


@torch.no_grad()
def translate_with_attention(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    *,
    num_beams: int = 5,
    max_tokens: int = MAX_TOKENS,
) -> tuple[str, dict[str, AttentionMap]]:
    """The translation of a sentence by beam search, and the maps of the model's attentions, by name.

    Names are `encoder`, `decoder` and `cross`. The weights are those of one pass over the sentence and its translation.
    A decoder's row is the step that generates a token; its keys are the tokens read so far, from the start token on.
    Sentence and translation have at most `max_tokens` tokens; a longer translation is truncated. Raises a ValueError,
    before any compute, for a sentence without words or with too many tokens for model or figure.
    """
    validate_tokenizer(model.config, tokenizer)
    validate_utf8(sentence, "the sentence")
    inputs = tokenizer([sentence], return_tensors="pt", truncation=False)
    validate_length(sentence, inputs["input_ids"].shape[1], model.config, max_tokens)
    max_length = min(model.config.max_target_length or max_tokens + 1, max_tokens + 1)
    options = {"num_beams": num_beams, "do_sample": False, "max_length": max_length, "forced_eos_token_id": None}
    (output_ids,) = evaluation_view(model, "eager").generate(**inputs, **options)
    translation = tokenizer.decode(output_ids, skip_special_tokens=True)
    if int(output_ids[-1]) not in model.end_tokens()[0]:
        translation += f" ... (truncated at {len(output_ids) - 1} tokens, the maximum of the figure or the model)"
    return translation, compute_attention_maps(model, tokenizer, inputs, output_ids)


@torch.no_grad()
def compute_attention_maps(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, inputs: BatchEncoding, output_ids: torch.Tensor
) -> dict[str, AttentionMap]:
    """The maps of one pass over an encoded sentence, `inputs`, and the ids of its translation with the start token."""
    model = evaluation_view(model, "eager")
    outputs = model(**inputs, decoder_input_ids=output_ids[None, :-1], use_cache=False, output_attentions=True)
    source = token_labels([str(token) for token in tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])])
    # The text that each token adds to the translation; decoding a token alone would lose its spaces.
    ids = output_ids.tolist()
    texts = [tokenizer.decode(ids[:length], clean_up_tokenization_spaces=False) for length in range(len(ids) + 1)]
    target = token_labels([after[len(before) :] for before, after in pairwise(texts)])
    labels = {
        "encoder": (source, source, "source token", "source token attended to"),
        "decoder": (target[1:], target[:-1], "target token", "target token attended to"),
        "cross": (target[1:], source, "target token", "source token attended to"),
    }
    attentions = {
        "encoder": outputs.encoder_attentions,
        "decoder": outputs.decoder_attentions,
        "cross": outputs.cross_attentions,
    }
    return {
        name: AttentionMap(torch.stack(list(weights))[:, 0].cpu().double().numpy(), *labels[name])
        for name, weights in attentions.items()
        if weights
    }


def validate_length(sentence: str, tokens: int, config: SharedConfig, max_tokens: int) -> None:
    """Raise a ValueError for a sentence without words, or with too many `tokens` for the figure or the encoder."""
    if is_blank(sentence):
        raise ValueError("An attention map needs a sentence, but this one has no words; write some.")
    limits = {"a figure has labels for": max_tokens, "the encoder's position encoding has": config.max_source_length}
    for holder, limit in limits.items():
        if limit is not None and tokens > limit:
            raise ValueError(
                f"A sentence must have at most as many tokens as {holder}, {limit}, but this one has {tokens} with "
                "</s>; shorten it."
            )


def token_labels(tokens: list[str]) -> list[str]:
    """Labels of tokens: no space before a word, a dot before a token inside a word, a bracket for a space token."""
    labels, in_word = [], False
    for token in tokens:
        printable = "".join(char if char.isprintable() else "\ufffd" for char in token)
        word = printable.replace("\u2581", " ")
        continues_word = in_word and word[:1].isalnum()
        labels.append(f"\u00b7{word}" if continues_word else word.strip() or "\u2423")
        in_word = word[-1:].isalnum()
    return labels
