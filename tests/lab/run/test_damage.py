"""A run that is killed, or a file of which is damaged, ends in the same results or refuses the file by its name.

A twentieth of what `python tests/damage.py` tries by default, which takes some 20 minutes of processor time.
"""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from damage import cases, give_command, kills, new_folder, results_of, sampled, states, try_file, try_kill

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return states(tmp_path_factory.mktemp("states"))


@pytest.fixture(scope="module")
def straight(runs: dict[str, Path]) -> dict[str, Any]:
    return results_of(runs["finished"])


def test_kills_change_no_result(tmp_path: Path, straight: dict[str, Any]) -> None:
    endings = [(how, *try_kill(tmp_path, straight, **how)) for how in kills(tmp_path, 4)]
    assert len(endings) == 4
    assert [ending for ending in endings if ending[1] != "bit-equal"] == []


def test_damaged_files_are_made_again_or_refused(tmp_path: Path, runs: dict[str, Path]) -> None:
    """A refusal names the file, and what it says to do leads to the results of a run left alone."""
    chance = random.Random(1)
    tried = sampled(list(cases(runs)), 10, chance)
    endings = [(*case, *try_file(tmp_path, runs, case, chance)) for case in tried]
    assert len(endings) == 10
    assert [ending for ending in endings if ending[3] not in ("bit-equal", "refused")] == []


def test_a_run_without_manifests_goes_on(tmp_path: Path, runs: dict[str, Path], straight: dict[str, Any]) -> None:
    """As those of older versions are."""
    for state in ("training", "translated", "finished"):
        copy = shutil.copytree(runs[state], tmp_path / state)
        for manifest in copy.rglob("manifest.json"):
            manifest.unlink()
        assert give_command(copy).kind == "done", state
        assert results_of(copy) == straight, state


def test_another_run_has_the_same_results(tmp_path: Path, straight: dict[str, Any]) -> None:
    """Without which the comparison would say nothing; with fewer steps they differ."""
    same, other = (new_folder(tmp_path / name) for name in ("same", "other"))
    config = other / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("max_steps: 8", "max_steps: 7"), encoding="utf-8")
    for folder in (same, other):
        assert give_command(folder).kind == "done"
    assert results_of(same) == straight
    assert results_of(other).keys() == straight.keys() and results_of(other) != straight
