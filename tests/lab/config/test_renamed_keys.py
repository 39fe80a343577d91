"""Names of 0.2.0: refused where a user writes them, read where 0.2.0 saved them.

`saved/run_0_2_0.tar.xz` is a run made by the code of 0.2.0: `runs/old`, the texts it was trained on, and the tables
that 0.2.0 made of the whole run (`expected`). Its system `late` stopped at step 5 of 6, after the checkpoint of step 4.
`saved/run_0_2_0.yaml` is its config under the names of today, and uses every key that was renamed.
"""

import dataclasses
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.experiments import TINY

from hf_posenc import PosEncConfig, convert_encodings
from hf_posenc import __main__ as command_line
from hf_posenc.lab.config import corpus_keys, file_keys, settings
from hf_posenc.lab.config.loading import load_experiment
from hf_posenc.lab.config.model_keys import model_keys
from hf_posenc.lab.config.yaml_io import read_yaml
from hf_posenc.lab.data.corpus import load_pairs
from hf_posenc.lab.reports.card import model_card
from hf_posenc.lab.reports.report import write_report
from hf_posenc.lab.results.aggregation import aggregate
from hf_posenc.lab.results.records import VERSION
from hf_posenc.lab.run.pipeline import run_system, unfinished_systems
from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun
from hf_posenc.utils.renamed_keys import (
    RENAMED_FLAGS,
    RENAMED_KEYS,
    RENAMED_VALUES,
    downgrade_settings,
    upgrade_settings,
)

SAVED = Path(__file__).parent / "saved"
# A key of each dataclass as it stands in a config file.
LOCATIONS = {
    "FileKeys": "",
    "SystemKeys": "systems.relative.",
    "DataSettings": "data.",
    "CorpusKeys": "data.train.",
    "ScoreSettings": "score.",
    "ReferenceTable": "reference_table.",
    "PosEncConfig": "systems.relative.model.",
}
KEYS = [(LOCATIONS[name], old, new) for name, names in RENAMED_KEYS.items() for old, new in names.items()]
FLAGS = [(command, old, new) for command, flags in RENAMED_FLAGS.items() for old, new in flags.items()]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | {"systems": {"relative": {}}}), encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the run of 0.2.0, in a copy."""
    pytest.importorskip("sentence_splitter")
    with tarfile.open(SAVED / "run_0_2_0.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "runs" / "old"


def fields_of(name: str) -> set[str]:
    if name == "PosEncConfig":
        return set(model_keys(PosEncConfig))
    for module in (corpus_keys, file_keys, settings):
        if hasattr(module, name):
            return {field.name for field in dataclasses.fields(getattr(module, name))}
    raise AssertionError(f"config/ has no {name}")


@pytest.mark.parametrize("name", RENAMED_KEYS)
def test_every_new_name_is_a_key_and_no_old_one(name: str) -> None:
    names = RENAMED_KEYS[name]
    assert set(names.values()) <= fields_of(name)
    assert not set(names) & (fields_of(name) | set(names.values()))
    assert len(set(names.values())) == len(names), "or saved settings could not be translated back"


def test_a_checkpoint_reads_the_same_old_names_as_a_run() -> None:
    assert PosEncConfig.renamed_fields == RENAMED_KEYS["PosEncConfig"]


@pytest.mark.parametrize(("location", "old", "new"), KEYS)
def test_an_old_key_is_refused_with_its_new_name(config: Path, location: str, old: str, new: str) -> None:
    overrides = ["reference_table={source: A, test: generated, rows: {relative: {bleu: 1.0}}}"]
    with pytest.raises(ValueError) as error:
        load_experiment(config, [*overrides, f"{location}{old}=7"])
    said = str(error.value).removeprefix(f"{config}: ").replace("relative: model", "relative.model")
    assert said.startswith(f"{location}{old} must be given as {location}{new}, its new name,")
    assert said.endswith("but the old name is given, with 7; rename the key.") and "\n" not in said


def test_an_old_key_in_a_file_that_is_extended_is_refused(config: Path) -> None:
    child = config.with_name("child.yaml")
    child.write_text(f"extends: {config.name}\nscore: {{bucket_edges: [9]}}\n", encoding="utf-8")
    config.write_text(config.read_text(encoding="utf-8").replace("bucket_edges", "edges"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"score\.edges .* score\.bucket_edges, .* \[12, 24\]"):
        load_experiment(child)


@pytest.mark.parametrize(("old", "new"), RENAMED_VALUES["segmentation"].items())
def test_an_old_value_is_refused_with_its_new_name(config: Path, old: str, new: str) -> None:
    for key in ("boundaries", "segmentation"):
        with pytest.raises(
            ValueError, match=rf"systems\.pieces\.{key} must be .*'{old}'.*; write segmentation: {new}\."
        ):
            load_experiment(config, [f"systems.pieces={{segment: relative, {key}: {old}}}"])


def test_an_old_key_of_a_corpus_is_refused_by_the_function_that_reads_it() -> None:
    with pytest.raises(ValueError, match="first must be given as max_examples"):
        load_pairs({"files": ["a", "b"], "first": 3}, source_language="de", target_language="en")


@pytest.mark.parametrize(("command", "old", "new"), FLAGS)
def test_an_old_flag_is_refused_with_its_new_name(
    command: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in ([old, "x", "y"], [f"{old}=x"]):
        monkeypatch.setattr("sys.argv", ["hf_posenc", command, "folder", *given])
        with pytest.raises(SystemExit):
            command_line.main()
        assert f"error: {old} must be given by its new name, {new}, but" in capsys.readouterr().err


def test_an_old_field_is_refused_of_a_config_and_of_a_conversion(tmp_path: Path) -> None:
    old, changes = "length_ratio_least must be given as length_ratio_min_step", {"length_ratio_least": 0.3}
    for make in (PosEncConfig, lambda **fields: PosEncConfig.from_pretrained(tmp_path, **fields)):
        PosEncConfig().save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=old):
            make(**changes)
    with pytest.raises(ValueError, match=old):
        convert_encodings(tmp_path, **changes)


def test_saved_settings_are_translated_there_and_back(run: Path) -> None:
    for system in ("relative", "again", "tuned-twice", "relative-split", "relative-found"):
        saved = read_yaml(run / system / "settings.yaml", "It")
        upgraded = upgrade_settings(saved)
        assert upgrade_settings(upgraded) == upgraded != saved
        assert downgrade_settings(upgraded) == saved == downgrade_settings(saved)
    assert upgraded["segment"] == {"system": "relative", "segmentation": "automatic"}
    assert upgraded["data"]["test"]["joined"] == {
        "corpora": [{"files": ["test.de", "test.en"], "max_examples": 8}],
        "concatenate": 2,
    }


def test_a_hash_of_what_makes_weights_is_that_of_0_2_0(run: Path) -> None:
    """The literals are those of 0.2.0, which also stand in the settings that it saved."""
    experiment = load_experiment(SAVED / "run_0_2_0.yaml")
    expected = {
        "again": {"settings of aligned": "fdb5dc0c8890"},
        "tuned": {"settings of relative": "991f25244ec7"},
        "tuned-twice": {"settings of tuned": "8a960a6f30d4"},
    }
    for name, hashes in expected.items():
        assert experiment.systems[name].init_file_hashes() == hashes
        saved = read_yaml(run / name / "settings.yaml", "It")["files"]
        assert saved.items() >= hashes.items()


@pytest.mark.full
def test_a_config_that_0_2_0_saved_is_read(run: Path) -> None:
    path = run / "aligned" / "model" / "config.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved["length_ratio_least"] == 0.3 and saved["hf_posenc_version"] == "0.2.0"
    config = PosEncConfig.from_pretrained(path.parent)
    assert config.length_ratio_min_step == 0.3 and not hasattr(config, "length_ratio_least")
    assert "length_ratio_least" not in config.to_dict()
    assert convert_encodings(path.parent).config.length_ratio_min_step == 0.3


def test_a_card_of_a_run_of_0_2_0_says_what_its_settings_say(run: Path) -> None:
    text = " ".join(str(model_card(run, "again")).split())
    for said in (
        "initial weights: those of `aligned`",
        "At most 5 pairs of each bucket",
        "the first 50 pairs",
        "as at most 2 copies of a pair allow",
        "2 consecutive pairs concatenated into one",
        "The licence of the data is cc0-1.0",
        "`length_ratio_min_step` | 0.25",
    ):
        assert said in text
    with pytest.raises(ValueError, match=r"relative-split .* that of relative"):
        model_card(run, "relative-split")


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.full
def test_a_run_of_0_2_0_goes_on_where_it_was_and_gives_the_same_tables(run: Path) -> None:
    """Nothing is encoded, trained, translated or scored again, except by the system that was interrupted."""
    before, experiment = files_of(run), load_experiment(SAVED / "run_0_2_0.yaml")
    prepared = prepare(experiment)
    assert files_of(run) == before
    assert unfinished_systems(prepared) == ["late"]
    for name in experiment.systems:
        run_system(prepared, name)
    after = files_of(run)
    kept = {name: content for name, content in after.items() if not name.startswith("late")}
    assert kept == {name: content for name, content in before.items() if not name.startswith("late")}

    log = after["late/training.jsonl"][1]
    assert log.startswith(before["late/training.jsonl"][1]), "it went on from step 4"
    losses = [line["loss"] for line in map(json.loads, log.splitlines()) if "loss" in line]
    assert losses[4:] == pytest.approx([6.553244113922119, 6.4781718254089355], abs=1e-4), (
        "as it would have without an interruption"
    )

    write_report(aggregate(experiment), experiment.tables_folder)
    for path in sorted((run.parents[1] / "expected").glob("*.md")):
        if path.name != "table-time.md":  # of the system that was interrupted, the time is new
            assert without_late(experiment.tables_folder / path.name) == without_late(path), path.name
    saved = json.loads((experiment.tables_folder / "results.json").read_text(encoding="utf-8"))
    assert saved["paper"]["n"] == [3, 4, 2] and saved["per_group"] == 5
    assert saved["runs"]["relative-found"]["split"] == {"system": "relative", "boundaries": "found"}


@pytest.mark.full
def test_the_tokenizer_of_a_run_that_trained_nothing_yet_is_kept(run: Path) -> None:
    """It was made from the same text, which 0.2.0 described by other keys."""
    experiment = load_experiment(SAVED / "run_0_2_0.yaml")
    for name in experiment.systems:
        shutil.rmtree(run / name)
    before = files_of(run)
    prepare(experiment)
    after = files_of(run)
    assert {name: after[name] for name in before} == before
    assert {Path(name).name for name in after.keys() - before.keys()} == {"settings.yaml", "manifest.json"}


def without_late(table: Path) -> list[str]:
    """The lines of a table but for the system whose translations this machine makes anew."""
    return [line for line in table.read_text(encoding="utf-8").splitlines() if not line.startswith("| late ")]


@pytest.mark.full
def test_a_new_system_saves_the_keys_of_results_as_0_2_0_did(run: Path) -> None:
    """A row that translates in segments, scored anew."""
    experiment: Any = load_experiment(SAVED / "run_0_2_0.yaml")
    saved = (run / "relative-split" / "scores.json").read_text(encoding="utf-8")
    (run / "relative-split" / "scores.json").unlink()
    run_system(PreparedRun(experiment), "relative-split")
    scores = json.loads((run / "relative-split" / "scores.json").read_text(encoding="utf-8"))
    assert scores.pop("version") == VERSION
    assert scores == json.loads(saved)
