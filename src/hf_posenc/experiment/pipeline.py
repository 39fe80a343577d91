"""Runs the systems of a config file: train, translate, score, diagnose. `run_folder.py` lists the files.

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

from ..analysis.teacher_forced import diagnose
from ..config.settings import Experiment, System
from ..data.lengths import lengths
from ..data.tags import corpus_tags, prepend_tags
from ..modeling.configuration_posenc import PosEncConfig
from ..modeling.configuration_shared import SharedConfig
from ..modeling.tokenization_posenc import PosEncTokenizer
from ..reporting.card import write_card
from ..reporting.hub import is_pushed, push_system
from ..training.callbacks import JsonLogger
from ..training.checkpoints import last_intact_checkpoint, load_trainer_state, validate_weights
from ..training.distributed import explain_out_of_memory, validate_same_on_all_ranks
from ..training.trainer import train
from ..utils.atomic_io import exclusive_lock, short_hash
from ..utils.auto_loading import auto_from_pretrained
from ..utils.manifest import add_to_manifest, explain_read_errors, save_folder, write_file
from ..utils.run_folder import SystemPaths
from .evaluation import score_test_set, translate_test_set
from .initialization import initial_model
from .preparation import (
    languages,
    load_shared_tokenizer,
    settings_difference,
    source_segments,
    test_set,
    training_pairs,
    validation_pairs,
    validation_references,
)

SMALLER_BATCHES = "Or lower score.batch_size in a run of another name (name=NAME)."
MIN_WORDS_FOR_PARALLEL_SCORING = 100_000  # translated words, whose TER takes longer than a process to start


def run_system(experiment: Experiment, name: str, progress_position: int = 0) -> None:
    """Train, translate and score one system, from wherever it stands; `progress_position` is the line of its
    progress bar.

    Under several processes all of them train and translate, each its share, and the first one scores.
    """
    if (system := experiment.systems.get(name)) is None:
        raise ValueError(f"There is no system {name!r} in this config; choose from {', '.join(experiment.systems)}.")
    paths = experiment.paths.system(name)
    outputs = (paths.settings, paths.model, paths.scores, paths.push_record)
    validate_same_on_all_ranks({f"{name}/{output.name}": describe_write_time(output) for output in outputs})
    if not paths.settings.exists():
        raise ValueError(
            f"A system goes on where its run has been prepared, but {experiment.folder} has not been for {name!r}; "
            "give the command without --system, which prepares the run and trains what is missing."
        )
    if difference := settings_difference(experiment, system):
        raise ValueError(
            f"{paths.folder} was prepared with other settings, by which {difference}; undo the change, or give the "
            "command without --system, which prepares the run anew."
        )
    with exclusive_lock(paths.lock) if PartialState().is_main_process else nullcontext():
        if not is_scored(experiment, system):
            tokenizer = load_shared_tokenizer(experiment)
            if system.split:
                validate_trained(experiment, system)
            elif not paths.model.exists():
                train_system(experiment, system, tokenizer, progress_position)
            elif not paths.training_log.exists() and PartialState().is_main_process:
                restore_log(paths)
            with explain_out_of_memory(f"A batch of test pairs of {name}", SMALLER_BATCHES):
                score_system(experiment, system, tokenizer, progress_position)
        if PartialState().is_main_process and not is_pushed(experiment, system):
            push_system(experiment, system)
    PartialState().wait_for_everyone()


def restore_log(paths: SystemPaths) -> None:
    """Write the log of a trained system again, from its last checkpoint."""
    if (checkpoint := last_intact_checkpoint(paths.checkpoints)) is None:
        raise ValueError(
            f"A trained system has a log, but {paths.training_log} is missing, and there is no checkpoint to make it "
            f"from; restore it, or delete {paths.folder} and give the same train.py command again, which trains anew."
        )
    JsonLogger(paths.training_log).restore(load_trainer_state(checkpoint))
    add_to_manifest(paths.training_log)


def validate_trained(experiment: Experiment, system: System) -> None:
    """A ValueError if there is no model yet for a system that trains none."""
    if not experiment.paths.system(system.model_system_name).model.exists():
        raise ValueError(
            f"systems.{system.name} translates with the model of {system.model_system_name}, but that is not trained; "
            "give the command again, which goes on from where that stopped."
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
    paths = experiment.paths.system(system.name)
    required = [paths.scores, *map(paths.statistic, system.test_sets), *map(paths.translation, system.test_sets)]
    if not system.split:
        diagnosed_tests = system.test_sets if experiment.diagnose else ()
        required += [paths.training_log, paths.card, *map(paths.diagnosis, diagnosed_tests)]
    return all(path.exists() for path in required)


def score_system(experiment: Experiment, system: System, tokenizer: PosEncTokenizer, progress_position: int) -> None:
    """Translate and score the test sets with the saved model of a system, whose weights only a translation needs."""
    paths = experiment.paths.system(system.name)
    trained_folder = experiment.paths.system(system.model_system_name).model
    distributed_state = PartialState()

    @cache
    def model() -> Any:
        validate_weights(trained_folder)
        return auto_from_pretrained(AutoModelForSeq2SeqLM, trained_folder).to(distributed_state.device)

    tests = {name: test_set(experiment, system, name, tokenizer) for name in system.test_sets}
    translations = {
        name: translate_test_set(
            model, tokenizer, source_segments(experiment, system, name, tokenizer), system,
            paths.translation(name), target_tag=corpus_tags(system.test_sets[name][0])[1],
            progress=distributed_state.is_main_process, description=f"{system.name}: {name}",
            progress_position=progress_position,
        )
        for name in tests
    }  # fmt: skip
    if not distributed_state.is_main_process:
        return
    scores = score_test_sets(experiment, system, translations, tests, progress_position)
    vocabulary = short_hash(tokenizer.to_str())
    result = {"tokenizer": vocabulary, "max_length": system.data.max_length, "tests": scores}
    if system.split:
        write_file(paths.scores, json.dumps(result | {"split": asdict(system.split)}, indent=1))
        return
    for name, test in tests.items() if experiment.diagnose else ():
        tagged_pairs = prepend_tags(test, corpus_tags(system.test_sets[name][0]), **languages(system))
        diagnose_test_set(model(), tokenizer, tagged_pairs, system, paths.diagnosis(name), progress_position)
    with explain_read_errors(path := paths.training_summary):
        summary = json.loads(path.read_text(encoding="utf-8"))
    write_file(paths.scores, json.dumps(result | {"training": summary}, indent=1))
    write_card(experiment.folder, system.name)


def score_test_sets(
    experiment: Experiment,
    system: System,
    translations: dict[str, Any],
    tests: dict[str, Dataset],
    progress_position: int,
) -> dict[str, Any]:
    """The scores of the `translations` of each test set."""
    cores, pairs = max(1, (os.cpu_count() or 1) // experiment.jobs), sum(map(len, tests.values()))
    with tqdm(
        total=pairs, desc=f"{system.name}: scoring", unit="pair", position=progress_position, leave=False
    ) as progress_bar:
        return {
            name: score_test_set(
                translations[name],
                test,
                system.data.target_language,
                system.score,
                experiment.paths.system(system.name).statistic(name),
                num_proc=cores
                if sum(len(text.split()) for text in translations[name]["text"]) >= MIN_WORDS_FOR_PARALLEL_SCORING
                else 1,
                progress=progress_bar.update,
            )
            for name, test in tests.items()
        }


def diagnose_test_set(
    model: Any, tokenizer: PosEncTokenizer, test: Dataset, system: System, path: Path, progress_position: int
) -> None:
    """Write the diagnosis of a system on one test set."""
    diagnosis = diagnose(
        model,
        tokenizer,
        test,
        source_language=system.data.source_language,
        target_language=system.data.target_language,
        edges=system.score.edges,
        training_limit=system.data.max_length,
        progress=True,
        description=f"{system.name}: diagnosing {path.stem}",
        progress_position=progress_position,
    )
    write_file(path, json.dumps(diagnosis))


def train_system(experiment: Experiment, system: System, tokenizer: PosEncTokenizer, progress_position: int) -> None:
    """Train one system and save it, ready to be loaded and to translate."""
    paths = experiment.paths.system(system.name)
    pairs = training_pairs(experiment, system, tokenizer)
    validation = validation_pairs(experiment, system, tokenizer)
    set_seed(system.train.get("seed", 42))
    model = initial_model(experiment, system, training_config(system, tokenizer, pairs))
    options: dict[str, Any] = {
        "name": system.name,
        "progress_position": progress_position,
        "bleu_tokenize": system.score.bleu_tokenize,
    }
    options["references"] = validation_references(system)
    trained, summary = train(model, tokenizer, pairs, validation, system.train, paths.folder, **options)
    summary |= {"parameters": trained.num_parameters(), "pairs": len(pairs)}
    trained.generation_config.update(num_beams=system.score.num_beams)  # its class says how long

    def save(temp_path: Path) -> None:
        trained.save_pretrained(temp_path)
        tokenizer.save_pretrained(temp_path)
        (temp_path / paths.training_summary.name).write_text(json.dumps(summary, indent=1), encoding="utf-8")

    if PartialState().is_main_process:
        add_to_manifest(paths.training_log)
        save_folder(paths.model, save)
    PartialState().wait_for_everyone()


def training_config(system: System, tokenizer: PosEncTokenizer, pairs: Dataset) -> SharedConfig:
    """The config of the model for that vocabulary; knobs that the config file does not give are measured on `pairs`."""
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": tokenizer.target_vocab_size}
    config_fields = sizes | ids | {"decoder_start_token_id": tokenizer.bos_token_id}
    config = system.model_config(**config_fields)
    if not isinstance(config, PosEncConfig):
        return config
    special = tokenizer.num_special_tokens_to_add()
    estimated = config.alignment.estimate(*((lengths(pairs, side) + special).tolist() for side in ("source", "target")))
    return replace(system, model=estimated | system.model).model_config(**config_fields)


def describe_write_time(path: Path) -> str:
    """When a file was written, to the nanosecond: by this, processes know whether they see the same one."""
    return f"written at {path.stat().st_mtime_ns}" if path.exists() else "missing"
