"""Runs the systems of a config file: train, translate, score, diagnose. `run_folder.py` lists the files.

Results that are saved already are reused. An interrupted run therefore continues where it stopped.
"""

import copy
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path

from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import PreTrainedModel, set_seed

from ...convert.folders import load_model_with_head
from ...tokenizer.tokenization_posenc import PosEncTokenizer
from ...transformer.configuration_base import BaseConfig
from ...utils.atomic_io import atomic_write, exclusive_lock, short_hash
from ...utils.manifest import add_to_manifest, save_folder, validate_weights
from ...utils.run_folder import SystemPaths
from ...utils.text_io import JsonObject
from ...utils.worker_processes import explain_out_of_memory
from ..analysis.diagnosis import diagnose
from ..data.tokenization import ExperimentTokenizer, SlowTokenizer
from ..reports.card import is_pushed, push_system, write_card
from ..results.records import ScoredTestSet, SegmentedSystem, SystemScores, TestSetTranslations, TrainingSummary
from ..results.saved_files import read_record, write_record
from ..training.callbacks import JsonLogger
from ..training.checkpoints import last_intact_checkpoint, load_trainer_state
from ..training.distributed import FREE_MEMORY, validate_same_on_all_ranks
from ..training.training_run import train
from .evaluation import score_test_set, score_texts, translate_test_set
from .prepared_run import PreparedRun, PreparedSystem, initial_model, training_config
from .rescoring import save_score_settings

SMALLER_BATCHES = "Or lower score.batch_size in a run of another name (name=NAME)."
MIN_WORDS_FOR_PARALLEL_SCORING = 100_000  # below this number, starting processes takes longer than TER


def run_system(run: PreparedRun, name: str) -> None:
    """Train, translate and score one system, or what is missing of it.

    With several processes, all of them train and translate, and the first one scores.
    """
    system = run.system(name)
    validate_same_on_all_ranks(system.write_times())
    system.validate_prepared()
    with exclusive_lock(system.paths.lock) if PartialState().is_main_process else nullcontext():
        if not is_scored(system):
            train_if_missing(system)
            with explain_out_of_memory(f"A batch of test pairs of {name}", f"{FREE_MEMORY} {SMALLER_BATCHES}"):
                score_system(system)
            if PartialState().is_main_process and not system.settings.is_scored_by(system.paths.settings):
                save_score_settings(system.paths, system.settings.score)
        if PartialState().is_main_process and not is_pushed(system.settings, system.paths):
            push_system(system.training_arguments, system.paths)
    PartialState().wait_for_everyone()


def train_if_missing(system: PreparedSystem) -> None:
    """Train a system that has no model yet. A system without training raises a ValueError if the model it uses is
    missing."""
    if system.settings.segment:
        validate_trained(system)
    elif not system.paths.model.exists():
        train_system(system)
    elif not system.paths.training_log.exists() and PartialState().is_main_process:
        restore_log(system.paths)


def restore_log(paths: SystemPaths) -> None:
    """Restore the log of a trained system from its last checkpoint."""
    if (checkpoint := last_intact_checkpoint(paths.checkpoints)) is None:
        raise ValueError(
            f"A trained system has a log, but {paths.training_log} is missing, and there is no checkpoint to make it "
            f"from; restore it, or delete {paths.folder} and give the same train.py command again, which trains anew."
        )
    JsonLogger(paths.training_log).restore(load_trainer_state(checkpoint))
    add_to_manifest(paths.training_log)


def validate_trained(system: PreparedSystem) -> None:
    """Raise a ValueError if the model that a segmented system translates with is missing."""
    if not system.model_folder.exists():
        trained = system.settings.model_system_name
        raise ValueError(
            f"systems.{system.name} translates with the model of {trained}, but that is not trained; "
            "give the command again, which goes on from where that stopped."
        )


def unfinished_systems(run: PreparedRun) -> list[str]:
    """The names of the systems that are not scored, or not pushed, yet."""
    return [system.name for system in run if not (is_scored(system) and is_pushed(system.settings, system.paths))]


def is_scored(system: PreparedSystem) -> bool:
    """Whether the system is translated, scored by its present settings, and diagnosed. Older versions wrote fewer
    files."""
    settings, paths = system.settings, system.paths
    required = [paths.scores, *map(paths.statistic, settings.test_sets)]
    if not settings.data.is_text:
        required += map(paths.translation, settings.test_sets)
    if not settings.segment:
        required += [paths.training_log, paths.card, *map(paths.diagnosis, system.diagnosed_test_sets)]
    return all(path.exists() for path in required) and settings.is_scored_by(paths.settings)


def score_system(system: PreparedSystem) -> None:
    """Translate and score the test sets. The model's weights are loaded only if a translation or a diagnosis is
    missing."""
    distributed_state = PartialState()

    @cache
    def model() -> PreTrainedModel:
        validate_weights(system.model_folder)
        return load_model_with_head(system.model_folder).to(distributed_state.device)

    tests = test_scores(model, system)
    if tests is None:
        return
    scores = SystemScores(
        tokenizer=short_hash(system.tokenizer.to_str()),
        max_length=system.settings.data.max_length,
        tests=tests,
    )
    if segment := system.settings.segment:
        scores = replace(scores, segment=SegmentedSystem(segment.system, str(segment)))
        write_record(system.paths.scores, scores, indent=1)
        return
    for name in system.diagnosed_test_sets:
        diagnose_test_set(model(), system, name)
    scores = replace(scores, training=read_record(TrainingSummary, system.paths.training_summary))
    write_record(system.paths.scores, scores, indent=1)
    write_card(system.paths.folder.parent, system.name)


def test_scores(model: Callable[[], PreTrainedModel], system: PreparedSystem) -> dict[str, ScoredTestSet] | None:
    """The scores of all test sets, None in other processes than the first. `model()` loads the model."""
    is_main, is_terminal = PartialState().is_main_process, sys.stderr.isatty()
    if is_main and not is_terminal:
        action = "scoring" if system.settings.data.is_text else "translating and scoring"
        print(f"{system.name}: {action} {', '.join(system.settings.test_sets)}", file=sys.stderr, flush=True)
    if system.settings.data.is_text:
        return score_texts(model(), system) if is_main else None
    segment = system.settings.segment
    overlap_words = segment.overlap_words if segment else 0
    translations = {
        name: translate_test_set(
            model, system.tokenizer, test_set.segments, system.settings.score,
            system.paths.translation(name), target_tag=test_set.target_tag, overlap_words=overlap_words,
            progress=is_main and is_terminal, description=f"{system.name}: {name}",
        )
        for name, test_set in system.test_sets.items()
    }  # fmt: skip
    return score_test_sets(system, translations) if is_main else None


def score_test_sets(
    system: PreparedSystem, translations: Mapping[str, TestSetTranslations]
) -> dict[str, ScoredTestSet]:
    """The scores of the `translations` of each test set."""
    cores = max(1, (os.cpu_count() or 1) // system.run.experiment.num_parallel)
    scores = {}
    with tqdm(
        total=sum(len(test_set.pairs) for test_set in system.test_sets.values()),
        desc=f"{system.name}: scoring", unit="pair", leave=False,
        disable=not sys.stderr.isatty(),
    ) as progress_bar:  # fmt: skip
        for name in system.test_sets:
            num_words = sum(len(text.split()) for text in translations[name].texts)
            num_proc = cores if num_words >= MIN_WORDS_FOR_PARALLEL_SCORING else 1
            scores[name] = score_test_set(system, name, translations[name], num_proc, progress_bar.update)
    return scores


def diagnose_test_set(model: PreTrainedModel, system: PreparedSystem, name: str) -> None:
    """Write the diagnosis of a system on one test set."""
    data = system.settings.data
    diagnosis = diagnose(
        model,
        system.tokenizer,
        system.test_sets[name].tagged_pairs,
        source_language=data.source_language,
        target_language=data.target_language,
        edges=system.settings.score.bucket_edges,
        max_new_tokens=system.settings.score.max_new_tokens,
        batch_size=system.settings.score.batch_size,
        progress=sys.stderr.isatty(),
        description=f"{system.name}: diagnosing {name}",
    )
    write_record(system.paths.diagnosis(name), diagnosis)


def train_system(system: PreparedSystem) -> None:
    """Train one system and save its model with tokenizer and generation config."""
    settings, tokenizer, paths = system.settings, system.tokenizer, system.paths
    pairs, validation = system.training_pairs, system.validation_pairs
    config = training_config(system)
    set_seed(settings.train.get("seed", 42))
    model = initial_model(system, config)
    if settings.train.get("max_steps") == 0:
        trained, outcome = without_training(model, paths)
    else:
        trained, outcome = train(
            model,
            tokenizer,
            pairs,
            validation,
            system.training_arguments,
            JsonLogger(paths.training_log),
            name=system.name,
            references=system.validation_references,
            bleu_tokenize=settings.score.bleu_tokenize,
            is_text=settings.data.is_text,
        )
    summary = TrainingSummary(**outcome, parameters=trained.num_parameters(), pairs=len(pairs))
    if not settings.data.is_text:
        trained.generation_config.update(num_beams=settings.score.num_beams)  # the class has the maximum length

    def save(temp_path: Path) -> None:
        trained.save_pretrained(temp_path)
        prompting_tokenizer(tokenizer, config, is_text=settings.data.is_text).save_pretrained(temp_path)
        write_record(temp_path / paths.training_summary.name, summary, indent=1)

    if PartialState().is_main_process:
        add_to_manifest(paths.training_log)
        save_folder(paths.model, save)
    PartialState().wait_for_everyone()


def prompting_tokenizer(tokenizer: ExperimentTokenizer, config: BaseConfig, *, is_text: bool) -> ExperimentTokenizer:
    """The tokenizer to save with a model. For a decoder-only one it pads on the left, where a batch of prompts ends,
    and reads special tokens in a text. If the model is of plain text, a prompt is the beginning of a document. Its
    `model_max_length` is that of an encoding's table."""
    if config.is_encoder_decoder:
        return tokenizer
    if isinstance(tokenizer, PosEncTokenizer):
        tokenizer = tokenizer.for_prompts() if is_text else tokenizer.as_reader()
    else:
        tokenizer = copy.deepcopy(tokenizer)
    saved = tokenizer.wrapped if isinstance(tokenizer, SlowTokenizer) else tokenizer
    saved.padding_side = saved.init_kwargs["padding_side"] = "left"  # transformers saves the latter
    if config.max_sequence_length is not None:
        saved.model_max_length = config.max_sequence_length
    return tokenizer


def without_training(model: PreTrainedModel, paths: SystemPaths) -> tuple[PreTrainedModel, JsonObject]:
    """The initial model as the outcome of 0 steps, with a training log of one line."""
    if PartialState().is_main_process:
        paths.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(paths.training_log, '{"step": 0, "seconds": 0.0}\n')
    return model, {"steps": 0, "seconds": 0.0, "processes": PartialState().num_processes}
