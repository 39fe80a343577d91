"""Tables and numbers of the pages, and the appendix, from the saved scores in docs/results.

    python docs/saved_results.py        fills the tables of all pages and writes docs/results/appendix.md

A page has a saved table between two comments. Names before `=` are those of the saved run, names behind it are printed.
A row of another run has that run's name before a slash, and `-` where that run lacks the column's test set. A column
is a test set, or a test set and a length bucket:

    <!-- table
    run: news-small
    rows: aligned-100 = aligned; news-encodings-small/lstm-50 = LSTM
    columns: parliament-50 = 50 words; newstest_all [0,25] = up to 25
    metrics: bleu, chrf, length_ratio
    -->
    <!-- end -->

The furthest length at which each system still scores a threshold or more, or at which its perplexity is at most so many
percent above that of the shortest inputs. A column is a run and its test set, and its metric is the first one that the
run has. A number behind it is the longest input of the test, which an unbounded bucket does not tell. `actions-*` are
the test sets actions-26, actions-30 and so on, whose longest inputs are these numbers:

    <!-- furthest
    columns: tasks-recopy/recopy 100 = ReCopy; causal-news/talks-whole 1024 = news; tasks-scan/actions-* = SCAN
    rows: fertility; tasks-recopy-low-noise/fertility-low-noise = of another run with such a test set
    thresholds: exact_match 95, perplexity 5
    -->
    <!-- end -->

`<!-- benchmark: NAME -->` is a saved table of the benchmarks, and `<!-- costs: ENCODINGS -->` what those cost.

A number in the text is a link to its saved table. The link's title names the cell, or a difference of two cells. A cell
is a row, a column and a metric, which is BLEU unless it is named:

    [18.7](results/news-small/table-parliament-400.md "aligned-100, all")
    [0.3](results/news-small/table-newstest_all.md "relative-50, [26,50] - relative-50, [51,75]")
"""

import csv
import functools
import html
import json
import lzma
import math
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from kept_tables import KEPT, RESULTS

from hf_posenc.lab.results.records import BucketScore, LengthScores, Score
from hf_posenc.lab.results.saved_files import read_results
from hf_posenc.lab.results.tables import SCORE_FORMATS, format_cell

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks" / "results"
APPENDIX = RESULTS / "appendix.md"
METRICS = {score_format[0]: score_format for score_format in SCORE_FORMATS}  # (metric, name, format), as in all tables
# Of each test set and bucket, the scores and the number of pairs by name.
ArchivedScores = dict[str, dict[str, dict[str, float | None]]]
SeedScores = Mapping[tuple[str, str, str, str], Sequence[float]]  # by test set, row, bucket and metric
TABLE = re.compile(r"(<!-- table\n(.*?)-->\n).*?(<!-- end -->)", re.DOTALL)
FURTHEST = re.compile(r"(<!-- furthest\n(.*?)-->\n).*?(<!-- end -->)", re.DOTALL)
BENCHMARK = re.compile(r"(<!-- (benchmark|costs): (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r'\[([^\]\[]+)\]\((\S+?)table-(\S+)\.md "([^"]+)"\)')
CHECKED_TEXT = re.compile(r"(?P<value>-?[\d,]*\d(?:\.(?P<decimals>\d+))?)(?: ±(?P<interval>[\d.]+))?")


def runs() -> dict[str, dict[str, str]]:
    """Every saved run: `command` makes it, `about` says what it is of."""
    return yaml.safe_load((RESULTS / "runs.yaml").read_text(encoding="utf-8"))


@functools.cache
def scores(run: str) -> dict[str, dict[str, LengthScores]]:
    """All saved scores of a run, by system and test set. Of several seeds, with the lowest and the highest one."""
    return read_score_table(RESULTS / run / "scores.csv.xz", seed_scores(run))


def read_score_table(path: Path, seed_scores: SeedScores) -> dict[str, dict[str, LengthScores]]:
    """The scores of a scores.csv.xz, by system and test set. Of several seeds, with the lowest and the highest one."""
    made: dict[tuple[str, str, str], BucketScore] = {}
    for line in csv.DictReader(lzma.decompress(path.read_bytes()).decode().splitlines()):
        key = line["test_set"], line["system"], line["group"]
        value, half_width = (float(line[name]) if line[name] else None for name in ("score", "ci"))
        seeds = seed_scores.get((*key, line["metric"]), []) if int(line["seeds"]) > 1 else []
        score = Score(
            value=value, half_width=half_width, lowest=min(seeds, default=None), highest=max(seeds, default=None)
        )
        made[key] = BucketScore(
            low=int(line["low"]),
            high=int(line["high"]) if line["high"] else None,
            label=line["group"],
            n=round(float(line["n"])),
            seeds=int(line["seeds"]),
            scores={**(made[key].scores if key in made else {}), line["metric"]: score},
        )
    by_test: dict[tuple[str, str], list[BucketScore]] = {}
    for (test_set, system, _), bucket in made.items():
        by_test.setdefault((system, test_set), []).append(bucket)
    found: dict[str, dict[str, LengthScores]] = {}
    for (system, test_set), (overall, *buckets) in by_test.items():
        in_order = tuple(sorted(buckets, key=lambda bucket: bucket.low))
        found.setdefault(system, {})[test_set] = LengthScores(overall=overall, buckets=in_order)
    return found


def saved_bucket(run: str, test_set: str, system: str, label: str = "all", metric: str | None = None) -> BucketScore:
    """The saved scores of one bucket; a ValueError says which part of its name is unknown."""
    tests = scores(run).get(system, {})
    buckets = tests[test_set].all_buckets if test_set in tests else ()
    for bucket in buckets:
        if bucket.label == label and (metric is None or metric in bucket.scores):
            return bucket
    raise ValueError(
        f"A number must name a saved score, but {run} has none of {(test_set, system, label, metric)}. Look into its "
        "scores.csv.xz."
    )


def lacks_test_set(run: str, test_set: str, system: str) -> bool:
    """Whether the system was saved, but without this test set."""
    return system in scores(run) and test_set not in scores(run)[system]


def score(run: str, test_set: str, system: str, label: str = "all", metric: str = "bleu") -> Score:
    return saved_bucket(run, test_set, system, label, metric).scored(metric)


def cell(bucket: BucketScore, metrics: list[str]) -> str:
    """The scores of one cell, the first with its interval: `17.7 ±0.3 / 48.0 / 1.06`."""
    first, *others = metrics
    without_interval = {metric: replace(bucket.scored(metric), half_width=None) for metric in others}
    shown = replace(bucket, scores={first: bucket.scored(first), **without_interval})
    return format_cell(shown, [METRICS[metric] for metric in metrics], {})


def seed_scores(run: str) -> SeedScores:
    """The scores of each seed; none of a run that keeps no file of them."""
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for row, tests in seed_results(RESULTS / run):
        for test_set, result in tests.items():
            for label, scores in result.items():
                for metric in METRICS.keys() & scores.keys():
                    if (value := scores[metric]) is not None:
                        found.setdefault((test_set, row, label, metric), []).append(value)
    return found


def seed_results(folder: Path) -> Iterator[tuple[str, ArchivedScores]]:
    """The row and the scored test sets of each system, as results.json, an archive or a table by seed has them."""
    if folder in KEPT:
        for system in read_results(folder).systems.values():
            yield system.row, {name: kept_buckets(test) for name, test in system.tests.items()}
    elif (archive := folder / "systems.tar.xz").exists():
        for name, scores in archived_scores(archive):
            yield name.partition("-seed")[0], scores
    elif (by_seed := folder / "scores-by-seed.csv").exists():
        for line in csv.DictReader(by_seed.read_text(encoding="utf-8").splitlines()):
            if line["trained on"] == "one machine":  # the other one has repeated the first seed
                yield line["system"], {"generated": {line["group"]: {"bleu": float(line["bleu"])}}}


def archived_scores(archive: Path) -> Iterator[tuple[str, ArchivedScores]]:
    """The name and the scores of each system in an archive of systems, whose records are those of version 3."""
    with tarfile.open(archive) as files:
        for member in files:
            file = files.extractfile(member) if member.name.endswith("/scores.json") else None
            if file is not None:
                tests = json.load(file)["tests"]
                yield Path(member.name).parent.name, {name: archived_buckets(test) for name, test in tests.items()}


def archived_buckets(test: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    return {bucket["label"]: bucket for bucket in (test["all"], *test["groups"])}


def kept_buckets(scores: LengthScores) -> dict[str, dict[str, float | None]]:
    """The same of a kept results.json."""
    return {
        bucket.label: {metric: bucket.score(metric) for metric in bucket.scores}
        for bucket in (scores.overall, *scores.buckets)
    }


def pairs(text: str) -> list[tuple[str, str]]:
    """`name = label; name` as pairs; a name without a label is its own."""
    items = [item.strip().partition(" = ") for item in text.split(";")]
    return [(name.strip(), label.strip() or name.strip()) for name, _, label in items if name]


def table(spec: str) -> str:
    """The table that a comment asks for."""
    wanted = dict(line.split(": ", 1) for line in spec.strip().splitlines())
    metrics = [metric.strip() for metric in wanted["metrics"].split(",")]
    columns = [(*name.partition(" ")[::2], label) for name, label in pairs(wanted["columns"])]
    rows = []
    for name, label in pairs(wanted["rows"]):
        run, _, system = name.rpartition("/")
        rows.append((run or wanted["run"], system, label))
    first_run, first_system, _ = rows[0]
    header = [" / ".join(METRICS[metric][1] for metric in metrics)]
    for test_set, bucket, label in columns:
        header.append(f"{label} n={saved_bucket(first_run, test_set, first_system, bucket or 'all', metrics[0]).n}")
    lines = [header]
    for run, system, label in rows:
        found = [
            None if lacks_test_set(run, test_set, system) else saved_bucket(run, test_set, system, bucket or "all")
            for test_set, bucket, _ in columns
        ]
        entries = [cell(bucket, metrics) if bucket else "-" for bucket in found]
        seeds = max(bucket.seeds for bucket in found if bucket)
        lines.append([f"{label}, {seeds} seeds" if seeds > 1 else f"{label}, 1 seed", *entries])
    return markdown_table(lines)


def scores_by_length(run: str, test_set: str, system: str, metric: str) -> list[tuple[str, int | None, BucketScore]]:
    """A system's scores from the shortest inputs on, each with its name and its longest input, None if unbounded.

    They are those of the buckets of a test set. With `NAME-*` they are those of the test sets NAME-26, NAME-30 and so
    on, whose longest inputs are these numbers.
    """
    found: list[tuple[str, int | None, BucketScore]] = []
    for name, scored in scores(run).get(system, {}).items():
        if name == test_set:
            found += [(bucket.label, bucket.high, bucket) for bucket in scored.buckets]
        elif test_set.endswith("*") and name.startswith(test_set[:-1]):
            length = name.removeprefix(test_set[:-1])
            found.append((length, int(length), scored.overall))
    measured = [entry for entry in found if entry[2].n and metric in entry[2].scores]
    return sorted(measured, key=lambda entry: math.inf if entry[1] is None else entry[1])


def furthest_length(run: str, test_set: str, system: str, metric: str, threshold: float) -> str:
    """The longest source of the last bucket up to which all buckets reach the threshold, by the mean over seeds.

    The threshold of perplexity is in percent above the first bucket. `never` if the first bucket does not reach it, `-`
    if the run lacks the system, and `≥` where all buckets reach it. An unbounded bucket is `>50`.
    """
    buckets = scores_by_length(run, test_set, system, metric)
    reached = "never" if buckets else "-"  # `none` is a row of the tables
    for bucket, longest, saved in buckets:
        value, first = saved.score(metric), buckets[0][2].score(metric)
        if value is None:
            return reached
        is_reached = (
            value <= (1 + threshold / 100) * (first or math.inf) if metric == "perplexity" else value >= threshold
        )
        if not is_reached:
            return reached
        reached = bucket if longest is None else str(longest)
    return f"≥{reached}" if reached.isdigit() else reached


@dataclass(frozen=True)
class FurthestColumn:
    """A column of a table of furthest lengths: by system, and the longest source of the first bucket."""

    label: str
    lengths: dict[str, str]
    first: int


def furthest_columns(spec: str) -> list[FurthestColumn]:
    """The furthest lengths that a comment asks for."""
    wanted = dict(line.split(": ", 1) for line in spec.strip().splitlines())
    thresholds = {metric: float(value) for metric, value in map(str.split, wanted["thresholds"].split(","))}
    columns = []
    for name, label in pairs(wanted["columns"]):
        place, _, longest = name.partition(" ")
        run, _, test_set = place.partition("/")
        systems = scores(run)
        found = {
            metric: [buckets for system in systems if (buckets := scores_by_length(run, test_set, system, metric))]
            for metric in thresholds
        }
        if not (metric := next((metric for metric in thresholds if found[metric]), None)):
            raise ValueError(
                f"A column must name a saved test set, but {run} has no {test_set} with {wanted['thresholds']}."
            )
        lengths = {}
        for system, row in pairs(wanted["rows"]):
            own_run, _, system = system.rpartition("/")
            length = furthest_length(own_run or run, test_set, system, metric, thresholds[metric])
            lengths[row] = f"≥{longest}" if length.startswith(">") and longest else length
        first = min(longest for (_, longest, _), *_ in found[metric] if longest is not None)
        columns.append(FurthestColumn(label, lengths, first))
    return columns


def furthest_table(spec: str) -> str:
    """The table of furthest lengths that a comment asks for."""
    columns = furthest_columns(spec)
    lines = [["", *(column.label for column in columns)]]
    lines += [[row, *(column.lengths[row] for column in columns)] for row in columns[0].lengths]
    return markdown_table(lines)


def markdown_table(lines: list[list[str]]) -> str:
    """A table whose first column is left, the others right; the first line is its header."""
    head, *rows = lines
    marks = ["---", *["---:"] * (len(head) - 1)]
    return "".join("| " + " | ".join(line) + " |\n" for line in [head, marks, *rows])


def benchmark_table(kind: str, names: str) -> str:
    """A saved table of the benchmarks, or the costs of some encodings from two of them."""
    if kind == "benchmark":
        return (BENCHMARKS / f"{names}.md").read_text(encoding="utf-8").partition("\n\n")[0] + "\n"
    lines = [["encoding", "training 8 x 128", "memory", "training 1 x 1024", "memory", "decoding 16 x 128"]]
    training, decoding = costs("encodings-training-cpu"), costs("encodings-decoding-cpu")
    for name in names.split(", "):
        line = [f"`{name}`"]
        for size in ((8, 128), (1, 1024)):
            line += [f"{training[name, *size][key]:.2f}" for key in ("time_ratio", "memory_ratio")]
        lines.append([*line, f"{decoding[name, 16, 128]['time_ratio']:.2f}"])
    return markdown_table(lines)


def costs(name: str) -> dict[tuple[str, int, int], dict[str, float]]:
    """The records of a saved benchmark by encoding, batch and length."""
    report = json.loads((BENCHMARKS / f"{name}.json").read_text(encoding="utf-8"))
    axis = report.get("axis", "length")
    return {(record["encoding"], record["batch"], record[axis]): record for record in report["records"]}


def fill(text: str) -> str:
    """A page's text with the tables that its comments ask for."""
    text = TABLE.sub(lambda match: f"{match[1]}{table(match[2])}{match[3]}", text)
    text = FURTHEST.sub(lambda match: f"{match[1]}{furthest_table(match[2])}{match[3]}", text)
    return BENCHMARK.sub(lambda match: f"{match[1]}{benchmark_table(match[2], match[3])}{match[4]}", text)


def named_score(run: str, table_name: str, name: str) -> Score:
    """The score that a link's title names: `row, column`, or `row, column, metric`."""
    system, column, *metric = (part.strip() for part in re.split(r",\s(?![^\[]*\])", name))
    key = metric[0].lower().replace(" ", "_") if metric else "bleu"
    test_set, label = (column, "all") if table_name == "overview" else (table_name, column)
    return score(run, test_set, system, label, key)


def wrong_numbers(text: str) -> Iterator[str]:
    """What a page's numbers say and what was saved, where the two differ by more than rounding."""
    for said, folder, table_name, title in NUMBER.findall(text):
        run = Path(folder).name
        number = CHECKED_TEXT.fullmatch(said.removesuffix(" BLEU").removesuffix(" chrF").removesuffix(" TER"))
        if number is None:
            yield f"[{said}] must be a number, as `18.7` or `18.7 ±0.3`, where the link names a cell"
            continue
        first, *others = (named_score(run, table_name, name) for name in title.split(" - "))
        value = (first.value or 0.0) - sum(other.value or 0.0 for other in others)
        rounding = 0.5 * 10.0 ** -len(number["decimals"] or "") + 1e-9
        if abs(float(number["value"].replace(",", "")) - value) > rounding:
            yield f"[{said}] should be {value:.3f}: {run}, {table_name}, {title}"
        if number["interval"] and (
            first.half_width is None or abs(float(number["interval"]) - first.half_width) > 0.0501
        ):
            yield f"[{said}] should have the interval {first.half_width}: {run}, {table_name}, {title}"


def pages() -> list[Path]:
    """README and the pages of docs/, without the saved tables."""
    saved = {path for run in runs() for path in (RESULTS / run).glob("*.md")}
    return [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - saved)]


def appendix() -> str:
    """The page that lists every saved run, its command and its files."""
    lines = [
        "# Appendix: every saved run",
        "",
        "Here you find each run behind the results: its command, its tables and its files. FOLDER is the folder of",
        "the data. [`corpora.yaml`](../../corpora/corpora.yaml) has the source, version and licence of each file.",
        "`python corpora/check.py FOLDER` compares your files with it, and `--fetch multi30k` downloads a corpus.",
        "",
        "`scores.csv.xz` has all scores of a run by test set, system and length bucket, with intervals and p-values;",
        "pandas reads it as it is. On the site, each run has a page with all its scores, which sorts by a click on",
        "a column's name. `python docs/saved_results.py` generates this page.",
    ]
    for name, run in runs().items():
        files = [path.name for path in sorted((RESULTS / name).iterdir()) if path.suffix != ".png"]
        lines += ["", f"## {name}", "", run["about"], "", *(f"    {line}" for line in run["command"].splitlines()), ""]
        lines += ["Files: " + ", ".join(f"[{file}]({name}/{file})" for file in files)]
    return "\n".join([*lines, ""])


def buckets_of(run: str) -> Iterator[tuple[str, str, BucketScore]]:
    """The test set, the system and the scores of each bucket with pairs."""
    for system, tests in scores(run).items():
        for test_set, scored in tests.items():
            for bucket in scored.all_buckets:
                if bucket.n:
                    yield test_set, system, bucket


def sortable_table(names_of_runs: Iterable[str]) -> str:
    """An HTML table of the saved scores of some runs: a row for each test set, system and bucket with pairs."""
    known = runs()
    kept = {run: known[run] for run in names_of_runs if (RESULTS / run / "scores.csv.xz").exists()}
    all_buckets = [(run, *named) for run in kept for named in buckets_of(run)]
    scored = set(chain.from_iterable(bucket.scores for *_, bucket in all_buckets))
    shown = [score_format for score_format in SCORE_FORMATS if score_format[0] in scored]
    names = ["run", "test set", "system", "source length", "pairs", "seeds", *(name for _, name, _ in shown)]
    heads = "".join(f"<th>{name}</th>" for name in names)
    lines = ["## All scores", "", '<div class="all-scores">', f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>"]
    for run, test_set, system, bucket in all_buckets:
        command = html.escape(re.sub(r"\\\s+", "", kept[run]["command"]).replace("\n", "; "))
        cells = [
            f'<a href="../appendix.html#{run}" title="{command}">{run}</a>',
            test_set,
            system,
            html.escape(bucket.label),
        ]
        cells += [str(bucket.n), str(bucket.seeds)]
        for metric, _, format_spec in shown:
            value = bucket.score(metric)
            cells.append("" if value is None else format(value, format_spec))
        lines.append("<tr>" + "".join(f"<td>{entry}</td>" for entry in cells) + "</tr>")
    return "\n".join([*lines, "</tbody></table>", "</div>", ""])


if __name__ == "__main__":
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if fill(text) != text:
            page.write_text(fill(text), encoding="utf-8")
    APPENDIX.write_text(appendix(), encoding="utf-8")
