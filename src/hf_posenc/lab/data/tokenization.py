"""Tokenizers: their training, and corpora as token ids: pairs, and plain text in blocks of one length.

Plain text is for language models. A document ends at an empty line, at the end of a file, and where its name in a
`document_ids` file changes. Its tokens are those of the whole document tokenized at once:

    <s> line \\n line ... \\n line </s>

A block has `length` tokens and, for each of them, the next one as its label. Blocks follow each other without gap or
overlap, so that each token is predicted once.

A fast tokenizer becomes a PosEncTokenizer. A slow one, such as that of opus-mt (MarianTokenizer) or M2M-100, runs
sentencepiece, which no fast tokenizer equals on every text. Therefore it is used as it is: ids, decoded texts and saved
files are its own.
"""

import json
import os
from collections.abc import Iterator, Sequence
from itertools import groupby, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
from datasets import Dataset, Features, Value
from transformers import AutoTokenizer, BatchEncoding, PreTrainedTokenizerBase

from ...convert.folders import auto_from_pretrained, language_token, language_tokens
from ...hub.errors import data_options, is_blank
from ...tokenizer.tokenization_posenc import PosEncTokenizer
from ...utils.manifest import sha256
from ...utils.text_io import read_lines
from .corpus import BATCH_SIZE, PROGRESS_BAR_MIN_PAIRS, Batch, dataset_from_rows, map_batches
from .readers import CorpusSpec, absolute_path, resolve_texts

TOKEN_IDS, LENGTH = datasets.Sequence(Value("int32")), Value("int32")
ENCODED = Features({"input_ids": TOKEN_IDS, "labels": TOKEN_IDS, "source_length": LENGTH, "target_length": LENGTH})


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
    """Train a tokenizer on unfiltered `pairs`: one vocabulary if `joint`, else one for each side."""

    def texts(*languages: str) -> Iterator[str]:
        for batch in pairs.iter(BATCH_SIZE):
            for row in batch["translation"]:
                yield from (row[language] for language in languages)

    sides = (source_language, target_language)
    first, second = (texts(*sides), None) if joint else map(texts, sides)
    return PosEncTokenizer.train(first, vocab_size, target_texts=second, subwords=subwords, tags=tags)


def tokenize_pairs(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, *, source_language: str, target_language: str
) -> Dataset:
    """Encode pairs: `input_ids` and `labels` end in `</s>` and are neither truncated nor padded. `source_length` and
    `target_length` are in subwords without special tokens. All pairs are kept, in order."""
    num_special = tokenizer.num_special_tokens_to_add()
    options = {"truncation": False, "return_attention_mask": False} | data_options(tokenizer)

    def tokenize(batch: Batch) -> Batch:
        sources = [row[source_language] for row in batch["translation"]]
        targets = [row[target_language] for row in batch["translation"]]
        input_ids = tokenizer(sources, **options)["input_ids"]
        labels = tokenizer(text_target=targets, **options)["input_ids"]
        return {
            "input_ids": input_ids,
            "labels": labels,
            "source_length": [len(ids) - num_special for ids in input_ids],
            "target_length": [len(ids) - num_special for ids in labels],
        }

    return map_batches(pairs, tokenize, ENCODED)


IGNORED = -100  # label of a token after which another document begins
CHUNK_LINES = 500  # lines that are tokenized at once
ANCHOR = "a"  # text before a chunk's first line end, whose tokens are dropped


def load_blocks(
    corpus_spec: CorpusSpec,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    *,
    folder: str | None,
    across_documents: bool,
    key: str,
) -> Dataset:
    """The blocks of a corpus `{text: [files], document_ids: file}`: `input_ids` and `labels` (N, length).

    Training blocks go across documents: where one ends and another begins, the label is IGNORED. Otherwise every block
    lies within one document. The rest that fills no block is left out, at the end of the corpus or of each document. A
    ValueError with the corpus's `key` in the config if there is no block.
    """
    paths, ids_path = resolve_corpus(corpus_spec, folder)
    files = paths if ids_path is None else (*paths, ids_path)
    is_large = sum(map(os.path.getsize, paths)) > 100 * PROGRESS_BAR_MIN_PAIRS
    arguments = {"paths": paths, "document_ids": ids_path, "tokenizer": tokenizer, "length": length, "key": key}
    return dataset_from_rows(block_rows, ENCODED, files, is_large, across_documents=across_documents, **arguments)


def block_rows(
    paths: tuple[str, ...],
    document_ids: str | None,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    across_documents: bool,
    key: str,
    file_state: object = None,
) -> Iterator[dict[str, object]]:
    """The rows of `load_blocks`. `file_state` makes a changed file another argument."""
    tokens = labels = np.empty(0, dtype=np.int32)
    longest, has_rows = 0, False
    for piece, begins_document in token_pieces(paths, document_ids, tokenizer):
        if begins_document and not across_documents:
            tokens = labels = tokens[:0]
        tokens = np.concatenate([tokens, piece])
        labels = np.concatenate([labels, np.full_like(piece, IGNORED) if begins_document else piece])
        longest = max(longest, len(tokens))
        while len(tokens) > length:
            yield {
                "input_ids": tokens[:length],
                "labels": labels[1 : length + 1],
                "source_length": length,
                "target_length": length,
            }
            has_rows, tokens, labels = True, tokens[length:], labels[length:]
    if not has_rows:
        what, remedy = "A text", "give it more text, or lower data.max_length"
        if not across_documents:
            what = "A test document"
            remedy = (
                "give it longer documents, which end at each empty line, or lower score.max_context (if left out, "
                "twice the last of score.bucket_edges)"
            )
        raise ValueError(
            f"{what} must have more tokens than a block of {length}, but {key} has at most {longest}, special ones "
            f"included; {remedy}."
        )


def token_pieces(
    paths: tuple[str, ...], document_ids: str | None, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[np.ndarray, bool]]:
    """The tokens of all documents in order, in pieces, and whether a piece begins a document.

    A document's first piece is `<s>`, its last one `</s>`. In a vocabulary such as GPT-2's these are one token.
    """
    num_anchor = len(tokenizer(ANCHOR, add_special_tokens=False)["input_ids"])
    for chunks in documents(paths, document_ids):
        yield np.array([tokenizer.bos_token_id], dtype=np.int32), True
        for number, lines in enumerate(chunks):
            # A later chunk begins with the line end before it. A tokenizer may treat the start of a text in another
            # way than a line end in its middle, such as by a space in front.
            text = "\n".join([ANCHOR, *lines] if number else lines)
            ids = tokenizer(text, add_special_tokens=False, truncation=False, **data_options(tokenizer))["input_ids"]
            yield np.array(ids[num_anchor:] if number else ids, dtype=np.int32), False
        yield np.array([tokenizer.eos_token_id], dtype=np.int32), False


def text_chunks(corpus_spec: CorpusSpec, folder: str | None) -> Iterator[str]:
    """The texts of a corpus, without blank lines: up to CHUNK_LINES lines of one document each."""
    for chunks in documents(*resolve_corpus(corpus_spec, folder)):
        yield from ("\n".join(lines) for lines in chunks)


def resolve_corpus(corpus_spec: CorpusSpec, folder: str | None) -> tuple[tuple[str, ...], str | None]:
    """The paths of the texts, and that of the documents' names, if the corpus has such a file."""
    names = corpus_spec.get("document_ids")
    return resolve_texts(corpus_spec["text"], folder), absolute_path(names, folder) if names else None


def documents(paths: tuple[str, ...], document_ids: str | None) -> Iterator[Iterator[list[str]]]:
    """The lines of each document, in chunks. A document must be read before the next one."""
    for _, keyed_lines in groupby(document_lines(paths, document_ids), key=lambda keyed_line: keyed_line[0]):
        yield chunked(line for _, line in keyed_lines)


def chunked(lines: Iterator[str]) -> Iterator[list[str]]:
    return iter(lambda: list(islice(lines, CHUNK_LINES)), [])


def document_lines(paths: tuple[str, ...], document_ids: str | None) -> Iterator[tuple[object, str]]:
    """The document and the text of each line that is not blank. Consecutive lines of one document have equal keys.

    A ValueError if `document_ids` has more or fewer lines than the texts.
    """
    names = repeat("") if document_ids is None else read_lines(document_ids)
    num_blank = num_lines = 0
    name: str | None = ""
    for number, line in numbered_lines(paths):
        num_lines += 1
        name = next(names, None)
        if name is None:
            break
        if is_blank(line):
            num_blank += 1
        else:
            yield (number, num_blank, name), line
    if document_ids is not None and (name is None or next(names, None) is not None):
        comparison = "fewer" if name is None else "more"
        raise ValueError(
            f"`document_ids` names the document of each line, blank ones too, but {document_ids} has {comparison} "
            f"lines than the texts, of which line {num_lines} is the last one read: give it a line for each of theirs"
        )


def numbered_lines(paths: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Each line of the texts, with the number of its text."""
    for number, path in enumerate(paths):
        for line in read_lines(path):
            yield number, line


class SlowTokenizer:
    """A slow tokenizer with the calls of PosEncTokenizer that experiments make. All other attributes are its own.

    Invariants: encoding appends `</s>` and nothing else, also with `text_target=`. Without a tag, ids are those of the
    wrapped tokenizer between its special tokens. A language tag is one token: `"__de__ " + text` has one token more
    than `text`, and no decoded text has tags. Tags are those of the wrapped tokenizer, such as `__de__` or `>>fra<<`.
    Departure from PosEncTokenizer: a text that spells `</s>`, or another special token, is read as that token.
    """

    normalization: dict[str, list[str]] = {}

    def __init__(self, wrapped: PreTrainedTokenizerBase) -> None:
        self.wrapped = wrapped
        self.tag_ids = {tag: wrapped.convert_tokens_to_ids(tag) for tag in language_tokens(wrapped).values()}
        if getattr(wrapped, "tgt_lang", "") is None:
            wrapped.tgt_lang = wrapped.src_lang  # M2M-100's encodes no target without a language

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def __len__(self) -> int:
        return len(self.wrapped)

    def __call__(
        self,
        text: str | list[str] | None = None,
        text_target: str | list[str] | None = None,
        *,
        add_special_tokens: bool = True,
        truncation: bool = False,
        return_attention_mask: bool = False,
    ) -> BatchEncoding:
        """The `input_ids` of one side's text or texts; `truncation` and `return_attention_mask` must be False."""
        assert (text is None) != (text_target is None) and not (truncation or return_attention_mask)
        side, texts = ("text", text or []) if text_target is None else ("text_target", text_target)
        batch = [texts] if isinstance(texts, str) else texts
        split = [self.split_tag(text) for text in batch]
        options = {"add_special_tokens": False, "truncation": False, "verbose": False, "split_special_tokens": True}
        encoded = self.wrapped(**{side: [text for _, text in split]}, **options)
        end = [self.wrapped.eos_token_id] if add_special_tokens else []
        ids = [[*tag, *subwords, *end] for (tag, _), subwords in zip(split, encoded["input_ids"], strict=True)]
        return BatchEncoding({"input_ids": ids[0] if isinstance(texts, str) else ids})

    def split_tag(self, text: str) -> tuple[list[int], str]:
        """The token of the tag that a text begins with, if any, and the text without it."""
        first, _, rest = text.partition(" ")
        return ([self.tag_ids[first]], rest) if first in self.tag_ids else ([], text)

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False, **options: object
    ) -> list[str]:
        """The texts of token ids; tags are special tokens."""
        rows = [list(map(int, ids)) for ids in sequences]
        if skip_special_tokens:
            tags = set(self.tag_ids.values())
            rows = [[token for token in row if token not in tags] for row in rows]
        texts: list[str] = self.wrapped.batch_decode(rows, skip_special_tokens=skip_special_tokens, **options)
        return texts

    def num_special_tokens_to_add(self) -> int:
        return 1

    @property
    def bos_token_id(self) -> int:
        """The decoder's start token. MarianMT has no <s>: its decoder starts with <pad>."""
        token = self.wrapped.bos_token_id
        return self.wrapped.pad_token_id if token is None else token

    @property
    def target(self) -> "SlowTokenizer":
        return self

    @property
    def target_vocab_size(self) -> int:
        """The number of tokens of the target's side; a MarianTokenizer may have two vocabularies."""
        return len(getattr(self.wrapped, "target_encoder", self.wrapped))

    @property
    def shares_vocabulary(self) -> bool:
        return not hasattr(self.wrapped, "target_encoder")

    def add_special_tokens(self, special_tokens: dict[str, list[str]]) -> int:
        """Nothing is added: a ValueError for a tag that the tokenizer lacks."""
        for tag in special_tokens["extra_special_tokens"]:
            if tag not in self.tag_ids:
                token = language_token(self.wrapped, tag)
                raise ValueError(f"A tag must be a token, but it is {tag!r}, a language's name; write {token!r}.")
        return 0

    def with_normalization(self, **steps: Sequence[str]) -> "SlowTokenizer":
        """A ValueError: the text of a slow tokenizer is normalized by its own sentencepiece model."""
        raise ValueError(
            f"data.normalize is for fast tokenizers, but data.tokenizer is a {type(self.wrapped).__name__}, which "
            "normalizes by itself; leave data.normalize out, or change the files."
        )

    def to_str(self) -> str:
        """A JSON string of all that encoding and decoding depend on, for hashes."""
        with TemporaryDirectory() as folder:
            files = map(Path, self.wrapped.save_vocabulary(folder))
            hashes = {file.name: sha256(file) for file in files}
        return json.dumps({"class": type(self.wrapped).__name__, "files": hashes}, sort_keys=True)


ExperimentTokenizer = PosEncTokenizer | SlowTokenizer


def adopt_tokenizer(tokenizer: PreTrainedTokenizerBase) -> ExperimentTokenizer:
    """An existing tokenizer of transformers as one for experiments."""
    return PosEncTokenizer.from_fast_tokenizer(tokenizer) if tokenizer.is_fast else SlowTokenizer(tokenizer)


def load_experiment_tokenizer(folder: Path) -> ExperimentTokenizer:
    """The tokenizer of a run, saved in `folder`."""
    if (folder / PosEncTokenizer.vocab_files_names["tokenizer_file"]).exists():
        return PosEncTokenizer.from_pretrained(folder)
    return adopt_tokenizer(auto_from_pretrained(AutoTokenizer, folder))
