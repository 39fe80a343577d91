"""The pages' numbers and tables are the saved ones; claims of ranges and ranks are true of the saved scores."""

from __future__ import annotations

import csv
import json
import lzma
import re
import sys
import tarfile
from pathlib import Path
from statistics import median

import pandas
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import results_figures  # noqa: E402
import saved_results  # noqa: E402
from saved_results import RESULTS, score  # noqa: E402

from hf_posenc.lab.results.records import BucketScore, LengthScores, Score  # noqa: E402
from hf_posenc.lab.results.saved_files import read_results  # noqa: E402
from hf_posenc.lab.results.significance import STUDENT_T_975  # noqa: E402

PAGES = saved_results.pages()
REPLICATION = (RESULTS / "replication.md").read_text(encoding="utf-8")
LOGS_ALONE = {"news-recipe", "news-learning-rates"}  # runs whose training logs alone are kept
CAPTIONS = ["test_2016_flickr", *(f"test_2016_flickr-x{number}" for number in (2, 3, 5, 10, 20, 50))]


def test_every_number_that_names_a_cell_is_the_saved_one() -> None:
    wrong = {page: list(saved_results.wrong_numbers(page.read_text(encoding="utf-8"))) for page in PAGES}
    assert {page: numbers for page, numbers in wrong.items() if numbers} == {}


def test_every_table_is_the_saved_one() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    stale = [page for page, text in texts.items() if saved_results.fill(text) != text]
    assert stale == [], "Run `python docs/saved_results.py`."


def test_the_results_pages_have_checked_numbers_and_tables() -> None:
    """Else the two tests above could pass on pages without any."""
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES if page.parent == RESULTS}
    for name in ("index.md", "long_input.md", "encodings_compared.md", "replication.md"):
        assert len(saved_results.NUMBER.findall(texts[name])) >= 8, name
    for name in ("long_input.md", "encodings_compared.md"):
        assert len(saved_results.TABLE.findall(texts[name])) == 2, "a results page has at most two tables"


def test_a_wrong_number_is_found() -> None:
    link = '[{}](news-small/table-parliament-400.md "aligned-100, all{}")'
    right = [("18.7", ""), ("18.7 ±0.3", ""), ("55.6 chrF", ", chrF"), ("1.04", ", length ratio"), ("19", "")]
    assert [list(saved_results.wrong_numbers(link.format(*case))) for case in right] == [[]] * len(right)
    wrong = [("18.8", ""), ("18.7 ±0.5", ""), ("18.7", ", chrF"), ("good", "")]
    assert all(list(saved_results.wrong_numbers(link.format(*case))) for case in wrong)
    loss = '[{}](news-small/table-newstest_all.md "relative-50, [26,50] - relative-50, [51,75]")'
    assert list(saved_results.wrong_numbers(loss.format("0.3"))) == []
    assert "should be 0.2" in next(saved_results.wrong_numbers(loss.format("0.9")))
    with pytest.raises(ValueError, match="has none of"):
        list(saved_results.wrong_numbers(link.format("18.7", "").replace("aligned-100", "aligned-101")))


@pytest.mark.full
@pytest.mark.parametrize("run", ["tasks-copy", "news-small", "which-generated"])
def test_the_mean_of_the_seeds_is_the_saved_score(run: str) -> None:
    """Of results.json, of an archive and of a table by seed."""
    of_seeds = saved_results.seed_scores(run)
    compared = 0
    for test_set, system, bucket in saved_results.buckets_of(run):
        for metric in bucket.scores:
            key = (test_set, system, bucket.label, metric)
            if bucket.seeds > 1 and key in of_seeds:
                assert len(of_seeds[key]) == bucket.seeds
                assert sum(of_seeds[key]) / bucket.seeds == pytest.approx(bucket.score(metric), abs=0.01), key
                compared += 1
    assert compared > 20


def test_the_furthest_length_is_that_of_an_unbroken_row_of_buckets() -> None:
    """ReCopy by `fertility`: 98.3, 95.7, 94.3 and 85.0 % at up to 10, 20, 50 and more digits."""
    found = {
        threshold: saved_results.furthest_length("tasks-recopy", "recopy", "fertility", "exact_match", threshold)
        for threshold in (99, 98, 95, 94, 85)
    }
    assert found == {99: "never", 98: "10", 95: "20", 94: "50", 85: ">50"}
    again = score("tasks-recopy", "recopy", "sinusoidal", ">50").value
    assert again is not None and again >= 15, "a later bucket that reaches the threshold again does not count"
    assert saved_results.furthest_length("tasks-recopy", "recopy", "sinusoidal", "bleu", 15) == "10"
    assert saved_results.furthest_length("tasks-recopy", "recopy", "absent", "exact_match", 95) == "-"
    spec = "columns: tasks-recopy/{} 100 = ReCopy\nrows: fertility = ours\nthresholds: perplexity 5, exact_match 85\n"
    with pytest.raises(ValueError, match="has no absent with"):
        saved_results.furthest_table(spec.format("absent"))
    (column,) = saved_results.furthest_columns(spec.format("recopy"))
    assert (column.lengths, column.first) == ({"ours": "≥100"}, 10)


def test_the_furthest_context_has_a_perplexity_near_that_of_the_shortest() -> None:
    """Rotary positions: 106.3, 105.4, 110.9, 118.6 and 126.0 with up to 64, 128, 256, 512 and more tokens."""
    found = {
        percent: saved_results.furthest_length("causal-news", "talks-whole", "rotary", "perplexity", percent)
        for percent in (0, 5, 12, 20)
    }
    assert found == {0: "128", 5: "256", 12: "512", 20: ">512"}


def test_test_sets_whose_names_end_in_a_length_are_buckets() -> None:
    """SCAN with relative positions: 99.6, 57.7 and 43.0 % on commands of up to 26, 30 and 48 actions."""
    found = {
        threshold: saved_results.furthest_length("tasks-scan", "actions-*", "relative", "exact_match", threshold)
        for threshold in (99.8, 95, 57, 43)
    }
    assert found == {99.8: "never", 95: "26", 57: "30", 43: "≥48"}
    spec = "columns: tasks-scan/actions-* = SCAN\nrows: relative\nthresholds: exact_match 95\n"
    (column,) = saved_results.furthest_columns(spec)
    assert (column.lengths, column.first) == ({"relative": "26"}, 26)


def test_test_sets_are_buckets_by_length_and_overall_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order they were saved, and however many buckets each of them has."""
    values = {"to-100": 10.0, "to-30": 96.0, "to-5": 100.0}
    overall = {
        name: BucketScore(low=0, label="all", n=10, scores={"exact_match": Score(value=value)})
        for name, value in values.items()
    }
    short = BucketScore(low=0, high=20, label="[0,20]", n=10, scores={"exact_match": Score(value=50.0)})
    saved = {name: LengthScores(overall=bucket, buckets=()) for name, bucket in overall.items()}
    saved["to-30"] = LengthScores(overall=overall["to-30"], buckets=(short,))
    monkeypatch.setattr(saved_results, "scores", lambda run: {"ours": saved})
    found = saved_results.scores_by_length("run", "to-*", "ours", "exact_match")
    lengths = [(length, bucket.score("exact_match")) for _, length, bucket in found]
    assert lengths == [(5, 100.0), (30, 96.0), (100, 10.0)]
    assert saved_results.furthest_length("run", "to-*", "ours", "exact_match", 95) == "30"


def test_a_row_of_a_run_has_no_length_on_another_task() -> None:
    """`window` is a row of both runs: of a rotary model that reads 1024 tokens, and of one without an encoding."""
    spec = (
        "columns: causal-news/talks-whole 1024 = news; tasks-repeat-token-encodings/repeat_token = repeated token\n"
        "rows: causal-news-extended/window = extended; window\nthresholds: exact_match 95, perplexity 5\n"
    )
    news, repeated = saved_results.furthest_columns(spec)
    assert news.lengths == {"extended": "≥1024", "window": "-"}
    assert repeated.lengths == {"extended": "-", "window": "never"}


def test_every_run_of_a_task_is_a_column_of_a_matrix_of_furthest_lengths() -> None:
    runs: set[str] = set()
    systems: set[str] = set()
    for _, spec, _ in saved_results.FURTHEST.findall(
        (RESULTS / "length_generalization.md").read_text(encoding="utf-8")
    ):
        wanted = dict(line.split(": ", 1) for line in spec.strip().splitlines())
        runs |= {name.partition("/")[0] for name, _ in saved_results.pairs(wanted["columns"])}
        runs |= {name.rpartition("/")[0] for name, _ in saved_results.pairs(wanted["rows"])} - {""}
        systems |= {name.rpartition("/")[2] for name, _ in saved_results.pairs(wanted["rows"])}
    saved = {run for run in saved_results.runs() if run.startswith(("tasks-", "causal-"))}
    assert runs == saved
    of_other_lengths = {"rotary-tuned", "linear-tuned", "yarn-tuned", "continued"}  # trained on other blocks, or longer
    assert systems == {system for run in saved for system in saved_results.scores(run)} - of_other_lengths


def test_every_run_is_listed_with_a_command_of_a_config_that_exists() -> None:
    runs = saved_results.runs()
    assert set(runs) == {path.name for path in RESULTS.iterdir() if list(path.glob("*scores.csv*"))} | LOGS_ALONE
    for run in runs.values():
        configs = re.findall(r"configs/[\w/.-]+\.yaml", run["command"])
        assert configs and all((ROOT / config).exists() for config in configs)
    assert saved_results.APPENDIX.read_text(encoding="utf-8") == saved_results.appendix(), (
        "Run `python docs/saved_results.py`."
    )


def test_the_sortable_table_covers_every_saved_table() -> None:
    """Each system of each table of a test set, in each length bucket that has pairs."""
    table = saved_results.sortable_table(saved_results.runs())
    rows = {tuple(re.findall(r"<td>(?:<a [^>]*>)?(.*?)(?:</a>)?</td>", line)[:4]) for line in table.splitlines()}
    known = {
        test_set
        for run in saved_results.runs()
        if run not in LOGS_ALONE
        for test_set, *_ in saved_results.buckets_of(run)
    }
    num_tables = 0
    for path in RESULTS.glob("*/table-*.md"):
        test_set = path.stem.removeprefix("table-")
        if test_set not in known:
            continue  # an overview, times, losses at a limit or a paper's table: of the same scores
        num_tables += 1
        head, _, *lines = path.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        buckets = re.findall(r"(\S+) n=(\d+)", head)
        for line in lines:
            system = line.split(" | ")[0].removeprefix("| ").partition(" (")[0]
            for bucket, n in buckets:
                cell = (path.parent.name, test_set, system, bucket.replace(">", "&gt;"))
                assert (cell in rows) == (n != "0"), cell
    assert num_tables >= 60


def test_generated_sentences_do_not_rank_encodings_as_captions_do() -> None:
    """The correlations of index.md and encodings_compared.md."""
    systems = sorted(saved_results.scores("which-generated"))
    assert len(systems) == 32
    generated = pandas.Series([score("which-generated", "generated", system).value for system in systems]).rank()
    found = []
    for test_set in CAPTIONS[:4]:
        captions = pandas.Series([score("which-multi30k", test_set, system).value for system in systems]).rank()
        found.append(f"{generated.corr(captions):.2f}")
    assert found == ["0.45", "0.13", "0.03", "-0.12"]
    for page, said in (("index", "is 0.45 on single captions"), ("encodings_compared", "0.13, 0.03 and -0.12")):
        assert said in (RESULTS / f"{page}.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, dict[str, float]]]:
    """The saved scores of news-small, by the system of each seed and by the documents' length."""
    saved = {}
    with tarfile.open(RESULTS / "news-small" / "systems.tar.xz") as archive:
        for member in archive:
            if member.name.endswith("/scores.json"):
                file = archive.extractfile(member)
                assert file is not None
                tests = json.load(file)["tests"]
                lengths = {words: tests[f"parliament-{words}"]["all"] for words in ("50", "100", "200", "400")}
                saved[member.name.split("/")[-2]] = lengths
    return saved


def test_whole_documents_and_their_sentences_differ_by_little_with_each_seed(
    documents: dict[str, dict[str, dict[str, float]]],
) -> None:
    """At most 0.33 BLEU, 0.5 chrF and 0.6 TER, at each of four lengths."""
    largest = {}
    for metric in ("bleu", "chrf", "ter"):
        differences = [
            abs(scores[metric] - documents[f"aligned-100-split-seed{seed}"][words][metric])
            for seed in (1, 2, 3)
            for words, scores in documents[f"aligned-100-seed{seed}"].items()
        ]
        assert len(differences) == 12
        largest[metric] = round(max(differences), 2)
    assert largest == {"bleu": 0.33, "chrf": 0.49, "ter": 0.59}


def test_whole_documents_score_above_the_segmented_relative_model_with_each_seed(
    documents: dict[str, dict[str, dict[str, float]]],
) -> None:
    """By BLEU and chrF; by TER the segmented model is ahead, and its output is too short."""
    for seed in (1, 2, 3):
        for words, whole in documents[f"aligned-50-seed{seed}"].items():
            segmented = documents[f"relative-50-split-seed{seed}"][words]
            assert whole["bleu"] > segmented["bleu"] and whole["chrf"] > segmented["chrf"]
            assert segmented["ter"] < whole["ter"] and segmented["length_ratio"] < 0.95


def test_seeds_disagree_whether_aligned_or_the_segmented_relative_model_scores_higher() -> None:
    """Of captions from two on: `ablation.md`. Where seeds disagree, the saved p-value is 1."""
    content = lzma.decompress((RESULTS / "length-ablation-multi30k" / "scores.csv.xz").read_bytes()).decode()
    p_values = {
        (line["test_set"], line["metric"]): float(line["p_randomisation"])
        for line in csv.DictReader(content.splitlines())
        if line["system"] == "relative-segmented" and line["group"] == "all" and line["p_randomisation"]
    }
    assert set(p_values) == {(test_set, metric) for test_set in CAPTIONS[:5] for metric in ("bleu", "chrf")}
    assert all(p_value == 1 for (test_set, _), p_value in p_values.items() if test_set != CAPTIONS[0])
    assert min(p_values.values()) > 0.05


def test_ranges_in_the_text_are_those_of_the_scores() -> None:
    behind = [
        score("length-multi30k", test_set, "relative-split").value - score("length-multi30k", test_set, "aligned").value
        for test_set in CAPTIONS
    ]
    assert (f"{min(behind):.1f}", f"{max(behind):.1f}") == ("0.4", "1.5"), "long_input.md: `has 0.4 to 1.5 BLEU less`"
    gains = [
        score(run, test_set, "aligned").value - score(run, test_set, "windows-alone").value
        for run, test_set in (("news-ablation-documents", "parliament-200"), ("length-ablation-multi30k", CAPTIONS[4]))
    ]
    assert [f"{gain:.1f}" for gain in gains] == ["0.8", "2.0"], "README.md: `its alignment adds 0.8 BLEU ..., and 2.0`"
    recurrent = [
        score("news-encodings-small", "newstest_all", "relative-50", bucket).value
        - score("news-encodings-small", "newstest_all", system, bucket).value
        for system in ("lstm-50", "gru+relative-50")
        for bucket in ("[0,25]", "[26,50]")
    ]
    assert (f"{min(recurrent):.1f}", f"{max(recurrent):.1f}") == ("1.9", "3.4"), "encodings_compared.md: `up to 3.4`"
    concatenated = [
        abs(
            score("news-small", "concat_seq", system, bucket).value
            - score("news-small", "newstest_all", system, bucket).value
        )
        for system in ("sinusoidal-100", "relative-100", "aligned-100", "sinusoidal-50", "relative-50", "aligned-50")
        for bucket in ("[0,25]", "[26,50]", "[51,75]", "[76,100]", ">100")
    ]
    assert max(concatenated) < 3.3, "replication.md: `within 3.3 BLEU of single ones`"
    with (RESULTS / "which-generated" / "scores-by-seed.csv").open(encoding="utf-8") as file:
        lines = [
            line for line in csv.DictReader(file) if line["group"] == "all" and line["trained on"] == "one machine"
        ]
    by_system: dict[str, list[float]] = {}
    for line in lines:
        by_system.setdefault(line["system"], []).append(float(line["bleu"]))
    assert f"{max(max(scores) - min(scores) for scores in by_system.values()):.0f}" == "13", "encodings_compared.md"
    found = [
        score("length-documents", test_set, "relative-split").value
        - score("length-documents", test_set, "relative-split-found").value
        for test_set in ("parliament-50", "parliament-100", "parliament-200", "parliament-400", "talks-200")
    ]
    assert f"{max(found):.1f}" == "0.6", "long_input.md: `at most 0.6 BLEU lower`"
    for side in ("encoder", "decoder"):
        for encoding in ("deberta", "gru", "sandwich", "fire", "kerple"):
            one = score("which-sides", "generated", f"{encoding}-{side}", "[25,48]").value
            assert one < score("which-sides", "generated", encoding, "[25,48]").value, "encodings_compared.md"


def test_the_words_on_encodings_are_true_of_the_saved_scores() -> None:
    """`encodings.yaml` compares means over all synthetic sentences, and captions of one seed."""
    above = [("kerple", "alibi"), ("kerple", "t5"), ("fire", "alibi"), ("alibi-symmetric", "alibi")]
    above += [(name, "sinusoidal") for name in ("alibi", "t5", "cape", "kerple-power", "gru")]
    above += [
        (f"relative{variant}", "relative") for variant in ("-sinusoidal", "+randomized", "+log-n", "+log-n-learned")
    ]
    means = {
        system: score("which-generated", "generated", system).value
        for system in saved_results.scores("which-generated")
    }
    assert all(means[name] > means[other] for name, other in above)
    assert sorted(means, key=means.get)[-3:] == ["sandwich", "gru", "deberta"]

    def gains(system: str, other: str) -> list[float]:
        """By which `system` is above `other`, on one to five captions."""
        return [
            score("which-multi30k", test_set, system).value - score("which-multi30k", test_set, other).value
            for test_set in CAPTIONS[:4]
        ]

    learned = gains("relative+log-n-learned", "relative")
    assert (f"{min(learned):.1f}", f"{max(learned):.1f}") == ("0.2", "0.7")
    assert [gain > 0 for gain in gains("relative+log-n", "relative")] == [False, False, False, True]
    assert max(gains("relative+randomized", "relative")) < 0
    assert all(gain > 0 for name in ("kerple", "fire") for gain in gains(name, "alibi"))


@pytest.mark.full
@pytest.mark.full
def test_the_noise_of_seeds_and_of_test_sentences_is_that_of_the_saved_scores() -> None:
    faq = " ".join((ROOT / "docs" / "reference" / "faq.md").read_text(encoding="utf-8").split())
    runs = ("which-joined", "length-multi30k", "news-small", "length-longer-inputs", "news-cased-small")
    student = {seeds: STUDENT_T_975[seeds - 2] / seeds**0.5 for seeds in (3, 5)}
    assert f"is {student[3]:.1f} of these deviations for three seeds, and {student[5]:.1f} for five" in faq
    found = [
        tests.overall for run in runs for by_test in saved_results.scores(run).values() for tests in by_test.values()
    ]
    widths = [bucket.scored("bleu").half_width for bucket in found if bucket.seeds == 3]
    assert 0.25 < median(width / student[3] for width in widths if width) < 0.4
    assert "half have a standard deviation of 0.4 BLEU or less" in faq
    seeds = pandas.read_csv(RESULTS / "which-generated" / "scores-by-seed.csv")
    beyond = seeds[~seeds["group"].isin(["all", "[0,24]"])].groupby(["system", "group"])["bleu"].std()
    assert f"beyond the training length it is about {beyond.median():.0f}." in faq
    captions = [
        by_test["test_2016_flickr"].overall.scored("bleu")
        for by_test in saved_results.scores("which-multi30k").values()
    ]
    assert f"a half width of {100 * median(row.half_width / row.value for row in captions):.0f} % of the BLEU" in faq


def test_the_losses_and_seeds_of_explorations_are_those_of_the_kept_run() -> None:
    kept = read_results(RESULTS / "explorations-multi30k-fren")
    page = " ".join(REPLICATION.split())
    curves = {name: system.loss.eval_loss for name, system in kept.systems.items() if system.loss is not None}
    assert len(curves) == 12 and {curve[-1].step for curve in curves.values()} == {5000}

    def mean_loss(row: str) -> float:
        return sum(curves[f"{row}-seed{seed}"][-1].value for seed in (1, 2, 3)) / 3

    losses = [mean_loss(row) for row in ("none", "sinusoidal", "relative", "rotary")]
    assert "none {:.2f}, sinusoidal {:.2f}, relative and rotary {:.2f}".format(*losses[:3]) in page
    assert f"{losses[2]:.2f}" == f"{losses[3]:.2f}"
    ratios = [curves[f"relative-seed{n}"][-1].seconds / curves[f"rotary-seed{n}"][-1].seconds for n in (1, 2, 3)]
    assert f"{min(ratios):.2f} to {max(ratios):.2f} times as long as rotary" in page

    def bleu(system: str) -> float:
        return kept.systems[system].tests["test_2016_flickr"].overall.score("bleu") or 0.0

    ahead = [bleu(f"relative-seed{n}") - bleu(f"rotary-seed{n}") for n in (1, 2, 3)]
    assert "relative has {:.1f} BLEU more, {:.1f} less, and {:.1f} less".format(*map(abs, ahead)) in page
    assert [gain > 0 for gain in ahead] == [True, False, False]


def test_the_perplexities_by_learning_rate_are_those_of_the_logs() -> None:
    rows = re.findall(r"^\| (.+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", REPLICATION, re.MULTILINE)
    names = {"RoPE": "rotary", "`relative`": "relative", "LSTM": "lstm", "sinusoidal": "sinusoidal"}
    assert {row[0] for row in rows} == set(names)
    with tarfile.open(RESULTS / "news-learning-rates" / "training.tar.xz") as logs:
        for name, *said in rows:
            found = []
            for rate in ("low", "middle", "high"):
                file = logs.extractfile(f"{names[name]}-{rate}/training.jsonl")
                assert file is not None
                entries = [json.loads(line) for line in file]
                found += [
                    entry["eval_perplexity"] for entry in entries if entry["step"] == 1200 and "eval_loss" in entry
                ]
            assert [f"{perplexity:.1f}" for perplexity in found] == said, name
            assert min(found) == found[1], "the text says that the middle rate is the best"


def test_every_figure_of_the_results_is_drawn_and_saved() -> None:
    """At the size of the saved one, which changes with the number of rows and panels."""
    for name, draw in results_figures.FIGURES.items():
        pixels = tuple(round(200 * side) for side in draw().get_size_inches())
        with Image.open(RESULTS / f"{name}.png") as saved:
            assert saved.size == pixels, f"Run `python docs/results_figures.py {name}`."


def test_a_results_page_has_at_most_two_tables_and_three_figures() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in RESULTS.glob("*.md")}
    tables = {name: len(re.findall(r"^\| --- \|", text, re.MULTILINE)) for name, text in texts.items()}
    assert [name for name, text in texts.items() if tables[name] > 2 or text.count("![") > 3] == []
