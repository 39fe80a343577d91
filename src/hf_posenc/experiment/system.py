"""A config file's systems -> runs/<name>/<system>/: trained, translated and scored.

    runs/<name>/tokenizer/                  trained on the unfiltered training text, shared by all systems
    runs/<name>/data/                       encoded training and validation pairs, test sets with their source lengths
    runs/<name>/<system>/settings.yaml      everything that makes the system
                         .lock              held by the process that is at work here
                         checkpoints/       the Trainer's
                         training.jsonl     loss by step and by seconds
                         model/             weights, config, code and tokenizer: load it with from_pretrained
                         translations/      one file for each test set, and one with the time that it took
                         statistics/        sentence by sentence, what scores and comparisons are made of
                         diagnostics/       loss by position, attention, places (diagnostics.py)
                         scores.json        the result; made anew where one of the files above is missing
                         model/README.md    the model card, made of all this
                         pushed.json        with train.push_to_hub: the repository, and the commit that has the card
    runs/<name>/<split system>/             settings, translations, statistics and scores; the model is another system's
    runs/<name>/results.json, tables, figures: results/collecting.py and publish/report.py

Whatever is there already and belongs to the same settings is used as it is, so an interrupted run goes on where it was.
"""

import json
import os
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, set_seed

from ..config.settings import Experiment, System
from ..data import lengths
from ..data.tags import tagged, tags_of
from ..from_checkpoint import from_checkpoint
from ..manifest import list_file, readable, save_folder, write_file
from ..modeling.configuration_posenc import PosEncConfig
from ..modeling.configuration_shared import SharedConfig
from ..modeling.tokenization_posenc import PosEncTokenizer
from ..publish.card import write_card
from ..publish.hub import is_pushed, push_system
from ..training.callbacks import LossLog
from ..training.checkpoints import check_weights, last_whole_checkpoint, state_of
from ..training.processes import explain_out_of_memory, refuse_unlike_processes
from ..training.trainer import train
from ..whole_files import LOCK, alone, short_hash
from .diagnostics import diagnose
from .evaluation import score_test_set, translate_test_set
from .preparation import (
    difference_from_run,
    languages,
    settings_path,
    shared_tokenizer,
    sources,
    test_set,
    training_pairs,
    validation_pairs,
    validation_references,
)
from .starting import first_model

SMALLER_BATCHES = "Or lower score.batch_size in a run of another name (name=NAME)."
LOG = "training.jsonl"
WORTH_PROCESSES = 100_000  # translated words, whose TER takes longer than a process to start


def run_system(experiment: Experiment, name: str, bar: int = 0) -> None:
    """Train, translate and score one system, from wherever it stands; `bar` is the line of its progress bar.

    Under several processes all of them train and translate, each its share, and the first one scores.
    """
    if (system := experiment.systems.get(name)) is None:
        raise ValueError(f"There is no system {name!r} in this config; choose from {', '.join(experiment.systems)}.")
    folder = experiment.folder / name
    steps = ("settings.yaml", "model", "scores.json", "pushed.json")
    refuse_unlike_processes({f"{name}/{step}": when_written(folder / step) for step in steps})
    if not settings_path(experiment, system).exists():
        raise ValueError(
            f"A system goes on where its run has been prepared, but {experiment.folder} has not been for {name!r}; "
            "give the command without --system, which prepares the run and trains what is missing."
        )
    if difference := difference_from_run(experiment, system):
        raise ValueError(
            f"{folder} was prepared with other settings, by which {difference}; undo the change, or give the command "
            "without --system, which prepares the run anew."
        )
    with alone(folder / LOCK) if PartialState().is_main_process else nullcontext():
        if not is_scored(experiment, system):
            tokenizer = shared_tokenizer(experiment)
            if system.split:
                refuse_untrained(experiment, system)
            elif not (folder / "model").exists():
                train_system(experiment, system, tokenizer, bar)
            elif not (folder / LOG).exists() and PartialState().is_main_process:
                restore_log(folder)
            with explain_out_of_memory(f"A batch of test pairs of {name}", SMALLER_BATCHES):
                score_system(experiment, system, tokenizer, bar)
        if PartialState().is_main_process and not is_pushed(experiment, system):
            push_system(experiment, system)
    PartialState().wait_for_everyone()


def restore_log(folder: Path) -> None:
    """Write the log of a trained system again, from its last checkpoint."""
    if (checkpoint := last_whole_checkpoint(folder / "checkpoints")) is None:
        raise ValueError(
            f"A trained system has a log, but {folder / LOG} is missing, and there is no checkpoint to make it from; "
            f"restore it, or delete {folder} and give the same train.py command again, which trains anew."
        )
    LossLog(folder / LOG).restore(state_of(checkpoint))
    list_file(folder / LOG)


def refuse_untrained(experiment: Experiment, system: System) -> None:
    """A ValueError if there is no model yet for a system that trains none."""
    if not (experiment.folder / system.trained_as / "model").exists():
        raise ValueError(
            f"systems.{system.name} translates with the model of {system.trained_as}, but that is not trained; give "
            "the command again, which goes on from where that stopped."
        )


def unfinished_systems(experiment: Experiment) -> list[str]:
    """The systems for which `run_system` has something to do."""
    return [
        name
        for name, system in experiment.systems.items()
        if not (is_scored(experiment, system) and is_pushed(experiment, system))
    ]


def is_scored(experiment: Experiment, system: System) -> bool:
    """Whether there is nothing left to translate, score or look into; where an older version has scored, there is."""
    folder = experiment.folder / system.name
    each = ("statistics/{}.npz", "translations/{}.jsonl")
    parts = ["scores.json", *(part.format(test) for part in each for test in system.test_sets)]
    if not system.split:
        looked_into = system.test_sets if experiment.diagnose else ()
        parts += [LOG, "model/README.md", *(f"diagnostics/{test}.json" for test in looked_into)]
    return all((folder / part).exists() for part in parts)


def score_system(experiment: Experiment, system: System, tokenizer: PosEncTokenizer, bar: int) -> None:
    """Translate and score the test sets with the saved model of a system, whose weights only a translation needs."""
    folder, trained = experiment.folder / system.name, experiment.folder / system.trained_as / "model"
    processes = PartialState()

    @cache
    def model() -> Any:
        check_weights(trained)
        return from_checkpoint(AutoModelForSeq2SeqLM, trained).to(processes.device)

    tests = {name: test_set(experiment, system, name, tokenizer) for name in system.test_sets}
    made = {
        name: translate_test_set(
            model, tokenizer, sources(experiment, system, name, tokenizer), system,
            folder / "translations" / f"{name}.jsonl", target_tag=tags_of(system.test_sets[name][0])[1],
            progress=processes.is_main_process, description=f"{system.name}: {name}", bar=bar,
        )
        for name in tests
    }  # fmt: skip
    if not processes.is_main_process:
        return
    scores = score_test_sets(experiment, system, made, tests, bar)
    vocabulary = short_hash(tokenizer.to_str())
    result = {"tokenizer": vocabulary, "max_length": system.data.max_length, "tests": scores}
    if system.split:
        write_file(folder / "scores.json", json.dumps(result | {"split": asdict(system.split)}, indent=1))
        return
    for name, test in tests.items() if experiment.diagnose else ():
        read = tagged(test, tags_of(system.test_sets[name][0]), **languages(system))
        diagnose_test_set(model(), tokenizer, read, system, folder / "diagnostics" / f"{name}.json", bar)
    with readable(path := folder / "model" / "training.json"):
        facts = json.loads(path.read_text(encoding="utf-8"))
    write_file(folder / "scores.json", json.dumps(result | {"training": facts}, indent=1))
    write_card(experiment.folder, system.name)


def score_test_sets(
    experiment: Experiment, system: System, made: dict[str, Any], tests: dict[str, Dataset], bar: int
) -> dict[str, Any]:
    """The scores of the translations `made` of each test set."""
    cores, pairs = max(1, (os.cpu_count() or 1) // experiment.jobs), sum(map(len, tests.values()))
    with tqdm(total=pairs, desc=f"{system.name}: scoring", unit="pair", position=bar, leave=False) as scoring:
        return {
            name: score_test_set(
                made[name],
                test,
                system.data.target_language,
                system.score,
                experiment.folder / system.name / "statistics" / f"{name}.npz",
                num_proc=cores if sum(len(text.split()) for text in made[name]["text"]) >= WORTH_PROCESSES else 1,
                progress=scoring.update,
            )
            for name, test in tests.items()
        }


def diagnose_test_set(
    model: Any, tokenizer: PosEncTokenizer, test: Dataset, system: System, path: Path, bar: int
) -> None:
    """Write the diagnosis of a system on one test set."""
    found = diagnose(
        model,
        tokenizer,
        test,
        source_language=system.data.source_language,
        target_language=system.data.target_language,
        edges=system.score.edges,
        training_limit=system.data.max_length,
        progress=True,
        description=f"{system.name}: diagnosing {path.stem}",
        bar=bar,
    )
    write_file(path, json.dumps(found))


def train_system(experiment: Experiment, system: System, tokenizer: PosEncTokenizer, bar: int) -> None:
    """Train one system and save it, ready to be loaded and to translate."""
    folder = experiment.folder / system.name
    pairs = training_pairs(experiment, system, tokenizer)
    validation = validation_pairs(experiment, system, tokenizer)
    set_seed(system.train.get("seed", 42))
    model = first_model(experiment, system, trained_config(system, tokenizer, pairs))
    how: dict[str, Any] = {"name": system.name, "bar": bar, "bleu_tokenize": system.score.bleu_tokenize}
    how["references"] = validation_references(system)
    trained, facts = train(model, tokenizer, pairs, validation, system.train, folder, **how)
    facts |= {"parameters": trained.num_parameters(), "pairs": len(pairs)}
    trained.generation_config.update(num_beams=system.score.num_beams)  # its class says how long

    def save(unfinished: Path) -> None:
        trained.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        (unfinished / "training.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")

    if PartialState().is_main_process:
        list_file(folder / LOG)
        save_folder(folder / "model", save)
    PartialState().wait_for_everyone()


def trained_config(system: System, tokenizer: PosEncTokenizer, pairs: Dataset) -> SharedConfig:
    """The config of the model for that vocabulary; knobs that the config file does not give are measured on `pairs`."""
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": tokenizer.target_vocab_size}
    facts = sizes | ids | {"decoder_start_token_id": tokenizer.bos_token_id}
    config = system.model_config(**facts)
    if not isinstance(config, PosEncConfig):
        return config
    special = tokenizer.num_special_tokens_to_add()
    measured = config.alignment.measured(*((lengths(pairs, side) + special).tolist() for side in ("source", "target")))
    return replace(system, model=measured | system.model).model_config(**facts)


def when_written(path: Path) -> str:
    """When a file was written, to the nanosecond: by this, processes know whether they see the same one."""
    return f"written at {path.stat().st_mtime_ns}" if path.exists() else "missing"
