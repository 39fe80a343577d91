"""Training resumes from intact checkpoints, in a moved folder too, with its log and best model."""

import shutil
from dataclasses import replace

import pytest
import torch
from support.trainings import LATE, STEPS, facts_of, tiny, trained, weights_of, without_its_model

from hf_posenc.lab.training.checkpoints import last_intact_checkpoint
from hf_posenc.utils.manifest import MANIFEST

# With a rate that rises until it is far too high, the best checkpoint is the first one.
WORSE = [
    "train.load_best_model_at_end=true", "train.metric_for_best_model=loss", "train.learning_rate=2.0",
    "train.warmup_steps=6", "train.max_steps=6", "train.save_steps=2",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("last", [2, 6], ids=["while it trains", "after it"])
def test_the_best_model_is_found_wherever_the_run_is_moved(tmp_path, last):
    settings = [*STEPS, *WORSE]
    experiment = tiny(tmp_path, *settings, "train.save_total_limit=9")
    trained(experiment)
    weights, facts = weights_of(experiment), facts_of(experiment)
    assert facts["best_step"] == 2
    without_its_model(experiment, last)
    experiment.output_dir.rename(tmp_path / "moved")
    moved = replace(experiment, output_dir=tmp_path / "moved")
    trained(moved)
    assert facts_of(moved)["best_step"] == 2
    torch.testing.assert_close(weights_of(moved), weights, rtol=0, atol=0)


@pytest.mark.full
@pytest.mark.parametrize("damage", ["emptied", "missing", "another"])
def test_a_log_is_that_of_the_last_checkpoint(tmp_path, damage):
    experiment = tiny(tmp_path, *LATE)
    before = [line for line in trained(experiment) if "loss" in line]
    without_its_model(experiment, 6)
    log = experiment.folder / "relative" / "training.jsonl"
    (log.parent / MANIFEST).unlink()  # which lists a log that is finished
    if damage == "missing":
        log.unlink()
    else:
        log.write_text("" if damage == "emptied" else log.read_text().replace("1", "2"), encoding="utf-8")
    assert [line for line in trained(experiment) if "loss" in line] == before
    assert facts_of(experiment)["seconds"] == before[-1]["seconds"]


@pytest.mark.full
@pytest.mark.parametrize("flaw", ["missing", "damaged"])
def test_a_checkpoint_is_no_better_than_the_best_one_that_it_names(tmp_path, flaw):
    settings = [*STEPS, *WORSE]
    experiment = tiny(tmp_path, *settings)
    trained(experiment)
    without_its_model(experiment, 6)
    folder = experiment.folder / "relative" / "checkpoints"
    if flaw == "missing":
        shutil.rmtree(folder / "checkpoint-2")
    else:
        (folder / "checkpoint-2" / "model.safetensors").write_bytes(b"")
    assert last_intact_checkpoint(folder) == str(folder / "checkpoint-6")
    with pytest.raises(ValueError, match=rf"in {folder} checkpoint-2 is not: .* delete {folder}"):
        trained(experiment)
