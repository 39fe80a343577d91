"""A prepared run: each process opens it, and data are read at first use."""

import json
from pathlib import Path

import pytest
import yaml
from support.experiments import TINY, load

from hf_posenc.lab.run.prepare import prepare
from hf_posenc.lab.run.prepared_run import PreparedRun


@pytest.fixture
def config(tmp_path: Path) -> Path:
    systems = {"absolute": {}, "next": {"init_from": "absolute"}, "in-pieces": {"segment": "absolute"}}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | {"systems": systems}), encoding="utf-8")
    return path


@pytest.mark.full
def test_another_process_opens_what_was_prepared(config):
    experiment = load(config)
    prepared, opened = prepare(experiment), PreparedRun(load(config))
    for mine, theirs in zip(prepared, opened, strict=True):
        assert mine.training_pairs[:] == theirs.training_pairs[:]
        assert mine.tokenizer.to_str() == theirs.tokenizer.to_str()
        assert list(mine.test_sets) == list(theirs.test_sets)
        for name, test_set in mine.test_sets.items():
            assert test_set.pairs[:] == theirs.test_sets[name].pairs[:]
            assert test_set.segments == theirs.test_sets[name].segments


@pytest.mark.full
def test_nothing_is_read_before_its_first_use_and_nothing_twice(config):
    system = PreparedRun(load(config)).system("absolute")
    assert not system.paths.folder.exists()
    prepare(load(config))
    assert system.training_pairs is system.training_pairs and system.test_sets is system.test_sets
    (test_set, *_) = system.test_sets.values()
    assert test_set.pairs is test_set.pairs and test_set.segments is test_set.segments


@pytest.mark.full
def test_a_system_starts_from_another_once_that_is_trained(config):
    run = prepare(load(config))
    assert run.system("absolute").init_checkpoint is None
    with pytest.raises(ValueError, match=r"systems\.next: .* absolute, but .*model is not"):
        _ = run.system("next").init_checkpoint
    model = run.paths.system("absolute").model
    model.mkdir()
    assert run.system("next").init_checkpoint == run.system("in-pieces").model_folder == model
    assert run.system("next").external_checkpoint is None


def test_a_system_that_is_not_in_the_config_is_refused(config):
    with pytest.raises(ValueError, match=r"no system 'nxt' .* absolute, next, in-p"):
        PreparedRun(load(config)).system("nxt")


@pytest.mark.full
def test_a_system_is_run_with_the_settings_that_were_prepared(config):
    run = PreparedRun(load(config))
    with pytest.raises(ValueError, match=r"prepared, but .* not been for 'next'"):
        run.system("next").validate_prepared()
    prepare(load(config))
    for system in run:
        system.validate_prepared()
    other = PreparedRun(load(config, "systems.next.train.max_steps=7"))
    with pytest.raises(ValueError, match=r"train\.max_steps was \d+ and is 7"):
        other.system("next").validate_prepared()


@pytest.mark.full
def test_a_tokenizer_without_a_setting_in_its_record_is_refused(config):
    paths = prepare(load(config)).paths
    record = json.loads(paths.tokenizer_provenance.read_text(encoding="utf-8"))
    del record["subwords"]
    paths.tokenizer_provenance.write_text(json.dumps(record), encoding="utf-8")
    (paths.tokenizer / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"made_from\.json .* it lacks subwords"):
        prepare(load(config))
