"""Content of the explorer's tabs *Length*, *See*, *Step* and *Stream*.

*Length* has a line per system, of its score by source length, for a plot of the browser.

*See* has a figure for each effect of an encoding's or sum's hooks, untrained or trained: those of `hf-posenc
figures`, for the positions that a reader has chosen. Figures are drawn on request.

*Step* has the formula of one position and channel, and its value. The formula is the encoding's, and the values are
outputs of its hooks. A channel that is a sinusoid over the positions is recognized in these outputs, and its formula
has the numbers filled in.

*Stream* shows which source tokens each step of a streamed translation can attend to. A text is streamed once, a word at
a time. The record has every step, hence what the page shows after any word: a word that comes later changes no earlier
step.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from inspect import cleandoc
from math import isqrt
from typing import Any

import numpy as np
import regex
import torch
from transformers import AutoConfig

from ...convert.folders import auto_from_pretrained
from ...hub.errors import is_blank, validate_utf8
from ...inference.streaming import SourceReach, StreamingTranslator
from ..analysis.probes import (
    EncodingProbe,
    PlotExtent,
    added_vectors,
    bias_depends_on_tokens,
    embed_at,
    prepared_contexts,
    score_biases_at,
    wavelengths,
)
from ..figures.encoding_plots import WAVELENGTH_POSITIONS, lazy_figures
from ..figures.score_plots import MIN_PAIRS
from ..figures.style import LIMIT_COLOUR, LazyFigure, line_styles
from ..results.records import BucketScore
from ..results.tables import TableRows, available_scores, common_buckets, length_unit
from .html import note_html
from .runs import MAX_POSITIONS, ExplorerRun, Probes, count_source_tokens, validate_number, validate_text

LENGTH_HELP = (
    "Point at a line for a score and its 95 % interval. Drag across lengths to zoom, and click twice to see all again. "
    "A point stands at the upper bound of its lengths."
)


def length_plot(rows: TableRows, test_set: str) -> tuple[str, str, dict[str, Any]]:
    """Title, note and gradio's arguments of a plot: the first metric of the table by length, a line for each system.

    A point is at the upper bound of its bucket; small buckets are left out, unless all are. A vertical line of two
    points marks each maximum training length.
    """
    common = common_buckets(rows.scores, test_set)[1:]
    unit, large = length_unit(common), [index for index, bucket in enumerate(common) if bucket.n >= MIN_PAIRS]
    shown = large or [index for index, bucket in enumerate(common) if bucket.n]
    metric, name, cell_format = available_scores(common)[0]
    points = []
    for row, tests in rows.scores.items():
        for index in shown:
            bucket = tests[test_set].buckets[index]
            half_width = bucket.scored(metric).half_width
            interval = "none" if half_width is None else f"±{half_width:.1f}"
            if (value := bucket.score(metric)) is not None:
                points.append((upper_bound(common, index), round(value, 2), row, bucket.label, interval))
    if not points:
        raise ValueError(f"A plot is of scored pairs, but {test_set!r} has none; choose another test set.")
    last = sorted((point for point in points if point[0] == points[-1][0]), key=lambda point: point[1])
    extremes = " to ".join(f"{value:{cell_format}} ({row})" for _, value, row, *_ in (last[-1], last[0]))
    colours = {row: style[0] for row, style in line_styles(rows.scores).items()}
    limits = sorted({limit for limit in (rows.max_lengths or {}).values() if limit is not None})
    for limit in limits:
        mark = f"trained to {limit}"
        colours[mark] = LIMIT_COLOUR
        points += [(limit, y, mark, "", "") for y in (0, max(value for _, value, *_ in points))]
    word = unit.split()[-1]  # subwords or tokens
    trained = f"Trained up to {' or '.join(map(str, limits))} {word}: " if limits else ""
    has_single = any(tests[test_set].overall.seeds == 1 for tests in rows.scores.values())
    seeds = " Results of one seed are preliminary." if has_single else ""
    small = ""
    if not large:
        small = f" Every length has fewer than {MIN_PAIRS} pairs."
    elif len(large) < len(common):
        small = f" Lengths with fewer than {MIN_PAIRS} pairs are in the table alone."
    columns = dict.fromkeys(("length", "score"), "quantitative")
    columns |= dict.fromkeys(("system", "bucket", "interval"), "nominal")
    data = {"columns": list(columns), "data": points, "datatypes": columns, "mark": "line"}
    # gradio draws a plot again where its title, axes or colours change, and not where its data alone do.
    plot = {"value": data, "title": f"{name} of {test_set}", "x_title": unit, "y_title": name, "color_map": colours}
    return f"{trained}{name} at {last[0][3]} {word} is {extremes}", f"{LENGTH_HELP}{small}{seeds}", plot


def upper_bound(buckets: Sequence[BucketScore], index: int) -> int:
    """The greatest length of a bucket. A last one without a bound counts as wide as the bucket before."""
    bucket = buckets[index]
    if bucket.high is not None:
        return bucket.high
    return bucket.low - 1 + (bucket.low - buckets[index - 1].low if index else 1)


# The maximum number of positions of a heat map with one row for each position.
MAX_SINGLE_ROWS = 60
# The maximum number of positions of a curve with marks, of positions of a product matrix, of distances to either side.
MAX_CURVE_POSITIONS, MAX_PRODUCT_POSITIONS, MAX_DISTANCE = 100, 256, 64
MAX_QUERIES, MAX_CHANNELS = 16, 32
# A figure of influences takes D backward passes a token: its minimum and maximum tokens, and its maximum products.
MIN_TOKENS, MAX_TOKENS, MAX_WORK = 4, 16, 2e10


def encoding_views(probes: Probes, positions: int) -> dict[str, LazyFigure]:
    """The figures of that many positions by label; empty for an encoding without hooks."""
    positions = validate_number("The number of positions", positions, 3, MAX_POSITIONS)
    vectors, attention, reading = probes["vectors"], probes["attention"], probes["influence"]
    pairs = (min(positions, MAX_PRODUCT_POSITIONS) - 1) // 2
    probes_shown = {
        "vectors": vectors.with_extent(
            PlotExtent(positions=min(positions, MAX_CURVE_POSITIONS), max_positions=positions, distances=pairs)
        ),
        "attention": attention.with_extent(
            PlotExtent(distances=min(positions - 1, MAX_DISTANCE), queries=MAX_QUERIES, channels=MAX_CHANNELS)
        ),
        "influence": reading,
    }
    cost_note = ""
    if "embed" in reading.hooks and not reading.is_additive:
        tokens = affordable_tokens(reading, positions)
        probes_shown["influence"] = reading.with_extent(PlotExtent(tokens=tokens))
        if (reading.width, tokens) != (vectors.width, positions):
            cost_note = f" It is costly, and so drawn at D = {reading.width} and {tokens} tokens."
    by_label = {}
    for name, drawing in lazy_figures(probes_shown).items():
        if name != ("positions" if positions > MAX_SINGLE_ROWS else "many"):
            look_for = drawing.look_for + (cost_note if name == "influence" else "")
            by_label[drawing.label] = replace(drawing, look_for=look_for)
    return by_label


def affordable_tokens(probe: EncodingProbe, positions: int) -> int:
    """The number of tokens of an influence figure that the page has time for; a ValueError if it is too small."""
    work_per_pair = max(1, probe.parameters) * probe.width
    tokens = min(positions, MAX_TOKENS, isqrt(int(MAX_WORK / work_per_pair)))
    if tokens < min(positions, MIN_TOKENS):
        raise ValueError(
            f"A picture of {MIN_TOKENS} tokens needs {work_per_pair * MIN_TOKENS**2:.0e} products, but the page has "
            f"time for {MAX_WORK:.0e}; choose a smaller D or hidden size, or draw it with `hf-posenc figures`."
        )
    return tokens


TOLERANCE = 1e-6
# How many channels of an answer are written out.
MAX_CHANNELS_SHOWN = 6


@dataclass(frozen=True)
class Wave:
    """amplitude x sin(p / divisor + phase)."""

    divisor: float
    amplitude: float
    phase: float

    def value_at(self, position: int) -> float:
        return self.amplitude * math.sin(position / self.divisor + self.phase)

    def formula_at(self, position: int) -> str:
        """The formula with its numbers, before the value."""
        factor = "" if abs(self.amplitude - 1) < TOLERANCE else f"{self.amplitude:.4f} "
        angle = position / self.divisor
        if abs(self.phase) < TOLERANCE:
            return f"{factor}sin({position} / {self.divisor:.6g}) = {factor}sin({angle:.6g})"
        if abs(self.phase - math.pi / 2) < TOLERANCE:
            return f"{factor}cos({position} / {self.divisor:.6g}) = {factor}cos({angle:.6g})"
        return f"{factor}sin({position} / {self.divisor:.6g} {self.phase:+.4f}) = {factor}sin({angle + self.phase:.6g})"


@dataclass(frozen=True)
class Explanation:
    """`value` is what the hook adds there, None where no position has a number of its own; `lines` say how it comes."""

    formula: str
    lines: list[str]
    value: float | None = None


def explain_value(probe: EncodingProbe, position: int, channel: int, layer: int = 1) -> Explanation:
    """The number for one position and channel, in a layer counted from 1; a ValueError for what there is not."""
    position = validate_number("The position", position, 0, MAX_POSITIONS)
    channel = validate_number(f"The channel (D = {probe.width})", channel, 0, probe.width - 1)
    layer = validate_number("The layer", layer, 1, probe.layers) - 1
    formula = "\n".join(cleandoc(entry.formula) for entry in probe.entries.values() if entry.formula)
    if not probe.hooks:
        return Explanation(formula, ["It implements no hook: a token's position changes nothing."])
    lines = []
    if "embed" in probe.hooks:
        if probe.is_additive:
            return explain_added_value(probe, position, channel, formula)
        lines.append(
            "What stands here afterwards depends on the token and its neighbours, so no position has a number of its "
            "own: the tab See shows which token changes which."
        )
    return Explanation(formula, lines + explain_attention_hooks(probe, position, channel, layer))


@torch.no_grad()
def explain_added_value(probe: EncodingProbe, position: int, channel: int, formula: str) -> Explanation:
    """Of what is added by position: read from `embed`, and from a wave if the channel is one."""
    zeros_11D = torch.zeros(1, 1, probe.width, dtype=torch.float64)
    number = float(embed_at(probe.positions, zeros_11D, torch.tensor([[position]]))[0, 0, channel])
    name = f"channel {channel} at position {position}, D = {probe.width}"
    wave = fit_wave(probe, channel)
    if wave is not None and abs(wave.value_at(position) - number) < TOLERANCE:
        length = 2 * math.pi * wave.divisor
        lines = [
            f"{name}: {wave.formula_at(position)} = {number:.6f}",
            f"Fitted to the values: the position is divided by {wave.divisor:.6g}, and the sinusoid has a period of "
            f"{length:.6g} positions.",
        ]
        return Explanation(formula, lines, number)
    origin = "This channel is no single sinusoid."
    if probe.parameters:
        origin = "It is random: the encoding is untrained."
        if probe.trained:
            origin = "It is from the table of a trained model."
    return Explanation(formula, [f"{name}: {number:.6f}", origin], number)


def fit_wave(probe: EncodingProbe, channel: int) -> Wave | None:
    """The sinusoid of a channel over the positions; None if it is not one, or has no full period."""
    num_positions = min(WAVELENGTH_POSITIONS, probe.max_positions or WAVELENGTH_POSITIONS)
    values_P = added_vectors(probe.positions, probe.width, num_positions)[:, channel]
    wavelength = float(wavelengths(values_P[:, None])[0]) if num_positions > 2 else math.nan
    if not math.isfinite(wavelength):
        return None
    divisor = wavelength / (2 * math.pi)
    angles_P = np.arange(num_positions) / divisor
    (sine, cosine), *_ = np.linalg.lstsq(np.stack((np.sin(angles_P), np.cos(angles_P)), 1), values_P, rcond=None)
    wave = Wave(divisor, math.hypot(sine, cosine), math.atan2(cosine, sine))
    return wave if np.allclose(wave.amplitude * np.sin(angles_P + wave.phase), values_P, atol=TOLERANCE) else None


@torch.no_grad()
def explain_attention_hooks(probe: EncodingProbe, position: int, channel: int, layer: int) -> list[str]:
    """Sentences on the attention hooks for a unit query: its rotation at `position`, the biases at that distance."""
    positions, heads, width = probe.positions, probe.heads, probe.head_dim
    head, head_channel = divmod(channel, width)
    unit_1H1K = torch.zeros(1, heads, 1, width, dtype=torch.float64)
    unit_1H1K[0, head, 0, head_channel] = 1
    lines = []
    query = f"A query that is 1 in channel {head_channel}{f' of head {head + 1}' if heads > 1 else ''} and 0 elsewhere"
    if "rotate_queries" in probe.hooks:
        own_11 = torch.tensor([[position]])
        turned_K = positions.rotate_queries(unit_1H1K, prepared_contexts(positions, own_11, own_11, layer))[0, head, 0]
        lines.append(f"{query} becomes at position {position}: {format_nonzero(turned_K)}.")
    if depends_on_tokens := bias_depends_on_tokens(positions):
        lines.append(
            "What a key gains depends on the tokens between it and the query, so no distance has a number of its own: "
            "the tab See shows it for random tokens."
        )
    query_and_key = {"at its own position": (0, 0)}
    if position:
        query_and_key = {f"{position} tokens back": (position, 0)}
        if probe.side == "encoder":  # a decoder's query attends to no later key
            query_and_key = {f"{position} tokens ahead": (0, position)} | query_and_key
    for direction, (query_position, key_position) in query_and_key.items():
        query_11, key_11 = torch.tensor([[query_position]]), torch.tensor([[key_position]])
        if "score_bias" in probe.hooks and not depends_on_tokens:
            scores = score_biases_at(positions, unit_1H1K[:, :, 0], query_11, key_11, layer)
            score = scores.expand(1, heads, 1, 1)[0, head, 0, 0]
            lines.append(f"{query} gives a key {direction} {float(score):+.6f} in score.")
        if "value_bias" in probe.hooks:
            alone = torch.ones(1, heads, 1, 1, dtype=torch.float64)
            values = positions.value_bias(alone, prepared_contexts(positions, query_11, key_11, layer))
            value = values.expand(1, heads, 1, width)[0, head, 0, head_channel]
            lines.append(
                f"Attention to a key {direction} alone adds {float(value):+.6f} to that channel of the output."
            )
    return lines


def format_nonzero(vector_K: torch.Tensor) -> str:
    """The largest channels of a vector, in their order."""
    largest = sorted(vector_K.abs().topk(min(MAX_CHANNELS_SHOWN, len(vector_K))).indices.tolist())
    return ", ".join(
        f"{float(vector_K[k]):+.6f} in channel {k}" for k in largest if abs(float(vector_K[k])) > TOLERANCE
    )


MAX_STREAM_CHARACTERS = 2000
LEGEND = (
    ("read", "read, and outside the window"),
    ("reach", "the window's encoder states depend on it"),
    ("window", "in the window: the step attends to it"),
    ("unread", "not read yet"),
)


@dataclass(frozen=True)
class StreamStep:
    """A written target token: its text, the words and source tokens that had been read, and its source position."""

    text: str
    num_words: int
    source_position: float


@dataclass(frozen=True)
class StreamRecord:
    """A streamed translation. `num_read[w]` is the number of source tokens that were read with w words.

    The text has `num_words` words; one more stands for its end.
    """

    source_tokens: tuple[str, ...]
    num_read: tuple[int, ...]
    steps: tuple[StreamStep, ...]
    reach: SourceReach

    @property
    def num_words(self) -> int:
        return len(self.num_read) - 2

    def num_steps(self, num_words: int) -> int:
        """How many target tokens are written when so many words have been read."""
        return sum(step.num_words <= num_words for step in self.steps)


@lru_cache(maxsize=16)
def stream_record(run: ExplorerRun, system: str, text: str) -> StreamRecord:
    """The record of a text; a ValueError for a model that cannot stream, or a text that is empty or too long."""
    if is_blank(validate_text("The text", text, MAX_STREAM_CHARACTERS)):
        raise ValueError("There must be a text to translate, but the box is empty; write or paste one.")
    validate_utf8(text, "the text")
    model, tokenizer = run.load_model(system)
    count_source_tokens(tokenizer, text)
    with run.lock:
        translator = StreamingTranslator(model, tokenizer)
        steps: list[StreamStep] = []
        num_read, words = [0], regex.findall(r"\p{White_Space}*\P{White_Space}+\p{White_Space}*", text)
        for number, word in enumerate(words, 1):
            steps += steps_of(translator, translator.feed_tokens(word), number)
            num_read.append(translator.num_source_tokens)
        steps += steps_of(translator, translator.finish_tokens(), len(words) + 1)
        num_read.append(translator.num_source_tokens)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer([text], truncation=False)["input_ids"][0])
    return StreamRecord(tuple(tokens), tuple(num_read), tuple(steps), translator.reach)


def steps_of(translator: StreamingTranslator, texts: Iterator[str], num_words: int) -> Iterator[StreamStep]:
    """The steps that are taken while the texts of tokens are read. The last text may be of characters held back."""
    while True:
        position, num_before = translator.source_position, translator.num_target_tokens
        if (text := next(texts, None)) is None:
            return
        if text or translator.num_target_tokens > num_before:
            yield StreamStep(text, num_words, position)


def stream_html(record: StreamRecord, num_words: int, step_number: int) -> str:
    """The source and the translation after so many words, with the window of one step; steps count from 1."""
    steps = record.steps[: record.num_steps(num_words)]
    step = steps[step_number - 1] if steps else None
    num_read = record.num_read[num_words]
    source = "".join(
        token_html(token, source_kind(record.reach, index, num_read, step))
        for index, token in enumerate(record.source_tokens)
    )
    target = "".join(token_html(one.text, "window" if one is step else "read") for one in steps if one.text)
    legend = "".join(f"<li>{token_html(kind, kind)} {escape(meaning)}</li>" for kind, meaning in LEGEND)
    parts = [f'<div class="stream" data-words="{num_words}"><h4>Source</h4><p>{source}</p>']
    parts += [f'<h4>Translation so far</h4><p class="written">{target or "(nothing yet)"}</p>']
    parts += [f"<ul>{legend}</ul></div>", note_html(describe_step(record, steps, step, num_read))]
    return "".join(parts)


def source_kind(reach: SourceReach, index: int, num_read: int, step: StreamStep | None) -> str:
    """How a source token is drawn: what it is to the step."""
    if index >= num_read:
        return "unread"
    if step is None:
        return "read"
    first, last = reach.first_key(step.source_position), reach.last_key(step.source_position)
    if first <= index <= last:
        return "window"
    return "reach" if first - reach.encoder_left <= index <= last + reach.encoder_right else "read"


def token_html(token: str, kind: str) -> str:
    return f'<span class="token {kind}">{escape(token)}</span>'


def describe_step(record: StreamRecord, steps: tuple[StreamStep, ...], step: StreamStep | None, num_read: int) -> str:
    """A sentence on the step, and one on the model."""
    model = (
        f"This model reads {record.reach.lookahead} source tokens beyond the source position of a token before it "
        f"writes it; until then the translation waits. Read: {num_read} tokens. Written: {len(steps)}."
    )
    if step is None:
        return model
    when = f"after word {step.num_words}" if step.num_words <= record.num_words else "at the end of the text"
    return f"The marked token was written {when}, at source position {step.source_position:.1f}. {model}"


def default_system(run: ExplorerRun) -> str | None:
    """The first system with an alignment, which alone can stream; else the first one."""
    if not run.trained:
        return next(iter(run.systems), None)
    configs = {system: auto_from_pretrained(AutoConfig, folder) for system, folder in run.model_folders().items()}
    aligned = (name for name, config in configs.items() if getattr(config, "alignment_type", "none") != "none")
    return next(aligned, next(iter(run.systems), None))
