"""Translation of many lines by a saved or exported model: in chunks, in order, by processes, resumable after a kill.

On a CPU linear layers may compute in int8, with a scale for each output channel and each token. transformers'
quantisers need a GPU or a further package. `torch._int_mm`, torch's int8 matrix product, is private (tested with torch
2.13). If it is renamed, a quantised model raises an AttributeError.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME

from ..convert.folders import auto_from_pretrained, load_model_with_head
from ..generation.translate import encode_texts
from ..hub.errors import UNBOUNDED_ENCODING_REMEDY, require, require_new, validate_source_lengths, validate_texts
from ..utils.atomic_io import atomic_write, delete, exclusive_lock, first_difference, short_hash
from ..utils.command_line import register_encodings
from ..utils.manifest import explain_read_errors, validate_weights
from ..utils.run_folder import RunPaths, SystemPaths
from ..utils.text_io import replace_line_ends
from ..utils.worker_processes import explain_out_of_memory, worker_pool
from .ctranslate2_engine import (
    MORE_POSITIONS_REMEDY,
    TOKENIZER_FOLDER,
    CTranslate2Translator,
    import_ctranslate2,
    is_ctranslate2,
    read_metadata,
)
from .onnx_engine import PosEncOnnxModel, is_onnx
from .streaming import StreamingTranslator


class Int8Linear(nn.Module):
    """Linear layer that computes in int8, with exact sums in int32.

    Each output channel and each input token has its own scale: with one scale for a batch a sentence's translation
    would depend on its neighbours.
    """

    weight_IO: Tensor
    scale_1O: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        int8_OI, scale_O1 = quantize_rows(linear.weight.detach())
        self.bias = linear.bias
        self.register_buffer("weight_IO", int8_OI.T)
        self.register_buffer("scale_1O", scale_O1.T)

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) to (..., O)."""
        int8_NI, scale_N1 = quantize_rows(x.flatten(0, -2))
        y_NO = torch._int_mm(int8_NI, self.weight_IO) * scale_N1 * self.scale_1O
        return (y_NO if self.bias is None else y_NO + self.bias).unflatten(0, x.shape[:-1])


def quantize_rows(x_NI: Tensor) -> tuple[Tensor, Tensor]:
    """Integers from -127 to 127 (N, I) and the scale of each row (N, 1); their product approximates `x_NI`."""
    scale_N1 = x_NI.abs().amax(1, keepdim=True).clamp_min(torch.finfo(x_NI.dtype).tiny) / 127
    return (x_NI / scale_N1).round().to(torch.int8), scale_N1


def quantize_int8(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model whose linear layers compute in int8, on a CPU."""
    model = deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child))
    return model


LINES_PER_CHUNK = 512

TranslateFunction = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class TranslationJob:
    """A translation model and its options.

    `folder`: a saved model, a system of a run, or a folder of CTranslate2 or of ONNX graphs. `quantize`: compute linear
    layers in int8, on a CPU. `register`: a file that registers a user's encodings. `lines_per_chunk`: lines that are
    sorted by length, translated and written together; a killed translation resumes after the last complete chunk.
    `device`: one of torch's, by default the first GPU if there is one. `batch_size`: sentences of a batch, by default
    those of `translate`. `max_new_tokens`: the maximum length of a translation, by default 2 x source + 50.
    """

    folder: Path
    num_beams: int = 5
    quantize: bool = False
    register: Path | None = None
    lines_per_chunk: int = LINES_PER_CHUNK
    device: str | None = None
    batch_size: int | None = None
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        require(self.num_beams >= 1, f"A beam must be 1 or more wide, but it is {self.num_beams}; 1 is greedy search.")
        require(
            self.lines_per_chunk >= 1,
            f"`lines_per_chunk` must be 1 or more, but it is {self.lines_per_chunk}; leave it out for "
            f"{LINES_PER_CHUNK}.",
        )
        self.validate_device()
        engine = engine_of(self.folder)
        require(
            engine is None or not self.quantize,
            f"{self.folder} is a folder of {engine}, whose precision is set by the export; leave `quantize` out, and "
            "for int8 export the model again with quantization='int8'.",
        )
        if engine is None:
            validate_weights(model_folder(self.folder))

    def validate_device(self) -> None:
        """Raise a ValueError for a device that is not there, or on which the model cannot compute."""
        if self.device is None:
            return
        try:
            device = torch.device(self.device)
        except RuntimeError:
            device = torch.device("meta")  # is no device, either
        require(
            device.type != "meta" and is_available(device, engine_of(self.folder)),
            f"A device must be cpu or one that is there, such as cuda or cuda:1, but it is {self.device!r}; choose "
            "another, or leave it out.",
        )
        require(
            device.type == "cpu" or not (self.quantize or is_onnx(self.folder)),
            f"Quantized layers and ONNX graphs must be computed on a CPU, but the device is {self.device!r}; leave it "
            "out.",
        )

    def tokenizer_and_limit(self) -> tuple[PreTrainedTokenizerBase, int | None, str]:
        """The tokenizer, a source's maximum number of tokens, and the remedy for more; weights are not loaded."""
        if is_ctranslate2(self.folder):
            return (
                auto_from_pretrained(AutoTokenizer, self.folder / TOKENIZER_FOLDER),
                read_metadata(self.folder)["longest_source"],
                MORE_POSITIONS_REMEDY,
            )
        folder = model_folder(self.folder)
        max_length = getattr(auto_from_pretrained(AutoConfig, folder), "max_source_length", None)
        return auto_from_pretrained(AutoTokenizer, folder), max_length, UNBOUNDED_ENCODING_REMEDY

    def translator(self, threads: int | None = None) -> TranslateFunction:
        """The loaded model's translate function, with this number of threads (None: torch's default)."""
        if self.register:
            register_encodings(self.register)
        if threads:
            torch.set_num_threads(threads)
        options: dict[str, Any] = {name: getattr(self, name) for name in ("num_beams", "batch_size", "max_new_tokens")}
        options = {name: value for name, value in options.items() if value is not None}
        if is_ctranslate2(self.folder):
            translator = CTranslate2Translator(self.folder, device=self.device or "cpu", threads=threads or 0)
            return partial(translator.translate, **options)
        model, tokenizer = self.load(threads)
        return partial(model.translate, tokenizer=tokenizer, **options)

    def streaming_translator(self) -> StreamingTranslator:
        """The same for one endless text."""
        engine = engine_of(self.folder)
        require(
            engine is None,
            f"Streaming must have a saved model, but {self.folder} is a folder of {engine}; name the model that it was "
            "exported from.",
        )
        require(
            self.num_beams == 1,
            f"Streaming must be greedy, but a beam of {self.num_beams} was requested; set its width to 1.",
        )
        model, tokenizer = self.load()
        return StreamingTranslator(model, tokenizer)

    def load(self, threads: int | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """The tokenizer, and the model: of ONNX graphs; or in torch, quantized or on its device."""
        if is_onnx(self.folder):
            model = PosEncOnnxModel.from_pretrained(self.folder, threads=threads or 0)
            return model, auto_from_pretrained(AutoTokenizer, self.folder)
        model, tokenizer = load_model(self.folder)
        if self.quantize:
            model = quantize_int8(model.float())
        else:
            model.to(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return model, tokenizer


def silence_logging() -> None:
    """Turn off transformers' warnings and progress bars."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def engine_of(folder: Path) -> str | None:
    """The engine that a folder was exported for, None for a saved model."""
    if is_ctranslate2(folder):
        return "CTranslate2"
    return "ONNX graphs" if is_onnx(folder) else None


def is_available(device: torch.device, engine: str | None) -> bool:
    """Whether torch, or CTranslate2 for a folder of its own, finds a device."""
    if engine == "CTranslate2":
        num_gpus = import_ctranslate2().get_cuda_device_count()
        return device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < num_gpus)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):  # by the kind of device
        return False
    return True


def load_model(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and the tokenizer of a folder."""
    folder = model_folder(folder)
    validate_weights(folder)
    return load_model_with_head(folder), auto_from_pretrained(AutoTokenizer, folder)


def model_folder(folder: Path) -> Path:
    """The folder with config.json: `folder` or its `model`."""
    for candidate in (folder, SystemPaths(folder).model):
        if (candidate / CONFIG_NAME).is_file():
            return candidate
    hint = "name a run's system or a saved model"
    for subject, run in ((f"{folder} holds", folder), (f"{folder.parent} has", folder.parent)):
        systems = RunPaths(run).model_folders()
        if systems:
            hint = f"{subject} the systems {', '.join(systems)}; name one of them"
            break
    raise ValueError(f"There must be a saved model in FOLDER, but {folder} has no config.json; {hint}.")


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
    require(processes >= 1, f"`processes` must be 1 or more, but it is {processes}.")
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
    require_new(target)
    validate_lines(lines, job, processes)
    with exclusive_lock(lock := target.with_name(f".{target.name}.lock")):
        require_new(target)  # another process may have finished it before the lock
        write_translations(lines, target, job, processes, progress)
        delete(lock)


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
        difference = first_difference(saved, job_record)
        require(
            difference is None,
            f"{unfinished} must be from the same call, but {difference}; repeat that call, or delete {job_file}.",
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
