"""Kills and bad files: what train.py makes of a run that was killed at a file operation, or whose files were damaged.

    python tests/damage.py [--kills 60] [--files 200]

Each case gives the command again in a process of its own. It ends well in one of two ways: the results are bit-equal
to those of a run left alone, or the command refuses a file by its name, and its remedy leads to bit-equal results.
Prints each case and a table of the endings.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.experiments import ONE_SYSTEM

# Children are forked off a process that has imported everything.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["hf_posenc.lab.run.pipeline", "hf_posenc.lab.reports.report", "tensorboard"])

CONFIG: dict[str, Any] = ONE_SYSTEM | {
    "name": "run",
    "diagnose": True,
    "train": ONE_SYSTEM["train"]
    | {
        "max_steps": 8,
        "learning_rate": 2.0,  # far too high once it is reached: the best checkpoint is the first one
        "warmup_steps": 8,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
    },
}

# What a run has reached when it stops at a call of lab/run/train.py or of lab/run/pipeline.py.
STATES = {
    "prepared": ("hf_posenc.lab.run.train", "run_system"),
    "training": ("hf_posenc.lab.training.callbacks.ProgressBarCallback", "on_step_end"),
    "trained": ("hf_posenc.lab.run.pipeline", "add_to_manifest"),
    "saved": ("hf_posenc.lab.run.pipeline", "score_system"),
    "translated": ("hf_posenc.lab.run.pipeline", "score_test_sets"),
    "scored": ("hf_posenc.lab.run.train", "aggregate"),
    "finished": None,
}
STEPS_OF_TRAINING = 7  # after which it stops, between two checkpoints
DAMAGES = ("cut", "emptied", "deleted", "flipped")
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree", "shutil.copyfile"}
TIMES = {"seconds", "processor_seconds", "tokens_per_second", "total_flos", "_fingerprint"}
TIME = re.compile(r"(train|eval)_(runtime|\w+_per_second)")


@dataclass(frozen=True)
class Outcome:
    """How a command ended: "done", "refused" with a message, "traceback", or "killed"."""

    kind: str
    said: str = ""


def train(folder: Path, answer: Path, stop: str | None, kill_at: int | None, largest_file: int | None) -> None:
    """What a child does: all of train.py, up to the state `stop`, the `kill_at`-th change of a file, or a file that
    grows beyond `largest_file`."""
    import torch
    import transformers
    from datasets import config

    import hf_posenc.lab.reports.report
    import hf_posenc.lab.run.train
    from hf_posenc.lab import cli

    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    hf_posenc.lab.reports.report.write_figures = lambda *arguments: ""  # they take long and are drawn from results.json
    if kill_at is not None:
        config.HF_DATASETS_CACHE = folder / "cache"
    transformers.logging.set_verbosity_error()
    stop_in(STATES[stop] if stop else None)
    changes = count_changes(folder, kill_at)
    if largest_file is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            cli.main(["train", str(folder / "config.yaml"), f"output_dir={folder}"])
        outcome = ["done", str(sum(changes))]
    except SystemExit as error:
        outcome = ["refused", str(error)]
    except BaseException:
        outcome = ["traceback", traceback.format_exc()]
    answer.write_text(json.dumps(outcome), encoding="utf-8")


def stop_in(call: tuple[str, str] | None) -> None:
    """Make the process exit in that call."""
    if call is None:
        return
    name, attribute = call
    module, _, owner = name.rpartition(".")
    holder = getattr(sys.modules[module], owner, None) if module in sys.modules else None
    holder = sys.modules.get(name) if holder is None or name in sys.modules else holder

    def exit_there(*arguments: Any, **keywords: Any) -> None:
        if attribute != "on_step_end" or arguments[2].global_step == STEPS_OF_TRAINING:
            os._exit(3)

    setattr(holder, attribute, exit_there)


def count_changes(folder: Path, kill_at: int | None) -> list[int]:
    """A list that grows by one with each change of a file in `folder`; at the `kill_at`-th the process exits."""
    counted: list[int] = []
    inside = str(folder)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            is_change = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        else:
            path, is_change = (arguments or ("",))[0], event in CHANGES
        if is_change and isinstance(path, str | os.PathLike) and os.fspath(path).startswith(inside):
            counted.append(1)
            if len(counted) == kill_at:
                os._exit(9)

    sys.addaudithook(hook)
    return counted


def give_command(
    folder: Path, stop: str | None = None, kill_at: int | None = None, largest: int | None = None
) -> Outcome:
    """The command in a child."""
    answer = folder / "answer.json"
    answer.unlink(missing_ok=True)
    child = PROCESSES.Process(target=train, args=(folder, answer, stop, kill_at, largest))
    child.start()
    child.join()
    return Outcome(*json.loads(answer.read_text(encoding="utf-8"))) if answer.exists() else Outcome("killed")


def new_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    return folder


def results_of(folder: Path) -> dict[str, Any]:
    """What a run has made, by the name of its file, without the times that it took. Checkpoints are left out, which a
    finished run does not need."""
    found: dict[str, Any] = {}
    for path in sorted((folder / "run").rglob("*")):
        name = path.relative_to(folder / "run").as_posix()
        is_time = path.name.startswith(("table-time", "loss.png")) or path.name.endswith(".time.json")
        if path.is_dir() or is_time or "checkpoints/" in name or path.name.startswith(("manifest.json", ".")):
            continue
        content: Any = path.read_bytes()
        if path.suffix in (".json", ".jsonl") and not name.startswith("tokenizer"):
            lines = content.decode().splitlines() if path.suffix == ".jsonl" else [content.decode()]
            content = [entry for entry in map(without_times, map(json.loads, lines)) if entry]
        elif path.name == "README.md":
            content = re.sub(rb"[\d.,]+ (seconds|minutes|hours)", b"", content)
        found[name] = content
    return found


def without_times(value: Any) -> Any:
    """A JSON value in which each time is None. Of a log, the summary that follows the last step is left out."""
    if isinstance(value, dict):
        if "train_runtime" in value:
            return None
        return {k: None if k in TIMES or TIME.fullmatch(k) else without_times(v) for k, v in value.items()}
    if isinstance(value, list):
        is_loss = len(value) == 3 and type(value[0]) is int and isinstance(value[1], float)
        return [value[0], None, value[2]] if is_loss else [without_times(one) for one in value]
    return value


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def damage(path: Path, how: str, chance: random.Random) -> None:
    content = path.read_bytes()
    if how == "deleted":
        path.unlink()
        return
    if how == "flipped":
        flipped = bytearray(content)
        flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
    else:
        path.write_bytes(content[: len(content) // 2 if how == "cut" else 0])


REMEDY = re.compile(
    r"[Rr]estore (?:it|one), or (?:delete (?P<folder>\S+)(?P<later> and all later checkpoints)?.*?)?give the same"
)


def verdict(folder: Path, damaged: Path, straight: dict[str, Any]) -> tuple[str, str]:
    """How the command ends for a run with a damaged file, and what there is to know of a fault."""
    outcome = give_command(folder)
    if outcome.kind == "done":
        wrong = differing(straight, results_of(folder))
        return ("bit-equal", "") if not wrong else ("UNNOTICED", ", ".join(wrong))
    if outcome.kind != "refused":
        return outcome.kind.upper(), outcome.said[-600:]
    if str(damaged.relative_to(damaged.parents[1])) not in outcome.said and damaged.name not in outcome.said:
        return "NOT NAMED", outcome.said
    if (remedy := REMEDY.search(outcome.said)) is None:
        return "NO REMEDY", outcome.said
    if remedy["folder"]:
        target = Path(remedy["folder"])
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    again = give_command(folder)
    if again.kind != "done" or (wrong := differing(straight, results_of(folder))):
        return "REMEDY FAILS", f"{outcome.said} -> {again.said if again.kind != 'done' else wrong}"
    return "refused", ""


def states(folder: Path) -> dict[str, Path]:
    """A run in each of its states, and its results."""
    made = {}
    for state in STATES:
        made[state] = new_folder(folder / state)
        outcome = give_command(made[state], stop=None if state == "finished" else state)
        assert outcome.kind == ("done" if state == "finished" else "killed"), (state, outcome)
    return made


def cases(runs: dict[str, Path], flips: int = 2) -> Iterator[tuple[str, str, str]]:
    """State, file and damage: each file of each state."""
    for state, folder in runs.items():
        for path in sorted((folder / "run").rglob("*")):
            is_made_last = path.name.startswith(("table-", "scores.csv", "README.md"))
            is_code = path.suffix == ".py" and path.name != "tokenization_posenc.py"  # all alike
            if path.is_file() and not (is_made_last or is_code or path.name.startswith(".")):
                for how in DAMAGES if path.stat().st_size else ("deleted",):
                    for _ in range(flips if how == "flipped" else 1):
                        yield state, path.relative_to(folder).as_posix(), how


def kind_of(name: str) -> str:
    """The kind of a file, by which cases are counted."""
    parts = Path(name).parts[1:]
    if parts[0] in ("tokenizer", "data"):
        return parts[0]
    if len(parts) > 2 and parts[1] in ("model", "checkpoints"):
        return parts[1]
    return parts[1] if len(parts) > 1 else parts[0]


def sampled(found: list[tuple[str, str, str]], number: int, chance: random.Random) -> list[tuple[str, str, str]]:
    """So many cases, of each kind of file, state and damage as evenly as there are any."""
    groups: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}
    for case in found:
        groups.setdefault((case[0], kind_of(case[1]), case[2]), []).append(case)
    for group in groups.values():
        chance.shuffle(group)
    order = list(groups.values())
    chance.shuffle(order)
    taken: list[tuple[str, str, str]] = []
    while len(taken) < number and any(order):
        taken += [group.pop() for group in order if group]
    return taken[:number]


def try_file(folder: Path, runs: dict[str, Path], case: tuple[str, str, str], chance: random.Random) -> tuple[str, str]:
    """One bad file in a copy of a run."""
    state, name, how = case
    copy = folder / "case"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(runs[state], copy)
    damage(copy / name, how, chance)
    return verdict(copy, copy / name, results_of(runs["finished"]))


def try_kill(folder: Path, straight: dict[str, Any], **how: int) -> tuple[str, str]:
    """One run that is killed, and then given again."""
    shutil.rmtree(folder / "case", ignore_errors=True)
    copy = new_folder(folder / "case")
    if (outcome := give_command(copy, **how)).kind != "killed":
        return "NOT KILLED", outcome.said[-300:]
    again = give_command(copy)
    if again.kind != "done":
        return again.kind.upper(), again.said[-600:]
    wrong = differing(straight, results_of(copy))
    return ("bit-equal", "") if not wrong else ("DIFFERENT", ", ".join(wrong))


def kills(folder: Path, number: int) -> Iterator[dict[str, int]]:
    """Four of five at a change of a file, evenly over a run, the others in the middle of writing a file, one of
    the largest."""
    counted = new_folder(folder / "counted")
    changes = int(give_command(counted, kill_at=10**9).said)
    inside = number // 5
    sizes = sorted({path.stat().st_size for path in (counted / "run").rglob("*")})[-inside:]
    for i in range(number - inside):
        yield {"kill_at": 1 + i * (changes - 1) // (number - inside)}
    for i in range(inside):
        yield {"largest": sizes[i % len(sizes)] - 10 * (1 + i // len(sizes))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--flips", type=int, default=2, help="bits of a file, one a case")
    options = parser.parse_args()
    chance, table = random.Random(1), Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = states(folder)
        straight = results_of(runs["finished"])
        for how in kills(folder, options.kills) if options.kills else ():
            ending, about = try_kill(folder, straight, **how)
            table["killed in a write" if "largest" in how else "killed at a change", ending] += 1
            print(how, ending, about, flush=True)
        for case in sampled(list(cases(runs, options.flips)), options.files, chance):
            ending, about = try_file(folder, runs, case, chance)
            table[case[2], ending] += 1
            table[f"state {case[0]}", ending] += 1
            table[f"file {kind_of(case[1])}", ending] += 1
            print(*case, ending, about, flush=True)
    columns = sorted({ending for _, ending in table}, key=lambda ending: (ending.isupper(), ending))
    print("\n| case |", " | ".join(columns), "|\n|---|" + "---|" * len(columns))
    for row in dict.fromkeys(row for row, _ in table):
        print(f"| {row} |", " | ".join(str(table[row, column]) for column in columns), "|")


if __name__ == "__main__":
    main()
