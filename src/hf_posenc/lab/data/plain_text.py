"""Plain text for language models: files of lines to documents, and documents to blocks of one length.

A document ends at an empty line, at the end of a file, and where its name in a `document_ids` file changes. Its tokens:

    <s> line \\n line ... \\n line </s>

They are those of the whole document tokenized at once. A block has `length` tokens and, for each of them, the next one
as its label. Blocks follow each other without gap or overlap, so that each token is predicted once.
"""

import os
from collections.abc import Iterator
from itertools import groupby, islice, repeat

import datasets
import numpy as np
from datasets import Dataset, Features, Value
from transformers import PreTrainedTokenizerBase

from ...hub.errors import data_options, is_blank
from ...utils.text_io import read_lines
from .corpus import PROGRESS_BAR_MIN_PAIRS, dataset_from_rows
from .readers import CorpusSpec, absolute_path, resolve_texts

IGNORED = -100  # label of a token after which another document begins
CHUNK_LINES = 500  # lines that are tokenized at once
TOO_SHORT = "give it more text, or lower data.max_length"
DOCUMENTS_TOO_SHORT = (
    "give it longer documents, which end at each empty line, or lower score.max_context (if left out, twice the last "
    "of score.bucket_edges)"
)
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
    side = datasets.Sequence(Value("int32"))
    large = sum(map(os.path.getsize, paths)) > 100 * PROGRESS_BAR_MIN_PAIRS
    options = {"across_documents": across_documents, "key": key, "length": length, "tokenizer": tokenizer}
    return dataset_from_rows(
        block_rows,
        Features({"input_ids": side, "labels": side, "source_length": Value("int32"), "target_length": Value("int32")}),
        [*paths, *([ids_path] if ids_path else [])],
        large,
        paths=paths,
        document_ids=ids_path,
        **options,
    )


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
    tokens, longest, has_rows = np.empty(0, dtype=np.int32), 0, False
    as_labels = tokens
    for piece, begins_document in token_pieces(paths, document_ids, tokenizer):
        if begins_document and not across_documents:
            tokens, as_labels = tokens[:0], as_labels[:0]
        tokens = np.concatenate([tokens, piece])
        as_labels = np.concatenate([as_labels, np.full_like(piece, IGNORED) if begins_document else piece])
        longest = max(longest, len(tokens))
        while len(tokens) > length:
            yield {
                "input_ids": tokens[:length],
                "labels": as_labels[1 : length + 1],
                "source_length": length,
                "target_length": length,
            }
            has_rows, tokens, as_labels = True, tokens[length:], as_labels[length:]
    if not has_rows:
        what, remedy = ("A text", TOO_SHORT) if across_documents else ("A test document", DOCUMENTS_TOO_SHORT)
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
    for number, path in enumerate(paths):
        for line in read_lines(path):
            num_lines += 1
            if (name := next(names, None)) is None:
                raise ValueError(_misfit(document_ids, "fewer", num_lines))
            if not is_blank(line):
                yield (number, num_blank, name), line
            else:
                num_blank += 1
    if document_ids is not None and next(names, None) is not None:
        raise ValueError(_misfit(document_ids, "more", num_lines))


def _misfit(document_ids: str | None, comparison: str, num_lines: int) -> str:
    return (
        f"`document_ids` names the document of each line, blank ones too, but {document_ids} has {comparison} lines "
        f"than the texts, of which line {num_lines} is the last one read: give it a line for each of theirs"
    )
