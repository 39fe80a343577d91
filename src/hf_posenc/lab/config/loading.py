"""Loads config files: resolves `extends` and overrides, and validates every key.

A file has the sections `data`, `model`, `train` and `score`, and `systems`. A system is the whole file with the changes
of its own entry. A `model` of another `model_type` starts from the defaults of that type. `seeds` trains a system once
for each seed. `init_from` starts from a trained model (init_from.py). `{segment: NAME}` trains no model and translates
segments with the model of NAME.

`encoding_files` are Python files that register encodings. Their paths are relative to the config file. Files of one
`name` share a run folder, and therefore the systems of equal name and settings. `report_name` is the subfolder for the
tables of this file's systems. No data is read and no model is built.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from ...hub.errors import validate_names
from ...utils.command_line import register_encodings
from ...utils.run_folder import RESERVED_FOLDERS, validate_folder_name
from ..data.corpus import corpus_tags, group_by_tags
from ..data.readers import expand_home
from ..data.segmentation import load_sentence_splitter
from .composition import SECTIONS, merge, parse_override, read_config_file
from .file_keys import FileKeys, SystemKeys, validate_model
from .init_from import resolve_dependencies, resolve_init_from, validate_seeded_starts
from .schema import Section, field_types, validate_fields
from .settings import VOCABULARY_KEYS, Experiment, ScoreSettings, Segmentation, System
from .validation import (
    validate_data,
    validate_pairs_system,
    validate_reference_table,
    validate_score,
    validate_segmentation,
    validate_test_sets,
    validate_text_system,
    validate_unique_names,
)

SEGMENTED_SYSTEM_KEYS = ("segment", "segmentation", "segment_words", "overlap_words")
TRAINED_SYSTEM_KEYS = tuple(key for key in field_types(SystemKeys) if key not in SEGMENTED_SYSTEM_KEYS)


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
        validate_fields(merged, FileKeys, "", partial=True)
        if not merged.get("systems"):
            raise ValueError("A config needs at least one system, but there is none; add one under `systems:`.")
        return build_experiment(merged, path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def build_experiment(merged: Section, path: Path) -> Experiment:
    """The experiment of a config file whose values have the right types."""
    for file in merged.get("encoding_files") or []:
        register_encodings(path.parent / expand_home(file))
    defaults = {section: merged.get(section) or {} for section in SECTIONS}
    defaults |= {key: merged.get(key) for key in ("seeds", "init_from")}
    systems = resolve_systems({name: changes or {} for name, changes in merged["systems"].items()}, defaults)
    validate_seeded_starts(systems)
    validate_comparable(systems)
    validate_target_tags(systems.values(), merged.get("diagnose", FileKeys.diagnose))
    rows = list(dict.fromkeys(system.base_name for system in systems.values()))
    if (baseline := merged.get("baseline") or rows[0]) not in rows:
        raise ValueError(f"baseline must be one of the systems {', '.join(rows)}, but it is {baseline!r}; name one.")
    if (report_name := merged.get("report_name")) in (*systems, *RESERVED_FOLDERS):
        raise ValueError(
            f"report_name is a folder beside the systems', but {report_name!r} is one of them; name it otherwise."
        )
    reference_table = None
    if merged.get("reference_table"):
        reference_table = validate_reference_table(merged["reference_table"], next(iter(systems.values())), rows)
    return Experiment(
        name=merged.get("name") or path.stem,
        output_dir=Path(expand_home(merged.get("output_dir", FileKeys.output_dir))),
        num_parallel=merged.get("num_parallel", FileKeys.num_parallel),
        systems=systems,
        baseline=baseline,
        report_name=report_name,
        reference_table=reference_table,
        diagnose=merged.get("diagnose", FileKeys.diagnose),
    )


def resolve_systems(entries: Mapping[str, Section], defaults: Section) -> dict[str, System]:
    """The trained systems, then the segmented systems, which use their models."""
    trained: list[System] = []
    for name, changes in entries.items():
        if "segment" not in changes:
            validate_names(changes, (*TRAINED_SYSTEM_KEYS, "segment"), f"systems.{name}")
            sections = merge(defaults, changes)
            validate_model(sections["model"], f"systems.{name}: model")
            trained += expand_seeds(name, resolve_init_from(name, sections, changes.get("model"), trained))
    segmented = [
        system
        for name, entry in entries.items()
        if "segment" in entry
        for system in segmented_systems(name, entry, trained)
    ]
    validate_unique_names([system.name for system in (*trained, *segmented)], "systems")
    return resolve_dependencies((*trained, *segmented))


def segmented_systems(name: str, entry: Section, trained: list[System]) -> list[System]:
    """The systems of a segmented row: one for each seed of the row whose model it uses."""
    validate_names(
        entry, SEGMENTED_SYSTEM_KEYS, f"systems.{name}, which has all else from the system whose inputs it segments,"
    )
    validate_folder_name(name, "A system's name")
    if not (members := [system for system in trained if system.base_name == entry["segment"]]):
        rows = ", ".join(dict.fromkeys(system.base_name for system in trained))
        raise ValueError(
            f"systems.{name}: segment names a system that is trained, whose model translates the segments, but it is "
            f"{entry['segment']!r}; choose from {rows or 'those that you add'}."
        )
    if members[0].data.is_text:
        raise ValueError(
            f"systems.{name}: segment translates parts of a source, but data.train is plain text; leave the system out."
        )
    options = {key: entry[key] for key in SEGMENTED_SYSTEM_KEYS[1:] if key in entry}
    validate_segmentation(name, Segmentation(entry["segment"], **options))
    if options.get("segmentation") == "automatic":
        load_sentence_splitter(members[0].data.source_language)  # a ValueError if there is none
    return [
        replace(
            system,
            name=name + system.name.removeprefix(system.base_name),
            base_name=name,
            train=system.train | {"push_to_hub": False},
            segment=Segmentation(system.name, **options),
        )
        for system in members
    ]


def expand_seeds(name: str, sections: Section) -> list[System]:
    """The system, or one system for each of its seeds, with the seed in its name."""
    if (seeds := sections.pop("seeds")) is None:
        return [validate_system(name, name, sections)]
    return [validate_system(f"{name}-seed{seed}", name, merge(sections, {"train": {"seed": seed}})) for seed in seeds]


def validate_system(name: str, base_name: str, sections: Section) -> System:
    """Build a system from its sections, with all keys and the model's config validated."""
    validate_folder_name(name, "A system's name")
    for argument in ("output_dir", "resume_from_checkpoint"):
        if argument in sections["train"]:
            raise ValueError(f"systems.{name}: train.{argument} is the run's own; leave it out.")
    validate_model(sections["model"], f"systems.{name}: model")
    data = validate_data(name, sections["data"], bool(sections["model"].get("share_encoder_decoder_embeddings")))
    score = ScoreSettings(**sections["score"])
    validate_score(name, score)
    start = sections["init_from"]
    if start is None and sections["train"].get("max_steps") == 0:
        raise ValueError(
            f"systems.{name}: train.max_steps=0 scores a model as it is, but there is no init_from; name a model "
            "there, or train for 1 step or more."
        )
    system = System(name, base_name, data, score, dict(sections["model"]), dict(sections["train"]), init_from=start)
    validate_test_sets(name, [test for test, _, _ in system.named_test_sets])
    system.model_config(vocab_size=data.vocab_size)
    if data.is_text:
        validate_text_system(system)
        return system
    validate_pairs_system(system)
    if not system.is_encoder_decoder:
        validate_prompted_system(system)
    return system


def validate_prompted_system(system: System) -> None:
    """Refuse data that a decoder-only model cannot read: two vocabularies, and target tags in test sets."""
    data, model_type = system.data, system.config_class.model_type
    if not (data.joint_vocabulary or data.tokenizer):
        raise ValueError(
            f"systems.{system.name}: a model of model_type={model_type} reads source and target with one vocabulary, "
            "but data.joint_vocabulary is false; set it to true."
        )
    for test, corpus_spec in data.test.items():
        if (tag := corpus_tags(corpus_spec)[1]) is not None:
            raise ValueError(
                f"systems.{system.name}: a model of model_type={model_type} begins each translation without a tag, but "
                f"data.test.{test} has target_tag={tag!r}; use source_tag."
            )


def validate_target_tags(systems: Iterable[System], diagnose: bool) -> None:
    """Refuse target tags where decoding starts without a tag: in diagnostics and in evaluations during training."""
    for system in systems:
        data, generates = system.data, bool(system.train.get("predict_with_generate"))
        tests = [name for name, corpus_spec in data.test.items() if corpus_tags(corpus_spec)[1] is not None]
        if diagnose and tests:
            raise ValueError(
                f"systems.{system.name}: diagnose is of targets that begin with no tag, but those of "
                f"{', '.join(tests)} have a target_tag; set diagnose: false, or use source_tag."
            )
        if generates and any(tags[1] is not None for _, tags in group_by_tags(data.validation or {})):
            raise ValueError(
                f"systems.{system.name}: train.predict_with_generate translates without a tag, but data.validation has "
                "a target_tag; leave it out, or use source_tag."
            )


def validate_comparable(systems: Mapping[str, System]) -> None:
    """Raise a ValueError unless all systems have the same test sets, vocabulary and length buckets."""
    first, *others = systems.values()
    for other in others:
        for section, key in [
            ("data", k) for k in ("source_language", "target_language", "test", "data_dir", *VOCABULARY_KEYS)
        ] + [("score", f.name) for f in fields(ScoreSettings)]:
            ours, theirs = (getattr(getattr(system, section), key) for system in (first, other))
            if ours != theirs:
                raise ValueError(
                    f"The systems of one config share {section}.{key}, or their scores could not stand in one table, "
                    f"but {first.name} has {ours!r} and {other.name} has {theirs!r}; move it out of `systems:`."
                )
