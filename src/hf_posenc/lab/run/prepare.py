"""Validates the settings of an experiment and builds the files that its systems share, before any training.

All errors of settings, data, vocabulary and lengths are raised here, and those of test and validation sets that share
pairs with the training text. Files that exist are reused.
"""

import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from sys import maxsize

from datasets import Dataset

from ...generation.limits import max_target_lengths
from ...hub.errors import validate_names
from ...transformer.configuration_base import BaseConfig, SharedConfig
from ...transformer.configuration_posenc_causal import PosEncCausalConfig
from ...utils.atomic_io import exclusive_lock
from ...utils.manifest import write_file
from ...utils.run_folder import RunPaths, SystemPaths
from ..config.settings import DataSettings, Experiment, System
from ..config.yaml_io import dump_yaml
from ..data.corpus import rename_languages
from ..data.lengths import lengths
from ..data.overlap import MIN_WORDS, Overlap, find_overlaps, without_concatenation
from ..data.readers import CorpusSpec, corpus_file_hashes
from ..data.tokenization import text_chunks
from ..reports.card import validate_repositories
from ..results.saved_files import read_json
from ..training.arguments import TrainingArguments, validate_process_wide
from ..training.checkpoints import validate_saved_system
from ..training.training_run import trainer_class
from .corpora import corpus_hash, read_pairs
from .prepared_run import (
    PreparedRun,
    PreparedSystem,
    build_meta_model,
    system_arguments,
    training_config,
    validate_init_checkpoint,
    warn_of_untrained_distances,
)
from .shared_tokenizer import build_shared_tokenizer, task_pairs


def prepare(experiment: Experiment) -> PreparedRun:
    """Validate an experiment and build its shared files."""
    validate_before_reading(experiment)
    overlap_warnings = validate_no_contamination(experiment.systems.values(), experiment.paths)
    with exclusive_lock(experiment.paths.lock, blocking=True):
        for path, warnings in overlap_warnings.items():
            if not path.exists():
                write_file(path, json.dumps({"warnings": warnings}))
        return build_artifacts(experiment)


def validate_before_reading(experiment: Experiment) -> None:
    """Validate settings and saved files, before a corpus is read."""
    systems = list(experiment.systems.values())
    arguments = validated_arguments(systems, experiment.paths)
    for system in systems:
        paths = experiment.paths.system(system.name)
        validate_unchanged_settings(system, paths)
        validate_saved_system(paths.folder)
    warn_of_untrained_distances(systems)
    validate_repositories(arguments)


def validated_arguments(systems: Iterable[System], paths: RunPaths) -> dict[str, TrainingArguments]:
    """The Trainer's arguments of each system. A ValueError if arguments contradict each other or the model."""
    systems = list(systems)
    validate_process_wide({system.name: system.train for system in systems})
    arguments = {}
    for system in systems:
        args = system_arguments(system, paths.system(system.name))
        model = build_meta_model(system)
        if args.lora_rank is not None and system.init_from is None:
            raise ValueError(
                f"systems.{system.name}: train.lora_rank is for a trained model, but there is no init_from; name a "
                "checkpoint there, or leave train.lora_rank out."
            )
        if args.gradient_checkpointing and not model.supports_gradient_checkpointing:
            raise ValueError(
                f"systems.{system.name}: train.gradient_checkpointing is for models of layers, but this one is a "
                f"{model.config.model_type}; leave it out."
            )
        arguments[system.name] = args
    return arguments


def validate_unchanged_settings(system: System, paths: SystemPaths) -> None:
    """Refuse a run folder with results of other settings or of other input files."""
    if paths.has_outputs and (difference := system.difference_from(paths.settings)):
        raise ValueError(
            f"A run folder keeps the settings and files of its results, but in {paths.folder} {difference}; give the "
            "new run another name (name=...), undo the change, or delete the folder."
        )


def build_artifacts(experiment: Experiment) -> PreparedRun:
    """Build tokenizer, encoded pairs and test sets, and record the settings that they are made from."""
    first_system, *_ = experiment.systems.values()
    build_shared_tokenizer(experiment.paths, first_system)
    run = PreparedRun(experiment)
    for system in run:
        build_datasets(system)
    for system in run:
        save_settings(system)
    return run


def build_datasets(system: PreparedSystem) -> None:
    """Build the datasets of a system, and refuse pairs that the system cannot be trained or tested on."""
    if system.settings.segment:
        validate_segments(system)
        return
    if not (system.settings.is_encoder_decoder or system.tokenizer.shares_vocabulary):
        raise ValueError(
            f"systems.{system.name}: a decoder-only model reads source and target with one vocabulary, but "
            "data.tokenizer has two; choose another."
        )
    if system.settings.data.is_text:
        build_blocks(system)
        validate_batches(system)
        return
    tests = [test_set.pairs for test_set in system.test_sets.values()]
    validation = system.validation_pairs
    encoded = [system.training_pairs] if validation is None else [system.training_pairs, validation]
    validate_init_checkpoint(system)
    validate_lengths(system.settings, encoded, tests)
    validate_answer_lengths(system)
    training_config(system)
    validate_batches(system)


def validate_batches(system: PreparedSystem) -> None:
    """Refuse, before training, arguments that leave no batches of the training pairs."""
    settings, args, pairs = system.settings, system.training_arguments, system.training_pairs
    if args.max_steps == 0:
        return
    trainer = trainer_class(is_encoder_decoder=settings.is_encoder_decoder, is_text=settings.data.is_text)
    try:
        num_special_tokens, batch_size = system.tokenizer.num_special_tokens_to_add(), args.train_batch_size
        trainer.batch_sampler(args, pairs, num_special_tokens, batch_size, num_ranks=args.world_size)
    except ValueError as error:
        raise ValueError(f"systems.{system.name}: {error}") from None


def build_blocks(system: PreparedSystem) -> None:
    """Build the blocks of plain text. A ValueError for blocks of several documents before a recurrent layer."""
    blocks = [system.training_pairs, *([] if system.validation_pairs is None else [system.validation_pairs])]
    for test in system.settings.data.test:
        system.test_windows(test)
    config = system.settings.model_config(system.settings.data.vocab_size)
    bos = system.tokenizer.bos_token_id
    if config.decoder_is_sequential and any(has_several_documents(part, bos) for part in blocks):
        raise ValueError(
            f"systems.{system.name}: {config.side('decoder').encoding} has a recurrent layer, which reads over the end "
            "of a document, but blocks of data.train or data.validation hold several documents; give each as one file "
            "without empty lines, or choose another encoding."
        )


def has_several_documents(blocks: Dataset, bos_token_id: int) -> bool:
    """Whether a document begins after the first token of a block."""
    return any(bos_token_id in ids[1:] for ids in blocks["input_ids"])


def save_settings(system: PreparedSystem) -> None:
    """Save the settings of a system in its folder, unless results of the saved settings exist."""
    path = system.paths.settings
    settings = dump_yaml(system.settings.fingerprint())
    # Do not rewrite an equal file: another process may be reading it.
    is_saved = path.exists() and path.read_text(encoding="utf-8") == settings
    if not (system.paths.has_outputs or is_saved):
        write_file(path, settings)


def validate_lengths(system: System, encoded: list[Dataset], tests: list[Dataset]) -> None:
    """Refuse, before training, pairs that are longer than the maximum length of an encoding."""
    config = system.model_config(system.data.vocab_size)
    if isinstance(config, PosEncCausalConfig):
        validate_sequence_lengths(system.name, encoded, tests, config.max_sequence_length)
        return
    assert isinstance(config, SharedConfig)
    sources = max(lengths(pairs, "source").max() for pairs in [*encoded, *tests])
    targets = max(lengths(pairs, "target").max() for pairs in encoded)
    for side, length, max_positions in (
        ("source", sources, config.max_source_length),
        ("target", targets, config.max_target_length),
    ):
        if max_positions is not None and length + 1 > max_positions:
            raise ValueError(
                f"systems.{system.name}: its encoding has {max_positions} positions, but a {side} has {length} "
                "subwords and a special token; raise its table (such as model.learned_max_positions), lower "
                "data.max_length, or choose another test set."
            )


def validate_sequence_lengths(name: str, encoded: list[Dataset], tests: list[Dataset], max_length: int | None) -> None:
    """Refuse training pairs, both sides together, and test sources that exceed the maximum length of an encoding."""
    pair = max(int((lengths(pairs, "source") + lengths(pairs, "target")).max()) for pairs in encoded)
    source = max(int(lengths(pairs, "source").max()) for pairs in tests)
    for what, length in (("a pair", pair + 2), ("a test source, with one token of its answer,", source + 2)):
        if max_length is not None and length > max_length:
            raise ValueError(
                f"systems.{name}: its encoding has {max_length} positions, but {what} has {length} tokens, "
                "special ones included; raise its table (such as model.learned_max_positions), lower data.max_length, "
                "or choose another test set."
            )


def validate_answer_lengths(system: PreparedSystem) -> None:
    """Refuse a limit of scoring that a right answer of a task reaches: one that never ends would count as right."""
    settings = system.settings
    languages = settings.data.source_language, settings.data.target_language
    config = settings.model_config(settings.data.vocab_size)
    for name, test_set in system.test_sets.items():
        if next(task_pairs(test_set.corpus_spec), None) is None:
            continue
        for row in test_set.pairs["translation"]:
            source, target = (len(row[language].split()) for language in languages)
            (default,) = max_target_lengths([source + 1], None)
            limit = min(settings.score.max_new_tokens or default, num_answer_positions(config, source))
            if target >= limit:
                raise ValueError(
                    f"systems.{system.name}: the limit of scoring must be longer than each answer, but test set {name} "
                    f"has an answer of {target} symbols, and the limit is {limit} tokens; raise score.max_new_tokens, "
                    "and the table of the encoding, if it has one (such as model.learned_max_positions)."
                )


def num_answer_positions(config: BaseConfig, num_symbols: int) -> int:
    """How many tokens of an answer, without `</s>`, the encoding has positions for after so many symbols of input."""
    if isinstance(config, PosEncCausalConfig):
        return (config.max_sequence_length or maxsize) - num_symbols - 2  # after each side `</s>`
    assert isinstance(config, SharedConfig)
    return (config.max_target_length or maxsize) - 1  # the start token, which `</s>` has no position after


def validate_segments(system: PreparedSystem) -> None:
    """Refuse a segmented system if no source has two segments: it would repeat another system's translations."""
    segment = system.settings.segment
    all_segments = [segments for test_set in system.test_sets.values() for segments in test_set.segments]
    if segment and all(len(segments) <= 1 for segments in all_segments):
        raise ValueError(
            f"systems.{system.name}: segment is for long inputs, but with segmentation: {segment} "
            f"no source of {', '.join(system.test_sets)} has two segments; concatenate some, such as by "
            "score.concatenate=[1, 2], use segmentation: automatic, or leave the system out."
        )


MAX_ONE_SIDED_SHARE = 0.01
logger = logging.getLogger(__name__)


def validate_no_contamination(systems: Iterable[System], paths: RunPaths) -> dict[Path, list[str]]:
    """Raise a ValueError with the number of shared pairs of each held-out set that shares too many.

    Pairs are compared as they were before concatenation. No pair may occur in the training text. At most
    MAX_ONE_SIDED_SHARE of the pairs may have a source or a target of MIN_WORDS words or more in it. A set in
    `data.allow_overlap` may have more. Overlap that is tolerated or allowed is logged.

    Returns the warnings, by the file that keeps those of a training text and its held-out sets. Kept warnings are read
    again.
    """
    contaminated: dict[str, str] = {}
    warnings: dict[Path, list[str]] = {}
    for system in systems:
        data, held_out = system.data, held_out_sets(system.data)
        validate_names(data.allow_overlap, held_out, f"systems.{system.name}: data.allow_overlap")
        path = overlap_record(paths, data, held_out)
        if system.segment or path in warnings:
            continue
        if path.exists():
            warnings[path] = list(map(str, read_json(path)["warnings"]))
            continue
        warnings[path] = []
        for name, (overlap, num_pairs) in overlaps_with_training(data, held_out).items():
            description = describe_overlap(overlap, num_pairs, data)
            if description is None:
                continue
            if name in data.allow_overlap:
                warnings[path].append(f"{name}: {description}, as data.allow_overlap allows")
            elif overlap.pairs or len(overlap.one_sided) > MAX_ONE_SIDED_SHARE * num_pairs:
                contaminated[name] = description
            else:
                warnings[path].append(f"{name}: {description}, which is too few to matter")
    for warning in dict.fromkeys(chain.from_iterable(warnings.values())):
        logger.warning("%s", warning)
    if contaminated:
        raise ValueError(
            "What is trained on must not be tested on, but of "
            + "; of ".join(f"{name} {description}" for name, description in contaminated.items())
            + ". Leave them out of data.train or choose another set; or, where it is no matter, such as of greetings, "
            f"allow it: data.allow_overlap=[{', '.join(contaminated)}]."
        )
    return warnings


def held_out_sets(data: DataSettings) -> dict[str, CorpusSpec]:
    return ({"validation": data.validation} if data.validation else {}) | data.test


def overlap_record(paths: RunPaths, data: DataSettings, held_out: Mapping[str, CorpusSpec]) -> Path:
    """The file that keeps the warnings. Its name has a hash of all that the overlap depends on."""
    files = [corpus_file_hashes(corpus_spec, data.data_dir) for corpus_spec in held_out.values()]
    settings = [data.normalize, data.tags, data.allow_overlap, MIN_WORDS, MAX_ONE_SIDED_SHARE]
    return paths.overlap(corpus_hash(data, data.train, [held_out, files, settings]))


def overlaps_with_training(data: DataSettings, corpora: Mapping[str, CorpusSpec]) -> dict[str, tuple[Overlap, int]]:
    """The overlap of each held-out corpus with the training text, which is read once, and the number of its pairs."""
    if data.is_text:
        return text_overlaps(data, corpora)
    held_out = {name: read_pairs(data, without_concatenation(spec)) for name, spec in corpora.items()}
    trained_on = read_pairs(data, without_concatenation(data.train))
    overlaps = find_overlaps(trained_on, held_out)
    if data.tags:  # or the pairs may occur in the other direction
        names = (data.source_language, data.target_language)
        for name, other in find_overlaps(rename_languages(trained_on, names, names[::-1]), held_out).items():
            if (len(other.pairs), len(other.one_sided)) > (len(overlaps[name].pairs), len(overlaps[name].one_sided)):
                overlaps[name] = other
    return {name: (overlaps[name], len(pairs)) for name, pairs in held_out.items()}


def text_overlaps(data: DataSettings, corpora: Mapping[str, CorpusSpec]) -> dict[str, tuple[Overlap, int]]:
    """The runs of lines of each held-out text that occur in the training text, and the number of all its lines that
    are not blank. Case and surrounding whitespace are ignored."""
    held_out = {name: list(normalized_lines(corpus_spec, data.data_dir)) for name, corpus_spec in corpora.items()}
    runs = {name: list(runs_of_lines(lines)) for name, lines in held_out.items()}
    shared_runs = set().union(*runs.values()).intersection(runs_of_lines(normalized_lines(data.train, data.data_dir)))
    found = {}
    for name, lines in held_out.items():
        shared = [{data.source_language: run} for run in runs[name] if run in shared_runs]
        found[name] = (Overlap([], shared), len(lines))
    return found


def runs_of_lines(lines: Iterable[str]) -> Iterator[str]:
    """From each line on, the shortest run of lines with MIN_WORDS words: of verse and subtitles, one line is too
    short to tell where it comes from."""
    run: deque[str] = deque()
    for line in lines:
        run.append(line)
        while len(words := " ".join(run).split()) >= MIN_WORDS:
            yield " ".join(words)
            run.popleft()


def normalized_lines(corpus_spec: CorpusSpec, folder: str | None) -> Iterator[str]:
    """The lines of a plain text that are not blank, in lower case and without surrounding whitespace."""
    for chunk in text_chunks(corpus_spec, folder):
        yield from (line.strip().lower() for line in chunk.split("\n"))


def describe_overlap(overlap: Overlap, num_pairs: int, data: DataSettings) -> str | None:
    """The number of pairs that occur in the training text, whole or by one side, with an example; None without any. Of
    a plain text, the number of lines."""
    language = data.source_language
    one_sided = f"pairs have a source or a target of {MIN_WORDS} words or more in the training text"
    if data.is_text:
        one_sided = f"lines begin {MIN_WORDS} words or more that stand in the training text"
    kinds = {"pairs stand in the training text": overlap.pairs, one_sided: overlap.one_sided}
    descriptions = []
    for kind, rows in kinds.items():
        if rows:
            example = max((row[language] for row in rows), key=len)
            descriptions.append(f"{len(rows)} of {num_pairs} {kind}, such as {example[:80]!r}")
    return ", and ".join(descriptions) or None
