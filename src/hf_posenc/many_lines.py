"""Many lines: translated in pieces, by several processes, in the input's order, and gone on with after a kill."""

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
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from .config.loading import register_encodings
from .export.ctranslate2_translator import ABOUT, MORE_POSITIONS, CTranslate2Translator, is_ctranslate2
from .from_checkpoint import from_checkpoint
from .modeling.text_checks import ANY_LENGTH, check_lengths, checked_texts
from .modeling.translation import token_ids
from .text_io import one_line
from .training.checkpoints import check_weights, trained_systems
from .whole_files import alone, delete, differing_key, short_hash, write_whole
from .worker_processes import memory_told, worker_pool

# Lines that are sorted by length together and written together.
PIECE = 512

FEWER = (
    "take fewer --processes, or fewer --beams; with --to, the same command goes on from the last lines that are whole."
)

Translate = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class Task:
    """What translates: a saved model, a system of a run, or a folder of CTranslate2; by which beam; whether linear
    layers compute in int8, which they do on a CPU; and a file that registers encodings of one's own."""

    folder: Path
    num_beams: int = 5
    quantize: bool = False
    register: Path | None = None

    def __post_init__(self) -> None:
        if self.num_beams < 1:
            raise ValueError(f"A beam is 1 or more wide, but it is {self.num_beams}; 1 is greedy search.")
        if self.quantize and is_ctranslate2(self.folder):
            raise ValueError(
                f"{self.folder} is a folder of CTranslate2, whose weights are as they were exported; leave `quantize` "
                "out, and for int8 export the model again with quantization='int8'."
            )
        if not is_ctranslate2(self.folder):
            check_weights(model_folder(self.folder))

    def reader(self) -> tuple[Any, int | None, str]:
        """The tokenizer, how many tokens a source can have, and the remedy for more; without the weights."""
        if is_ctranslate2(self.folder):
            about = json.loads((self.folder / ABOUT).read_text(encoding="utf-8"))
            return from_checkpoint(AutoTokenizer, self.folder / "tokenizer"), about["longest_source"], MORE_POSITIONS
        folder = model_folder(self.folder)
        longest = getattr(from_checkpoint(AutoConfig, folder), "longest_source", None)
        return from_checkpoint(AutoTokenizer, folder), longest, ANY_LENGTH

    def translator(self, threads: int | None = None) -> Translate:
        """Loaded, to compute by so many threads (None: as many as torch takes)."""
        if self.register:
            register_encodings(self.register)
        if threads:
            torch.set_num_threads(threads)
        if is_ctranslate2(self.folder):
            return partial(CTranslate2Translator(self.folder, threads=threads or 0).translate, num_beams=self.num_beams)
        model, tokenizer = loaded(self.folder)
        if self.quantize:
            model = in_int8(model.float())
        elif torch.cuda.is_available():
            model.to("cuda")
        return partial(model.translate, tokenizer=tokenizer, num_beams=self.num_beams)


def translate_lines(lines: Sequence[str], task: Task, *, processes: int = 1, progress: bool = False) -> Iterator[str]:
    """The translations in the order of the lines, each piece of them as soon as it is there, each one line to every
    program. Raises a ValueError, before anything is computed, that names the line which cannot be translated."""
    check_lines(lines, task, processes)
    yield from checked_lines_translated(lines, task, processes=processes, progress=progress)


def checked_lines_translated(
    lines: Sequence[str], task: Task, *, processes: int, progress: bool, done: int = 0
) -> Iterator[str]:
    """The translations of the lines after the first `done`."""
    bar = tqdm(total=len(lines), initial=done, unit="line", disable=not progress)
    with bar, closing(translated_pieces(in_pieces(lines[done:]), task, processes)) as pieces:
        while done < len(lines):
            last = min(done + PIECE, len(lines))
            with memory_told(f"lines {done + 1} to {last} needed it; shorten the longest of them, or {FEWER}"):
                piece = next(pieces)
            for translation in piece:
                yield one_line(translation)
            bar.update(len(piece))
            done = last


def check_lines(lines: Sequence[str], task: Task, processes: int) -> None:
    """A ValueError for what cannot be translated, and by how many processes it cannot be."""
    if processes < 1:
        raise ValueError(f"Lines are translated by 1 process or more, but `processes` is {processes}.")
    checked_texts(lines, line_after(0))
    if task.register:
        register_encodings(task.register)
    tokenizer, longest, remedy = task.reader()
    if longest is not None:
        for start in range(0, len(lines), PIECE):
            sources = token_ids(list(lines[start : start + PIECE]), tokenizer)
            check_lengths(sources, longest, line_after(start), remedy)


def line_after(before: int) -> Callable[[int], str]:
    """How a message names the lines that come after so many, by their numbers."""
    return lambda number: f"line {before + number + 1}"


def translate_to_file(
    lines: Sequence[str], target: Path, task: Task, *, processes: int = 1, progress: bool = False
) -> None:
    """The translations as a file that is there when it is whole. The same call goes on with what a killed one left.

    Raises a ValueError if the file is there already, if another process writes it, if what was left is of another task
    or other lines, or, before anything is computed, if a line cannot be translated.
    """
    refuse_existing(target)
    check_lines(lines, task, processes)
    with alone(lock := target.with_name(f".{target.name}.lock")):
        refuse_existing(target)  # by now
        write_translations(lines, target, task, processes, progress)
        delete(lock)


def refuse_existing(target: Path) -> None:
    if target.exists():
        raise ValueError(f"The file to write must be a new one, but {target} exists; choose another or delete it.")


def write_translations(lines: Sequence[str], target: Path, task: Task, processes: int, progress: bool) -> None:
    unfinished, about = (target.with_name(f".{target.name}.{what}") for what in ("unfinished", "task.json"))
    files = {name: str(path.resolve()) for name, path in vars(task).items() if isinstance(path, Path)}
    asked = {"lines": short_hash("\n".join(lines)), "weights": weights_in(task.folder), **asdict(task), **files}
    if about.exists() and (found := differing_key(json.loads(about.read_text(encoding="utf-8")), asked)):
        raise ValueError(
            f"{unfinished} is what another call left, for {found}; make the same call again, or delete {about}."
        )
    if not about.exists():
        delete(unfinished)
        write_whole(about, json.dumps(asked))
    done = shorten_to_whole_pieces(unfinished)
    with unfinished.open("a", encoding="utf-8", newline="\n") as file:
        for translation in checked_lines_translated(lines, task, processes=processes, progress=progress, done=done):
            file.write(translation + "\n")
            file.flush()
    os.replace(unfinished, target)
    delete(about)


def weights_in(folder: Path) -> dict[str, list[int]]:
    """Size and time of each file of weights, by which another training's are told apart."""
    place = folder if is_ctranslate2(folder) else model_folder(folder)
    files = sorted(file for kind in ("*.safetensors", "*.bin") for file in place.glob(kind))
    return {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files}


def shorten_to_whole_pieces(path: Path) -> int:
    """How many lines of whole pieces a file has, when what stands behind them is cut off: so those are translated in
    the same company again."""
    kept = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    kept = kept[: len(kept) // PIECE * PIECE]
    path.write_bytes(b"".join(line + b"\n" for line in kept))
    return len(kept)


class Int8Linear(nn.Module):
    """A linear layer that computes in int8. Each output has a scale of its own, and so has each token of the input: one
    scale for all of a batch would let a sentence's translation depend on its neighbours. Sums are in int32, exact."""

    weight_IO: Tensor
    scale_1O: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        int8_OI, scale_O1 = in_steps(linear.weight.detach())
        self.bias = linear.bias
        self.register_buffer("weight_IO", int8_OI.T)
        self.register_buffer("scale_1O", scale_O1.T)

    def forward(self, x: Tensor) -> Tensor:
        int8_NI, scale_N1 = in_steps(x.flatten(0, -2))
        y_NO = torch._int_mm(int8_NI, self.weight_IO) * scale_N1 * self.scale_1O
        return (y_NO if self.bias is None else y_NO + self.bias).unflatten(0, x.shape[:-1])


def in_steps(x_NI: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127, and for each row what to multiply them by."""
    scale_N1 = x_NI.abs().amax(1, keepdim=True).clamp_min(torch.finfo(x_NI.dtype).tiny) / 127
    return (x_NI / scale_N1).round().to(torch.int8), scale_N1


def in_int8(model: Any) -> Any:
    """A copy whose linear layers compute in int8, on a CPU."""
    model = deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child))
    return model


def in_pieces(lines: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(lines)
    while piece := list(islice(remaining, PIECE)):
        yield piece


def translated_pieces(pieces: Iterator[list[str]], task: Task, processes: int) -> Generator[list[str], None, None]:
    if processes == 1:
        translate = task.translator()
        yield from map(translate, pieces)
        return
    threads = max(1, (os.cpu_count() or 1) // processes)
    with worker_pool(processes, FEWER) as pool:
        waiting: deque[Future[list[str]]] = deque()
        for piece in pieces:
            waiting.append(pool.submit(translate_piece, task, threads, piece))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def translate_piece(task: Task, threads: int, piece: list[str]) -> list[str]:
    """What a process of the pool does."""
    return loaded_translator(task, threads)(piece)


@cache
def loaded_translator(task: Task, threads: int) -> Translate:
    quiet()
    return task.translator(threads)


def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def loaded(folder: Path) -> tuple[Any, Any]:
    """The model and the tokenizer of a folder."""
    folder = model_folder(folder)
    check_weights(folder)
    return from_checkpoint(AutoModelForSeq2SeqLM, folder), from_checkpoint(AutoTokenizer, folder)


def model_folder(folder: Path) -> Path:
    """The folder with config.json: `folder` or its `model`."""
    for candidate in (folder, folder / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    hint = "name a run's system or a saved model"
    for place, run in ((f"{folder} holds", folder), (f"{folder.parent} has", folder.parent)):
        if systems := trained_systems(run):
            hint = f"{place} the systems {', '.join(systems)}, so name one of them"
            break
    raise ValueError(f"There must be a saved model in FOLDER, but {folder} has no config.json; {hint}.")
