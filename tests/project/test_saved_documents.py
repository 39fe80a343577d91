"""Documents compared by their saved translations: paired tests and the coverage of sentences."""

from __future__ import annotations

import json
import random
import sys
import tarfile
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import evaluate
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import audit_documents  # noqa: E402
import coverage_figure  # noqa: E402
import paired_tests  # noqa: E402
import saved_documents  # noqa: E402

from hf_posenc.metrics.loading import load_translation_audit  # noqa: E402

LONG_INPUT = (ROOT / "docs" / "results" / "long_input.md").read_text(encoding="utf-8")


def length_by_recursion(reference: list[str], translation: list[str]) -> int:
    """The definition of a longest common subsequence."""

    @cache
    def longest(i: int, j: int) -> int:
        if i == len(reference) or j == len(translation):
            return 0
        matched = 1 + longest(i + 1, j + 1) if reference[i] == translation[j] else 0
        return max(matched, longest(i + 1, j), longest(i, j + 1))

    return longest(0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_matched_words_are_a_longest_common_subsequence(seed: int) -> None:
    chance = random.Random(seed)
    reference, translation = (chance.choices("abcd", k=chance.randint(0, 12)) for _ in range(2))
    matched = coverage_figure.matched_in_order(reference, translation)
    assert matched.sum() == length_by_recursion(reference, translation)
    words = iter(translation)
    assert all(word in words for word, is_matched in zip(reference, matched, strict=True) if is_matched)


def test_coverage_is_that_of_the_sentences_in_order() -> None:
    sentences = ["The green house burns.", "It is.", "Several people watched."]
    words = {"all": " ".join(sentences), "last": "people watched several", "none": ""}
    found = {
        name: [row[3:] for row in coverage_figure.sentence_coverage("s", 1, 0, sentences, text)]
        for name, text in words.items()
    }
    assert found["all"] == [(0, 3, 3), (2, 3, 3)], "the second sentence has no content word"
    assert found["last"] == [(0, 3, 0), (2, 3, 2)]
    assert found["none"] == [(0, 3, 0), (2, 3, 0)]


def test_the_parts_of_a_document_are_equal() -> None:
    rows = [
        coverage_figure.Coverage("s", 1, document, number, 5, number) for document in (0, 1) for number in range(10)
    ]
    assert coverage_figure.mean_by_part(rows) == pytest.approx([20 * number for number in range(10)])


@pytest.mark.full
def test_the_pages_say_what_the_saved_coverage_shows() -> None:
    rows = coverage_figure.read_coverage()
    means = {
        system: np.array(coverage_figure.mean_by_part([row for row in rows if row.system == system]))
        for system in (*coverage_figure.LABELS, coverage_figure.OTHER_DOCUMENT)
    }
    assert all(len({row.translation for row in rows if row.system == system}) == 150 for system in means)
    assert means["aligned-100"].min() > 30 and means["aligned-100"].max() < 40
    chance = means[coverage_figure.OTHER_DOCUMENT]
    assert np.abs(means["relative-100"][1:] - chance[1:]).max() < 5 < means["relative-100"][0] - chance[0]
    assert means["sinusoidal-100"].max() < 7
    assert [axes.get_title() for axes in coverage_figure.coverage_figure(rows).axes] == list(
        coverage_figure.LABELS.values()
    )


def test_the_table_of_paired_tests_is_that_of_the_saved_ones() -> None:
    saved = (saved_documents.RUN / "table-paired.md").read_text(encoding="utf-8")
    assert saved.startswith(paired_tests.table(paired_tests.read_tests()))


def test_the_pages_say_what_the_paired_tests_show() -> None:
    tests = paired_tests.read_tests()
    by_systems = {pair: [test for test in tests if (test.system, test.other) == pair] for pair in paired_tests.PAIRS}
    assert all(len(found) == 2 * 4 * 3 for found in by_systems.values())
    whole, rival, relative = by_systems.values()
    for metric, bound in (("bleu", 0.6), ("chrf", 0.75)):
        assert all(-bound < test.low and test.high < bound for test in whole if test.metric == metric)
    chrf = [test for test in whole if test.metric == "chrf"]
    assert f"{-min(test.difference for test in chrf):.2f}" == "0.49"
    assert [test.p_randomisation < 0.05 for test in chrf].count(True) == 4
    assert all(test.difference > 0 and test.p_randomisation < 0.05 for test in (*rival, *relative))
    for said in ("inside ±0.6 BLEU and ±0.75 chrF", "by up to 0.49; in four of twelve", "has p < 0.05 with each seed"):
        assert said in " ".join(LONG_INPUT.split())


def pooled_rows(folder: Path) -> list[list[str]]:
    """The cells of each saved test that is pooled over the seeds."""
    return [
        [cell.strip() for cell in line.strip("| ").split(" | ")]
        for line in (folder / "table-pooled.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]


def test_the_pages_say_what_the_pooled_tests_show() -> None:
    rows = pooled_rows(saved_documents.RUN)
    whole = [row for row in rows if row[0] == "`aligned-100` - `aligned-100-split`" and row[2] == "all"]
    significant = [(row[1], row[4]) for row in whole if float(row[6]) < 0.05]
    lengths = [f"parliament-{words}" for words in (50, 100, 400)]
    assert [test for test, metric in significant if metric == "chrF"] == lengths
    assert [test for test, metric in significant if metric == "BLEU"] == ["parliament-100"]
    rival = {
        row[2]: row for row in rows if row[0].startswith("`aligned-50`") and row[1::3][:2] == ["parliament-50", "BLEU"]
    }
    assert rival["a longer sentence than 50"][5].startswith("+1.56 ") and rival["sentences up to 50"][5].startswith(
        "-0.48 "
    )
    longer = [row for row in rows if row[0] == "`aligned-100` - `aligned-50`" and row[2] == "all"]
    gains = [float(row[5].partition(" ")[0]) for row in longer if row[4] == "BLEU" and float(row[6]) < 0.05]
    assert len(gains) == 4 and (min(gains), max(gains)) == (0.83, 1.07), "long_input.md: `0.83 to 1.07 BLEU`"
    in_chrf = [row[1] for row in longer if row[4] == "chrF" and float(row[6]) < 0.05]
    assert in_chrf == ["parliament-50", "parliament-100"], "long_input.md: `on the two shorter documents`"
    recurrent = [row for row in pooled_rows(saved_documents.RUN.parent / "news-recurrent-small") if row[2] == "all"]
    significant = [(row[1], row[4], row[5].partition(" ")[0]) for row in recurrent if float(row[6]) < 0.05]
    assert significant == [("parliament-50", "BLEU", "+0.47"), ("parliament-100", "BLEU", "+0.37")], "ablation.md"
    for said in ("350 of the 479", "1.56 BLEU", "it scores lower by 0.48, which is not significant"):
        assert said in " ".join(LONG_INPUT.split())


def test_verdicts_need_all_seeds() -> None:
    def seed(low: float, high: float, p: float) -> paired_tests.PairedTest:
        middle = (low + high) / 2
        return paired_tests.PairedTest("a", "b", "t", 9, "bleu", 1, 20 + middle, 20, low, high, p, p)

    alike, different = seed(-0.5, 0.6, 0.5), seed(1.0, 3.0, 0.001)
    assert paired_tests.verdict([alike, alike]) == "within 1"
    assert paired_tests.verdict([different, different]) == "different"
    assert paired_tests.verdict([seed(0.2, 0.9, 0.01)] * 2) == "within 1, different"
    assert paired_tests.verdict([alike, different]) == "neither"
    assert paired_tests.verdict([different, seed(-3.0, -1.0, 0.001)]) == "neither", "in unlike directions"


def test_other_text_is_refused(tmp_path: Path) -> None:
    for name, text in (("a.de", "ein haus\n"), ("a.en", "a house\n"), ("a.doc", "1\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    spec = {"files": ["a.de", "a.en"], "document_ids": "a.doc", "min_words": 1}
    settings = {"data": {"test": {"t": spec}}, "score": {}, "files": dict.fromkeys(("a.de", "a.en", "a.doc"), "0" * 64)}
    with pytest.raises(ValueError, match=r"FOLDER must have .*, but .*a\.de has another"):
        saved_documents.read_test_set(
            "t", settings, None, tmp_path
        )  # the text is compared before the tokenizer is used


@pytest.mark.full
def test_the_paired_tests_are_of_the_saved_scores() -> None:
    """Texts and sampled documents are those that were scored: BLEU and chrF of each seed agree to the last digit."""
    saved = {}
    with tarfile.open(saved_documents.ARCHIVE) as archive:
        for member in archive:
            if member.name.endswith("/scores.json") and (file := archive.extractfile(member)):
                saved[member.name.split("/")[1]] = json.load(file)["tests"]
    for test in paired_tests.read_tests():
        for system, value in ((test.system, test.score), (test.other, test.other_score)):
            record = saved[f"{system}-seed{test.seed}"][test.test_set]["all"]
            assert (record["n"], record[test.metric]) == (test.n, pytest.approx(value, abs=1e-9))


@pytest.mark.full
def test_translations_that_are_missing_are_named() -> None:
    with pytest.raises(ValueError, match=r"none of \('nobody-seed1', 'parliament-50'\)"):
        saved_documents.read_translations(["nobody-seed1"], ["parliament-50"])


def test_the_saved_table_is_that_of_the_saved_audit() -> None:
    audits = json.loads((audit_documents.RUN / "audit.json").read_text(encoding="utf-8"))
    table = (audit_documents.RUN / "table-audit.md").read_text(encoding="utf-8")
    seeds = dict.fromkeys(audit_documents.LABELS.values(), 3) | dict.fromkeys(audit_documents.ONE_SEED.values(), 1)
    assert {label: len(found) for label, found in audits.items()} == seeds
    assert table == audit_documents.table(audits) + audit_documents.NOTE
    for audit in chain.from_iterable(audits.values()):
        totals = audit["all"]
        for name in ("segments", *audit_documents.COUNTS):
            assert sum(row[name] for row in audit["positions"]) == totals[name]
            assert sum(row[name] for row in audit["lengths"]) == totals[name]
        assert totals["documents"] == 50 and len(audit["profile"]) == 20


def test_the_pages_say_what_the_saved_audit_shows() -> None:
    audits = json.loads((audit_documents.RUN / "audit.json").read_text(encoding="utf-8"))
    page = " ".join(LONG_INPUT.split())

    def shares(label: str) -> list[float]:
        return [100 * audit["all"]["dropped"] / audit["all"]["segments"] for audit in audits[label]]

    aligned, relative = (sum(shares(label)) / 3 for label in ("aligned", "relative"))
    assert f"`aligned` drops [{aligned:.1f} %](news-small/table-audit.md) and `relative` {relative:.0f} %" in page
    runs_on = [shares(label)[0] for label in ("RoPE", "T5", "KERPLE")]
    assert f"RoPE, T5 and KERPLE {min(runs_on):.0f} to {max(runs_on):.0f} %" in page
    for label in ("relative", "sinusoidal", "LSTM", "RoPE", "T5", "KERPLE"):
        first, *later = (sum(fifths) for fifths in zip(*map(dropped_by_fifth, audits[label]), strict=True))
        assert sum(first < one for one in later) > len(later) / 2, label
    looped = {label: [audit["looped"] for audit in found] for label, found in audits.items()}
    assert 0.28 < looped["T5"][0] < 0.36 and 0.09 < min(looped["relative"]) < max(looped["relative"]) < 0.37
    for label in ("aligned", "aligned, segmented"):
        assert max(looped[label]) < 0.02


def dropped_by_fifth(audit: dict[str, Any]) -> list[float]:
    return [row["dropped"] / row["segments"] for row in audit["positions"]]


def test_a_row_of_the_audits_table_counts_what_was_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mweralign")
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path))
    words = random.Random(0).sample(
        [f"{first}{second}" for first in "bcdfgklm" for second in ("ado", "eri", "ulo")], 20
    )
    references = [[" ".join(words[start : start + 4]) + "." for start in range(0, 20, 4)]] * 3
    texts = [" ".join(reference[:4]) for reference in references]
    options = {"sources": references, "references": references}
    whole = load_translation_audit().compute(predictions=[" ".join(reference) for reference in references], **options)
    cut = load_translation_audit().compute(predictions=texts, **options)
    whole, cut = whole | {"looped": 0.0, "words": 1.0}, cut | {"looped": 0.0, "words": 0.8}
    _, _, first, second = audit_documents.table({"whole": [whole], "both": [whole, cut]}).splitlines()
    assert first == "| whole | 1 |" + " 0.0 |" * 9 + " 100.0 | 0.0 | 1.00 |"
    shares = ["10.0 (0.0-20.0)", *["0.0 (0.0-0.0)"] * 7, "50.0 (0.0-100.0)", "90.0 (80.0-100.0)", "0.0 (0.0-0.0)"]
    assert second == f"| both | 2 | {' | '.join(shares)} | 0.90 (0.80-1.00) |"
