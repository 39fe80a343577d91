"""A config file -> checked settings: what it extends merged under it, dotted overrides over it, every key known.

A file holds `data`, `model`, `train`, `score` and `systems`; each system is the whole file with what its own entry
changes, and one whose `model` names another `model_type` starts from that type's defaults. `seeds` trains a system once
for each of them; `start_from` lets it go on from a trained model (starting.py); `{split: NAME}` trains none and gives
that of NAME its inputs in pieces. `encodings` names Python files, by their place beside the config file, that register
encodings of one's own. Files of one `name` share a run folder, and
with it the systems of the same name and settings; `table` is the folder in it for what is made of this file's systems.
Nothing here reads data or builds a model.
"""

import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..data.pieces import sentence_splitter
from ..data.tags import tagged_parts, tags_of
from ..modeling.nearest import refuse_unknown
from ..whole_files import with_home
from .checks import (
    check_name,
    check_score,
    check_test_sets,
    checked_data,
    checked_paper,
    refuse_same_names,
)
from .file_keys import FileKeys, SystemKeys
from .files import SECTIONS, merge, parse_override, read_config_file
from .model_keys import check_model
from .schema import check_fields, kinds
from .settings import VOCABULARY, Experiment, ScoreSettings, Split, System
from .starting import refuse_lost_starts, started

SPLIT_KEYS = ("split", "boundaries")
SYSTEM_KEYS = tuple(key for key in kinds(SystemKeys) if key not in SPLIT_KEYS)


def load_experiment(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """Read and check a config file; `overrides` are `dotted.key=value`. A ValueError says what is wrong and where."""
    path = Path(with_home(path))
    merged = read_config_file(path)
    for override in overrides:
        merged = merge(merged, parse_override(override))
    try:
        check_fields(merged, FileKeys, "", partial=True)
        if not merged.get("systems"):
            raise ValueError("A config needs at least one system, but there is none; add one under `systems:`.")
        return experiment_of(merged, path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def experiment_of(merged: Mapping[str, Any], path: Path) -> Experiment:
    """The experiment of a config file whose values are of their kinds."""
    for file in merged.get("encodings") or []:
        register_encodings(path.parent / with_home(file))
    shared = {section: merged.get(section) or {} for section in SECTIONS}
    shared |= {key: merged.get(key) for key in ("seeds", "start_from")}
    systems = resolved_systems({name: changes or {} for name, changes in merged["systems"].items()}, shared)
    refuse_lost_starts(systems)
    refuse_unlike_systems(systems)
    refuse_targets_without_tags(systems.values(), merged.get("diagnose", FileKeys.diagnose))
    rows = list(dict.fromkeys(system.row for system in systems.values()))
    if (baseline := merged.get("baseline") or rows[0]) not in rows:
        raise ValueError(f"baseline must be one of the systems {', '.join(rows)}, but it is {baseline!r}; name one.")
    if (table := merged.get("table")) in (*systems, "data", "tokenizer"):
        raise ValueError(f"table is a folder beside the systems', but {table!r} is one of them; name it otherwise.")
    paper = checked_paper(merged["paper"], next(iter(systems.values())), rows) if merged.get("paper") else None
    return Experiment(
        name=merged.get("name") or path.stem,
        output=Path(with_home(merged.get("output", FileKeys.output))),
        jobs=merged.get("jobs", FileKeys.jobs),
        systems=systems,
        baseline=baseline,
        table=table,
        paper=paper,
        diagnose=merged.get("diagnose", FileKeys.diagnose),
    )


def resolved_systems(entries: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]) -> dict[str, System]:
    """The systems that are trained and then, since they use these, those that split."""
    trained: list[System] = []
    for name, changes in entries.items():
        if "split" not in changes:
            refuse_unknown(changes, (*SYSTEM_KEYS, "split"), f"systems.{name}")
            sections = merge(shared, changes)
            check_model(sections["model"], f"systems.{name}: model")
            trained += seeded_systems(name, started(name, sections, changes.get("model"), trained))
    split = [system for name, entry in entries.items() if "split" in entry for system in splits(name, entry, trained)]
    refuse_same_names([system.name for system in (*trained, *split)], "systems")
    return {system.name: system for system in (*trained, *split)}


def splits(name: str, entry: Mapping[str, Any], trained: list[System]) -> list[System]:
    """A row that trains nothing, once for each seed of the row that it names."""
    refuse_unknown(entry, SPLIT_KEYS, f"systems.{name}, which has all else from the system that it splits,")
    check_name(name)
    if not (members := [system for system in trained if system.row == entry["split"]]):
        rows = ", ".join(dict.fromkeys(system.row for system in trained))
        raise ValueError(
            f"systems.{name}: split names a system that is trained, whose model translates the pieces, but it is "
            f"{entry['split']!r}; choose from {rows or 'those that you add'}."
        )
    if (boundaries := entry.get("boundaries", Split.boundaries)) == "found":
        sentence_splitter(members[0].data.source_language)  # a ValueError if there is none
    return [
        replace(
            system,
            name=name + system.name.removeprefix(system.row),
            row=name,
            train=system.train | {"push_to_hub": False},
            split=Split(system.name, boundaries),
        )
        for system in members
    ]


def seeded_systems(name: str, sections: dict[str, Any]) -> list[System]:
    """The system itself, or one for each of its seeds, named after it and the seed."""
    if (seeds := sections.pop("seeds")) is None:
        return [checked_system(name, name, sections)]
    return [checked_system(f"{name}-seed{s}", name, merge(sections, {"train": {"seed": s}})) for s in seeds]


def register_encodings(file: Path) -> None:
    """Import a file that registers encodings, once."""
    if not file.is_file():
        raise FileNotFoundError(f"Encodings are registered by a Python file, but there is none at {file}; name one.")
    if (known := sys.modules.get(file.stem)) is not None:
        if (place := getattr(known, "__file__", None)) and file.samefile(place):
            return
        raise ValueError(
            f"A file of encodings is imported by the name {file.stem!r}, which that of {place or 'Python itself'} has "
            f"already; rename {file}."
        )
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[file.stem]
        raise


def checked_system(name: str, row: str, sections: Mapping[str, Any]) -> System:
    """A system whose sections have only known keys, and whose model can be built."""
    check_name(name)
    for argument in ("output_dir", "resume_from_checkpoint"):
        if argument in sections["train"]:
            raise ValueError(f"systems.{name}: train.{argument} is the run's own; leave it out.")
    check_model(sections["model"], f"systems.{name}: model")
    data = checked_data(name, sections["data"], bool(sections["model"].get("share_encoder_decoder_embeddings")))
    score = ScoreSettings(**sections["score"])
    check_score(name, score)
    check_test_sets(name, [test if k == 1 else f"{test}-x{k}" for test in data.test for k in set(score.concatenate)])
    start = sections["start_from"]
    system = System(name, row, data, score, dict(sections["model"]), dict(sections["train"]), start_from=start)
    system.model_config(vocab_size=data.vocab_size)
    return system


def refuse_targets_without_tags(systems: Iterable[System], diagnose: bool) -> None:
    """What decodes from the start token alone would leave out the tag that a target begins with."""
    for system in systems:
        data, by_generating = system.data, bool(system.train.get("predict_with_generate"))
        tests = [name for name, where in data.test.items() if tags_of(where)[1] is not None]
        if diagnose and tests:
            raise ValueError(
                f"systems.{system.name}: diagnose is of targets that begin with no tag, but those of "
                f"{', '.join(tests)} have a target_tag; set diagnose: false, or use source_tag."
            )
        if by_generating and any(tags[1] is not None for _, tags in tagged_parts(data.validation or {})):
            raise ValueError(
                f"systems.{system.name}: train.predict_with_generate translates without a tag, but data.validation has "
                "a target_tag; leave it out, or use source_tag."
            )


def refuse_unlike_systems(systems: Mapping[str, System]) -> None:
    """All rows of a table have the same test sets, vocabulary and groups: systems may differ in the rest only."""
    first, *others = systems.values()
    for other in others:
        for section, key in [
            ("data", k) for k in ("source_language", "target_language", "test", "folder", *VOCABULARY)
        ] + [("score", f.name) for f in fields(ScoreSettings)]:
            ours, theirs = (getattr(getattr(system, section), key) for system in (first, other))
            if ours != theirs:
                raise ValueError(
                    f"The systems of one config share {section}.{key}, or their scores could not stand in one table, "
                    f"but {first.name} has {ours!r} and {other.name} has {theirs!r}; move it out of `systems:`."
                )
