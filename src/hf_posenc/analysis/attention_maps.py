"""A sentence, its translation, and where each attention of a model looks while it translates: arrays and labels."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from ..modeling.configuration_shared import SharedConfig
from ..modeling.text_validation import validate_utf8
from ..modeling.translation import validate_tokenizer
from .eager_mode import eager_eval_mode

# A picture of more tokens has labels that nobody can read.
MAX_TOKENS = 100


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one attention by layer (L, H, Q, S), and what its queries and keys are called."""

    weights: np.ndarray
    queries: list[str]
    keys: list[str]
    query_label: str
    key_label: str


@torch.no_grad()
def translate_with_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentence: str, *, num_beams: int = 5
) -> tuple[str, dict[str, AttentionMap]]:
    """The translation of a sentence by beam search, and the maps of each attention that the model has: `encoder`,
    `decoder` and `cross`.

    The weights are those of one pass over the sentence and its translation. A decoder's row is the step that writes a
    token: in its self-attention it looks at what it has read, which begins with the start token. A ValueError for a
    sentence without words, or of more tokens than the model or a picture can take, before anything is computed.
    """
    validate_tokenizer(model.config, tokenizer)
    validate_utf8(sentence, "the sentence")
    inputs = tokenizer([sentence], return_tensors="pt", truncation=False)
    validate_length(sentence, inputs["input_ids"].shape[1], model.config)
    max_length = min(model.config.max_target_length or MAX_TOKENS + 1, MAX_TOKENS + 1)
    with eager_eval_mode(model):
        generation_options = {
            "num_beams": num_beams,
            "do_sample": False,
            "max_length": max_length,
            "forced_eos_token_id": None,
        }
        (output_ids,) = model.generate(**inputs, **generation_options)
    translation = tokenizer.decode(output_ids, skip_special_tokens=True)
    if int(output_ids[-1]) not in model.end_tokens()[0]:
        translation += (
            f" ... (cut at {len(output_ids) - 1} tokens, the most that a picture has labels for or the model takes)"
        )
    return translation, compute_attention_maps(model, tokenizer, inputs, output_ids)


@torch.no_grad()
def compute_attention_maps(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, inputs: BatchEncoding, output_ids: torch.Tensor
) -> dict[str, AttentionMap]:
    """The maps of one pass over a sentence, which the tokenizer has made `inputs`, and the ids of its translation, from
    the start token on; those that the model has."""
    with eager_eval_mode(model):
        outputs = model(**inputs, decoder_input_ids=output_ids[None, :-1], use_cache=False, output_attentions=True)
    source = token_labels([str(token) for token in tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])])
    target = token_labels(token_texts(tokenizer, output_ids.tolist()))
    labels = {
        "encoder": (source, source, "source token", "source token it looks at"),
        "decoder": (target[1:], target[:-1], "token written", "token read before"),
        "cross": (target[1:], source, "token written", "source token it looks at"),
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


def validate_length(sentence: str, tokens: int, config: SharedConfig) -> None:
    if not sentence.strip():
        raise ValueError("A picture of attention needs a sentence, but this one has no words; give it some.")
    limits = {"a picture has labels for": MAX_TOKENS, "the encoder's position encoding has": config.max_source_length}
    for holder, limit in limits.items():
        if limit is not None and tokens > limit:
            raise ValueError(
                f"A sentence must have at most as many tokens as {holder}, {limit}, but this one has {tokens} with "
                "</s>; shorten it."
            )


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    """The text that each token adds to the translation, with the blanks that a token alone would lose."""
    texts = [tokenizer.decode(ids[:length], clean_up_tokenization_spaces=False) for length in range(len(ids) + 1)]
    return [after[len(before) :] for before, after in pairwise(texts)]


def token_labels(tokens: list[str]) -> list[str]:
    """Tokens as labels: without the blank before a word, and with a dot before what goes on with one; a blank that is a
    token is a bracket."""
    labels, in_word = [], False
    for token in tokens:
        printable = "".join(char if char.isprintable() else "\ufffd" for char in token)
        word = printable.replace("\u2581", " ")
        continues_word = in_word and word[:1].isalnum()
        labels.append(f"\u00b7{word}" if continues_word else word.strip() or "\u2423")
        in_word = word[-1:].isalnum()
    return labels
