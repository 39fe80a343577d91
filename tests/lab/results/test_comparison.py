"""Two systems of saved runs: the tests of their statistics, and what cannot be compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.saved_runs import write_run

from hf_posenc.__main__ import main as command_line
from hf_posenc.lab.data.corpus import hash_test_set, load_pairs
from hf_posenc.lab.data.lengths import stratified_sample
from hf_posenc.lab.data.readers import corpus_file_hashes
from hf_posenc.lab.results.saved_files import read_results, read_statistics
from hf_posenc.lab.results.saved_runs import compare_systems
from hf_posenc.lab.results.significance import difference_interval, equivalence_test, paired_randomization
from hf_posenc.lab.run.corpora import save_pairs
from hf_posenc.lab.run.saved_test_sets import document_labels, read_test_set
from hf_posenc.utils.run_folder import RunPaths

ROWS = {"good-seed1": "good", "good-seed2": "good", "bad-seed1": "bad", "bad-seed2": "bad"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shares = {"good-seed1": 0.2, "good-seed2": 0.22, "bad-seed1": 0.26, "bad-seed2": 0.4}
    return write_run(tmp_path_factory.mktemp("runs") / "first", shares, ROWS)


@pytest.mark.full
def test_the_table_has_the_tests_of_each_seed_and_of_all(run: Path) -> None:
    """By sentences, and by units of three pairs each."""
    counts = {name: read_statistics(RunPaths(run).system(name).statistic("news"))["bleu"] for name in ROWS}
    labels = [row // 3 for row in range(40)]
    for units, number in ((None, 40), (labels, 14)):
        table = compare_systems([run], ["good", "bad"], units=lambda row, test, units=units: units, margin=1.0)
        assert table.caption == f"news, n=40, {number} units: BLEU"
        assert [line[0] for line in table.rows] == ["seed 1", "seed 2", "pooled"]
        for line, seeds in zip(table.rows, ((1,), (2,), (1, 2)), strict=True):
            pair = [[counts[f"{row}-seed{seed}"] for seed in seeds] for row in ("good", "bad")]
            low, high = difference_interval("bleu", *pair, units=units)
            assert line[4] == f"{low:+.2f} to {high:+.2f}"
            assert line[5] == f"{paired_randomization('bleu', *pair, units=units):.4f}"
            found = equivalence_test("bleu", *pair, 1.0, units=units)
            assert line[3] == f"{found.difference:+.2f}" and line[6] == f"{found.p_value:.4f}"


@pytest.mark.full
def test_seeds_and_runs_are_compared_by_name(run: Path, tmp_path: Path) -> None:
    """One seed of each, of one run or of two. With the systems turned round the difference is turned round."""
    (line,) = compare_systems([run], ["good-seed1", "bad-seed1"]).rows
    (turned,) = compare_systems([run], ["bad-seed1", "good-seed1"]).rows
    assert float(line[3]) == -float(turned[3]) > 0 and line[5] == turned[5]
    other = write_run(tmp_path / "second", {"good-seed1": 0.5}, {"good-seed1": "good"})
    table = compare_systems([run, other], ["good-seed1", "good"], "ter")
    assert table.headers[1:3] == ["good-seed1", "good"] and table.caption == "news, n=40, 40 units: TER"
    table = compare_systems([run, other], ["good-seed1", "good-seed1"])
    assert table.headers[1:3] == ["first/good-seed1", "second/good-seed1"]


def test_what_cannot_be_compared_is_refused_with_a_remedy(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "second", {"plain": 0.4}, {"plain": "plain"}, text_seed=1)
    with pytest.raises(ValueError, match="the hash text 0 for good-seed1 and text 1 for plain; leave one of them out"):
        compare_systems([run, other], ["good-seed1", "plain"])
    same = write_run(tmp_path / "third", {"plain": 0.4}, {"plain": "plain"})
    with pytest.raises(ValueError, match="good has 2 and plain has 1; name a seed of each, such"):
        compare_systems([run, same], ["good", "plain"])
    with pytest.raises(ValueError, match="but 'goood' is none; the nearest one is good"):
        compare_systems([run], ["goood", "bad"])
    with pytest.raises(ValueError, match="good has bleu, ter and not 'chrf'"):
        compare_systems([run], ["good", "bad"], "chrf")
    with pytest.raises(ValueError, match="--test must be one of news, but 'newstest' is none; the nearest one is news"):
        compare_systems([run], ["good", "bad"], test="newstest")
    (same / "plain" / "statistics" / "news.npz").unlink()
    with pytest.raises(ValueError, match="has no statistics of plain; give the folder of the whole run"):
        compare_systems([same], ["plain", "plain"])


def compared(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["hf_posenc", "compare", *map(str, arguments)])
    command_line()


@pytest.mark.full
def test_the_command_takes_units_from_a_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    units = tmp_path / "debates.txt"
    units.write_text("".join(f"debate {row // 4}\n" for row in range(40)), encoding="utf-8")
    compared(monkeypatch, run, "--systems", "good", "bad", "--units", units)
    printed = capsys.readouterr().out
    assert "news, n=40, 10 units: BLEU" in printed and "pooled" in printed
    units.write_text("debate\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="40 labels, one for each pair, but there are 1"):
        compared(monkeypatch, run, "--systems", "good", "bad", "--units", units)
    with pytest.raises(SystemExit, match=r"settings\.yaml"):
        compared(monkeypatch, run, "--systems", "good", "bad", "--units", "document")


@pytest.mark.full
def test_units_are_the_documents_of_the_scored_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nine documents of pairs of three sentences each; of the pairs, those are counted that were sampled."""
    run, files = write_run(tmp_path / "run", {"a": 0.2, "b": 0.3}, {"a": "a", "b": "b"}), tmp_path / "text"
    files.mkdir()
    names = [f"document {row // 15}" for row in range(40 * 3)]  # five pairs of each document
    (files / "ids").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    for language in ("de", "en"):
        (files / f"t.{language}").write_text("".join(f"{row} word\n" for row in range(120)), encoding="utf-8")
    spec: dict[str, Any] = {"files": ["t.de", "t.en"], "document_ids": "ids", "min_words": 6}
    pairs = load_pairs(spec, source_language="de", target_language="en", folder=str(files))
    pairs = pairs.add_column("source_length", [row % 20 for row in range(len(pairs))])
    assert len(pairs) == 40
    score = {"bucket_edges": [9], "max_per_bucket": 8}
    sampled = stratified_sample(pairs, [9], 8)
    save_pairs(RunPaths(run).test_set("news", "0123abc"), pairs)
    data = {"source_language": "de", "target_language": "en", "train": {}, "test": {"news": spec}}
    saved = {"data": data, "model": {}, "train": {}, "score": score, "files": corpus_file_hashes(spec, str(files))}
    (run / "a" / "settings.yaml").write_text(yaml.safe_dump(saved), encoding="utf-8")
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    for system in results["systems"].values():
        system["tests"]["news"]["test_set_sha256"] = hash_test_set(sampled)
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    test_set = read_test_set(RunPaths(run), read_results(run), "a", "news")
    first_sentences = [int(row["de"].split()[0]) for row in sampled["translation"]]
    assert document_labels(test_set, str(files)) == [names[row] for row in first_sentences]
    (files / "t.de").write_text("other\n" * 120, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"The files of news must be those of the run, but .*t\.de is another"):
        compared(monkeypatch, run, "--systems", "a", "b", "--units", "document", "--data-dir", files)
