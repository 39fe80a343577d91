"""Translation of many lines in chunks, in order, by several processes; resumable after a kill."""

import json
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict
from functools import cache
from itertools import islice
from pathlib import Path

from tqdm.auto import tqdm

from ..generation.translate import encode_texts
from ..tokenizer.text import validate_source_lengths, validate_texts
from ..utils.atomic_io import atomic_write, delete, exclusive_lock, first_difference, short_hash
from ..utils.encoding_files import register_encodings
from ..utils.manifest import explain_read_errors
from ..utils.text_io import replace_line_ends
from ..utils.worker_processes import explain_out_of_memory, worker_pool
from .ctranslate2_translator import is_ctranslate2
from .translation_job import TranslateFunction, TranslationJob, model_folder, silence_logging

OUT_OF_MEMORY_REMEDY = (
    "take fewer --num-processes, or fewer --num-beams; with --output, the same command resumes after the last complete "
    "chunk of lines."
)


def translate_lines(
    lines: Sequence[str], job: TranslationJob, *, processes: int = 1, progress: bool = False
) -> Iterator[str]:
    """The translations in the order of the lines, each as one line, chunk by chunk.

    Raises a ValueError, before any compute, that names a line which cannot be translated.
    """
    validate_lines(lines, job, processes)
    yield from translate_validated_lines(lines, job, processes=processes, progress=progress)


def translate_validated_lines(
    lines: Sequence[str], job: TranslationJob, *, processes: int, progress: bool, done: int = 0
) -> Iterator[str]:
    """The translations of the lines after the first `done`."""
    bar = tqdm(total=len(lines), initial=done, unit="line", disable=not progress)
    with bar, closing(translate_chunks(split_into_chunks(lines[done:], job.lines_per_chunk), job, processes)) as chunks:
        while done < len(lines):
            last = min(done + job.lines_per_chunk, len(lines))
            with explain_out_of_memory(
                f"lines {done + 1} to {last} needed it; shorten the longest of them, or {OUT_OF_MEMORY_REMEDY}"
            ):
                chunk = next(chunks)
            for translation in chunk:
                yield replace_line_ends(translation)
            bar.update(len(chunk))
            done = last


def validate_lines(lines: Sequence[str], job: TranslationJob, processes: int) -> None:
    """Raise a ValueError for a line that cannot be translated, or an invalid number of processes."""
    if processes < 1:
        raise ValueError(f"`processes` must be 1 or more, but it is {processes}.")
    validate_texts(lines, line_label(0))
    if job.register:
        register_encodings(job.register)
    tokenizer, max_length, remedy = job.tokenizer_and_limit()
    if max_length is not None:
        for start in range(0, len(lines), job.lines_per_chunk):
            sources = encode_texts(list(lines[start : start + job.lines_per_chunk]), tokenizer)
            validate_source_lengths(sources, max_length, line_label(start), remedy)


def line_label(num_before: int) -> Callable[[int], str]:
    """The function that names a line in an error message, for lines after the first `num_before`."""
    return lambda number: f"line {num_before + number + 1}"


def translate_to_file(
    lines: Sequence[str], target: Path, job: TranslationJob, *, processes: int = 1, progress: bool = False
) -> None:
    """Write the translations to a new file, which appears when it is complete. The same call resumes a killed one.

    Raises a ValueError if the file exists, if another process writes it, if the unfinished file is from another job or
    other lines, or, before any compute, if a line cannot be translated.
    """
    validate_new_file(target)
    validate_lines(lines, job, processes)
    with exclusive_lock(lock := target.with_name(f".{target.name}.lock")):
        validate_new_file(target)  # another process may have finished it before the lock
        write_translations(lines, target, job, processes, progress)
        delete(lock)


def validate_new_file(target: Path) -> None:
    """Raise a ValueError if the file exists."""
    if target.exists():
        raise ValueError(f"The file to write must be a new one, but {target} exists; choose another or delete it.")


def write_translations(lines: Sequence[str], target: Path, job: TranslationJob, processes: int, progress: bool) -> None:
    """Append translations to the unfinished file, after those of a killed call, then rename it to `target`."""
    unfinished, job_file = (target.with_name(f".{target.name}.{suffix}") for suffix in ("unfinished", "task.json"))
    files = {name: str(path.resolve()) for name, path in vars(job).items() if isinstance(path, Path)}
    job_record = {
        "lines": short_hash("\n".join(lines)),
        "weights": weight_file_stats(job.folder),
        **asdict(job),
        **files,
    }
    if job_file.exists():
        with explain_read_errors(job_file, "give the same command again"):
            saved = dict(json.loads(job_file.read_text(encoding="utf-8")))
        if difference := first_difference(saved, job_record):
            raise ValueError(
                f"{unfinished} must be from the same call, but {difference}; repeat that call, or delete {job_file}."
            )
    else:
        delete(unfinished)
        atomic_write(job_file, json.dumps(job_record))
    done = truncate_to_whole_chunks(unfinished, job.lines_per_chunk)
    with unfinished.open("a", encoding="utf-8", newline="\n") as file:
        for translation in translate_validated_lines(lines, job, processes=processes, progress=progress, done=done):
            file.write(translation + "\n")
            file.flush()
    os.replace(unfinished, target)
    delete(job_file)


def weight_file_stats(folder: Path) -> dict[str, list[int]]:
    """Size and modification time of each file of weights, which differ after another training."""
    weights_folder = folder if is_ctranslate2(folder) else model_folder(folder)
    files = sorted(file for kind in ("*.safetensors", "*.bin", "*.onnx*") for file in weights_folder.glob(kind))
    return {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}


def truncate_to_whole_chunks(path: Path, lines_per_chunk: int) -> int:
    """Truncate a file to complete chunks; returns its number of lines.

    The lines of an incomplete chunk are translated again, in the same batches as before.
    """
    complete_lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    complete_lines = complete_lines[: len(complete_lines) // lines_per_chunk * lines_per_chunk]
    path.write_bytes(b"".join(line + b"\n" for line in complete_lines))
    return len(complete_lines)


def split_into_chunks(lines: Iterable[str], lines_per_chunk: int) -> Iterator[list[str]]:
    """The lines in chunks of `lines_per_chunk`."""
    remaining = iter(lines)
    while chunk := list(islice(remaining, lines_per_chunk)):
        yield chunk


def translate_chunks(
    chunks: Iterator[list[str]], job: TranslationJob, processes: int
) -> Generator[list[str], None, None]:
    """The translations of each chunk, in order; at most 2 chunks for each process wait to be yielded."""
    if processes == 1:
        translate = job.translator()
        yield from map(translate, chunks)
        return
    threads = max(1, (os.cpu_count() or 1) // processes)
    with worker_pool(processes, OUT_OF_MEMORY_REMEDY) as pool:
        waiting: deque[Future[list[str]]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(translate_chunk, job, threads, chunk))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def translate_chunk(job: TranslationJob, threads: int, chunk: list[str]) -> list[str]:
    """The translations of one chunk, in a process of the pool."""
    return cached_translator(job, threads)(chunk)


@cache
def cached_translator(job: TranslationJob, threads: int) -> TranslateFunction:
    """A job's translate function, loaded once in each process."""
    silence_logging()
    return job.translator(threads)
