"""What a run needs before it trains: checked settings, one vocabulary, encoded pairs and test sets, kept in the run.

Everything that can be wrong with them is found here. What is there already is used as it is.
"""

import json
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets, load_from_disk

from ..config.settings import VOCABULARY, DataSettings, Experiment, ScoreSettings, Split, System
from ..config.yaml_io import dump_yaml, read_yaml
from ..data import (
    encode_pairs,
    filter_lengths,
    join_consecutive,
    lengths,
    load_pairs,
    sample_by_length,
    train_tokenizer,
)
from ..data.files import digests, named_folder
from ..data.flattening import flatten_lengths
from ..data.mapping import LARGE, progress_bars
from ..data.pieces import BETWEEN, found_pieces, known_pieces
from ..data.tags import tagged, tagged_parts, tags_of, with_tag
from ..manifest import check_file, check_folder, discard, readable, save_folder, write_file
from ..modeling.tokenization_posenc import PosEncTokenizer
from ..publish.hub import refuse_shared_repositories
from ..training.arguments import TrainingArguments, training_arguments
from ..training.checkpoints import check_saved
from ..training.validation import validate_same
from ..whole_files import LOCK, alone, differing_key, short_hash, write_whole
from .held_out import refuse_shared_pairs
from .starting import (
    check_start,
    existing_tokenizer,
    new_model_without_weights,
    start_digests,
    warn_of_untrained_distances,
)


def prepare(experiment: Experiment) -> None:
    """Everything that can go wrong before training: settings, data, vocabulary, lengths. Writes what systems share."""
    checked_arguments(experiment)
    for system in experiment.systems.values():
        check_same_settings(experiment, system)
        check_saved(experiment.folder / system.name)
    warn_of_untrained_distances(experiment)
    refuse_shared_repositories(experiment)
    refuse_shared_pairs(experiment)
    with alone(experiment.folder / LOCK, patient=True):
        make_what_is_shared(experiment)


def checked_arguments(experiment: Experiment) -> list[TrainingArguments]:
    """The Trainer's arguments of each system; a ValueError if they do not go together, or with their model."""
    validate_same({name: system.train for name, system in experiment.systems.items()})
    found = []
    for system in experiment.systems.values():
        folder, has_validation = experiment.folder / system.name, system.data.validation is not None
        args = training_arguments(system.train, folder, has_validation=has_validation)
        model = new_model_without_weights(system)
        if args.gradient_checkpointing and not model.supports_gradient_checkpointing:
            raise ValueError(
                f"systems.{system.name}: train.gradient_checkpointing is for models of layers, but this one is a "
                f"{model.config.model_type}; leave it out."
            )
        found.append(args)
    return found


def make_what_is_shared(experiment: Experiment) -> None:
    """The vocabulary, pairs and test sets of the systems, and beside each what it is made with."""
    tokenizer = prepared_tokenizer(experiment)
    for system in experiment.systems.values():
        tests = [test_set(experiment, system, name, tokenizer) for name in system.test_sets]
        if system.split:
            check_pieces(system, [sources(experiment, system, name, tokenizer) for name in system.test_sets])
            continue
        training = training_pairs(experiment, system, tokenizer)
        validation = validation_pairs(experiment, system, tokenizer)
        check_start(experiment, system, tokenizer)
        check_lengths(system, [training] if validation is None else [training, validation], tests)
    for system in experiment.systems.values():
        path = settings_path(experiment, system)
        settings = dump_yaml(remembered(experiment, system))
        # Another process may be about to begin with the same.
        if not (has_begun(path.parent) or (path.exists() and path.read_text(encoding="utf-8") == settings)):
            write_file(path, settings)


def check_lengths(system: System, encoded: list[Dataset], tests: list[Dataset]) -> None:
    """Refuse, before training, pairs that are longer than the system's encodings can tell apart."""
    config = system.model_config(system.data.vocab_size)
    sources = max(lengths(pairs, "source").max() for pairs in [*encoded, *tests])
    targets = max(lengths(pairs, "target").max() for pairs in encoded)
    for side, length, longest in (
        ("source", sources, config.longest_source),
        ("target", targets, config.longest_target),
    ):
        if longest is not None and length + 1 > longest:
            raise ValueError(
                f"systems.{system.name}: its encoding tells {longest} positions apart, but a {side} has {length} "
                "subwords and a special token; raise its table (such as model.learned_max_positions), lower "
                "data.max_length, or choose another test set."
            )


def check_pieces(system: System, tests: list[list[list[str]]]) -> None:
    """Refuse a row that could only repeat another one's translations."""
    if system.split and all(len(pieces) <= 1 for test in tests for pieces in test):
        raise ValueError(
            f"systems.{system.name}: to split is for long inputs, but with boundaries: {system.split.boundaries} "
            f"no source of {', '.join(system.test_sets)} has two pieces; join some, such as by score.concatenate="
            "[1, 2], use boundaries: found, or leave the system out."
        )


def settings_path(experiment: Experiment, system: System) -> Path:
    return experiment.folder / system.name / "settings.yaml"


def has_begun(folder: Path) -> bool:
    """Whether anything in the folder of a system was made with its settings, which from then on may not change."""
    made = ("training.jsonl", "model", "translations")
    return (folder / "settings.yaml").exists() and any((folder / name).exists() for name in made)


def check_same_settings(experiment: Experiment, system: System) -> None:
    """Refuse a run directory in which other settings, or files of other content, have made something."""
    folder = settings_path(experiment, system).parent
    if has_begun(folder) and (difference := difference_from_run(experiment, system)):
        raise ValueError(
            f"A run directory belongs to the settings and files that made it, but in {folder} {difference}; undo "
            f"the change, give the run another name (name=...), or delete the directory."
        )


def difference_from_run(experiment: Experiment, system: System) -> str | None:
    """The first setting or file in which a system is not what its run directory remembers, None if there is none."""
    path = settings_path(experiment, system)
    check_file(path)
    with readable(path):
        saved = read_yaml(path, "The settings of a run")
        data, score = DataSettings(**saved["data"]), ScoreSettings(**saved["score"])
        # What is newer than the run is at its default.
        split = Split(**saved["split"]) if "split" in saved else None
        made = (saved["model"], saved["train"], saved.get("start_from"), split)
    of_the_run = System(system.name, system.row, data, score, *made)
    given = file_digests(experiment, system)
    files = {name: digest for name, digest in saved.get("files", {}).items() if name in given}
    return differing_key(of_the_run.settings() | {"files": given | files}, remembered(experiment, system))


def remembered(experiment: Experiment, system: System) -> dict[str, Any]:
    """What a run directory remembers of a system."""
    return system.settings() | {"files": file_digests(experiment, system)}


def file_digests(experiment: Experiment, system: System) -> dict[str, str]:
    """A hash of each local file that the system reads."""
    corpora = [system.data.train, system.data.validation or {}, *system.data.test.values()]
    found = {name: digest for where in corpora for name, digest in digests(where, system.data.folder).items()}
    return found | start_digests(experiment, system)


def prepared_tokenizer(experiment: Experiment) -> PosEncTokenizer:
    """The vocabulary of all systems, trained or taken over once; and again where nothing was made with it yet and the
    settings are others now."""
    folder = experiment.folder / "tokenizer"
    first, *_ = experiment.systems.values()
    vocabulary = {name: getattr(first.data, name) for name in (*VOCABULARY, "source_language", "target_language")}
    made_from = vocabulary | {"train": first.data.train, "files": digests(first.data.train, first.data.folder)}
    record = folder / "made_from.json"
    check_folder(folder)
    if record.exists():
        with readable(record):
            saved = {"tags": []} | json.loads(record.read_text(encoding="utf-8"))
            if missing := vocabulary.keys() - saved:
                raise ValueError(f"it lacks {', '.join(missing)}")
        if not any(map(has_begun, experiment.folder.iterdir())):
            if saved != made_from:
                discard(folder)
        elif difference := differing_key({name: saved[name] for name in vocabulary}, vocabulary):
            raise ValueError(
                f"All systems of a run directory have one vocabulary, but for that of {experiment.folder} "
                f"{difference}; undo the change, give the run another name (name=...), or delete the directory."
            )
    if not folder.exists():
        tokenizer = new_tokenizer(first)

        def save(unfinished: Path) -> None:
            tokenizer.save_pretrained(unfinished)
            write_whole(unfinished / record.name, json.dumps(made_from, indent=1))

        save_folder(folder, save)
    return shared_tokenizer(experiment)


def shared_tokenizer(experiment: Experiment) -> PosEncTokenizer:
    """The vocabulary of all systems."""
    check_folder(folder := experiment.folder / "tokenizer")
    with readable(folder):
        return PosEncTokenizer.from_pretrained(folder)


def new_tokenizer(system: System) -> PosEncTokenizer:
    """The tokenizer that the settings name, or one trained on the unfiltered training text."""
    data = system.data
    if data.tokenizer is not None:
        name = named_folder(data.tokenizer, data.folder)
        try:
            tokenizer = PosEncTokenizer.adopt(existing_tokenizer(name))
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
    joined = [system.data.train if k == 1 else system.data.train | {"join": k} for k in system.data.concatenate]
    encoded = concatenate_datasets([encoded_pairs(experiment, system, tokenizer, where) for where in joined])
    kept = filter_lengths(encoded, min_length=system.data.min_length, max_length=system.data.max_length)
    return kept if system.data.flat_lengths is None else flatten_lengths(kept, system.data.flat_lengths)


def validation_pairs(experiment: Experiment, system: System, tokenizer: PosEncTokenizer) -> Dataset | None:
    """The encoded validation pairs, all lengths, or None if the config names none."""
    where = system.data.validation
    return encoded_pairs(experiment, system, tokenizer, where) if where else None


def validation_references(system: System) -> list[str] | None:
    """The target texts of the validation pairs, as they are, or None where the pairs are not translated."""
    if not system.data.validation or not system.train.get("predict_with_generate"):
        return None
    return [row[system.data.target_language] for row in read_pairs(system, system.data.validation)["translation"]]


def encoded_pairs(experiment: Experiment, system: System, tokenizer: PosEncTokenizer, where: dict[str, Any]) -> Dataset:
    """The pairs that `where` describes as token ids, kept in the run."""
    folder = experiment.folder / "data" / f"encoded-{corpus_hash(system, where, tokenizer)}"
    if not folder.exists():
        parts = [tagged(read_pairs(system, part), tags, **languages(system)) for part, tags in tagged_parts(where)]
        encoded = [encode_pairs(pairs, tokenizer, **languages(system)) for pairs in parts]
        save_pairs(folder, concatenate_datasets(encoded))
    return saved_pairs(folder)


def corpus_hash(system: System, where: dict[str, Any], tokenizer: PosEncTokenizer) -> str:
    """A hash of all that encoded pairs are made from."""
    made_from = [where, digests(where, system.data.folder), languages(system), tokenizer.to_str()]
    return short_hash(json.dumps(made_from, sort_keys=True))


def test_set(experiment: Experiment, system: System, name: str, tokenizer: PosEncTokenizer) -> Dataset:
    """A test set's pairs and their `source_length` in subwords, kept in the run."""
    return drawn(system, whole_test_set(experiment, system, name, tokenizer))


def whole_test_set(experiment: Experiment, system: System, name: str, tokenizer: PosEncTokenizer) -> Dataset:
    """As `test_set`, but all pairs, whatever `per_group` says."""
    where, k = system.test_sets[name]
    folder = experiment.folder / "data" / f"test-{name}-{corpus_hash(system, where, tokenizer)}"
    if not folder.exists():
        pairs = join_consecutive(read_pairs(system, where), k)
        read = tagged(pairs, tags_of(where), **languages(system))
        lengths = encode_pairs(read, tokenizer, **languages(system))["source_length"]
        save_pairs(folder, pairs.add_column("source_length", lengths))
    return saved_pairs(folder)


def drawn(system: System, pairs: Dataset) -> Dataset:
    """Those of the pairs that are scored."""
    return sample_by_length(pairs, system.score.edges, system.score.per_group) if system.score.per_group else pairs


def sources(experiment: Experiment, system: System, name: str, tokenizer: PosEncTokenizer) -> list[list[str]]:
    """The pieces of each source of a test set, as `system` is given them; a whole one is its only piece."""
    language, (where, k) = system.data.source_language, system.test_sets[name]
    tag, _ = tags_of(where)
    if system.split is None:
        rows = test_set(experiment, system, name, tokenizer)["translation"]
        return [[with_tag(row[language], tag)] for row in rows]
    kind = f"{system.split.boundaries}-{name}"
    folder = experiment.folder / "data" / f"pieces-{kind}-{corpus_hash(system, where, tokenizer)}"
    whole = whole_test_set(experiment, system, name, tokenizer)
    if not folder.exists():
        if system.split.boundaries == "found":
            pieces = found_pieces(whole, language)
        else:
            pieces = known_pieces(join_consecutive(read_pairs(system, where, BETWEEN), k, BETWEEN), whole, language)
        save_pairs(folder, Dataset.from_dict({"pieces": pieces}))
    beside = concatenate_datasets([whole, saved_pairs(folder)], axis=1)
    return [[with_tag(piece, tag) for piece in pieces] for pieces in drawn(system, beside)["pieces"]]


def read_pairs(system: System, where: dict[str, Any], between: str = " ") -> Dataset:
    return load_pairs(where, folder=system.data.folder, between=between, **languages(system))


def languages(system: System) -> dict[str, str]:
    return {"source_language": system.data.source_language, "target_language": system.data.target_language}


def save_pairs(folder: Path, pairs: Dataset) -> None:
    """Save pairs, with a bar if they are many."""
    with progress_bars(shown=len(pairs) > LARGE):
        save_folder(folder, pairs.save_to_disk)


def saved_pairs(folder: Path) -> Dataset:
    check_folder(folder)
    with readable(folder):
        return load_from_disk(str(folder))
