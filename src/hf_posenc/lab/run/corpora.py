"""Corpora of one system as datasets, each built once and saved in the run's `data` folder.

The name of a dataset's folder contains a hash of everything that the dataset is made from. Systems share datasets with
equal hashes.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset, concatenate_datasets, load_from_disk

from ...utils.atomic_io import short_hash
from ...utils.manifest import save_folder, verified
from ...utils.run_folder import RunPaths
from ..config.settings import DataSettings, ScoreSettings, Segmentation
from ..data.corpus import (
    PROGRESS_BAR_MIN_PAIRS,
    TagPair,
    concatenate_consecutive,
    corpus_tags,
    group_by_tags,
    load_pairs,
    normalize_pairs,
    prepend_tags,
    progress_bars,
)
from ..data.lengths import stratified_sample
from ..data.readers import CorpusSpec, corpus_file_hashes
from ..data.segmentation import SEGMENT_SEPARATOR, automatic_segments, fixed_segments, gold_segments
from ..data.tokenization import ExperimentTokenizer, load_blocks, tokenize_pairs


@dataclass(frozen=True)
class CorpusStore:
    """Reads corpora in the languages of `settings`, encodes them, and saves the result in the run."""

    settings: DataSettings
    tokenizer: ExperimentTokenizer
    paths: RunPaths

    def read(self, corpus_spec: CorpusSpec, separator: str = " ") -> Dataset:
        """The pairs of a corpus as texts, without tags."""
        return read_pairs(self.settings, corpus_spec, separator)

    def prepend_tags(self, pairs: Dataset, tags: TagPair) -> Dataset:
        return prepend_tags(pairs, tags, **languages(self.settings))

    def encoded(self, corpus_spec: CorpusSpec) -> Dataset:
        """The pairs of a corpus as token ids, with the corpus's language tags."""
        folder = self.paths.encoded_pairs(self.hash_of(corpus_spec))
        if not folder.exists():
            tagged = [self.prepend_tags(self.read(spec), tags) for spec, tags in group_by_tags(corpus_spec)]
            encoded = [tokenize_pairs(pairs, self.tokenizer, **languages(self.settings)) for pairs in tagged]
            save_pairs(folder, concatenate_datasets(encoded))
        return load_saved_pairs(folder)

    def test_set(self, name: str, corpus_spec: CorpusSpec, k: int) -> Dataset:
        """All pairs of a test set, `k` consecutive ones concatenated, with their `source_length` in subwords."""
        folder = self.paths.test_set(name, self.hash_of(corpus_spec))
        if not folder.exists():
            pairs = concatenate_consecutive(self.read(corpus_spec), k)
            tagged = self.prepend_tags(pairs, corpus_tags(corpus_spec))
            encoded = tokenize_pairs(tagged, self.tokenizer, **languages(self.settings))
            save_pairs(folder, pairs.add_column("source_length", encoded["source_length"]))
        return load_saved_pairs(folder)

    def blocks(self, corpus_spec: CorpusSpec, key: str, length: int) -> Dataset:
        """Plain text in training blocks of `length` tokens, across documents. `key` is its key in the config."""
        folder = self.paths.encoded_pairs(self.hash_of_blocks(corpus_spec, length))
        return self.saved_blocks(folder, corpus_spec, length, key=key, across_documents=True)

    def test_windows(self, name: str, corpus_spec: CorpusSpec, length: int) -> Dataset:
        """A plain test text in windows of `length` tokens, each within one document."""
        folder = self.paths.test_set(name, self.hash_of_blocks(corpus_spec, length))
        return self.saved_blocks(folder, corpus_spec, length, key=f"data.test.{name}", across_documents=False)

    def saved_blocks(
        self, folder: Path, corpus_spec: CorpusSpec, length: int, *, key: str, across_documents: bool
    ) -> Dataset:
        if not folder.exists():
            blocks = load_blocks(
                corpus_spec, self.tokenizer, length, folder=self.settings.data_dir, across_documents=across_documents,
                key=key,
            )  # fmt: skip
            save_pairs(folder, blocks)
        return load_saved_pairs(folder)

    def hash_of_blocks(self, corpus_spec: CorpusSpec, length: int) -> str:
        return short_hash(f"{self.hash_of(corpus_spec)} in blocks of {length}")

    def segments(self, name: str, corpus_spec: CorpusSpec, k: int, segmentation: Segmentation) -> Dataset:
        """The segments of each source of a test set, in the column `pieces`."""
        saved_name = segmentation.segmentation
        if segmentation.segment_words is not None:
            saved_name += f"-{segmentation.segment_words}-{segmentation.overlap_words}"
        folder = self.paths.segments(saved_name, name, self.hash_of(corpus_spec))
        if not folder.exists():
            pairs, language = self.test_set(name, corpus_spec, k), self.settings.source_language
            if segmentation.segmentation == "automatic":
                segments = automatic_segments(pairs, language)
            elif segmentation.segment_words is not None:
                segments = fixed_segments(pairs, language, segmentation.segment_words, segmentation.overlap_words)
            else:
                sources, _ = self.gold_segments(name, corpus_spec, k)
                segments = [list(filter(None, texts)) or [""] for texts in sources]
            save_pairs(folder, Dataset.from_dict({"pieces": segments}))
        return load_saved_pairs(folder)

    def gold_segments(self, name: str, corpus_spec: CorpusSpec, k: int) -> tuple[list[list[str]], list[list[str]]]:
        """The texts that each source and each target of a test set was concatenated from: equally many, some empty."""
        pairs = self.test_set(name, corpus_spec, k)
        separated = concatenate_consecutive(self.read(corpus_spec, SEGMENT_SEPARATOR), k, SEGMENT_SEPARATOR)
        source, target = (gold_segments(separated, pairs, name) for name in languages(self.settings).values())
        return source, target

    def hash_of(self, corpus_spec: CorpusSpec) -> str:
        """A hash of everything that encoded pairs are made from."""
        return corpus_hash(self.settings, corpus_spec, self.tokenizer.to_str())


def corpus_hash(settings: DataSettings, corpus_spec: CorpusSpec, maker: object) -> str:
    """A hash of a corpus with the content of its files, and of what is made from it by `maker`."""
    file_hashes = corpus_file_hashes(corpus_spec, settings.data_dir)
    return short_hash(json.dumps([corpus_spec, file_hashes, languages(settings), maker], sort_keys=True))


def read_pairs(settings: DataSettings, corpus_spec: CorpusSpec, separator: str = " ") -> Dataset:
    """The pairs of a corpus as normalized texts. No tokenizer is needed: it is trained on these pairs."""
    pairs = load_pairs(corpus_spec, folder=settings.data_dir, separator=separator, **languages(settings))
    return normalize_pairs(pairs, settings.normalize, separator=separator, **languages(settings))


def languages(settings: DataSettings) -> dict[str, str]:
    return {"source_language": settings.source_language, "target_language": settings.target_language}


def sampled_pairs(pairs: Dataset, score: ScoreSettings) -> Dataset:
    """At most `max_per_bucket` pairs of each length bucket, which are scored; all pairs if that is not set."""
    return stratified_sample(pairs, score.bucket_edges, score.max_per_bucket) if score.max_per_bucket else pairs


def save_pairs(folder: Path, pairs: Dataset) -> None:
    """Save pairs, with a progress bar if they are many."""
    with progress_bars(shown=len(pairs) > PROGRESS_BAR_MIN_PAIRS):
        save_folder(folder, pairs.save_to_disk)


def load_saved_pairs(folder: Path) -> Dataset:
    with verified(folder):
        return load_from_disk(str(folder))
