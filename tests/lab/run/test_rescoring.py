"""A finished run is scored by other metrics and buckets, without training or translating, as train.py would."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.experiments import ONE_SYSTEM, load

from hf_posenc.__main__ import main as command_line
from hf_posenc.lab.config.settings import SCORING_KEYS, ScoreSettings
from hf_posenc.lab.reports.report import write_report
from hf_posenc.lab.results.aggregation import aggregate
from hf_posenc.lab.results.saved_runs import compare_systems
from hf_posenc.lab.run import evaluation, pipeline, rescoring
from hf_posenc.lab.run.pipeline import run_system, unfinished_systems
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun
from hf_posenc.lab.run.rescoring import score_run

CONFIG: dict[str, Any] = ONE_SYSTEM | {
    "data": ONE_SYSTEM["data"]
    | {"test": {"generated": {"generator": {"seed": 2, "pairs": 6, "min_words": 6, "max_words": 24}}}},
    "systems": {"relative": {}, "absolute": {"model": {"position_encoding_type": "sinusoidal"}}},
}
OTHER = ("score.metrics=[bleu, chrf]", "score.bucket_edges=[8, 16, 30]")
SYSTEMS = ["absolute", "relative"]  # in the order of the file that yaml writes
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a config file whose systems are trained and scored by BLEU, with their tables."""
    folder = tmp_path_factory.mktemp("finished")
    config = folder / "tiny.yaml"
    config.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    experiment = load(config)
    prepare(experiment)
    for name in experiment.systems:
        run_system(PreparedRun(experiment), name)
    write_report(aggregate(experiment), experiment.folder)
    return folder


@pytest.fixture
def config(finished: Path, tmp_path: Path) -> Path:
    """The config file of a copy of the run."""
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy" / "tiny.yaml"


@pytest.fixture
def without_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, and loading a model to translate with, are errors."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a model was needed")

    monkeypatch.setattr(pipeline, "train_system", refuse)
    monkeypatch.setattr(pipeline, "load_model_with_head", refuse)
    monkeypatch.setattr(evaluation, "translate", refuse)


def scores(run: Path) -> dict[str, Any]:
    return {name: json.loads((run / name / "scores.json").read_text()) for name in SYSTEMS}


@pytest.mark.usefixtures("without_model")
def test_scores_are_those_of_train_py_with_the_settings(config: Path, tmp_path: Path) -> None:
    """train.py takes the folder too, and finds nothing to do in one that `score` has completed."""
    shutil.copytree(config.parent, tmp_path / "second")
    run, second = config.parent / "runs" / "tiny", tmp_path / "second" / "runs" / "tiny"
    score_run(run, {"bucket_edges": [8, 16, 30]}, ["chrf"])
    again = load(tmp_path / "second" / "tiny.yaml", *OTHER)
    prepare(again)
    assert unfinished_systems(PreparedRun(again)) == SYSTEMS
    for name in again.systems:
        run_system(PreparedRun(again), name)
    assert scores(run) == scores(second)
    tested = scores(run)["relative"]["tests"]["generated"]
    assert [group["label"] for group in tested["buckets"]] == ["[0,8]", "[9,16]", "[17,30]", ">30"]
    assert tested["overall"]["scores"]["chrf"]["value"] is not None and "nc:6" in tested["signatures"]["chrf"]
    for path in (config, tmp_path / "second" / "tiny.yaml"):
        assert unfinished_systems(PreparedRun(load(path, *OTHER))) == []
        assert unfinished_systems(PreparedRun(load(path))) == SYSTEMS
    settings = [(folder / "relative" / "settings.yaml").read_bytes() for folder in (run, second)]
    assert settings[0] == settings[1]


@pytest.mark.usefixtures("without_model")
def test_without_changes_scores_stay_as_they_are(config: Path) -> None:
    run = config.parent / "runs" / "tiny"
    before = scores(run)
    score_run(run, {})
    assert scores(run) == before and unfinished_systems(PreparedRun(load(config))) == []


@pytest.mark.usefixtures("without_model")
def test_an_interrupted_command_is_completed(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the scores of a system, before its settings."""
    shutil.copytree(config.parent, tmp_path / "whole")
    run, whole = config.parent / "runs" / "tiny", tmp_path / "whole" / "runs" / "tiny"
    score_run(whole, {}, ["chrf"])

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(rescoring, "save_score_settings", interrupt)
        score_run(run, {}, ["chrf"])
    assert unfinished_systems(PreparedRun(load(config, "score.metrics=[bleu, chrf]"))) == SYSTEMS
    score_run(run, {}, ["chrf"])
    assert scores(run) == scores(whole)
    assert unfinished_systems(PreparedRun(load(config, "score.metrics=[bleu, chrf]"))) == []


def test_settings_of_translations_still_pin_the_folder(config: Path) -> None:
    with pytest.raises(ValueError, match=r"score\.num_beams was 1 and is 2"):
        prepare(load(config, "score.num_beams=2"))
    with pytest.raises(ValueError, match=r"train\.max_steps was 6 and is 7"):
        prepare(load(config, "train.max_steps=7", *OTHER))
    prepare(load(config, *OTHER))


def test_scoring_settings_are_all_but_those_of_translations() -> None:
    """With sampled pairs the buckets belong to the translations. Every key is one of scoring or of translation."""
    settings = ScoreSettings()
    of_translations = {
        "concatenate", "num_beams", "max_new_tokens", "batch_size", "max_per_bucket", "max_context", "stride",
    }  # fmt: skip
    assert settings.translation_settings.keys() == of_translations == vars(settings).keys() - set(SCORING_KEYS)
    assert ScoreSettings(max_per_bucket=5).translation_settings.keys() == of_translations | {"bucket_edges"}


def test_what_cannot_be_scored_is_refused_before_anything_is_written(config: Path) -> None:
    run = config.parent / "runs" / "tiny"
    before = scores(run)
    with pytest.raises(ValueError, match="but it is 'cherf'; the nearest is 'chrf'"):
        score_run(run, {}, ["cherf"])
    with pytest.raises(ValueError, match=r"score\.bucket_edges must be a list of ascending whole numbers"):
        score_run(run, {"bucket_edges": [20, 10]})
    with pytest.raises(ValueError, match="BERTScore needs a model"):
        score_run(run, {}, ["bertscore"])
    path = run / "absolute" / "settings.yaml"
    saved = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(saved | {"score": saved["score"] | {"max_per_bucket": 2}}))
    (path.parent / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"max_per_bucket|must have the hash"):
        score_run(run, {"bucket_edges": [10]})
    shutil.rmtree(run / "data")
    with pytest.raises(ValueError, match=r"The pairs of generated must have the hash .* restore the folder"):
        score_run(run, {})
    assert scores(run) == before


def test_the_command_makes_the_tables_and_a_comparison_of_the_new_metric(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = config.parent / "runs" / "tiny"
    with pytest.raises(ValueError, match=r"has bleu and not 'chrf'; choose another, or give .* --metrics chrf"):
        compare_systems([run], ["relative", "absolute"], "chrf")
    monkeypatch.setattr(sys, "argv", ["hf_posenc", "score", str(run), "--metrics", "chrf", "--buckets", "16"])
    command_line()
    printed = capsys.readouterr().out
    assert "BLEU / chrF" in printed and "[0,16]" in printed and ">16" in printed
    assert "chrF" in (run / "table-generated.md").read_text(encoding="utf-8")
    assert len(compare_systems([run], ["relative", "absolute"], "chrf").rows) == 1
