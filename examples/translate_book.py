"""Translate a book from a text file, paragraph by paragraph, in constant memory, and resume after a kill.

    python examples/translate_book.py MODEL book.txt book.en.txt

Empty lines separate paragraphs. Each paragraph is one stream (StreamingTranslator), however long it is. No sentence
boundaries are needed. MODEL is a system of a run, a saved model, or a name on the Hub. It must be able to stream, as
`aligned` of configs/quickstart.yaml is.

The translation is written when it is complete. Until then book.en.txt.unfinished has a line for each finished
paragraph. The same command continues after the last of them, and the result is that of an uninterrupted run.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_posenc import StreamingTranslator
from hf_posenc.utils.atomic_io import atomic_write, exclusive_lock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("book", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    try:
        validate_files(options.book, options.output)
        unfinished = options.output.with_name(f"{options.output.name}.unfinished")
        lock = options.output.with_name(f".{options.output.name}.lock")
        with exclusive_lock(lock):
            translate_book(options.model, options.book, options.output, unfinished)
            unfinished.unlink()
            lock.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


def validate_files(book: Path, output: Path) -> None:
    """Raise a ValueError for a book that is not there or a translation that is."""
    if not book.is_file():
        raise ValueError(f"The book must be a text file, but {book} is none; name another.")
    if output.exists():
        raise ValueError(f"The translation must be a new file, but {output} exists; choose another name, or delete it.")


def translate_book(model_name: str, book: Path, output: Path, unfinished: Path) -> None:
    """Append a record for each paragraph to the unfinished file, then write the translation."""
    with book.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    start = resume(unfinished, {"book": digest, "model": model_name})
    saved = Path(model_name, "model")  # of a system of a run
    name = str(saved) if saved.is_dir() else model_name
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    StreamingTranslator(model, tokenizer)  # an error here, before any compute, for a model that cannot stream
    size = book.stat().st_size
    with (
        unfinished.open("a", encoding="utf-8", newline="\n") as log,
        tqdm(total=size, initial=start, unit="B", unit_scale=True, desc=book.name) as bar,
    ):
        for end, translation in translated_paragraphs(model, tokenizer, book, start, bar):
            log.write(json.dumps({"end": end, "translation": translation}, ensure_ascii=False) + "\n")
            log.flush()
    records = [json.loads(line) for line in unfinished.read_text(encoding="utf-8").split("\n")[1:-1]]
    atomic_write(output, "\n".join(f"{record['translation']}\n" for record in records))


def resume(unfinished: Path, job: dict[str, str]) -> int:
    """The byte of the book after the last finished paragraph; the line that a kill has cut off is taken away.

    A ValueError if the unfinished file is of another book or model.
    """
    lines = unfinished.read_bytes().splitlines(keepends=True) if unfinished.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    if not whole:
        atomic_write(unfinished, json.dumps(job) + "\n")
        return 0
    if json.loads(whole[0]) != job:
        raise ValueError(
            f"{unfinished} must be of the same book and model, but it is of others; repeat that command, or delete it."
        )
    if len(whole) < len(lines):
        with unfinished.open("rb+") as file:
            file.truncate(sum(map(len, whole)))
    return int(json.loads(whole[-1])["end"]) if len(whole) > 1 else 0


def translated_paragraphs(model: Any, tokenizer: Any, book: Path, start: int, bar: tqdm) -> Iterator[tuple[int, str]]:
    """Each paragraph from the byte `start` on: the byte after it, and its translation."""
    translator, text = None, ""
    with book.open("rb") as file:
        file.seek(start)
        for line in file:
            start += len(line)
            try:
                words = " ".join(line.decode("utf-8-sig").split())
            except UnicodeDecodeError as error:
                where = f"bytes {start - len(line)} to {start}"
                raise ValueError(f"The book must be UTF-8, but {where} are not; convert it.") from error
            if words:
                translator = translator or StreamingTranslator(model, tokenizer)
                text += translator.feed(f"{words} ")
            elif translator:
                yield start, text + translator.finish()
                translator, text = None, ""
            bar.update(len(line))
    if translator:
        yield start, text + translator.finish()


if __name__ == "__main__":
    main()
