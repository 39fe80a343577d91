"""Translation of whole texts and files by any translation model, with each segment checked and repaired.

Texts are divided into segments that the model was made for, so that nothing is truncated, and translated in batches of
similar length. A doubtful translation is tried again: in smaller parts, by a wider beam, and without repetitions. Of
the candidates the one with fewest doubts stays, and of those the one with the model's highest probability for each
token. What stays doubtful is listed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import regex
import torch
from langcodes import Language
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..utils.atomic_io import atomic_write
from .checks import Checked, Doubt, find_doubts, usual_ratio
from .documents import TextDocument, has_letters, read_document
from .languages import choose_direction
from .segments import Segment, split_segments

MAX_SEGMENT_TOKENS = 128  # by default; few models were trained on many longer sentences
# Positions that a model has a table for, by the names of its config.
POSITION_LIMITS = ("max_position_embeddings", "max_source_length")
UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
REPAIRS: tuple[Mapping[str, Any], ...] = (
    {"num_beams": 8, "repetition_penalty": 1.2},
    {"num_beams": 4, "no_repeat_ngram_size": 4, "length_penalty": 1.2},
)


@dataclass
class SegmentTranslation:
    """A segment, its translation, and the doubts that stay. `place`: where it stands, such as "line 3".

    `repaired`: whether another candidate than the first stays.
    """

    place: str
    source: str
    translation: str
    doubts: list[Doubt] = field(default_factory=list)
    repaired: bool = False


@dataclass
class TextTranslation:
    """A translated text, and its segments in order."""

    text: str
    segments: list[SegmentTranslation]

    @property
    def doubtful(self) -> list[SegmentTranslation]:
        return [segment for segment in self.segments if segment.doubts]

    def __str__(self) -> str:
        return self.text


class Translator:
    """Translates texts and files by a sequence-to-sequence model of transformers, or of this package.

    `source_language`, `target_language`: codes of the model, of ISO 639 or BCP 47. Models of one pair need none; they
    then help to find sentences, and to check the script. `max_segment_tokens`: of a segment without special tokens, by
    default 128, or what the model's positions allow. `repair`: whether doubtful segments are tried again. Other keyword
    arguments are options of `generate`; sampling is refused, because a retry must not depend on chance.

    A ValueError for a language that the model lacks and for options that cannot be used.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        source_language: str | None = None,
        target_language: str | None = None,
        *,
        max_segment_tokens: int | None = None,
        batch_size: int = 16,
        repair: bool = True,
        **generate: Any,
    ) -> None:
        if not model.config.is_encoder_decoder:
            raise ValueError(
                f"A Translator must have an encoder-decoder, but {type(model).__name__} is none; for a model of this "
                "package call model.translate."
            )
        if generate.get("do_sample", getattr(model.generation_config, "do_sample", False)):
            raise ValueError("Translations must not be sampled, but do_sample is true; leave it out.")
        self.model = model.eval()
        self.direction = choose_direction(model, tokenizer, source_language, target_language)
        self.tokenizer = deepcopy(tokenizer)  # its language is state
        if self.direction.source_code:
            self.tokenizer.src_lang = self.direction.source_code
        self.batch_size = batch_size
        self.repair = repair
        self.generate_options = {"do_sample": False, **self.direction.generate, **generate}
        self.num_added_tokens = len(self.encode(""))
        self.max_segment_tokens = self.choose_segment_length(max_segment_tokens)
        target = Language.get(self.direction.target).maximize() if self.direction.target else None
        self.target_script = target.script if target else None

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, *args: Any, **options: Any) -> "Translator":
        """The translator with a model and tokenizer of the Hub or of a folder."""
        model = AutoModelForSeq2SeqLM.from_pretrained(name_or_path)
        return cls(model, AutoTokenizer.from_pretrained(name_or_path), *args, **options)

    def choose_segment_length(self, given: int | None) -> int:
        """The maximum number of tokens of a segment, which the model's positions and the tokenizer must allow."""
        limits = [getattr(self.model.config, name, None) for name in POSITION_LIMITS]
        limits = [limit - self.num_added_tokens for limit in [*limits, self.tokenizer.model_max_length] if limit]
        largest = min(limits)
        if given is not None and not 1 <= given <= largest:
            raise ValueError(
                f"max_segment_tokens must be from 1 to {largest}, the model's limit, but it is {given}; choose another."
            )
        return min(MAX_SEGMENT_TOKENS, largest) if given is None else given

    @overload
    def __call__(self, texts: str, *, progress: bool = ...) -> TextTranslation: ...
    @overload
    def __call__(self, texts: Sequence[str], *, progress: bool = ...) -> list[TextTranslation]: ...
    def __call__(self, texts: str | Sequence[str], *, progress: bool = False) -> Any:
        """The translation of a text, or of each of a list of texts."""
        if isinstance(texts, str):
            return self([texts], progress=progress)[0]
        return list(self.translate_texts(texts, [f"text {number}" for number in range(1, len(texts) + 1)], progress))

    def translate_file(
        self, path: Path, output: Path, *, form: str | None = None, field: str = "text", progress: bool = False
    ) -> list[SegmentTranslation]:
        """Write the translation of a file in the same form, and return its segments. `output` must be a new file.

        See `read_document` for forms and errors.
        """
        if output.exists():
            raise ValueError(f"The file to write must be a new one, but {output} exists; choose another or delete it.")
        document = read_document(path, form, field)
        segments = self.translate_document(document, progress=progress)
        atomic_write(output, document.to_bytes())
        return segments

    def translate_document(self, document: TextDocument, *, progress: bool = False) -> list[SegmentTranslation]:
        """Replace the texts of a document by their translations, and return the segments."""
        parts = [part for part in document.texts if has_letters(part.text)]
        places = [part.place or "" for part in parts]
        translations = self.translate_texts([part.text for part in parts], places, progress)
        segments = []
        for part, translation in zip(parts, translations, strict=True):
            part.text = translation.text
            segments += translation.segments
        return segments

    def translate_texts(
        self, texts: Sequence[str], places: Sequence[str], progress: bool = False
    ) -> Iterator[TextTranslation]:
        """The translation of each text; a place names it in the report."""
        split_texts = [split_segments(text, self.direction.source, self.max_segment_tokens, self.count) for text in texts]
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
        """Try doubtful segments again, and keep the best candidate of each."""
        sources = [result.source for result in doubtful]
        tries = [self.generate(sources, {**self.generate_options, **options}) for options in REPAIRS]
        tries.append(self.translate_halves(sources))
        for row, result in enumerate(doubtful):
            candidates = [(result.translation, result.doubts)]
            for texts in tries:
                text, was_cut = texts[row]
                candidates.append((text, self.doubts(result.source, text, was_cut, ratio)))
            fewest = min(len(doubts) for _, doubts in candidates)
            best = [candidate for candidate in candidates if len(candidate[1]) == fewest]
            scores = self.log_probabilities(result.source, [text for text, _ in best]) if len(best) > 1 else [0.0]
            text, doubts = best[scores.index(max(scores))]
            result.repaired = text != result.translation
            result.translation, result.doubts = text, doubts

    def translate_halves(self, sources: Sequence[str]) -> list[tuple[str, bool]]:
        """The translations of segments in parts of at most half their tokens."""
        parts = [
            split_segments(source, self.direction.source, max(8, (self.count(source) + 1) // 2), self.count)
            for source in sources
        ]
        flat = iter(self.generate([part.text for text in parts for part in text], self.generate_options))
        outputs = []
        for segments in parts:
            translated = [next(flat) for _ in segments]
            text = join_segments(segments, [words for words, _ in translated])
            outputs.append((text.strip(), any(was_cut for _, was_cut in translated)))
        return outputs

    def count(self, text: str) -> int:
        """Tokens of a text, without special ones and the prefix."""
        return len(self.encode(text)) - self.num_added_tokens

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(self.direction.prefix + text, truncation=False, verbose=False)["input_ids"]
        return ids

    @torch.no_grad()
    def generate(
        self, sources: Sequence[str], options: Mapping[str, Any], progress: bool = False
    ) -> list[tuple[str, bool]]:
        """Translations in order, and whether each reached its limit; a blank source has an empty one."""
        outputs: list[tuple[str, bool]] = [("", False)] * len(sources)
        ids_by_row = {row: self.encode(source) for row, source in enumerate(sources) if source.strip()}
        order = sorted(ids_by_row, key=lambda row: len(ids_by_row[row]), reverse=True)
        with tqdm(total=len(order), unit="segment", disable=not progress) as bar:
            for start in range(0, len(order), self.batch_size):
                rows = order[start : start + self.batch_size]
                outputs_of_rows = self.generate_batch([ids_by_row[row] for row in rows], options)
                for row, output in zip(rows, outputs_of_rows, strict=True):
                    outputs[row] = output
                bar.update(len(rows))
        return outputs

    def generate_batch(self, sources: list[list[int]], options: Mapping[str, Any]) -> list[tuple[str, bool]]:
        limit = options.get("max_new_tokens", self.max_new_tokens(len(sources[0])))
        sequences = self.generate_tokens(sources, {**options, "max_new_tokens": limit})
        texts = self.tokenizer.batch_decode(sequences, skip_special_tokens=True)
        # A forced end token stands at the limit; it is not the model's.
        pad = self.tokenizer.pad_token_id
        lengths = [sum(token != pad for token in row[1:]) for row in sequences]
        return [(text.strip(), length >= limit) for text, length in zip(texts, lengths, strict=True)]

    def generate_tokens(self, sources: list[list[int]], options: Mapping[str, Any]) -> list[list[int]]:
        inputs = self.tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(self.model.device)
        tokens: list[list[int]] = self.model.generate(**inputs, **options).tolist()
        return tokens

    def max_new_tokens(self, source_length: int) -> int:
        """Twice the source and 50 tokens, within the decoder's positions; never the model's own, shorter limit."""
        limits = [getattr(self.model.config, name, None) for name in ("max_position_embeddings", "max_target_length")]
        return min([2 * source_length + 50, *(limit - 1 for limit in limits if limit)])

    @torch.no_grad()
    def log_probabilities(self, source: str, translations: Sequence[str]) -> list[float]:
        """The mean log-probability of a token of each translation."""
        scores = []
        for text in translations:
            inputs = self.tokenizer(self.direction.prefix + source, return_tensors="pt").to(self.model.device)
            labels = self.tokenizer(text_target=text or " ", return_tensors="pt")["input_ids"].to(self.model.device)
            scores.append(-float(self.model(**inputs, labels=labels).loss))
        return scores


def join_segments(segments: Sequence[Segment], translations: Sequence[str]) -> str:
    """The translations with the blanks that stand around the segments, and one where the source's script needs none."""
    text = ""
    for segment, translation in zip(segments, translations, strict=True):
        is_word_next = bool(translation) and not UNSPACED.match(translation[0])
        if not segment.before and text and not text[-1].isspace() and is_word_next and not UNSPACED.match(text[-1]):
            text += " "
        text += segment.before + translation + segment.after
    return text


def report_lines(segments: Iterable[SegmentTranslation]) -> list[dict[str, Any]]:
    """The doubtful segments as records: place, source, translation, reasons."""
    return [asdict(segment) for segment in segments if segment.doubts]
