"""Translation of a whole document by a saved or exported model: in chunks, by processes, resumable after a kill."""

import json
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..convert.folders import auto_from_pretrained
from ..generation.translate import encode_texts
from ..hub.errors import UNBOUNDED_ENCODING_REMEDY, require, require_new, validate_source_lengths, validate_texts
from ..inference.ctranslate2_engine import (
    MORE_POSITIONS_REMEDY,
    TOKENIZER_FOLDER,
    CTranslate2Translator,
    is_ctranslate2,
    read_metadata,
)
from ..inference.int8 import quantize_int8
from ..inference.loading import (
    checkpoint_name,
    engine_of,
    is_available,
    load_model,
    silence_logging,
    validate_local_weights,
    weight_file_stats,
)
from ..inference.onnx_engine import PosEncOnnxModel, is_onnx
from ..inference.streaming import StreamingTranslator
from ..utils.atomic_io import atomic_write, delete, exclusive_lock, first_difference, short_hash
from ..utils.command_line import register_encodings
from ..utils.manifest import explain_read_errors
from ..utils.text_io import COMPRESSED_FORMATS, json_line
from ..utils.worker_processes import explain_out_of_memory, worker_pool
from .causal import translator_class
from .checks import SegmentTranslation, TextTranslation
from .documents import Part, TextDocument, replace_texts
from .languages import choose_direction
from .translator import Translator

TEXTS_PER_CHUNK, CHARACTERS_PER_CHUNK = 512, 50_000
OUT_OF_MEMORY_REMEDY = (
    "take fewer --num-processes, or fewer --num-beams; with --output, the same command resumes after the last complete "
    "chunk of texts."
)
# From texts and their places to the translations.
TranslateFunction = Callable[[list[str], list[str]], list[TextTranslation]]


@dataclass(frozen=True)
class TranslationJob:
    """A translation model and its options.

    `model`: a saved model, a system of a run, a folder of CTranslate2 or of ONNX graphs, or a name on the Hub.
    `num_beams`: by default those of its generation config, or 5. `quantize`: compute linear layers in int8, on a CPU.
    `register`: a file that registers a user's encodings. `texts_per_chunk`: texts that are sorted by length, translated
    and written together; a killed translation resumes after the last complete chunk. `device`: one of torch's, by
    default the first GPU if there is one. Other options are those of Translator, by default its own.
    """

    model: Path
    num_beams: int | None = None
    quantize: bool = False
    register: Path | None = None
    texts_per_chunk: int = TEXTS_PER_CHUNK
    device: str | None = None
    batch_size: int | None = None
    max_new_tokens: int | None = None
    source_language: str | None = None
    target_language: str | None = None
    max_segment_tokens: int | None = None
    repair: bool = True
    prompt_template: str | None = None

    def __post_init__(self) -> None:
        require(
            self.num_beams is None or self.num_beams >= 1,
            f"A beam must be 1 or more wide, but it is {self.num_beams}; 1 is greedy search.",
        )
        require(
            self.texts_per_chunk >= 1,
            f"`texts_per_chunk` must be 1 or more, but it is {self.texts_per_chunk}; leave it out for "
            f"{TEXTS_PER_CHUNK}.",
        )
        self.validate_device()
        engine = engine_of(self.model)
        require(
            engine is None or not self.quantize,
            f"{self.model} is a folder of {engine}, whose precision is set by the export; leave `quantize` out, and "
            "for int8 export the model again with quantization='int8'.",
        )
        if engine is None:
            validate_local_weights(checkpoint_name(self.model))

    def validate_device(self) -> None:
        """Raise a ValueError for a device that is not there, or on which the model cannot compute."""
        if self.device is None:
            return
        try:
            device = torch.device(self.device)
        except RuntimeError:
            device = torch.device("meta")  # is no device, either
        require(
            device.type != "meta" and is_available(device, engine_of(self.model)),
            f"A device must be cpu or one that is there, such as cuda or cuda:1, but it is {self.device!r}; choose "
            "another, or leave it out.",
        )
        require(
            device.type == "cpu" or not (self.quantize or is_onnx(self.model)),
            f"Quantized layers and ONNX graphs must be computed on a CPU, but the device is {self.device!r}; leave it "
            "out.",
        )

    def tokenizer_and_limit(self) -> tuple[PreTrainedTokenizerBase, int | None, str]:
        """The tokenizer, a source's maximum number of tokens, and the remedy for more; weights are not loaded.

        The maximum is None if longer texts are divided. A ValueError for a language that the model lacks.
        """
        if is_ctranslate2(self.model):
            tokenizer = auto_from_pretrained(AutoTokenizer, self.model / TOKENIZER_FOLDER)
            limit, remedy = read_metadata(self.model)["longest_source"], MORE_POSITIONS_REMEDY
        else:
            checkpoint = checkpoint_name(self.model)
            config = auto_from_pretrained(AutoConfig, checkpoint)
            limit = getattr(config, "max_source_length", None)
            tokenizer, remedy = auto_from_pretrained(AutoTokenizer, checkpoint), UNBOUNDED_ENCODING_REMEDY
            if config.is_encoder_decoder:
                choose_direction(config.model_type, tokenizer, self.source_language, self.target_language)
        return (
            tokenizer,
            limit if self.max_segment_tokens is None else None,
            f"divide it by --segment-tokens, or {remedy}",
        )

    def translator(self, threads: int | None = None, progress: bool = False) -> TranslateFunction:
        """The loaded model's translate function, with this number of threads (None: torch's default)."""
        if self.register:
            register_encodings(self.register)
        if threads:
            torch.set_num_threads(threads)
        names = ("num_beams", "batch_size", "max_new_tokens", "prompt_template")
        options: dict[str, Any] = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        model, tokenizer = self.load(threads)
        translator_type = translator_class(model)
        require(
            self.prompt_template is None or translator_type is not Translator,
            f"A prompt template must be for a causal language model, but {self.model} is none; leave it out.",
        )
        translator = translator_type(
            model,
            tokenizer,
            self.source_language,
            self.target_language,
            max_segment_tokens=self.max_segment_tokens,
            repair=self.repair,
            **options,
        )
        return lambda texts, places: list(translator.translate_texts(texts, places, progress))

    def streaming_translator(self) -> StreamingTranslator:
        """The same for one endless text."""
        engine = engine_of(self.model)
        require(
            engine is None,
            f"Streaming must have a saved model, but {self.model} is a folder of {engine}; name the model that it was "
            "exported from.",
        )
        require(
            self.num_beams in (None, 1),
            f"Streaming must be greedy, but a beam of {self.num_beams} was requested; set its width to 1.",
        )
        model, tokenizer = self.load()
        return StreamingTranslator(model, tokenizer)

    def load(self, threads: int | None = None) -> tuple[Any, PreTrainedTokenizerBase]:
        """The tokenizer, and the model: of CTranslate2; of ONNX graphs; or in torch, quantized or on its device."""
        if is_ctranslate2(self.model):
            engine = CTranslate2Translator(self.model, device=self.device or "cpu", threads=threads or 0)
            return engine, engine.tokenizer
        if is_onnx(self.model):
            graphs = PosEncOnnxModel.from_pretrained(self.model, threads=threads or 0)
            return graphs, auto_from_pretrained(AutoTokenizer, self.model)
        model: PreTrainedModel
        model, tokenizer = load_model(self.model)
        if self.quantize:
            model = quantize_int8(model.float())
        else:
            model.to(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return model, tokenizer


def translate_document(
    document: TextDocument, job: TranslationJob, *, processes: int = 1, progress: bool = False
) -> Iterator[tuple[list[Part], list[SegmentTranslation]]]:
    """Replace the texts of a document by their translations, in order; yields the parts and segments of each chunk.

    Raises a ValueError, before any compute, that names a text which cannot be translated.
    """
    validate_document(document, job, processes)
    for chunk, translations in translate_chunks(split_into_chunks(document, job), job, processes, progress):
        yield chunk, replace_texts(chunk, translations)


def validate_document(document: TextDocument, job: TranslationJob, processes: int) -> None:
    """Raise a ValueError for a text that cannot be translated, or an invalid number of processes."""
    require(processes >= 1, f"`processes` must be 1 or more, but it is {processes}.")
    if job.register:
        register_encodings(job.register)
    tokenizer, max_length, remedy = job.tokenizer_and_limit()
    for chunk in split_into_chunks(document, job):
        label = [str(part.place) for part in chunk].__getitem__
        texts = validate_texts([part.text for part in chunk], label)
        if max_length is not None:
            validate_source_lengths(encode_texts(texts, tokenizer), max_length, label, remedy)


def translate_to_file(
    document: TextDocument,
    target: Path,
    job: TranslationJob,
    report: Callable[[list[SegmentTranslation]], None] = lambda segments: None,
    *,
    processes: int = 1,
    progress: bool = False,
) -> list[SegmentTranslation]:
    """Write the translated document to a new file, which appears when it is complete, and return the segments.

    `report` takes the segments before the file appears. The same call resumes a killed one. Raises a ValueError if the
    file exists, if another process writes it, if the unfinished file is from another job or other texts, or, before any
    compute, if a text cannot be translated.
    """
    require_new(target)
    require(
        target.suffix not in COMPRESSED_FORMATS,
        f"A translation must be written as plain text, but {target} ends with {target.suffix}; compress it afterwards.",
    )
    validate_document(document, job, processes)
    with exclusive_lock(lock := target.with_name(f".{target.name}.lock")):
        require_new(target)  # another process may have finished it before the lock
        segments = write_translations(document, target, job, processes, progress)
        report(segments)
        atomic_write(target, document.to_bytes())
        for leftover in (*unfinished_files(target), lock):
            delete(leftover)
    return segments


def write_translations(
    document: TextDocument, target: Path, job: TranslationJob, processes: int, progress: bool
) -> list[SegmentTranslation]:
    """Translate the texts, and append them to the unfinished file, after those of a killed call."""
    unfinished, job_file = unfinished_files(target)
    validate_unfinished(document, job, unfinished, job_file)
    chunks = split_into_chunks(document, job)
    finished = read_finished(unfinished, chunks)
    segments = [
        segment for chunk, made in zip(chunks, finished, strict=False) for segment in replace_texts(chunk, made)
    ]
    with unfinished.open("a", encoding="utf-8", newline="\n") as file:
        remaining = chunks[len(finished) :]
        for chunk, translations in translate_chunks(remaining, job, processes, progress, len(finished)):
            file.write("".join(json_line(asdict(translation)) for translation in translations))
            file.flush()
            segments += replace_texts(chunk, translations)
    return segments


def unfinished_files(target: Path) -> tuple[Path, Path]:
    """The translations before the file is complete, and the job that they are from."""
    return target.with_name(f".{target.name}.unfinished"), target.with_name(f".{target.name}.task.json")


def validate_unfinished(document: TextDocument, job: TranslationJob, unfinished: Path, job_file: Path) -> None:
    """Raise a ValueError if an unfinished file is from another job or other texts; write the job of a new one."""
    files = {name: str(path.resolve()) for name, path in vars(job).items() if isinstance(path, Path) and path.exists()}
    job_record = {
        "texts": short_hash("\n".join(part.text for part in document.texts)),
        "weights": weight_file_stats(job.model),
        **asdict(job),
        "model": str(job.model),
        **files,
    }
    if not job_file.exists():
        delete(unfinished)
        atomic_write(job_file, json.dumps(job_record))
        return
    with explain_read_errors(job_file, "give the same command again"):
        saved = dict(json.loads(job_file.read_text(encoding="utf-8")))
    difference = first_difference(saved, job_record)
    require(
        difference is None,
        f"{unfinished} must be from the same call, but {difference}; repeat that call, or delete {job_file}.",
    )


def read_finished(unfinished: Path, chunks: Sequence[Sequence[Part]]) -> list[list[TextTranslation]]:
    """The complete chunks of an unfinished file, which is truncated after them.

    The texts of an incomplete chunk are translated again, in the same batches as before.
    """
    lines = unfinished.read_bytes().split(b"\n")[:-1] if unfinished.exists() else []
    finished: list[list[TextTranslation]] = []
    num_lines = 0
    for chunk in chunks:
        if num_lines + len(chunk) > len(lines):
            break
        with explain_read_errors(unfinished, "give the same command again"):
            finished.append([TextTranslation.from_record(json.loads(line)) for line in lines[num_lines:][: len(chunk)]])
        num_lines += len(chunk)
    if lines:
        os.truncate(unfinished, sum(len(line) + 1 for line in lines[:num_lines]))
    return finished


def split_into_chunks(document: TextDocument, job: TranslationJob) -> list[list[Part]]:
    """The parts to translate in chunks of `texts_per_chunk`, or fewer if they are long."""
    chunks: list[list[Part]] = []
    num_characters = 0
    for part in document.texts:
        num_characters += len(part.text)
        if not chunks or len(chunks[-1]) == job.texts_per_chunk or num_characters > CHARACTERS_PER_CHUNK:
            chunks.append([])
            num_characters = len(part.text)
        chunks[-1].append(part)
    return chunks


def translate_chunks(
    chunks: Sequence[list[Part]], job: TranslationJob, processes: int, progress: bool, num_before: int = 0
) -> Iterator[tuple[list[Part], list[TextTranslation]]]:
    """Each chunk with its translations, in order. `num_before`: finished chunks, for the progress bar."""
    bar = tqdm(total=num_before + len(chunks), initial=num_before, unit="chunk", disable=not progress)
    with bar, closing(run_job(chunks, job, processes, progress)) as translated:
        for chunk in chunks:
            work = f"The text of {chunk[0].place} to {chunk[-1].place}"
            with explain_out_of_memory(work, f"shorten the longest text, or {OUT_OF_MEMORY_REMEDY}"):
                translations = next(translated)
            yield chunk, translations
            bar.update()


def run_job(
    chunks: Sequence[list[Part]], job: TranslationJob, processes: int, progress: bool
) -> Generator[list[TextTranslation], None, None]:
    """The translations of each chunk, in order; at most 2 chunks for each process wait to be yielded."""
    arguments = (([part.text for part in chunk], [str(part.place) for part in chunk]) for chunk in chunks)
    if processes == 1:
        translate = job.translator(progress=progress)
        for texts, places in arguments:
            yield translate(texts, places)
        return
    threads = max(1, (os.cpu_count() or 1) // processes)
    with worker_pool(processes, OUT_OF_MEMORY_REMEDY) as pool:
        waiting: deque[Future[list[TextTranslation]]] = deque()
        for texts, places in arguments:
            waiting.append(pool.submit(translate_chunk, job, threads, texts, places))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def translate_chunk(job: TranslationJob, threads: int, texts: list[str], places: list[str]) -> list[TextTranslation]:
    """The translations of one chunk, in a process of the pool."""
    return cached_translator(job, threads)(texts, places)


@cache
def cached_translator(job: TranslationJob, threads: int) -> TranslateFunction:
    """A job's translate function, loaded once in each process."""
    silence_logging()
    return job.translator(threads)
