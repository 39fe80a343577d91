"""What the explorer's tabs *Translate* and *Compare* show: a run's models side by side on a sentence, what they attend
to, and the run's tables and figures. Without a run, small untrained models stand in for trained ones.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import transformers
from matplotlib.figure import Figure
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from ..data.generator import generate_pairs
from ..from_checkpoint import from_checkpoint
from ..manifest import COPY_AGAIN, check_folder
from ..modeling.configuration_posenc import PosEncConfig
from ..modeling.configuration_rnn_nmt import RnnNmtConfig
from ..modeling.position import HOOKS
from ..modeling.positions import POSITION_ENCODINGS
from ..modeling.text_checks import check_utf8
from ..modeling.tokenization_posenc import PosEncTokenizer
from ..pictures.attention_figures import attention_figure
from ..pictures.attention_maps import AttentionMap, maps_of
from ..pictures.subjects import Extent, Subject, new_model, trained_subjects
from ..publish.report_figures import ReportFigure, figures
from ..results.collecting import compared_by, read_results
from ..results.comparison import rows_of
from ..results.tables import Table, length_table
from ..training.checkpoints import check_weights
from .choice import SIDES, checked_choice, checked_choices, checked_number, checked_text

MOST_SENTENCES = 1_000_000
MOST_TOKENS, MOST_TIMES, MOST_BEAMS, MOST_CHARACTERS = 400, 10, 10, 20000
KINDS = ("encoder", "decoder", "cross")
# More tokens than this are numbered and not written beside an attention map, on a page and on a narrow one.
WRITTEN, WRITTEN_NARROW = 45, 18
LOADED = 12


@dataclass(frozen=True)
class Translated:
    """What one system made of a sentence, or in `problem` why it could not."""

    text: str = ""
    truncated: bool = False
    source_tokens: int = 0
    problem: str = ""


class Run:
    """The models of a run's folder, or untrained ones where there is no folder. Models are loaded when they are asked
    for, left as they were, and shared by everyone who looks at the page; one computes at a time."""

    def __init__(self, folder: Path | None = None) -> None:
        if folder is not None and not folder.is_dir():
            raise ValueError(f"RUN is the folder of a run, but {folder} is none; name one, such as runs/quickstart.")
        self.folder, self.lock = folder and folder.resolve(), Lock()  # a name, even of `.`
        self.load = lru_cache(maxsize=LOADED)(self._load)
        self.trained_subjects = lru_cache(maxsize=LOADED)(self._subjects)
        self.results = lru_cache(maxsize=1)(self._results)
        self.systems = list(demonstrations()) if folder is None else list(self.folders())

    @property
    def trained(self) -> bool:
        return self.folder is not None

    def folders(self) -> dict[str, Path]:
        """Each system's model folder; the folder itself if it is a saved model."""
        assert self.folder is not None
        if (self.folder / "config.json").is_file():
            return {self.folder.name: self.folder}
        if (self.folder / "model" / "config.json").is_file():
            return {self.folder.name: self.folder / "model"}
        found = {path.parent.parent.name: path.parent for path in sorted(self.folder.glob("*/model/config.json"))}
        try:
            first = [name for name in self.results()["runs"] if name in found]
        except (ValueError, OSError):  # which the tab that compares will say
            first = []
        return {name: found[name] for name in dict.fromkeys([*first, *found])}

    def _load(self, system: str) -> tuple[Any, Any]:
        if self.folder is None:
            return new_model(demonstrations()[system]).eval(), demonstration_tokenizer()
        check_folder(folder := self.folder_of(system), COPY_AGAIN)
        families = (PosEncConfig.model_type, RnnNmtConfig.model_type)
        if (found := from_checkpoint(AutoConfig, folder).model_type) not in families:
            raise ValueError(
                f"This page shows models of this family (model_type {' or '.join(families)}), but {folder} is of "
                f"model_type {found!r}; choose another system."
            )
        check_weights(folder)
        return from_checkpoint(AutoModelForSeq2SeqLM, folder), from_checkpoint(AutoTokenizer, folder)

    def _subjects(self, system: str, side: str) -> dict[str, Subject]:
        return trained_subjects(self.folder_of(system), side, Extent())

    def subjects(self, system: str, side: str) -> dict[str, Subject]:
        """The trained encodings of one side of a system."""
        return self.trained_subjects(self.checked(system), checked_choice("The side", side, SIDES))

    def folder_of(self, system: str) -> Path:
        if (folder := self.folders().get(system)) is None:
            raise ValueError(
                f"A system has a model in the run's folder, but {system!r} has none there; choose another."
            )
        return folder

    def checked(self, system: Any) -> str:
        return checked_choice("The system", system, self.systems)

    def loaded(self, system: str) -> tuple[Any, Any]:
        system = self.checked(system)
        with self.lock:
            transformers.logging.disable_progress_bar()
            return self.load(system)

    def _results(self) -> dict[str, Any]:
        if self.folder is None:
            raise ValueError(
                "A table is made of a run's results.json, but the page was started without a run; start it with one, "
                "`python -m hf_posenc explorer runs/quickstart`, after `make quickstart`."
            )
        return read_results(self.folder)


@lru_cache(maxsize=1)
def demonstrations() -> dict[str, PosEncConfig]:
    """One small config for each hook that an encoding can answer: the first registered that does."""
    chosen = {
        next((name for name, entry in POSITION_ENCODINGS.items() if getattr(entry.encoding, hook) is not None), None)
        for hook in HOOKS
    }
    size = len(demonstration_tokenizer())
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": size}
    return {
        f"{name} (untrained)": PosEncConfig(position_encoding_type=name, **sizes)
        for name in POSITION_ENCODINGS
        if name in chosen
    }


@lru_cache(maxsize=1)
def demonstration_tokenizer() -> PosEncTokenizer:
    pairs = generate_pairs(seed=0, pairs=300, min_words=6, max_words=20)
    return PosEncTokenizer.train([text for pair in pairs for text in pair], 800)


def sentence(number: int) -> tuple[str, str]:
    """A German sentence of the embedded generator and its one right translation; `number` draws another one."""
    return next(generate_pairs(seed=1000 + number, pairs=1, min_words=6, max_words=14))


def joined(text: str, times: int) -> str:
    """A sentence so many times in a row, as long inputs are made; a ValueError for one that is empty or endless."""
    times = checked_number("How often the sentence is joined", times, 1, MOST_TIMES)
    if not (text := " ".join(checked_text("The sentence", text or "", MOST_CHARACTERS).split())):
        raise ValueError("There must be a sentence to translate, but the box is empty; write one, or draw one.")
    check_utf8(text, "the sentence")
    if len(text) * times > MOST_CHARACTERS:
        raise ValueError(
            f"This page translates up to {MOST_CHARACTERS} characters, but this is {len(text)} x {times}; shorten it."
        )
    return " ".join([text] * times)


def kept_translations(run: Run, text: Any) -> dict[str, tuple[str, str]]:
    """What a page has kept of its translations: each system's source and translation, as JSON."""
    try:
        kept = {run.checked(system): tuple(pair) for system, pair in json.loads(text).items()}
        return {system: (str(source), str(target)) for system, (source, target) in kept.items()}
    except (AttributeError, TypeError, ValueError, RecursionError):
        raise ValueError("A page keeps its own translations, but these cannot be read; translate again.") from None


def kept_sentence(text: Any) -> tuple[int, str, str]:
    """What a page has kept of the sentence that it drew: its number, and both texts, as JSON."""
    try:
        number, german, english = json.loads(text)
        return checked_number("The sentence's number", number, 0, MOST_SENTENCES), str(german), str(english)
    except (TypeError, ValueError, RecursionError):
        raise ValueError("A page keeps the sentence it drew, but this one cannot be read; load it again.") from None


def translate(run: Run, systems: Sequence[str], text: str, times: int, beams: int) -> dict[str, Translated]:
    """What each system makes of the sentence joined `times` times; what one cannot do keeps no other from it."""
    beams = checked_number("The width of the beam", beams, 1, MOST_BEAMS)
    source = joined(text, times)
    if not (systems := checked_choices("The systems", systems, run.systems)):
        raise ValueError("A translation needs a system, but none is ticked; tick at least one.")
    return {system: translated(run, system, source, beams) for system in systems}


def translated(run: Run, system: str, source: str, beams: int) -> Translated:
    try:
        model, tokenizer = run.loaded(system)
        tokens = source_tokens(tokenizer, source)
        with run.lock:
            made = model.translations([source], tokenizer, num_beams=beams)
        return Translated(made.texts[0], made.truncated[0], tokens)
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        return Translated(problem=str(error))


def source_tokens(tokenizer: Any, source: str) -> int:
    """How many subwords a sentence has; a ValueError if they are more than this page has time for."""
    tokens = len(tokenizer([source], truncation=False)["input_ids"][0]) - 1
    if tokens > MOST_TOKENS:
        raise ValueError(
            f"This page translates up to {MOST_TOKENS} subwords, but the sentence has {tokens}; shorten it or join "
            "fewer."
        )
    return tokens


def attention(run: Run, system: str, source: str, target: str) -> dict[str, AttentionMap]:
    """Where a system looks while it reads `source` and writes `target`, up to the most tokens that it would write; a
    map is missing where it has none. Both texts are a reader's own: a page only says what it has shown."""
    model, tokenizer = run.loaded(system)
    source = checked_text("The sentence", source, MOST_CHARACTERS)
    target = checked_text("The translation", target, MOST_CHARACTERS)
    (most,) = model.limits([source_tokens(tokenizer, source) + 1])
    inputs = tokenizer([source], return_tensors="pt", truncation=False)
    ids = tokenizer(text_target=target, truncation=False)["input_ids"][: most + 1]  # and </s>
    with run.lock:
        return maps_of(model, tokenizer, inputs, torch.tensor([model.start_token(), *ids]))


def head_figure(
    maps: dict[str, AttentionMap], system: str, kind: str, layer: int, head: int, *, written: int = WRITTEN
) -> Figure:
    """One head's map; layers and heads count from 1. A ValueError for one that the system does not have."""
    if kind not in maps:
        raise ValueError(f"{system} has no attention of the kind {kind!r}; choose from {', '.join(maps) or 'none'}.")
    layers, heads = maps[kind].weights.shape[:2]
    layer = checked_number(f"The layer of {system}'s {kind} attention", layer, 1, layers)
    head = checked_number(f"The head of {system}'s {kind} attention", head, 1, heads)
    return attention_figure(maps[kind], kind, layer, head=head, written=written, of=system)


def scored_on(run: Run) -> list[str]:
    return list(next(iter(run.results()["runs"].values()))["tests"])


def table(run: Run, test_set: str) -> Table:
    """The run's scores by length on one test set."""
    return length_table(rows(run), test_set, **compared_by(run.results(), test_set))


def rows(run: Run) -> dict[str, dict[str, Any]]:
    runs = run.results()["runs"]
    return rows_of({name: one["tests"] for name, one in runs.items()}, row_of(run))


def row_of(run: Run) -> dict[str, str]:
    return {name: one["row"] for name, one in run.results()["runs"].items()}


def run_figures(run: Run, test_set: str) -> dict[str, ReportFigure]:
    """The run's figures that are of no test set or of this one, by their kind."""
    made = figures(run.results(), rows(run), row_of(run))
    return {one.kind: one for one in made if one.test_set in (None, test_set)}
