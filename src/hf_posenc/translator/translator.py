"""Translation of whole texts by any translation model, with each segment checked and repaired.

Texts are divided into segments that the model was made for, so that nothing is truncated, and translated in batches of
similar length. A doubtful translation is tried again: in smaller parts, by a wider beam, and without repetitions. Of
the candidates the one with fewest doubts stays, and of those the one with the model's highest probability for each
token. What stays doubtful is listed.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, overload

import torch
from transformers import PreTrainedTokenizerBase

from ..convert.folders import language_tokens
from ..generation.translate import (
    continue_prompts,
    decoding_defaults,
    evaluation_view,
    translate_in_batches,
    translate_sources,
    validate_tokenizer,
)
from ..hub.errors import data_options, require, validate_source_lengths, validate_texts
from ..inference.ctranslate2_engine import MORE_POSITIONS_REMEDY, CTranslate2Translator
from ..inference.loading import load_model
from .checks import WORD, Checked, Doubt, SegmentTranslation, TextTranslation, find_doubts, usual_ratio
from .coverage import doubt_uncovered
from .languages import TranslationDirection, choose_direction, script_of
from .repair import repair
from .segments import Segment, join_segments, split_segments, with_blanks_apart

MAX_SEGMENT_TOKENS = 128  # by default; few models were trained on many longer sentences


class Translator:
    """Translates texts by a sequence-to-sequence model of transformers, or by a model of this package.

    `model`: of transformers; of this package, also a decoder-only one, ONNX graphs, or a CTranslate2Translator, whose
    tokenizer is then meant. `source_language`, `target_language`: codes of the model, of ISO 639 or BCP 47. Models of
    one pair need none; they then help to find sentences, and to check the script. `max_segment_tokens`: of a segment
    without special tokens, by default 128, or what the model's positions allow. Models of this package translate a text
    as a whole unless it is given. `batch_size`: segments of a batch, fewer where they are long. `repair`: whether
    doubtful segments are tried again; a text as a whole never is. Other keyword arguments are options of `generate`;
    sampling is refused, because a retry must not depend on chance.

    Threads may call one translator at the same time. A ValueError for a language that the model lacks and for options
    that cannot be used.
    """

    architecture = "an encoder-decoder"
    is_encoder_decoder = True

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        source_language: str | None = None,
        target_language: str | None = None,
        *,
        max_segment_tokens: int | None = None,
        batch_size: int = 32,
        repair: bool = True,
        **generate: Any,
    ) -> None:
        self.is_exported = isinstance(model, CTranslate2Translator)
        self.is_own = self.is_exported or hasattr(model, "translations")  # a model of this package
        self.config: Any = getattr(model, "config", None)  # CTranslate2 has none
        require(
            self.is_own or getattr(self.config, "is_encoder_decoder", False) == self.is_encoder_decoder,
            f"{type(self).__name__} must have {self.architecture}, but {type(model).__name__} is none; name another "
            "model. Translator is for encoder-decoders, CausalTranslator for causal language models.",
        )
        generation_config = None if self.is_exported else model.generation_config
        require(
            not generate.get("do_sample", getattr(generation_config, "do_sample", False)),
            "Translations must not be sampled, but do_sample is true; leave it out, or give do_sample=False.",
        )
        if self.config is not None and self.is_own:
            validate_tokenizer(self.config, tokenizer)
        is_training = not self.is_exported and any(module.training for module in model.modules())
        self.model: Any = evaluation_view(model) if is_training else model
        self.tokenizer = deepcopy(tokenizer)  # its language is state
        self.tokenizer_lock = Lock()
        self.direction = self.choose_direction(source_language, target_language)
        if self.direction.source_code:
            self.tokenizer.src_lang = self.direction.source_code
        if self.direction.target_code:
            self.tokenizer.tgt_lang = self.direction.target_code
        # Not every saved tokenizer of M2M-100 marks them as special; they are never text.
        tokens = list(language_tokens(tokenizer).values()) if self.direction.target_code else []
        self.language_ids = set(self.tokenizer.convert_tokens_to_ids(tokens))
        self.batch_size = batch_size
        defaults = {"num_beams": 5} if self.is_exported else decoding_defaults(generation_config)
        self.generate_options = {**defaults, **self.direction.generate, **generate}
        self.num_added_tokens = len(self.encode(""))
        self.max_segment_tokens = self.choose_segment_length(max_segment_tokens)
        self.repair = repair and self.max_segment_tokens is not None
        self.target_script = script_of(self.direction.target)

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, *args: Any, **options: Any) -> "Translator":
        """The translator with a model and tokenizer of the Hub or of a folder."""
        return cls(*load_model(name_or_path), *args, **options)

    def choose_direction(self, source: str | None, target: str | None) -> TranslationDirection:
        return choose_direction(getattr(self.config, "model_type", None), self.tokenizer, source, target)

    @property
    def max_source_length(self) -> int | None:
        """The maximum number of tokens of a source, with special ones and the prefix; None without a maximum."""
        if self.is_exported:
            limit: int | None = self.model.metadata["longest_source"]
            return limit
        if self.is_own:
            limit = self.config.max_source_length
            return limit
        # T5 and M2M-100 compute positions of any length, but were trained to the tokenizer's limit.
        limits = (getattr(self.config, "max_position_embeddings", None), self.tokenizer.model_max_length)
        return min(limit for limit in limits if limit)

    def choose_segment_length(self, given: int | None) -> int | None:
        """The maximum number of tokens of a segment, which the model's positions and the tokenizer must allow."""
        if given is None and self.is_own:
            return None
        largest = (self.max_source_length or sys.maxsize) - self.num_added_tokens
        require(
            given is None or 1 <= given <= largest,
            f"max_segment_tokens must be from 1 to {largest}, the model's limit, but it is {given}; choose another.",
        )
        return min(MAX_SEGMENT_TOKENS, largest) if given is None else given

    @overload
    def __call__(self, texts: str, *, progress: bool = ...) -> TextTranslation: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, texts: Sequence[str], *, progress: bool = ...) -> list[TextTranslation]: ...
    def __call__(self, texts: str | Sequence[str], *, progress: bool = False) -> Any:
        """The translation of a text, or of each of a list of texts."""
        if isinstance(texts, str):
            return self([texts], progress=progress)[0]
        places = [f"text {number}" for number in range(1, len(texts) + 1)]
        translations = list(self.translate_texts(texts, places, progress))
        doubt_uncovered([segment for translation in translations for segment in translation.segments])
        return translations

    def translate_texts(
        self, texts: Sequence[str], places: Sequence[str], progress: bool = False
    ) -> Iterator[TextTranslation]:
        """The translation of each text; a place names it in the report."""
        texts = validate_texts(texts, places.__getitem__)
        split_texts = [self.split(text, self.max_segment_tokens) for text in texts]
        sources = [segment.text for segments in split_texts for segment in segments]
        translated = iter(self.translate_segments(sources, progress))
        for segments, place in zip(split_texts, places, strict=True):
            results = [replace(next(translated), place=place) for _ in segments]
            text = join_segments(segments, [result.translation for result in results])
            yield TextTranslation(text, [result for result in results if result.source])

    def translate_segments(self, sources: Sequence[str], progress: bool) -> list[SegmentTranslation]:
        """Translate, check and repair segments."""
        candidates = self.generate(sources, self.generate_options, progress)
        ratio = usual_ratio(list(zip(sources, (text for text, _ in candidates), strict=True)))
        results = []
        for source, (text, was_cut) in zip(sources, candidates, strict=True):
            results.append(SegmentTranslation("", source, text, self.doubts(source, text, was_cut, ratio)))
        doubtful = [result for result in results if result.doubts]
        if self.repair and doubtful:
            self.repair_segments(doubtful, ratio)
        return results

    def doubts(self, source: str, text: str, was_cut: bool, ratio: tuple[float, float] | None) -> list[Doubt]:
        direction = self.direction
        is_same = direction.source is not None and direction.source == direction.target
        return find_doubts(Checked(source, text, was_cut, ratio, self.target_script, is_same))

    def repair_segments(self, doubtful: Sequence[SegmentTranslation], ratio: tuple[float, float] | None) -> None:
        """Replace doubtful translations by their best candidates."""
        first = [(result.translation, result.doubts) for result in doubtful]
        chosen = repair(self, [result.source for result in doubtful], first, partial(self.doubts, ratio=ratio))
        for result, (text, doubts) in zip(doubtful, chosen, strict=True):
            result.repaired = text != result.translation
            result.translation, result.doubts = text, doubts

    def split(self, text: str, max_tokens: int | None) -> list[Segment]:
        """The segments of a text; the text as a whole without a maximum."""
        if max_tokens is None:
            return [with_blanks_apart(text)]
        return split_segments(text, self.direction.source, max_tokens, self.count)

    def count(self, text: str) -> int:
        """Tokens of a text, without special ones and the prefix."""
        return len(self.encode(text)) - self.num_added_tokens

    def encode(self, text: str) -> list[int]:
        with self.tokenizer_lock:
            encoded = self.tokenizer(
                self.direction.prefix + text, truncation=False, verbose=False, **data_options(self.tokenizer)
            )
        ids: list[int] = encoded["input_ids"]
        return ids

    def generate(
        self, sources: Sequence[str], options: Mapping[str, Any], progress: bool = False
    ) -> list[tuple[str, bool]]:
        """Translations in order, and whether each reached its limit; a source without words is its own.

        A ValueError, before any compute, for a source of more tokens than the model has positions for.
        """
        has_words = [WORD.search(source) is not None for source in sources]
        ids = [self.encode(source) if is_text else [] for source, is_text in zip(sources, has_words, strict=True)]
        ids = [[] if len(source) <= self.num_added_tokens else source for source in ids]  # normalized to nothing
        remedy = MORE_POSITIONS_REMEDY if self.is_exported else "give max_segment_tokens"
        validate_source_lengths(ids, self.max_source_length, lambda number: repr(sources[number][:40]), remedy)
        limits = self.model.target_limits(ids, options.get("max_new_tokens")) if self.is_exported else None
        output = translate_in_batches(
            ids,
            partial(self.generate_batch, options=options),
            batch_size=self.batch_size,
            progress=progress,
            max_target_lengths=limits,
        )
        texts = [
            text.strip() if is_text else source
            for source, text, is_text in zip(sources, output.texts, has_words, strict=True)
        ]
        return list(zip(texts, output.truncated, strict=True))

    @torch.no_grad()
    def generate_batch(self, sources: list[list[int]], options: Mapping[str, Any]) -> list[tuple[str, bool]]:
        """The translations of one batch of token ids, and whether each reached its limit."""
        if self.is_exported:
            return self.model.translate_batch(sources, **{"max_new_tokens": None, **options})
        if self.is_own:
            translate_batch = translate_sources if self.config.is_encoder_decoder else continue_prompts
            return translate_batch(self.model, sources, self.tokenizer, **options)
        limit = self.max_new_tokens(len(sources[0]), options.get("max_new_tokens"))
        sequences = self.generate_tokens(sources, {**options, "max_new_tokens": limit, "max_length": None})
        kept = [[token for token in row if token not in self.language_ids] for row in sequences]
        texts = self.tokenizer.batch_decode(kept, skip_special_tokens=True)
        # A forced end token stands at the limit; it is not the model's.
        pad = self.tokenizer.pad_token_id
        lengths = [sum(token != pad for token in row[1:]) for row in sequences]
        return [(text, length >= limit) for text, length in zip(texts, lengths, strict=True)]

    def generate_tokens(self, sources: list[list[int]], options: Mapping[str, Any]) -> list[list[int]]:
        inputs = self.tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(self.model.device)
        tokens: list[list[int]] = self.model.generate(**inputs, **options).tolist()
        return tokens

    def max_new_tokens(self, source_length: int, given: int | None = None) -> int:
        """`given`, or twice the source and 50 tokens, within the decoder's positions; not the model's own limit."""
        positions = getattr(self.config, "max_position_embeddings", None)
        wanted = 2 * source_length + 50 if given is None else given
        return wanted if positions is None else min(wanted, positions - 1)

    @torch.no_grad()
    def log_probabilities(self, source: str, translations: Sequence[str]) -> list[float]:
        """The mean log-probability of a token of each translation."""
        if self.is_exported:
            return [0.0] * len(translations)
        inputs = torch.tensor([self.encode(source)], device=self.model.device)
        scores = []
        for text in translations:
            labels = torch.tensor([self.encode_target(text)], device=self.model.device)
            logits = self.model(input_ids=inputs, labels=labels).logits
            scores.append(mean_log_probability(logits[0], labels[0]))
        return scores

    def encode_target(self, text: str) -> list[int]:
        """The tokens of a translation, as the decoder generates them."""
        with self.tokenizer_lock:
            ids: list[int] = self.tokenizer(text_target=text)["input_ids"]
        first = self.generate_options.get("forced_bos_token_id")
        return ids if first in (None, ids[0]) else [first, *ids]


def mean_log_probability(logits_TV: torch.Tensor, tokens_T: torch.Tensor) -> float:
    log_probs_TV = logits_TV.float().log_softmax(dim=-1)
    return float(log_probs_TV.gather(-1, tokens_T[:, None]).mean())
