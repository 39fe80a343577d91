"""Many lines: translated in pieces, by several processes, in the input's order, and gone on with after a kill."""

import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from .config.loading import register_encodings
from .export.ctranslate2_translator import CTranslate2Translator, is_ctranslate2
from .from_checkpoint import from_checkpoint
from .training.checkpoints import check_weights, trained_systems
from .whole_files import alone, delete, differing_key, short_hash, write_whole

# Lines that are sorted by length together and written together.
PIECE = 512

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
    """The translations in the order of the lines, each piece of them as soon as it is there."""
    if processes < 1:
        raise ValueError(f"Lines are translated by 1 process or more, but `processes` is {processes}.")
    with tqdm(total=len(lines), unit="line", disable=not progress) as bar:
        for piece in translated_pieces(in_pieces(lines), task, processes):
            for translation in piece:
                yield translation.replace("\n", " ")
            bar.update(len(piece))


def translate_to_file(
    lines: Sequence[str], target: Path, task: Task, *, processes: int = 1, progress: bool = False
) -> None:
    """The translations as a file that is there when it is whole. The same call goes on with what a killed one left.

    Raises a ValueError if the file is there already, if another process writes it, or if what was left is of another
    task or other lines.
    """
    refuse_existing(target)
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
        for translation in translate_lines(lines[done:], task, processes=processes, progress=progress):
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


def in_int8(model: Any) -> Any:
    """A copy whose linear layers quantise what they are given, and compute in int8."""
    with warnings.catch_warnings():
        # torch means to give this up for torchao, in a version that has been and gone.
        warnings.filterwarnings("ignore", message=".*deprecated")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def in_pieces(lines: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(lines)
    while piece := list(islice(remaining, PIECE)):
        yield piece


def translated_pieces(pieces: Iterator[list[str]], task: Task, processes: int) -> Iterator[list[str]]:
    if processes == 1:
        translate = task.translator()
        yield from map(translate, pieces)
        return
    threads = max(1, (os.cpu_count() or 1) // processes)
    context, arguments = get_context("spawn"), (task, threads)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=begin, initargs=arguments) as pool:
        waiting: deque[Future[list[str]]] = deque()
        for piece in pieces:
            waiting.append(pool.submit(go_on, piece))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# Of a process of the pool: what it translates by.
own: dict[str, Translate] = {}


def begin(task: Task, threads: int) -> None:
    quiet()
    own["translate"] = task.translator(threads)


def go_on(piece: list[str]) -> list[str]:
    return own["translate"](piece)


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
