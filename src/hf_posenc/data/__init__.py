"""Corpora of many forms in, datasets of one form out.

The form is the Hub's own for parallel text: a `datasets.Dataset` with the one column `translation`, which holds
`{source_language: text, target_language: text}`. `load_pairs` reads it, `joining` makes long pairs of short
ones, `encode_pairs` turns text into token ids, `filter_lengths` bounds what is trained on.

Length means subwords without special tokens, everywhere. Files are streamed into a memory-mapped Arrow file, so a
corpus need not fit into memory; a file that has changed is read again.
"""

import glob
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import datasets
import numpy as np
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError
from transformers import PreTrainedTokenizerBase

from ..modeling.nearest import refuse_unknown
from ..modeling.tokenization_posenc import PosEncTokenizer
from .files import file_parts, named_folder, read_parts
from .joining import join_consecutive, join_documents, positive
from .mapping import BATCH, LARGE, mapped, progress_bars, renamed
from .tags import KEYS as TAGS

logger = logging.getLogger(__name__)

KINDS = {"dataset": ("name", "split", "revision"), "files": ("documents", "min_words"), "generator": (), "corpora": ()}
LANGUAGES = ("source_language", "target_language")
EXAMPLE = "{files: [train.de, train.en]}"
GENERATOR_KEYS = ("seed", "pairs", "min_words", "max_words")


def load_pairs(
    where: Mapping[str, Any],
    *,
    source_language: str,
    target_language: str,
    folder: str | None = None,
    between: str = " ",
) -> Dataset:
    """The pairs that `where` describes, in their order. `where` holds exactly one of

    - `dataset`: a dataset on the Hub or a local folder, with `name`, `split` and `revision` as in `load_dataset`;
    - `files`: two aligned texts `[a.de, a.en]`, a `.tsv` (source, tab, target), a `.jsonl` (a `{"translation": {...}}`
      a line), or a list of these, read one after the other; each plain, `.gz`, `.bz2` or `.xz`, relative to `folder`;
    - `generator`: `{seed, pairs, min_words, max_words}` for the embedded German-English generator;
    - `corpora`: a list of such descriptions, read one after the other;

    and, if wanted, `first: n`, which keeps the first n pairs, and then `join: k` (see `join_consecutive`);
    `source_language` and `target_language`, where the description has other ones; `source_tag` and `target_tag`, which
    are no part of these texts (see tags.py). `files` may have `documents: FILE`, a line of which names the document of
    each pair, and `min_words: n` (see `join_documents`). `between` is what stands between texts that are joined. A key
    whose value is None counts as absent. A pair with an empty side is kept. What cannot be read is a ValueError that
    names the file and the line, a missing file a FileNotFoundError.
    """
    where = {key: value for key, value in where.items() if value is not None}
    kind = _kind_of(where)
    names = (source_language, target_language)
    languages = (where.get("source_language", source_language), where.get("target_language", target_language))
    if same := [source for source, target in (names, languages) if source == target]:
        raise ValueError(f"source_language and target_language must differ, but both are {same[0]!r}: name one of each")
    corpora = partial(_load_corpora, between=between)
    loaders: dict[str, Callable[..., Dataset]]
    loaders = {"dataset": _load_dataset, "files": _load_files, "generator": _load_generated, "corpora": corpora}
    pairs = _in_form(loaders[kind](where, languages, folder), languages)
    if "documents" in where or "min_words" in where:
        pairs = join_documents(pairs, where, folder, languages[0], between)
    if "first" in where:
        pairs = pairs.select(range(min(positive("first", where["first"]), len(pairs))))
    return renamed(join_consecutive(pairs, where["join"], between) if "join" in where else pairs, languages, names)


def encode_pairs(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, *, source_language: str, target_language: str
) -> Dataset:
    """Token ids in place of text: `input_ids` and `labels`, lists that end in `</s>`, nothing truncated or padded;
    `source_length` and `target_length`, in subwords without special tokens. All pairs stay, in their order.
    """
    num_special = tokenizer.num_special_tokens_to_add()

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        sources = [row[source_language] for row in batch["translation"]]
        targets = [row[target_language] for row in batch["translation"]]
        input_ids = tokenizer(sources, truncation=False, return_attention_mask=False)["input_ids"]
        labels = tokenizer(text_target=targets, truncation=False, return_attention_mask=False)["input_ids"]
        return {
            "input_ids": input_ids,
            "labels": labels,
            "source_length": [len(ids) - num_special for ids in input_ids],
            "target_length": [len(ids) - num_special for ids in labels],
        }

    ids, length = datasets.Sequence(Value("int32")), Value("int32")
    features = Features({"input_ids": ids, "labels": ids, "source_length": length, "target_length": length})
    return mapped(pairs, encode, features)


def lengths(encoded: Dataset, side: str) -> np.ndarray:
    """The lengths (N) of all sources or targets, in subwords without special tokens."""
    column = encoded.data.column(f"{side}_length").to_numpy()  # datasets would read a selection's row by row
    return column if encoded._indices is None else column[encoded._indices.column(0).to_numpy()]


def filter_lengths(encoded: Dataset, *, min_length: int | None, max_length: int | None) -> Dataset:
    """The pairs to train on: neither side is empty, shorter than `min_length` or longer than `max_length` subwords.

    How many are dropped is logged, empty ones as a warning. A ValueError if none is left. Test sets are not filtered:
    a pair with an empty side is scored like any other.
    """
    source, target = lengths(encoded, "source"), lengths(encoded, "target")
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    least, most = max(min_length or 0, 1), np.inf if max_length is None else max_length
    kept = (shorter >= least) & (longer <= most)
    if not kept.any():
        raise ValueError(
            f"training needs pairs with both sides of {least} to {most} subwords (min_length={min_length}, "
            f"max_length={max_length}), but none of {len(encoded)} is. Pairs by the length of their longer side:\n"
            f"{_histogram(longer)}\nchoose bounds that hold some of them"
        )
    if num_empty := int((shorter == 0).sum()):
        logger.warning("dropped %d of %d pairs: one side is empty", num_empty, len(encoded))
    logger.info("kept %d of %d pairs, of %s to %s subwords a side", kept.sum(), len(encoded), least, most)
    return encoded.select(np.flatnonzero(kept))


def sample_by_length(pairs: Dataset, edges: Sequence[int], per_group: int) -> Dataset:
    """At most `per_group` pairs of each length group, drawn without replacement, in their order; always the same."""
    groups = np.searchsorted(edges, pairs["source_length"])
    chance = np.random.default_rng(0)
    rows = [chance.permutation(np.flatnonzero(groups == group))[:per_group] for group in range(len(edges) + 1)]
    return pairs.select(np.sort(np.concatenate(rows)))


def train_tokenizer(
    pairs: Dataset,
    vocab_size: int,
    *,
    source_language: str,
    target_language: str,
    joint: bool = True,
    subwords: str = "bpe",
    tags: Sequence[str] = (),
) -> PosEncTokenizer:
    """A tokenizer learned from `pairs`, the unfiltered ones: one vocabulary, or, unless `joint`, one for each side."""

    def texts(*languages: str) -> Iterator[str]:
        for batch in pairs.iter(BATCH):
            for row in batch["translation"]:
                yield from (row[language] for language in languages)

    sides = (source_language, target_language)
    first, second = (texts(*sides), None) if joint else map(texts, sides)
    return PosEncTokenizer.train(first, vocab_size, target_texts=second, subwords=subwords, tags=tags)


def check_description(where: Mapping[str, Any], name: str) -> None:
    """A ValueError for keys of a corpus that do not go together; `name` is where it stands."""
    given = {key: value for key, value in where.items() if value is not None}
    try:
        kind = _kind_of(given)
        if (documents := "documents" in given) != ("min_words" in given):
            raise ValueError(
                "`documents` and `min_words` belong together, but "
                f"{'min_words' if documents else 'documents'!r} is missing: add it"
            )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if kind == "generator" and given[kind]["min_words"] > given[kind]["max_words"]:
        raise ValueError(f"{name}.generator: min_words must not exceed max_words, but it is {given[kind]}; swap them.")
    for number, part in enumerate(given[kind] if kind == "corpora" else []):
        check_description(part, f"{name}.corpora[{number}]")


def _kind_of(where: Mapping[str, Any]) -> str:
    kinds = [kind for kind in KINDS if kind in where]
    known = [key for kind in kinds or KINDS for key in (kind, *KINDS[kind])]
    known += ["first", "join", *LANGUAGES, *TAGS]
    refuse_unknown(where, known, f"a description of data ({', '.join(known)})")
    if len(kinds) != 1:
        raise ValueError(
            f"a description of data holds exactly one of {', '.join(KINDS)}, but it holds "
            f"{' and '.join(kinds) or 'none'}: write for example {EXAMPLE}"
        )
    return kinds[0]


def _load_dataset(where: Mapping[str, Any], languages: tuple[str, str], folder: str | None) -> Dataset:
    name = named_folder(where["dataset"], folder)
    loaded = datasets.load_dataset(name, **{key: where.get(key) for key in KINDS["dataset"]})
    if isinstance(loaded, datasets.DatasetDict):
        if len(loaded) > 1:
            raise ValueError(
                f"one split is read, but {name} has {', '.join(loaded)}: add for example split: {next(iter(loaded))}"
            )
        loaded = next(iter(loaded.values()))
    column = loaded.features.get("translation")
    found = column.languages if isinstance(column, datasets.Translation) else column
    if not isinstance(found, Collection) or not set(languages) <= set(found):
        raise ValueError(
            f"a dataset needs a column `translation` with {' and '.join(languages)}, but {name} has "
            f"{dict(loaded.features)}: choose other languages or another `name`, or write a .jsonl and use `files`"
        )
    return loaded


def _load_files(where: Mapping[str, Any], languages: tuple[str, str], folder: str | None) -> Dataset:
    parts = file_parts(where["files"], folder)
    paths = [path for part in parts for path in part]
    large = sum(map(os.path.getsize, paths)) > 50 * LARGE  # a compressed pair takes some 50 bytes
    return _stream(read_parts, languages, paths, large, parts=parts, languages=languages)


def _load_corpora(where: Mapping[str, Any], languages: tuple[str, str], folder: str | None, between: str) -> Dataset:
    if not isinstance(where["corpora"], list) or not where["corpora"]:
        raise ValueError(
            f"`corpora` is a list of descriptions of data, but it is {where['corpora']!r}: write for example "
            "[{files: [a.de, a.en]}, {dataset: wmt/wmt19, name: de-en, split: train}]"
        )
    source, target = languages
    how: dict[str, Any] = {"source_language": source, "target_language": target, "folder": folder, "between": between}
    return datasets.concatenate_datasets([load_pairs(part, **how) for part in where["corpora"]])


def _load_generated(where: Mapping[str, Any], languages: tuple[str, str], folder: str | None) -> Dataset:
    from . import generator

    settings = where["generator"]
    if not isinstance(settings, Mapping) or any(type(settings.get(key)) is not int for key in GENERATOR_KEYS):
        raise ValueError(
            f"`generator` needs {', '.join(GENERATOR_KEYS)}, all whole numbers, but it is {settings!r}: give all four"
        )
    refuse_unknown(settings, GENERATOR_KEYS, "`generator`")
    if set(languages) != set(generator.LANGUAGES):
        raise ValueError(
            f"the generator writes {' and '.join(generator.LANGUAGES)}, but the languages asked for are "
            f"{' and '.join(languages)}: set source_language and target_language to its two, in either order"
        )
    code = glob.glob(os.path.join(os.path.dirname(str(generator.__file__)), "*.py"))
    written = (generator.LANGUAGES[0], generator.LANGUAGES[1])
    large = settings["pairs"] > LARGE
    return _stream(generator.generate_pairs, languages, code, large, written, **settings)


def _stream(
    read: Callable[..., Iterator[tuple[str, str]]],
    languages: tuple[str, str],
    depends_on: list[str],
    large: bool,
    written: tuple[str, str] | None = None,
    /,
    **how: Any,
) -> Dataset:
    """The pairs of `read(**how)`, on disk; `written` names their languages where the order is another.

    datasets finds them in its cache again by `read` and its arguments alone. The state of the files they depend on, the
    reading code among them, is made an argument too: a changed file never gives yesterday's pairs.
    """
    code = glob.glob(os.path.join(os.path.dirname(__file__), "*.py"))
    status = [os.stat(path) for path in sorted([*code, *depends_on])]
    state = tuple((one.st_size, one.st_mtime_ns) for one in status)
    arguments = {"read": read, "how": how, "written": written or languages, "state": state}
    try:
        with progress_bars(shown=large):
            return Dataset.from_generator(_rows, features=_features(languages), gen_kwargs=arguments)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, ValueError | OSError):
            raise error.__cause__ from None
        raise


def _rows(
    read: Callable[..., Iterator[tuple[str, str]]], how: dict[str, Any], written: tuple[str, str], state: object
) -> Iterator[dict[str, Any]]:
    for texts in read(**how):
        yield {"translation": dict(zip(written, texts, strict=True))}


def _in_form(pairs: Dataset, languages: tuple[str, str]) -> Dataset:
    features = _features(languages)

    def shape(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows = batch["translation"]
        return {"translation": [{language: row[language] or "" for language in languages} for row in rows]}

    return pairs if pairs.features == features else mapped(pairs, shape, features)


def _features(languages: tuple[str, str]) -> Features:
    return Features({"translation": {language: Value("string") for language in languages}})


def _histogram(lengths: np.ndarray) -> str:
    """A line a bucket, each bucket as wide as all before it: its bounds, its count, its share as a bar."""
    lines, low, high = [], 0, 10
    while low <= max(lengths, default=-1):
        count = int(((lengths >= low) & (lengths <= high)).sum())
        lines.append(f"{low:>6} to {high:>6} {count:>9} {'#' * round(40 * count / len(lengths))}".rstrip())
        low, high = high + 1, 2 * high
    return "\n".join(lines)
