"""Records of saved results: they round-trip, and the kept tables are reproduced."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from hf_posenc.lab.results.records import VERSION, RunResults, Score, SystemScores
from hf_posenc.lab.results.saved_files import parse_file, read_json, read_record, to_json, write_record

SAVED = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "kept_tables.py"))
KEPT = SAVED["KEPT"]


def saved_json(folder: Path) -> dict[str, Any]:
    """The content of the results that are kept in a folder."""
    (path,) = folder.glob("results.json*")
    return read_json(path)


def read(results: dict[str, Any]) -> RunResults:
    return parse_file(RunResults, results, Path("results.json"))


def without_nulls(value: Any) -> Any:
    """A value in which a missing key and null are the same."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def test_there_are_kept_results() -> None:
    assert len(KEPT) >= 8


@pytest.mark.full
def test_kept_results_are_written_as_they_were_read(subtests: pytest.Subtests) -> None:
    for folder in KEPT:
        with subtests.test(folder.name):
            saved = saved_json(folder)
            assert saved.pop("version") == VERSION
            written = json.loads(json.dumps(to_json(read(saved))))
            assert written.pop("version") == VERSION
            for system in saved["systems"].values():
                for diagnosis in (system.get("diagnostics") or {}).values():
                    del diagnosis["training_limit"], diagnosis["attention_distance"]  # values of older versions
                    del diagnosis["loss_by_position"]["groups"]
            assert without_nulls(written) == without_nulls(saved)
            assert read(written | {"version": VERSION}) == read(saved)


def test_kept_tables_come_out_again(subtests: pytest.Subtests) -> None:
    for folder in KEPT:
        with subtests.test(folder.name):
            tables = dict(SAVED["kept_tables"](folder))
            pooled = folder / "table-pooled.md"  # of docs/pooled_tests.py, from kept translations
            assert set(tables) == set(folder.glob("table-*.md")) - {pooled} != set()
            stale = [kept for kept, text in tables.items() if kept.read_text(encoding="utf-8") != text]
            assert stale == [], "Run `python docs/kept_tables.py`."


@pytest.fixture
def results() -> dict[str, Any]:
    (folder,) = [folder for folder in KEPT if folder.name == "quickstart"]
    return saved_json(folder)


@pytest.mark.parametrize("version", [VERSION - 1, 99])
def test_results_of_another_version_are_refused(results: dict[str, Any], version: int) -> None:
    with pytest.raises(ValueError, match=rf"results\.version must be {VERSION}, .* {version}"):
        read(results | {"version": version})


def test_scores_have_a_version(results: dict[str, Any], tmp_path: Path) -> None:
    system = results["systems"]["relative"]
    saved = {key: system[key] for key in ("tokenizer", "max_length", "tests", "training")}
    (tmp_path / "scores.json").write_text(json.dumps(saved), encoding="utf-8")
    scores = read_record(SystemScores, tmp_path / "scores.json")
    write_record(tmp_path / "again.json", scores, indent=1)
    written = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))
    assert written.pop("version") == VERSION and without_nulls(written) == without_nulls(saved)
    assert read_record(SystemScores, tmp_path / "again.json") == scores


def test_a_key_without_a_field_is_dropped(results: dict[str, Any]) -> None:
    assert read(results | {"machine": {"cores": "\x1b[31m"}}) == read(results)


@pytest.mark.parametrize(
    ("keys", "value", "problem"),
    [
        (["loss", "loss", 0], [1, 2], r"loss\.loss\[0\]"),
        (["loss", "loss", 0, 2], "low", r"loss\.loss\[0\]\[2\] must be a number"),
        (["loss", "lengths_known"], 1, r"loss\.lengths_known must be true or false, but it is 1"),
        (["training", "parameters"], None, r"training\.parameters must be a whole number"),
        (["tests", "generated", "time"], {"seconds": 1.0}, r"generated\.time needs processor_seconds, processes"),
        (["tests", "generated", "buckets", 0, "n"], True, r"generated\.buckets\[0\]\.n must be a .*number"),
        (
            ["diagnostics", "generated", "loss_by_position"],
            {},
            r"generated\.loss_by_position needs nats, tokens",
        ),
        (
            ["diagnostics", "generated", "decoding", "groups", 0, "examples"],
            [3],
            r"examples\[0\] must be keys and values",
        ),
    ],
)
def test_a_malformed_value_is_refused_with_its_path(
    results: dict[str, Any], keys: list[Any], value: Any, problem: str
) -> None:
    """Before any table or figure is made of it."""
    inner: Any = results["systems"]["relative"]
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    with pytest.raises(ValueError, match=rf"in results\.json results\.systems\.relative\..*{problem}"):
        read(results)


def test_any_finite_score_is_read_back(tmp_path: Path) -> None:
    """A diverged model has a perplexity of up to exp(700), which is written and must be readable."""
    write_record(tmp_path / "score.json", Score(value=1e304))
    assert read_record(Score, tmp_path / "score.json").value == 1e304
    for number in ("NaN", "Infinity", "1" + "0" * 400):
        (tmp_path / "other.json").write_text(f'{{"value": {number}}}', encoding="utf-8")
        with pytest.raises(ValueError, match=r"other\.value must be a number"):
            read_record(Score, tmp_path / "other.json")
