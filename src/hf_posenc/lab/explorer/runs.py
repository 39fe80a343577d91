"""Data of the explorer: a reader's choice of an encoding, and a run's models side by side on a sentence.

A run has their attention maps, its tables and figures. Without a run, small untrained models stand in for trained ones.
"""

import json
import reprlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from threading import Lock

import torch
import transformers
from matplotlib.figure import Figure
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME

from ...baselines.rnn_nmt.configuration_rnn_nmt import RnnNmtConfig
from ...convert.folders import auto_from_pretrained
from ...encodings.base import HOOKS, EncodingParameter, ParameterValue
from ...encodings.registry import POSITION_ENCODINGS
from ...hub.errors import validate_utf8
from ...tokenizer.tokenization_posenc import PosEncTokenizer
from ...transformer.configuration_posenc import PosEncConfig
from ...utils.manifest import COPY_AGAIN, validate_weights, verify_folder
from ...utils.run_folder import RunPaths, SystemPaths
from ..analysis.probes import EncodingProbe, PlotExtent, trained_probes, untrained_model, untrained_probes
from ..data.synthetic import generate_pairs
from ..figures.attention_figures import AttentionMap, attention_figure, compute_attention_maps
from ..figures.style import LazyFigure
from ..reports.report import is_text_results
from ..reports.report_figures import report_figures
from ..results.records import RunResults
from ..results.saved_files import read_results
from ..results.tables import TableRows
from ..run.corpora import languages
from ..run.saved_test_sets import read_test_set

MAX_WIDTH, MAX_HEADS, MAX_POSITIONS, MAX_PARAMETER_VALUE = 1024, 64, 4096, 4096
# The maximum width for sequential encodings, whose figures take a backward pass for each channel.
MAX_INFLUENCE_WIDTH = 24
MAX_MODEL_PARAMETERS = 20_000_000
MAX_LAYERS = 1000
SIDES = ("encoder", "decoder")
Probes = dict[str, EncodingProbe]


@dataclass(frozen=True, kw_only=True)
class EncodingChoice:
    """A reader's choice; a ValueError for sizes that are too large for a page."""

    encodings: tuple[str, ...]
    width: int = 50
    heads: int = 1
    side: str = SIDES[0]
    parameters: tuple[tuple[str, ParameterValue], ...] = ()

    def __post_init__(self) -> None:
        if not self.encodings:
            raise ValueError("A picture is of an encoding, but none is chosen; choose one, or several for their sum.")
        validate_choice("The side", self.side, SIDES)
        validate_number("D", self.width, 1, MAX_WIDTH)
        validate_number("The number of heads", self.heads, 1, MAX_HEADS)
        for name, value in self.parameters:
            if type(value) is int and value > MAX_PARAMETER_VALUE:
                raise ValueError(f"This page takes `{name}` up to {MAX_PARAMETER_VALUE}, but it is {value}; lower it.")


def parameter_value(parameter: EncodingParameter, value: ParameterValue) -> ParameterValue:
    """A control's value in the config's type: a browser has no None, and sends 10000.0 as 10000."""
    if isinstance(parameter.default, float) and type(value) is int:
        return float(value)
    return value or None if parameter.default is None else value


@lru_cache(maxsize=2)  # each may have MAX_MODEL_PARAMETERS in float64, in each of its uses
def probes_for(choice: EncodingChoice) -> Probes:
    """Probes of the untrained encodings of one stack, by use."""
    settings = dict(choice.parameters) | dict.fromkeys([f"{side}_attention_heads" for side in SIDES], choice.heads)
    widths = {"vectors": choice.width, "attention": choice.width, "influence": min(choice.width, MAX_INFLUENCE_WIDTH)}
    probes = untrained_probes("+".join(choice.encodings), settings, choice.side, PlotExtent(), widths)
    if (num_parameters := max(probe.parameters for probe in probes.values())) > MAX_MODEL_PARAMETERS:
        raise ValueError(
            f"This page makes encodings of up to {MAX_MODEL_PARAMETERS} parameters, but this one has "
            f"{num_parameters}; lower D or the encoding's own sizes."
        )
    return probes


def validate_number(name: str, value: object, minimum: int, maximum: int) -> int:
    """The value as an integer; a ValueError unless it is a whole number of that range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in range(minimum, maximum + 1):
        shown = reprlib.repr(value)
        raise ValueError(f"{name} must be a whole number from {minimum} to {maximum}, but it is {shown}; change it.")
    return int(value)


def validate_choice(name: str, value: object, options: Collection[str]) -> str:
    """The value; a ValueError unless it is one of the options."""
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name} must be one of {', '.join(options)}, but it is {reprlib.repr(value)}; choose one.")
    return value


def validate_choices(name: str, values: object, options: Collection[str]) -> tuple[str, ...]:
    """The values; a ValueError unless they are different options."""
    chosen = tuple(values) if isinstance(values, list | tuple) else (None,)
    are_options = all(isinstance(value, str) and value in options for value in chosen)
    if not are_options or len(set(chosen)) < len(chosen):
        raise ValueError(
            f"{name} must be a list, each of {', '.join(options)} once at most, but it is {reprlib.repr(values)}; "
            "choose from these."
        )
    return chosen


def validate_text(name: str, value: object, max_characters: int) -> str:
    """The text; a ValueError if it is longer than `max_characters`."""
    if not isinstance(value, str) or len(value) > max_characters:
        problem = f"has {len(value)}" if isinstance(value, str) else f"is {reprlib.repr(value)}"
        raise ValueError(f"{name} must be a text of at most {max_characters} characters, but it {problem}; shorten it.")
    return value


def parameters_of_encodings(encodings: tuple[str, ...]) -> dict[str, EncodingParameter]:
    """The parameters of the chosen encodings, by name."""
    return {parameter.name: parameter for name in encodings for parameter in POSITION_ENCODINGS[name].config_parameters}


def depends_on_heads(encodings: tuple[str, ...]) -> bool:
    """Whether the number of heads matters: it does unless only embeddings are changed."""
    return any(POSITION_ENCODINGS[name].modifies_attention for name in encodings)


def depends_on_side(encodings: tuple[str, ...]) -> bool:
    """Whether the encodings differ between decoder and encoder, because a decoder has no future keys."""
    return depends_on_heads(encodings) or any(POSITION_ENCODINGS[name].is_stateful for name in encodings)


# What each hook does, in the words of the page.
HOOK_LABELS = {
    "embed": "changes embeddings", "rotate_queries": "rotates queries", "rotate_keys": "rotates keys",
    "score_bias": "adds to attention scores", "value_bias": "adds to attention outputs",
}  # fmt: skip


def describe_probe(probe: EncodingProbe) -> str:
    """The properties of the chosen encodings in one line."""
    is_shift_invariant = all(entry.shift_invariant for entry in probe.entries.values())
    properties = [HOOK_LABELS[hook] for hook in probe.hooks] or ["changes nothing"]
    properties.append("independent of absolute positions" if is_shift_invariant else "depends on absolute positions")
    if any(entry.is_stateful for entry in probe.entries.values()):
        properties.append("reads token by token")
    properties.append("any length" if probe.max_positions is None else f"at most {probe.max_positions} tokens")
    if probe.trained:
        sizes = f"D = {probe.width}, {probe.layers} layers, {probe.heads} heads"
        properties.append(f"{probe.name} in the {probe.side}, trained: {sizes}")
    return "; ".join(properties)


MAX_SENTENCE_NUMBER = 1_000_000
MAX_TOKENS, MAX_REPEATS, MAX_BEAMS, MAX_CHARACTERS = 400, 10, 10, 20000
ATTENTION_KINDS = ("encoder", "decoder", "cross")
# An attention map with more tokens has numbers as labels, on a page and on a narrow one.
MAX_LABELS, MAX_LABELS_NARROW = 45, 18
MAX_LOADED_MODELS = 12
MAX_FIRST_SYSTEMS, MAX_EXAMPLE_WORDS = 4, 14


@dataclass(frozen=True)
class TranslationResult:
    """One system's translation of a sentence, or in `problem` the error message."""

    text: str = ""
    truncated: bool = False
    source_tokens: int = 0
    problem: str = ""


class ExplorerRun:
    """The models of a run's folder, or untrained ones without a folder.

    Models are loaded on first use, never changed, and shared by all readers of the page; one computes at a time.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is not None and not folder.is_dir():
            raise ValueError(f"RUN is the folder of a run, but {folder} is none; name one, such as runs/quickstart.")
        self.folder, self.lock = folder and folder.resolve(), Lock()  # a name, even of `.`
        self.load_cached = lru_cache(maxsize=MAX_LOADED_MODELS)(self._load_uncached)
        self.load_trained_probes = lru_cache(maxsize=MAX_LOADED_MODELS)(
            lambda system, side: trained_probes(self.folder_of(system), side, PlotExtent())
        )
        self.results = lru_cache(maxsize=1)(self._results)
        self.test_pairs = lru_cache(maxsize=1)(self._test_pairs)
        self.systems = list(demo_configs()) if folder is None else list(self.model_folders())

    @property
    def trained(self) -> bool:
        return self.folder is not None

    @property
    def has_results(self) -> bool:
        try:
            self.results()
        except (ValueError, OSError):  # which the tab Length says
            return False
        return True

    def model_folders(self) -> dict[str, Path]:
        """Each system's model folder; the folder itself if it is a saved model."""
        assert self.folder is not None
        for model in (self.folder, SystemPaths(self.folder).model):
            if (model / CONFIG_NAME).is_file():
                return {self.folder.name: model}
        folder_by_name = RunPaths(self.folder).model_folders()
        in_order = [name for name in self.results().systems if name in folder_by_name] if self.has_results else []
        return {name: folder_by_name[name] for name in dict.fromkeys([*in_order, *folder_by_name])}

    def _load_uncached(self, system: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        if self.folder is None:
            return untrained_model(demo_configs()[system]).eval(), demo_tokenizer()
        verify_folder(folder := self.folder_of(system), COPY_AGAIN)
        families = (PosEncConfig.model_type, RnnNmtConfig.model_type)
        if (model_type := auto_from_pretrained(AutoConfig, folder).model_type) not in families:
            raise ValueError(
                f"This page shows encoder-decoders of this family (model_type {' or '.join(families)}), but {folder} "
                f"is of model_type {model_type!r}; choose another system."
            )
        validate_weights(folder)
        return auto_from_pretrained(AutoModelForSeq2SeqLM, folder), auto_from_pretrained(AutoTokenizer, folder)

    def probes(self, system: str, side: str) -> dict[str, EncodingProbe]:
        """The trained encodings of one side of a system."""
        return self.load_trained_probes(self.validate_system(system), validate_choice("The side", side, SIDES))

    def folder_of(self, system: str) -> Path:
        if (folder := self.model_folders().get(system)) is None:
            raise ValueError(
                f"A system has a model in the run's folder, but {system!r} has none there; choose another."
            )
        return folder

    def validate_system(self, system: object) -> str:
        return validate_choice("The system", system, self.systems)

    def load_model(self, system: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        system = self.validate_system(system)
        with self.lock:
            transformers.logging.disable_progress_bar()
            return self.load_cached(system)

    def _results(self) -> RunResults:
        if self.folder is None:
            raise ValueError(
                "A table is made of a run's results.json, but the page was started without a run; start it with one, "
                "`hf-posenc explorer runs/quickstart`, after `make quickstart`."
            )
        return read_results(self.folder)

    def first_systems(self) -> list[str]:
        """The first system of each row of the results, MAX_FIRST_SYSTEMS of them."""
        rows = self.results().row_by_system if self.has_results else {}
        first_by_row = {rows.get(system, system): system for system in reversed(self.systems)}
        return [system for system in self.systems if system in first_by_row.values()][:MAX_FIRST_SYSTEMS]

    def example(self, number: int) -> tuple[str, str]:
        """A source and its reference: a short pair of the first test set, or a generated one without test sets."""
        if pairs := self.test_pairs():
            return pairs[number % len(pairs)]
        return generated_sentence(number)

    def _test_pairs(self) -> list[tuple[str, str]]:
        if self.folder is None or not self.has_results or is_text_results((results := self.results()).systems):
            return []
        try:
            found = read_test_set(RunPaths(self.folder), results, next(iter(results.systems)), results.test_sets[0])
        except (ValueError, OSError):  # a run that was copied without its data
            return []
        source, target = languages(found.settings.data).values()
        pairs = [(pair[source], pair[target]) for pair in found.pairs["translation"]]
        return [pair for pair in pairs if len(pair[0].split()) <= MAX_EXAMPLE_WORDS]


@lru_cache(maxsize=1)
def demo_configs() -> dict[str, PosEncConfig]:
    """One small config for each hook: with the first registered encoding that implements it."""
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": len(demo_tokenizer())}
    configs: dict[str, PosEncConfig] = {}
    hooks_shown: set[str] = set()
    for name, entry in POSITION_ENCODINGS.items():
        hooks = {hook for hook in HOOKS if getattr(entry.encoding, hook) is not None}
        if hooks - hooks_shown:
            configs[f"{name} (untrained)"] = PosEncConfig(position_encoding_type=name, **sizes)
        hooks_shown |= hooks
    return configs


@lru_cache(maxsize=1)
def demo_tokenizer() -> PosEncTokenizer:
    pairs = generate_pairs(seed=0, pairs=300, min_words=6, max_words=20)
    return PosEncTokenizer.train(chain.from_iterable(pairs), 800)


def generated_sentence(number: int) -> tuple[str, str]:
    """A German sentence of the embedded generator and its translation; `number` chooses the sentence."""
    return next(generate_pairs(seed=1000 + number, pairs=1, min_words=6, max_words=14))


def repeat_sentence(text: str, times: int) -> str:
    """A sentence repeated `times` times, as a long input; a ValueError for an empty or too long one."""
    times = validate_number("How often the sentence is joined", times, 1, MAX_REPEATS)
    if not (text := " ".join(validate_text("The sentence", text or "", MAX_CHARACTERS).split())):
        raise ValueError("There must be a sentence to translate, but the box is empty; write one, or draw one.")
    validate_utf8(text, "the sentence")
    if len(text) * times > MAX_CHARACTERS:
        raise ValueError(
            f"This page translates up to {MAX_CHARACTERS} characters, but this is {len(text)} x {times}; shorten it."
        )
    return " ".join([text] * times)


def parse_translations(run: ExplorerRun, text: str) -> dict[str, tuple[str, str]]:
    """Each system's source and translation, from the JSON that the page has stored; a ValueError for other text."""
    try:
        translations = {run.validate_system(system): tuple(pair) for system, pair in json.loads(text).items()}
        return {system: (str(source), str(target)) for system, (source, target) in translations.items()}
    except (AttributeError, TypeError, ValueError, RecursionError):
        raise ValueError("A page must send its own translations, but these cannot be read; translate again.") from None


def parse_sentence(text: str) -> tuple[int, str, str]:
    """Number and texts of a sampled sentence, from the JSON that the page has stored; a ValueError for other text."""
    try:
        number, source, reference = json.loads(text)
        return validate_number("The sentence's number", number, 0, MAX_SENTENCE_NUMBER), str(source), str(reference)
    except (TypeError, ValueError, RecursionError):
        raise ValueError(
            "A page must send the sentence it sampled, but this one cannot be read; load it again."
        ) from None


def translate(
    run: ExplorerRun, systems: Sequence[str], text: str, times: int, beams: int
) -> dict[str, TranslationResult]:
    """Each system's translation of the sentence repeated `times` times; one system's error stops no other."""
    beams = validate_number("The width of the beam", beams, 1, MAX_BEAMS)
    source = repeat_sentence(text, times)
    if not (systems := validate_choices("The systems", systems, run.systems)):
        raise ValueError("A translation needs a system, but none is ticked; tick at least one.")
    return {system: translate_with(run, system, source, beams) for system in systems}


def translate_with(run: ExplorerRun, system: str, source: str, beams: int) -> TranslationResult:
    try:
        model, tokenizer = run.load_model(system)
        tokens = count_source_tokens(tokenizer, source)
        with run.lock:
            output = model.translations([source], tokenizer, num_beams=beams)
        return TranslationResult(output.texts[0], output.truncated[0], tokens)
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        return TranslationResult(problem=str(error))


def count_source_tokens(tokenizer: PreTrainedTokenizerBase, source: str) -> int:
    """The number of subwords of a sentence; a ValueError if they are too many for this page."""
    tokens = len(tokenizer([source], truncation=False)["input_ids"][0]) - 1
    if tokens > MAX_TOKENS:
        raise ValueError(
            f"This page translates up to {MAX_TOKENS} subwords, but the sentence has {tokens}; shorten it or join "
            "fewer."
        )
    return tokens


def attention_of_pair(run: ExplorerRun, system: str, source: str, target: str) -> dict[str, AttentionMap]:
    """The attention maps of a system for `source` and `target`, up to its maximum target length.

    Both texts come from the browser and may be any. A map is missing where the system has no such attention.
    """
    model, tokenizer = run.load_model(system)
    source = validate_text("The sentence", source, MAX_CHARACTERS)
    target = validate_text("The translation", target, MAX_CHARACTERS)
    (max_tokens,) = model.max_target_lengths([count_source_tokens(tokenizer, source) + 1])
    inputs = tokenizer([source], return_tensors="pt", truncation=False)
    ids = tokenizer(text_target=target, truncation=False)["input_ids"][: max_tokens + 1]  # and </s>
    with run.lock:
        return compute_attention_maps(model, tokenizer, inputs, torch.tensor([model.start_token(), *ids]))


def head_figure(
    maps: dict[str, AttentionMap], system: str, kind: str, layer: int, head: int, *, max_labels: int = MAX_LABELS
) -> Figure:
    """One head's map; layers and heads count from 1. A ValueError for one that the system does not have."""
    if kind not in maps:
        raise ValueError(f"{system} has no attention of the kind {kind!r}; choose from {', '.join(maps) or 'none'}.")
    layers, heads = maps[kind].weights.shape[:2]
    layer = validate_number(f"The layer of {system}'s {kind} attention", layer, 1, layers)
    head = validate_number(f"The head of {system}'s {kind} attention", head, 1, heads)
    return attention_figure(maps[kind], kind, layer, head=head, max_labels=max_labels, model_name=system)


def scored_test_sets(run: ExplorerRun) -> list[str]:
    return run.results().test_sets


def run_figures(run: ExplorerRun, test_set: str) -> dict[str, LazyFigure]:
    """The run's figures of this test set and of none, by label."""
    results = run.results()
    lazy = report_figures(results, TableRows.of(results))
    return {figure.label: figure for figure in lazy if figure.test_set in (None, test_set)}
