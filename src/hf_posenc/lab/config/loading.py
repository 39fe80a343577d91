"""Loads config files: resolves `extends` and overrides, and validates every key.

A file has the sections `data`, `model`, `train` and `score`, and `systems`. A system is the whole file with the changes
of its own entry. A `model` of another `model_type` starts from the defaults of that type. `seeds` trains a system once
for each seed. `init_from` starts from a trained model (init_from.py). `{segment: NAME}` trains no model and translates
segments with the model of NAME.

`encoding_files` are Python files that register encodings. Their paths are relative to the config file. Files of one
`name` share a run folder, and therefore the systems of equal name and settings. `report_name` is the subfolder for the
tables of this file's systems. No data is read and no model is built.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ...hub.errors import validate_names
from ...metrics.length_buckets.scorers import SCORERS, BertScore
from ...transformer.configuration_base import BaseConfig
from ...transformer.configuration_posenc import PosEncConfig
from ...transformer.configuration_posenc_causal import PosEncCausalConfig
from ...utils.command_line import register_encodings
from ...utils.run_folder import RESERVED_FOLDERS, validate_folder_name, validate_test_set_names
from ..data.corpus import corpus_tags, group_by_tags
from ..data.readers import expand_home
from ..data.segmentation import load_sentence_splitter
from .errors import find_unusable, find_violation, parse, validator
from .file_keys import CONFIG_CLASSES, FileKeys, ModelType, SystemKeys, TrainKeys, model_schema
from .init_from import find_dependencies, resolve_init_from
from .settings import (
    VOCABULARY_KEYS,
    DataSettings,
    Experiment,
    ReferenceTable,
    ScoreSettings,
    Segmentation,
    System,
)
from .yaml_io import SECTIONS, Section, merge, parse_override, read_config_file

T = TypeVar("T")
SEGMENTED_SYSTEM_KEYS = ("segment", "segmentation", "segment_words", "overlap_words")
TRAINED_SYSTEM_KEYS = tuple(key for key in SystemKeys.model_fields if key not in SEGMENTED_SYSTEM_KEYS)
# Keys of pairs, which have no effect on plain text.
PAIRS_KEYS = {
    "data": ("joint_vocabulary", "tags", "normalize", "min_length", "concatenate", "balance_lengths"),
    "score": ("concatenate", "max_per_bucket"),
}
# Keys of plain text, which have no effect on pairs.
TEXT_KEYS = {"score": ("max_context", "stride")}


def load_experiment(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """Read and validate a config file. `overrides` are `dotted.key=value`. A ValueError names the key, the value and
    the remedy."""
    path = Path(expand_home(path))
    merged = read_config_file(path)
    for override in overrides:
        merged = merge(merged, parse_override(override))
    return parse_experiment(merged, path)


def parse_experiment(merged: Section, path: Path) -> Experiment:
    """Validate the content of a config file, which need not be written yet."""
    try:
        if unusable := find_unusable(merged):
            raise ValueError(str(unusable))
        if "systems" not in merged or merged["systems"] is None:
            raise ValueError("A config needs at least one system, but there is none; add one under `systems:`.")
        return build_experiment(parse(FileKeys, merged), path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def build_experiment(file: FileKeys, path: Path) -> Experiment:
    """The experiment of a config file, whose sections are validated for each system."""
    for name in file.encoding_files or []:
        register_encodings(path.parent / expand_home(name))
    systems = resolve_systems(file)
    rows = list(dict.fromkeys(system.base_name for system in systems.values()))
    for message in contradictions_between(systems, rows, file):
        raise ValueError(message)
    return Experiment(
        name=file.name or path.stem,
        output_dir=Path(expand_home(file.output_dir)),
        num_parallel=file.num_parallel,
        systems=systems,
        baseline=file.baseline or rows[0],
        report_name=file.report_name,
        reference_table=file.reference_table,
        diagnose=file.diagnose,
    )


def contradictions_between(systems: Mapping[str, System], rows: list[str], file: FileKeys) -> Iterator[str]:
    """What systems contradict in each other, or in the rest of the file, as messages with rule, value and remedy."""
    yield from incomparable_settings(systems)
    yield from wrong_target_tags(systems.values(), file.diagnose)
    if file.baseline is not None and file.baseline not in rows:
        yield f"baseline must be one of the systems {', '.join(rows)}, but it is {file.baseline!r}; name one."
    if file.report_name in (*systems, *RESERVED_FOLDERS):
        yield (
            f"report_name is a folder beside the systems', but {file.report_name!r} is one of them; name it otherwise."
        )
    if file.reference_table is not None:
        yield from wrong_reference_table(file.reference_table, next(iter(systems.values())), rows)


def resolve_systems(file: FileKeys) -> dict[str, System]:
    """The trained systems, then the segmented systems, which use their models."""
    defaults: Section = {section: getattr(file, section) or {} for section in SECTIONS}
    defaults |= {"seeds": file.seeds, "init_from": file.init_from}
    entries = {name: entry or SystemKeys() for name, entry in file.systems.items()}
    trained: list[System] = []
    for name, entry in entries.items():
        if entry.segment is None:
            validate_names(entry.model_fields_set, (*TRAINED_SYSTEM_KEYS, "segment"), f"systems.{name}")
            trained += trained_systems(name, entry.model_dump(include=entry.model_fields_set), defaults, trained)
    systems = list(trained)
    for name, entry in entries.items():
        if entry.segment is not None:
            systems += segmented_systems(name, entry, trained)
    for name, number in Counter(system.name for system in systems).items():
        if number > 1:
            raise ValueError(f"There are two systems of the name {name!r}; name one of them otherwise.")
    return find_dependencies(systems)


def trained_systems(name: str, entry: Section, defaults: Section, earlier: list[System]) -> list[System]:
    """The system of an entry, or one for each of its seeds, with the seed in its name."""
    sections = merge(defaults, entry)
    parse_model(sections["model"], name, entry)
    sections = resolve_init_from(name, sections, entry.get("model"), earlier)
    if (seeds := sections.pop("seeds")) is None:
        return [build_system(name, name, sections, entry)]
    return [
        build_system(f"{name}-seed{seed}", name, merge(sections, {"train": {"seed": seed}}), entry) for seed in seeds
    ]


def build_system(name: str, base_name: str, sections: Section, entry: Section) -> System:
    """A system from its sections, which are validated."""
    validate_folder_name(name, "A system's name")
    parse_model(sections["model"], base_name, entry)
    data = parse_section(DataSettings, sections["data"], "data", base_name, entry)
    score = parse_section(ScoreSettings, sections["score"], "score", base_name, entry)
    parse_section(TrainKeys, sections["train"], "train", base_name, entry)
    model, train = dict(sections["model"]), dict(sections["train"])
    system = System(name, base_name, data, score, model, train, init_from=sections["init_from"])
    for message in contradictions(system):
        raise ValueError(f"systems.{name}: {message}")
    return system


def parse_model(model: Section, name: str, entry: Section) -> None:
    """Validate the section `model` of a system by its type."""
    model_type = model.get("model_type", PosEncConfig.model_type)
    parse_section(ModelType, model_type, "model.model_type", name, entry)
    parse_section(model_schema(CONFIG_CLASSES[model_type]), model, "model", name, entry)


def parse_section(annotation: type[T], content: Any, key: str, name: str, entry: Section) -> T:
    """A validated section of the system `name`. The error names a key as it was typed, in the system's own `entry` or
    above it."""
    try:
        hashable: Any = annotation
        parsed: T = validator(hashable).validate_python(content)
    except ValidationError as error:
        violation = find_violation(error, annotation, content, key)
        owner = f"systems.{name}." if is_written_in(entry, (*key.split("."), *violation.path)) else ""
        raise ValueError(f"{owner}{violation}") from None
    return parsed


def is_written_in(entry: object, path: Iterable[str | int]) -> bool:
    """Whether the entry has a value at that path. A list replaces the one above it as a whole."""
    for step in path:
        if isinstance(entry, list):
            return True
        if not isinstance(entry, Mapping) or step not in entry:
            return False
        entry = entry[step]
    return True


def contradictions(system: System) -> Iterator[str]:
    """What contradicts each other in a system's settings, as messages with rule, value and remedy."""
    data, model = system.data, system.model
    if system.init_from is None and system.train.get("max_steps") == 0:
        yield (
            "train.max_steps=0 scores a model as it is, but there is no init_from; name a model there, or train for 1 "
            "step or more."
        )
    if not (data.joint_vocabulary or data.tokenizer) and model.get("share_encoder_decoder_embeddings"):
        yield (
            "two vocabularies have no embeddings in common; set data.joint_vocabulary=true or "
            "model.share_encoder_decoder_embeddings=false."
        )
    names = [test for test, _, _ in system.named_test_sets]
    for name, number in Counter(names).items():
        if number > 1:
            yield f"There are two test sets of the name {name!r}; name one of them otherwise."
    validate_test_set_names(names, f"systems.{system.name}")
    config = system.model_config(vocab_size=data.vocab_size)
    if bertscore := bertscore_error(system.score):
        yield bertscore
    yield from text_contradictions(system, config) if data.is_text else pairs_contradictions(system)


def bertscore_error(score: ScoreSettings) -> str | None:
    """The error of a missing package or model of BERTScore, before training."""
    if "bertscore" in score.metrics:
        try:
            BertScore(score.bertscore_name_or_path, score.bertscore_num_layers)
        except ValueError as error:
            return f"score: {error}"
    return None


def text_contradictions(system: System, config: BaseConfig) -> Iterator[str]:
    """Plain text is for a decoder-only model with a block length, without keys of pairs, and with windows that its
    encoding can represent."""
    data, model_type = system.data, system.config_class.model_type
    if not isinstance(config, PosEncCausalConfig):
        yield (
            f"plain text is for decoder-only models, but model_type is {model_type}, an encoder-decoder; set "
            f"model.model_type={PosEncCausalConfig.model_type}, or train on pairs."
        )
        return
    if data.max_length is None:
        yield (
            "plain text is cut into blocks of data.max_length tokens, but it is left out; set it to the training "
            "length, such as 256."
        )
        return
    yield from changed_keys(system, PAIRS_KEYS, "pairs", "is plain text")
    if system.train.get("predict_with_generate"):
        yield "train.predict_with_generate translates pairs, but data.train is plain text; leave it out."
    yield from window_contradictions(system, config, data.max_length)


def changed_keys(system: System, keys: Mapping[str, Iterable[str]], kind: str, train: str) -> Iterator[str]:
    """Keys that do not have their defaults; `kind` says what they are for, and `train` what the training text is."""
    for section, names in keys.items():
        settings: DataSettings | ScoreSettings = getattr(system, section)
        for name in names:
            value = getattr(settings, name)
            if value != type(settings).model_fields[name].default:
                yield (
                    f"{section}.{name} is of {kind}, but data.train {train} and {section}.{name} is {value!r}; leave "
                    "it out."
                )


def window_contradictions(system: System, config: PosEncCausalConfig, block_length: int) -> Iterator[str]:
    """Context lengths that do not fill each other, or that an encoding has no table for."""
    score, contexts = system.score, system.score.context_lengths
    if any(longer <= shorter or longer % shorter for shorter, longer in pairwise(contexts)):
        yield (
            "each context length must be a multiple of the one before, so that all windows hold the same tokens, but "
            f"score.bucket_edges and score.max_context give {contexts}; write for example bucket_edges="
            f"{[block_length * factor for factor in (1, 2, 4, 8)]}."
        )
    if score.stride is not None and score.stride > block_length:
        yield (
            f"score.stride must be at most data.max_length, {block_length}, so that windows leave no token out, but it "
            f"is {score.stride}; lower it."
        )
    longest, max_length = max(block_length, contexts[-1]), config.max_sequence_length
    if max_length is not None and longest > max_length:
        yield (
            f"its encoding has {max_length} positions, but the longest context has {longest} tokens; raise its "
            "table (such as model.learned_max_positions), or lower score.bucket_edges and score.max_context."
        )


def pairs_contradictions(system: System) -> Iterator[str]:
    """Keys of plain text in a system on pairs, and data that a decoder-only model cannot read."""
    yield from changed_keys(system, TEXT_KEYS, "plain text", "has pairs")
    if system.is_encoder_decoder:
        return
    data, model_type = system.data, system.config_class.model_type
    if not (data.joint_vocabulary or data.tokenizer):
        yield (
            f"a model of model_type={model_type} reads source and target with one vocabulary, but "
            "data.joint_vocabulary is false; set it to true."
        )
    for test, corpus_spec in data.test.items():
        tag = corpus_tags(corpus_spec)[1]
        if tag is not None:
            yield (
                f"a model of model_type={model_type} begins each translation without a tag, but data.test.{test} has "
                f"target_tag={tag!r}; use source_tag."
            )


def segmented_systems(name: str, entry: SystemKeys, trained: list[System]) -> list[System]:
    """The systems of a segmented row: one for each seed of the row whose model it uses."""
    owner = f"systems.{name}, which has all else from the system whose inputs it segments,"
    validate_names(entry.model_fields_set, SEGMENTED_SYSTEM_KEYS, owner)
    validate_folder_name(name, "A system's name")
    members = [system for system in trained if system.base_name == entry.segment]
    for message in segment_contradictions(entry, members, trained):
        raise ValueError(f"systems.{name}: {message}")
    if entry.segmentation == "automatic":
        load_sentence_splitter(members[0].data.source_language)  # a ValueError if there is none
    systems = []
    for system in members:
        segment = Segmentation(system.name, entry.segmentation, entry.segment_words, entry.overlap_words)
        own_name = name + system.name.removeprefix(system.base_name)
        train = system.train | {"push_to_hub": False}
        systems.append(replace(system, name=own_name, base_name=name, train=train, segment=segment))
    return systems


def segment_contradictions(entry: SystemKeys, members: list[System], trained: list[System]) -> Iterator[str]:
    """A segmented row needs a trained row on pairs, and `segmentation: fixed`, and it alone, the number of words."""
    if not members:
        rows = ", ".join(dict.fromkeys(system.base_name for system in trained))
        yield (
            f"segment names a system that is trained, whose model translates the segments, but it is {entry.segment!r}"
            f"; choose from {rows or 'those that you add'}."
        )
    elif members[0].data.is_text:
        yield "segment translates parts of a source, but data.train is plain text; leave the system out."
    is_fixed = entry.segmentation == "fixed"
    if is_fixed and entry.segment_words is None:
        yield (
            "segmentation: fixed needs the number of words of a segment, but segment_words is missing; add it, such as "
            "segment_words: 20."
        )
    if not is_fixed and (entry.segment_words is not None or entry.overlap_words):
        yield (
            "segment_words and overlap_words belong to segmentation: fixed, but it is "
            f"{entry.segmentation}; leave them out, or set segmentation: fixed."
        )
    if entry.segment_words is not None and entry.overlap_words >= entry.segment_words:
        yield (
            f"overlap_words must be less than segment_words, {entry.segment_words}, or segments would not move on, but "
            f"it is {entry.overlap_words}; lower it."
        )


def wrong_target_tags(systems: Iterable[System], diagnose: bool) -> Iterator[str]:
    """Target tags where decoding starts without a tag: in diagnostics and in evaluations during training."""
    for system in systems:
        data, generates = system.data, bool(system.train.get("predict_with_generate"))
        tests = [name for name, corpus_spec in data.test.items() if corpus_tags(corpus_spec)[1] is not None]
        if diagnose and tests:
            yield (
                f"systems.{system.name}: diagnose is of targets that begin with no tag, but those of "
                f"{', '.join(tests)} have a target_tag; set diagnose: false, or use source_tag."
            )
        if generates and any(tags[1] is not None for _, tags in group_by_tags(data.validation or {})):
            yield (
                f"systems.{system.name}: train.predict_with_generate translates without a tag, but data.validation has "
                "a target_tag; leave it out, or use source_tag."
            )


SHARED_KEYS = [("data", key) for key in ("source_language", "target_language", "test", "data_dir", *VOCABULARY_KEYS)]
SHARED_KEYS += [("score", key) for key in ScoreSettings.model_fields]


def incomparable_settings(systems: Mapping[str, System]) -> Iterator[str]:
    """Differences between systems in test sets, vocabulary or length buckets."""
    first, *others = systems.values()
    for other in others:
        for section, key in SHARED_KEYS:
            ours, theirs = (getattr(getattr(system, section), key) for system in (first, other))
            if ours != theirs:
                yield (
                    f"Systems of one config must share {section}.{key}, or their scores are not comparable, "
                    f"but {first.name} has {ours!r} and {other.name} has {theirs!r}; move it out of `systems:`."
                )


def wrong_reference_table(table: ReferenceTable, system: System, rows: list[str]) -> Iterator[str]:
    """A published table has the test set, the rows and the buckets of the run."""
    key = "reference_table"
    validate_names([table.test], system.test_sets, f"{key}.test")
    validate_names(table.rows, rows, f"{key}.rows")
    (first_row, metrics), *others = table.rows.items()
    for row, scores in others:
        if scores.keys() != metrics.keys():
            yield (
                f"All rows of a published table have the same metrics, but {key}.rows.{row} has {', '.join(scores)} "
                f"and {key}.rows.{first_row} has {', '.join(metrics)}; add what is missing, or leave it out of all."
            )
    columns, coverage = 1, "all pairs"
    if isinstance(next(iter(metrics.values())), list):
        columns = len(system.score.bucket_edges) + 1
        coverage = f"each of the {columns} groups of score.bucket_edges"
    for row, scores in table.rows.items():
        validate_names(scores, SCORERS, f"{key}.rows.{row}")
        for metric, value in scores.items():
            numbers = value if isinstance(value, list) else [value]
            if len(numbers) != columns:
                yield (
                    f"{key}.rows.{row}.{metric} must have a number, or null, for {coverage}, as the first metric of "
                    f"the first row has, but it is {numbers}; write one for each."
                )
    if table.num_pairs is not None and len(table.num_pairs) != columns:
        yield (
            f"{key}.num_pairs must be a list with the number of pairs of {coverage}, but it is {table.num_pairs}; "
            "write one for each."
        )
