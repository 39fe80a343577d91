"""What a run needs before it trains: checked settings, one vocabulary, encoded pairs and test sets, kept in the run.

Everything that can be wrong with them is found here. What is there already is used as it is.
"""

import json
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets, load_from_disk

from ..config.settings import VOCABULARY_KEYS, DataSettings, Experiment, ScoreSettings, Segmentation, System
from ..config.yaml_io import dump_yaml, read_yaml
from ..data.concatenation import concatenate_consecutive
from ..data.corpus import load_pairs
from ..data.lengths import balance_lengths, filter_lengths, lengths, stratified_sample
from ..data.pair_dataset import PROGRESS_BAR_MIN_PAIRS, progress_bars
from ..data.readers import corpus_file_hashes, resolve_name_or_path
from ..data.segmentation import SEGMENT_SEPARATOR, automatic_segments, gold_segments
from ..data.tags import corpus_tags, group_by_tags, prepend_tag, prepend_tags
from ..data.tokenization import tokenize_pairs, train_tokenizer
from ..modeling.tokenization_posenc import PosEncTokenizer
from ..reporting.hub import validate_repositories
from ..training.argument_validation import validate_process_wide
from ..training.arguments import TrainingArguments, training_arguments
from ..training.checkpoints import validate_saved_system
from ..utils.atomic_io import atomic_write, exclusive_lock, first_difference, short_hash
from ..utils.manifest import atomic_delete, explain_read_errors, save_folder, verify_file, verify_folder, write_file
from .contamination import validate_no_contamination
from .initialization import (
    build_meta_model,
    init_file_hashes,
    load_pretrained_tokenizer,
    validate_init_checkpoint,
    warn_of_untrained_distances,
)


def prepare(experiment: Experiment) -> None:
    """Everything that can go wrong before training: settings, data, vocabulary, lengths. Writes what systems share."""
    validated_arguments(experiment)
    for system in experiment.systems.values():
        validate_unchanged_settings(experiment, system)
        validate_saved_system(experiment.paths.system(system.name).folder)
    warn_of_untrained_distances(experiment)
    validate_repositories(experiment)
    validate_no_contamination(experiment)
    with exclusive_lock(experiment.paths.lock, blocking=True):
        build_artifacts(experiment)


def validated_arguments(experiment: Experiment) -> list[TrainingArguments]:
    """The Trainer's arguments of each system; a ValueError if they do not go together, or with their model."""
    validate_process_wide({name: system.train for name, system in experiment.systems.items()})
    arguments = []
    for system in experiment.systems.values():
        folder, has_validation = experiment.folder / system.name, system.data.validation is not None
        args = training_arguments(system.train, folder, has_validation=has_validation)
        model = build_meta_model(system)
        if args.gradient_checkpointing and not model.supports_gradient_checkpointing:
            raise ValueError(
                f"systems.{system.name}: train.gradient_checkpointing is for models of layers, but this one is a "
                f"{model.config.model_type}; leave it out."
            )
        arguments.append(args)
    return arguments


def build_artifacts(experiment: Experiment) -> None:
    """The vocabulary, pairs and test sets of the systems, and beside each what it is made with."""
    tokenizer = prepare_tokenizer(experiment)
    for system in experiment.systems.values():
        tests = [test_set(experiment, system, name, tokenizer) for name in system.test_sets]
        if system.split:
            validate_segments(
                system, [source_segments(experiment, system, name, tokenizer) for name in system.test_sets]
            )
            continue
        training = training_pairs(experiment, system, tokenizer)
        validation = validation_pairs(experiment, system, tokenizer)
        validate_init_checkpoint(experiment, system, tokenizer)
        validate_lengths(system, [training] if validation is None else [training, validation], tests)
    for system in experiment.systems.values():
        paths = experiment.paths.system(system.name)
        settings = dump_yaml(run_fingerprint(experiment, system))
        # Another process may be about to begin with the same.
        path = paths.settings
        if not (paths.has_outputs or (path.exists() and path.read_text(encoding="utf-8") == settings)):
            write_file(path, settings)


def validate_lengths(system: System, tokenized: list[Dataset], tests: list[Dataset]) -> None:
    """Refuse, before training, pairs that are longer than the system's encodings can tell apart."""
    config = system.model_config(system.data.vocab_size)
    sources = max(lengths(pairs, "source").max() for pairs in [*tokenized, *tests])
    targets = max(lengths(pairs, "target").max() for pairs in tokenized)
    for side, length, max_positions in (
        ("source", sources, config.max_source_length),
        ("target", targets, config.max_target_length),
    ):
        if max_positions is not None and length + 1 > max_positions:
            raise ValueError(
                f"systems.{system.name}: its encoding tells {max_positions} positions apart, but a {side} has {length} "
                "subwords and a special token; raise its table (such as model.learned_max_positions), lower "
                "data.max_length, or choose another test set."
            )


def validate_segments(system: System, tests: list[list[list[str]]]) -> None:
    """Refuse a row that could only repeat another one's translations."""
    if system.split and all(len(segments) <= 1 for test in tests for segments in test):
        raise ValueError(
            f"systems.{system.name}: to split is for long inputs, but with boundaries: {system.split.boundaries} "
            f"no source of {', '.join(system.test_sets)} has two pieces; join some, such as by score.concatenate="
            "[1, 2], use boundaries: found, or leave the system out."
        )


def validate_unchanged_settings(experiment: Experiment, system: System) -> None:
    """Refuse a run directory in which other settings, or files of other content, have made something."""
    paths = experiment.paths.system(system.name)
    if paths.has_outputs and (difference := settings_difference(experiment, system)):
        raise ValueError(
            f"A run directory belongs to the settings and files that made it, but in {paths.folder} {difference}; undo "
            f"the change, give the run another name (name=...), or delete the directory."
        )


def settings_difference(experiment: Experiment, system: System) -> str | None:
    """The first setting or file in which a system is not what its run directory remembers, None if there is none."""
    path = experiment.paths.system(system.name).settings
    verify_file(path)
    with explain_read_errors(path):
        saved = read_yaml(path, "The settings of a run")
        data, score = DataSettings(**saved["data"]), ScoreSettings(**saved["score"])
        # What is newer than the run is at its default.
        split = Segmentation(**saved["split"]) if "split" in saved else None
        model_and_training = (saved["model"], saved["train"], saved.get("start_from"), split)
    saved_system = System(system.name, system.base_name, data, score, *model_and_training)
    current_hashes = system_file_hashes(experiment, system)
    saved_hashes = {name: digest for name, digest in saved.get("files", {}).items() if name in current_hashes}
    return first_difference(
        saved_system.settings() | {"files": current_hashes | saved_hashes}, run_fingerprint(experiment, system)
    )


def run_fingerprint(experiment: Experiment, system: System) -> dict[str, Any]:
    """What a run directory remembers of a system."""
    return system.settings() | {"files": system_file_hashes(experiment, system)}


def system_file_hashes(experiment: Experiment, system: System) -> dict[str, str]:
    """A hash of each local file that the system reads."""
    corpora = [system.data.train, system.data.validation or {}, *system.data.test.values()]
    hashes = {
        name: digest
        for corpus_spec in corpora
        for name, digest in corpus_file_hashes(corpus_spec, system.data.folder).items()
    }
    return hashes | init_file_hashes(experiment, system)


def prepare_tokenizer(experiment: Experiment) -> PosEncTokenizer:
    """The vocabulary of all systems, trained or taken over once; and again where nothing was made with it yet and the
    settings are others now."""
    folder, provenance_path = experiment.paths.tokenizer, experiment.paths.tokenizer_provenance
    first_system, *_ = experiment.systems.values()
    vocabulary = {
        name: getattr(first_system.data, name) for name in (*VOCABULARY_KEYS, "source_language", "target_language")
    }
    provenance = vocabulary | {
        "train": first_system.data.train,
        "files": corpus_file_hashes(first_system.data.train, first_system.data.folder),
    }
    verify_folder(folder)
    if provenance_path.exists():
        with explain_read_errors(provenance_path):
            saved = {"tags": []} | json.loads(provenance_path.read_text(encoding="utf-8"))
            if missing := vocabulary.keys() - saved:
                raise ValueError(f"it lacks {', '.join(missing)}")
        if not experiment.paths.has_outputs:
            if saved != provenance:
                atomic_delete(folder)
        elif difference := first_difference({name: saved[name] for name in vocabulary}, vocabulary):
            raise ValueError(
                f"All systems of a run directory have one vocabulary, but for that of {experiment.folder} "
                f"{difference}; undo the change, give the run another name (name=...), or delete the directory."
            )
    if not folder.exists():
        tokenizer = build_tokenizer(first_system)

        def save(temp_path: Path) -> None:
            tokenizer.save_pretrained(temp_path)
            atomic_write(temp_path / provenance_path.name, json.dumps(provenance, indent=1))

        save_folder(folder, save)
    return load_shared_tokenizer(experiment)


def load_shared_tokenizer(experiment: Experiment) -> PosEncTokenizer:
    """The vocabulary of all systems."""
    verify_folder(folder := experiment.paths.tokenizer)
    with explain_read_errors(folder):
        return PosEncTokenizer.from_pretrained(folder)


def build_tokenizer(system: System) -> PosEncTokenizer:
    """The tokenizer that the settings name, or one trained on the unfiltered training text."""
    data = system.data
    if data.tokenizer is not None:
        name = resolve_name_or_path(data.tokenizer, data.folder)
        try:
            tokenizer = PosEncTokenizer.from_fast_tokenizer(load_pretrained_tokenizer(name))
        except OSError as error:
            raise ValueError(
                f"data.tokenizer must be a folder or the name of a tokenizer on the Hub, but {name} is not, or cannot "
                f"be reached: {error}"
            ) from None
        tokenizer.add_special_tokens({"extra_special_tokens": data.tags})
        return tokenizer
    return train_tokenizer(
        read_pairs(system, data.train),
        data.vocab_size,
        **languages(system),
        joint=data.joint_vocabulary,
        subwords=data.subwords,
        tags=data.tags,
    )


def training_pairs(experiment: Experiment, system: System, tokenizer: PosEncTokenizer) -> Dataset:
    """The encoded training pairs within the system's length filter, drawn anew where lengths are to be flat."""
    corpus_specs = [system.data.train if k == 1 else system.data.train | {"join": k} for k in system.data.concatenate]
    tokenized = concatenate_datasets(
        [tokenized_pairs(experiment, system, tokenizer, corpus_spec) for corpus_spec in corpus_specs]
    )
    filtered = filter_lengths(tokenized, min_length=system.data.min_length, max_length=system.data.max_length)
    return filtered if system.data.flat_lengths is None else balance_lengths(filtered, system.data.flat_lengths)


def validation_pairs(experiment: Experiment, system: System, tokenizer: PosEncTokenizer) -> Dataset | None:
    """The encoded validation pairs, all lengths, or None if the config names none."""
    corpus_spec = system.data.validation
    return tokenized_pairs(experiment, system, tokenizer, corpus_spec) if corpus_spec else None


def validation_references(system: System) -> list[str] | None:
    """The target texts of the validation pairs, as they are, or None where the pairs are not translated."""
    if not system.data.validation or not system.train.get("predict_with_generate"):
        return None
    return [row[system.data.target_language] for row in read_pairs(system, system.data.validation)["translation"]]


def tokenized_pairs(
    experiment: Experiment, system: System, tokenizer: PosEncTokenizer, corpus_spec: dict[str, Any]
) -> Dataset:
    """The pairs that `corpus_spec` describes as token ids, kept in the run."""
    folder = experiment.paths.encoded_pairs(corpus_hash(system, corpus_spec, tokenizer))
    if not folder.exists():
        corpora = [
            prepend_tags(read_pairs(system, part_spec), tags, **languages(system))
            for part_spec, tags in group_by_tags(corpus_spec)
        ]
        tokenized = [tokenize_pairs(pairs, tokenizer, **languages(system)) for pairs in corpora]
        save_pairs(folder, concatenate_datasets(tokenized))
    return load_saved_pairs(folder)


def corpus_hash(system: System, corpus_spec: dict[str, Any], tokenizer: PosEncTokenizer) -> str:
    """A hash of all that encoded pairs are made from."""
    provenance = [
        corpus_spec,
        corpus_file_hashes(corpus_spec, system.data.folder),
        languages(system),
        tokenizer.to_str(),
    ]
    return short_hash(json.dumps(provenance, sort_keys=True))


def test_set(experiment: Experiment, system: System, name: str, tokenizer: PosEncTokenizer) -> Dataset:
    """A test set's pairs and their `source_length` in subwords, kept in the run."""
    return subsample(system, full_test_set(experiment, system, name, tokenizer))


def full_test_set(experiment: Experiment, system: System, name: str, tokenizer: PosEncTokenizer) -> Dataset:
    """As `test_set`, but all pairs, whatever `per_group` says."""
    corpus_spec, k = system.test_sets[name]
    folder = experiment.paths.test_set(name, corpus_hash(system, corpus_spec, tokenizer))
    if not folder.exists():
        pairs = concatenate_consecutive(read_pairs(system, corpus_spec), k)
        tagged_pairs = prepend_tags(pairs, corpus_tags(corpus_spec), **languages(system))
        source_lengths = tokenize_pairs(tagged_pairs, tokenizer, **languages(system))["source_length"]
        save_pairs(folder, pairs.add_column("source_length", source_lengths))
    return load_saved_pairs(folder)


def subsample(system: System, pairs: Dataset) -> Dataset:
    """Those of the pairs that are scored."""
    return stratified_sample(pairs, system.score.edges, system.score.per_group) if system.score.per_group else pairs


def source_segments(experiment: Experiment, system: System, name: str, tokenizer: PosEncTokenizer) -> list[list[str]]:
    """The pieces of each source of a test set, as `system` is given them; a whole one is its only piece."""
    language, (corpus_spec, k) = system.data.source_language, system.test_sets[name]
    tag, _ = corpus_tags(corpus_spec)
    if system.split is None:
        rows = test_set(experiment, system, name, tokenizer)["translation"]
        return [[prepend_tag(row[language], tag)] for row in rows]
    digest = corpus_hash(system, corpus_spec, tokenizer)
    folder = experiment.paths.segments(system.split.boundaries, name, digest)
    all_pairs = full_test_set(experiment, system, name, tokenizer)
    if not folder.exists():
        if system.split.boundaries == "found":
            segments = automatic_segments(all_pairs, language)
        else:
            segments = gold_segments(
                concatenate_consecutive(read_pairs(system, corpus_spec, SEGMENT_SEPARATOR), k, SEGMENT_SEPARATOR),
                all_pairs,
                language,
            )
        save_pairs(folder, Dataset.from_dict({"pieces": segments}))
    with_segments = concatenate_datasets([all_pairs, load_saved_pairs(folder)], axis=1)
    return [
        [prepend_tag(segment, tag) for segment in segments] for segments in subsample(system, with_segments)["pieces"]
    ]


def read_pairs(system: System, corpus_spec: dict[str, Any], separator: str = " ") -> Dataset:
    return load_pairs(corpus_spec, folder=system.data.folder, separator=separator, **languages(system))


def languages(system: System) -> dict[str, str]:
    return {"source_language": system.data.source_language, "target_language": system.data.target_language}


def save_pairs(folder: Path, pairs: Dataset) -> None:
    """Save pairs, with a bar if they are many."""
    with progress_bars(shown=len(pairs) > PROGRESS_BAR_MIN_PAIRS):
        save_folder(folder, pairs.save_to_disk)


def load_saved_pairs(folder: Path) -> Dataset:
    verify_folder(folder)
    with explain_read_errors(folder):
        return load_from_disk(str(folder))
