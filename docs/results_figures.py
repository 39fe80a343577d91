"""The figures of the results pages, from the saved scores.

    python docs/results_figures.py              draws all of them
    python docs/results_figures.py cost         draws those whose file name has these words

Each figure is written into the folder of its run, or into docs/results/cost.
"""

import json
import lzma
import math
import sys
from collections.abc import Callable, Iterable

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from saved_results import BENCHMARKS, RESULTS, costs, furthest_length, saved_bucket, scores

from hf_posenc.lab.figures.diagnostics_plots import end_forbidden_figure, loss_figure, source_position_figure
from hf_posenc.lab.figures.score_plots import (
    bleu_by_length_figure,
    perplexity_figure,
    ranking_by_test_set_figure,
    ranking_figure,
)
from hf_posenc.lab.figures.style import (
    FONT_SIZE,
    LIMIT_COLOUR,
    MARKERS,
    WIDTH_INCHES,
    label_axes,
    label_lines,
    line_styles,
    save_figure,
    style_axes,
    with_title,
)
from hf_posenc.lab.results.records import Diagnosis
from hf_posenc.lab.results.saved_files import parse_file, read_results

COSTS = {  # systems of which-generated and their names among the benchmarks
    "sinusoidal": "sinusoidal", "learned": "learned", "rotary": "rotary", "relative": "relative", "t5": "t5",
    "alibi": "alibi", "kerple": "kerple", "fire": "fire", "transformer-xl": "transformer_xl", "deberta": "deberta",
    "lstm": "lstm", "gru": "gru", "xpos": "xpos", "pope": "pope", "forgetting": "forgetting",
}  # fmt: skip


def by_length(run: str, test_set: str, names: Iterable[str], max_length: int, min_length: int | None = None) -> Figure:
    """BLEU by source length of systems that were all trained on the same lengths."""
    rows = {name: {test_set: scores(run)[name][test_set]} for name in names}
    return bleu_by_length_figure(
        rows,
        test_set,
        max_training_lengths=dict.fromkeys(rows, max_length),
        min_training_lengths=dict.fromkeys(rows, min_length),
    )


def perplexity() -> Figure:
    """Perplexity of the saved language models by context length."""
    run, test_set = "causal-news", "talks-whole"
    rows = {name: {test_set: scores(run)[name][test_set]} for name in scores(run)}
    return perplexity_figure(rows, test_set, max_training_lengths=dict.fromkeys(rows, 64))


def decodings(run: str, test_set: str) -> dict[str, Diagnosis]:
    """The saved decodings of a test set, by system."""
    path = RESULTS / run / f"decodings-{test_set}.json.xz"
    saved = json.loads(lzma.decompress(path.read_bytes()))
    return {system: parse_file(Diagnosis, diagnosis, path) for system, diagnosis in saved.items()}


def ranking() -> Figure:
    """All systems on generated sentences, ordered by the longest bucket."""
    run, shown_as = "which-generated", "generated sentences"
    rows = {name: {shown_as: scores(run)[name]["generated"]} for name in scores(run)}
    beyond = {name: saved_bucket(run, "generated", name, "[73,96]") for name in rows}
    return ranking_figure(rows, beyond, test_set=shown_as)


def ranking_on_captions() -> Figure:
    """All systems that were trained on single captions, on single and concatenated ones."""
    run = "which-multi30k"
    sets = {f"test_2016_flickr{suffix}": number for suffix, number in (("", 1), ("-x2", 2), ("-x3", 3), ("-x5", 5))}
    return ranking_by_test_set_figure(
        {
            name: {
                f"{number} caption{'s' * (number > 1)}": scores(run)[name][test_set]
                for test_set, number in sets.items()
            }
            for name in scores(run)
            if name != "aligned"  # trained on concatenated captions as well
        }
    )


def score_against_cost() -> Figure:
    """BLEU at twice the training length against the time of a training step, a point for each encoding."""
    times = costs("encodings-training-cpu")
    points = {
        name: (times[cost, 8, 128], saved_bucket("which-generated", "generated", name, "[25,48]"))
        for name, cost in COSTS.items()
    }
    aligned = times["relative+window by length_ratio", 8, 128]
    points["aligned"] = (aligned, saved_bucket("which-sides", "generated", "relative-aligned", "[25,48]"))
    figure = Figure(figsize=(WIDTH_INCHES, 3.8), layout="constrained")
    axes = figure.subplots()
    styles = line_styles(points)
    for name, (time, found) in points.items():
        colour, marker, _ = styles[name]
        x, score = time["time_ratio"], found.scored("bleu")
        y, half_width = score.value or 0.0, score.half_width or 0.0
        axes.errorbar(x, y, half_width, color=colour, marker=marker, markersize=5, elinewidth=0.5, alpha=0.9)
        below = {"t5": ((0, -15), "center"), "transformer-xl": ((-5, -11), "right"), "deberta": ((5, -11), "left")}
        below |= {"xpos": ((-5, 3), "right"), "relative": ((5, -11), "left"), "forgetting": ((-5, 3), "right")}
        offset, side = below.get(name, ((5, 3), "left"))
        axes.annotate(name, (x, y), offset, textcoords="offset points", ha=side, color=colour, fontsize=FONT_SIZE - 0.5)
    label_axes(axes, "time of a training step, relative to no encoding (8 x 128 tokens)", "BLEU, 25 to 48 subwords")
    axes.set_ylim(0, 105)
    style_axes(axes)
    axes.set_xlim(0.94, 1.26)
    axes.axhspan(80, 105, color="#e8f1e4", zorder=0, linewidth=0)
    axes.text(0.95, 98, "stable", fontsize=FONT_SIZE, color="#4d7043")
    return figure


# Where the name of a point lies, in points, where the usual place is taken.
PLACES = {
    ("known sentences", "wait-3"): (-6, -3, "right"),
    ("known sentences", "wait-7"): (0, -15, "center"),
    ("known sentences", "whole"): (8, -13, "left"),
    ("known sentences", "stride 4"): (-3, 8, "right"),
    ("chunks of 20 words", "stride 4"): (5, 6, "left"),
}


def quality_over_latency() -> Figure:
    """BLEU against LongYAAL: streamed aligned models, and the policies of a relative model of whole sentences.

    A point is the mean over seeds, its bar the lowest and the highest seed. One colour for each model; the units of one
    model differ in marker and line style.
    """
    seeds: dict[tuple[str, str], list[dict[str, float]]] = {}
    for record in json.loads((BENCHMARKS / "latency-captions.json").read_text(encoding="utf-8"))["records"]:
        seeds.setdefault((record["system"], record["policy"]), []).append(record)
    lines: dict[str, list[tuple[float, list[float], str]]] = {}
    for (system, row), records in seeds.items():
        policy, _, chunks = row.partition(", chunks of ")
        units = f"chunks of {chunks} words" if chunks else "known sentences"
        name, label = f"relative: {units}", policy.replace("agreement, ", "")
        if policy == "streamed":
            name, label = "aligned: streamed, no boundaries", system.replace("-", " ")
        if policy != "revised":
            latency = sum(record["long_yaal"] for record in records) / len(records)
            lines.setdefault(name, []).append((latency, [record["bleu"] for record in records], label))
    figure = Figure(figsize=(WIDTH_INCHES, 3.8), layout="constrained")
    axes, colours = figure.subplots(), line_styles(("aligned", "relative"))
    for (name, points), marker, dashes in zip(lines.items(), MARKERS, ("-", "-", "--"), strict=False):
        colour, _, _ = colours[name.partition(":")[0]]
        points.sort()
        x, means = [latency for latency, _, _ in points], [sum(bleu) / len(bleu) for _, bleu, _ in points]
        lowest = [mean - min(bleu) for mean, (_, bleu, _) in zip(means, points, strict=True)]
        highest = [max(bleu) - mean for mean, (_, bleu, _) in zip(means, points, strict=True)]
        axes.errorbar(
            x, means, (lowest, highest), color=colour, marker=marker, linestyle=dashes, markersize=5, elinewidth=0.6
        )
        place, text = (x[-1], means[-1]), name.partition(": ")[2]
        axes.annotate(text, place, (8, 0), textcoords="offset points", va="center", color=colour, fontsize=FONT_SIZE)
        for latency, mean, (_, _, label) in zip(x, means, points, strict=True):
            x_offset, y_offset, side = PLACES.get(
                (text, label), (-5, 7, "right") if "look" in label else (4, -12, "left")
            )
            axes.annotate(
                label, (latency, mean), (x_offset, y_offset), ha=side, textcoords="offset points", color=colour,
                fontsize=FONT_SIZE - 2,
            )  # fmt: skip
    label_axes(axes, "LongYAAL, source words", "BLEU")
    axes.set_ylim(0, 30)
    axes.set_xlim(0, 24)
    style_axes(axes)
    return figure


def losses_of_explorations() -> Figure:
    """Validation loss of the kept trainings, by step and by minute."""
    results = read_results(RESULTS / "explorations-multi30k-fren")
    return loss_figure({name: system.loss for name, system in results.systems.items()}, results.row_by_system)


def furthest_lengths() -> Figure:
    """The language models: perplexity at the shortest and the longest contexts, and the furthest length.

    The furthest length is the last one whose perplexity is at most 5 % above that of the shortest contexts.
    """
    run, test_set = "causal-news", "talks-whole"
    buckets = {name: tests[test_set].buckets for name, tests in scores(run).items()}
    order = sorted(buckets, key=lambda name: -(buckets[name][-1].score("perplexity") or math.inf))
    figure = Figure(figsize=(WIDTH_INCHES, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    styles = line_styles(buckets)
    for y, name in enumerate(order):
        colour = styles[name][0]
        first, last = (bucket.score("perplexity") or math.nan for bucket in (buckets[name][0], buckets[name][-1]))
        left.plot([first, last], [y, y], color=colour, linewidth=1)
        left.plot([first], [y], "o", color="white", markeredgecolor=colour, markersize=5)
        left.plot([last], [y], "o", color=colour, markersize=5)
        length = furthest_length(run, test_set, name, "perplexity", 5).replace(">512", "1024")
        right.barh(y, math.log2(int(length) / 64) + 0.15, color=colour, height=0.55)
        right.text(math.log2(int(length) / 64) + 0.25, y, length, va="center", fontsize=FONT_SIZE)
    left.set_yticks(range(len(order)), order)
    left.set_xscale("log")
    left.set_xticks([100, 120, 150, 200], ["100", "120", "150", "200"])
    left.xaxis.set_minor_formatter(NullFormatter())
    left.set_xlabel("perplexity: hollow within 64 tokens,\nfilled from 513 to 1024", fontsize=FONT_SIZE)
    right.set_xticks(range(5), ["64", "128", "256", "512", "1024"])
    right.set_xlim(0, 4.9)
    right.set_xlabel("longest context with at most 5 %\nmore perplexity, in tokens", fontsize=FONT_SIZE)
    for axes in (left, right):
        style_axes(axes)
    return figure


def length_ratios() -> Figure:
    """Length of the translations, relative to the references, by input length: a panel for each text and training.

    Systems of one seed are dashed.
    """
    buckets = ("[0,24]", "[25,48]", "[49,72]", "[73,96]")
    suffixes = {"1": "", "2": "-x2", "3": "-x3", "5": "-x5"}  # by the number of captions
    words = (50, 100, 200, 400)  # of the shortest document of each test set

    def generated(name: str) -> list[SavedName]:
        run, system = ("which-sides", "relative-aligned") if name == "aligned" else ("which-generated", name)
        return [(run, "generated", system, bucket) for bucket in buckets]

    def captions(name: str) -> list[SavedName]:
        return [("which-joined", f"test_2016_flickr{suffix}", name, "all") for suffix in suffixes.values()]

    def debates(limit: int, run: str) -> Callable[[str], list[SavedName]]:
        return lambda name: [(run, f"parliament-{least}", f"{name}-{limit}", "all") for least in words]

    least_words = "words of a document, at least"
    panels = {
        "generated sentences, trained to 24": (generated, ["0-24", "25-48", "49-72", "73-96"], "subwords"),
        "captions, trained to 30": (captions, list(suffixes), "captions in one input"),
        "debates, trained to 50": (debates(50, "news-encodings-small"), list(map(str, words)), least_words),
        "debates, trained to 100": (debates(100, "news-encodings-100-small"), list(map(str, words)), least_words),
    }
    figure = Figure(figsize=(WIDTH_INCHES, 7.4), layout="constrained")
    for axes, (title, (names_of, ticks, x_label)) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        ends = {}
        for name in ENCODINGS:
            run, _, system, _ = names_of(name)[0]
            if system not in scores(run):
                continue
            found = [saved_bucket(*saved_name) for saved_name in names_of(name)]
            ratios = [bucket.score("length_ratio") or math.nan for bucket in found]
            colour, marker, _ = line_styles(ENCODINGS)[name]
            line = "--" if found[0].seeds == 1 else "-"
            axes.plot(ratios, color=colour, marker=marker, markersize=4, linestyle=line)
            ends[name] = ratios[-1], colour
        axes.axhline(1, color=LIMIT_COLOUR, linewidth=0.8, zorder=0)
        axes.set_yscale("log")
        axes.set_ylim(0.06, 3.5)
        axes.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set_title(title, fontsize=FONT_SIZE)
        label_axes(axes, x_label, "length ratio")
        style_axes(axes)
        label_lines(axes, ends)
    return figure


SavedName = tuple[str, str, str, str]  # run, test set, system, bucket
ENCODINGS = ("sinusoidal", "learned", "relative", "rotary", "lstm", "gru+relative", "t5", "kerple", "aligned")
NEWS_50 = ("aligned-50", "relative-50", "sinusoidal-50")
FIGURES: dict[str, Callable[[], Figure]] = {
    "news-small/bleu-by-length-newstest_all": lambda: by_length("news-small", "newstest_all", NEWS_50, 50),
    "length-generated/bleu-by-length-generated": lambda: by_length(
        "length-generated", "generated", ("aligned", "recurrent", "relative", "sinusoidal"), 24
    ),
    "news-encodings-small/bleu-by-length-newstest_all": lambda: by_length(
        "news-encodings-small",
        "newstest_all",
        [name for name in scores("news-encodings-small") if "split" not in name],
        50,
    ),
    "n19-captions-16-30/bleu-by-length-test_2016_flickr": lambda: by_length(
        "n19-captions-16-30", "test_2016_flickr", scores("n19-captions-16-30"), 30, 16
    ),
    "length-multi30k/place-test_2016_flickr-x5": lambda: source_position_figure(
        decodings("length-multi30k", "test_2016_flickr-x5")
    ),
    "length-multi30k/end-forbidden-test_2016_flickr-x5": lambda: end_forbidden_figure(
        decodings("length-multi30k", "test_2016_flickr-x5")
    ),
    "explorations-multi30k-fren/loss": losses_of_explorations,
    "which-generated/ranking-generated": ranking,
    "which-multi30k/ranking-of-test-sets": ranking_on_captions,
    "cost/score-against-cost": score_against_cost,
    "latency/quality-over-latency": quality_over_latency,
    "furthest-lengths": furthest_lengths,
    "length-ratios": length_ratios,
    "causal-news/perplexity-talks-whole": perplexity,
}


TITLES = {
    "news-small/bleu-by-length-newstest_all": "News: aligned alone does not degrade on long sentences",
    "length-generated/bleu-by-length-generated": "Synthetic sentences: aligned is stable up to 25 times the length",
    "news-encodings-small/bleu-by-length-newstest_all": "News: every encoding alone degrades on long sentences",
    "n19-captions-16-30/bleu-by-length-test_2016_flickr": "Trained on long captions: sinusoids fail on short ones",
    "length-multi30k/place-test_2016_flickr-x5": "Five captions, one input: aligned reads along, relative loses track",
    "length-multi30k/end-forbidden-test_2016_flickr-x5": "Without early ends, relative is still below aligned",
    "explorations-multi30k-fren/loss": "Captions, width 64: relative and RoPE reach the lowest losses",
    "which-generated/ranking-generated": "No encoding alone keeps its score at four times the training length",
    "which-multi30k/ranking-of-test-sets": "Encodings that lead on single captions lose their score on several",
    "cost/score-against-cost": "Synthetic sentences, twice the training length: of these only aligned keeps its BLEU",
    "latency/quality-over-latency": "Known sentences give more BLEU for the delay than an unbroken stream",
    "length-ratios": "Whether an encoding stops early or runs on depends on the text and the training",
    "furthest-lengths": "Language models: RoPE with a window is stable up to 16 times the training length",
    "causal-news/perplexity-talks-whole": "Language models: beyond training, perplexity depends on the encoding",
}


def titled(name: str) -> Figure:
    """A figure with its message as title."""
    return with_title(FIGURES[name](), TITLES[name])


if __name__ == "__main__":
    for name in FIGURES:
        if all(word in name for word in sys.argv[1:]):
            path = RESULTS / f"{name}.png"
            path.parent.mkdir(exist_ok=True)
            save_figure(titled(name), path)
            print(path)
