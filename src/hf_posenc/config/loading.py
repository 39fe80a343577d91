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
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args

from ..data import check_description
from ..data.joining import positive
from ..data.pieces import BOUNDARIES
from ..metrics.length_buckets.checks import TOKENIZERS, checked_choice, checked_edges, checked_metrics, checked_number
from ..metrics.length_buckets.scorers import SCORERS, BertScore
from ..modeling.nearest import refuse_unknown
from ..modeling.tokenization_posenc import SUBWORDS
from ..training.arguments import TrainingArguments
from .files import merge, parse_override, read_config_file
from .settings import BY_PREDICTION, TABLES, VOCABULARY, DataSettings, Experiment, Paper, ScoreSettings, Split, System
from .starting import refuse_lost_starts, started

SECTIONS = ("data", "model", "train", "score")
SYSTEM_KEYS = (*SECTIONS, "seeds", "start_from")
SPLIT_KEYS = ("split", "boundaries")
RUN_KEYS = ("extends", "name", "output", "jobs", "diagnose", "encodings")
NAME = re.compile(r"[^\W_][\w.+-]*")
FILE_KEYS = (*RUN_KEYS, *SYSTEM_KEYS, "systems", "baseline", "table", "paper")


def load_experiment(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """Read and check a config file; `overrides` are `dotted.key=value`. A ValueError says what is wrong and where."""
    path = Path(path)
    merged = read_config_file(path)
    for override in overrides:
        merged = merge(merged, parse_override(override))
    refuse_unknown(merged, FILE_KEYS, str(path))
    if not merged.get("systems"):
        raise ValueError(f"A config needs at least one system, but {path} has none; add one under `systems:`.")
    if type(jobs := merged.get("jobs", 1)) is not int or jobs < 1:
        raise ValueError(f"jobs is how many systems train side by side and must be 1 or more, but it is {jobs!r}.")
    if not isinstance(name := merged.get("name", path.stem), str):
        raise ValueError(f"name must be that of a folder, but it is {name!r}; write it in quotes.")
    if type(diagnose := merged.get("diagnose", True)) is not bool:
        raise ValueError(f"diagnose says whether models are looked into, true or false, but it is {diagnose!r}.")
    for file in merged.get("encodings") or []:
        register_encodings(path.parent / file)
    shared = {section: merged.get(section) or {} for section in SECTIONS}
    shared |= {key: merged.get(key) for key in ("seeds", "start_from")}
    systems = resolved_systems({str(name): changes or {} for name, changes in merged["systems"].items()}, shared)
    refuse_lost_starts(systems)
    refuse_unlike_systems(systems)
    rows = list(dict.fromkeys(system.row for system in systems.values()))
    if (baseline := merged.get("baseline", rows[0])) not in rows:
        raise ValueError(f"baseline must be one of the systems {', '.join(rows)}, but it is {baseline!r}.")
    if (table := merged.get("table")) in systems:
        raise ValueError(f"table is a folder beside the systems', but {table!r} is a system; name it otherwise.")
    paper = checked_paper(merged["paper"], next(iter(systems.values())), rows) if merged.get("paper") else None
    output = Path(merged.get("output", "runs"))
    return Experiment(name, output, jobs, systems, baseline, table, paper, diagnose)


def resolved_systems(entries: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]) -> dict[str, System]:
    """The systems that are trained and then, since they use these, those that split."""
    trained: list[System] = []
    for name, changes in entries.items():
        if "split" not in changes:
            refuse_unknown(changes, (*SYSTEM_KEYS, "split"), f"systems.{name}")
            trained += seeded_systems(name, started(name, merge(shared, changes), changes.get("model"), trained))
    split = [system for name, entry in entries.items() if "split" in entry for system in splits(name, entry, trained)]
    refuse_same_names([system.name for system in (*trained, *split)], "systems")
    return {system.name: system for system in (*trained, *split)}


def refuse_same_names(names: Iterable[str], what: str) -> None:
    """A ValueError for a name that came about twice, such as that of a seed."""
    for name, number in Counter(names).items():
        if number > 1:
            raise ValueError(f"There are two {what} of the name {name!r}; name one of them otherwise.")


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
    if (boundaries := entry.get("boundaries", Split.boundaries)) not in BOUNDARIES:
        raise ValueError(
            f"systems.{name}: boundaries must be one of {', '.join(BOUNDARIES)}, but it is {boundaries!r}."
        )
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
    seeds = sections.pop("seeds")
    if seeds is None:
        return [checked_system(name, name, sections)]
    numbers = isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds)
    if not numbers or len(set(seeds)) < len(seeds):
        raise ValueError(f"systems.{name}: seeds must be different whole numbers, such as [1, 2, 3]; seeds={seeds!r}.")
    return [checked_system(f"{name}-seed{s}", name, merge(sections, {"train": {"seed": s}})) for s in seeds]


def checked_paper(given: Mapping[str, Any], system: System, rows: list[str]) -> Paper:
    """The published table beside which ours is put: of a test set, rows and groups that there are."""
    refuse_unknown(given, [f.name for f in fields(Paper)], "paper")
    if missing := [key for key in ("source", "test", "rows") if not given.get(key)]:
        raise ValueError(f"paper needs {', '.join(missing)}; add what is missing under `paper:`.")
    paper = Paper(**given)
    refuse_unknown([paper.test], system.test_sets, "paper.test")
    refuse_unknown(paper.rows, rows, "paper.rows")
    for row, found in paper.rows.items():
        if not found or not isinstance(found, Mapping):
            raise ValueError(
                f"paper.rows.{row} must have scores by their metrics, such as bleu: 31.7, but it is {found!r}."
            )
    (first, metrics), *others = paper.rows.items()
    for row, found in others:
        if found.keys() != metrics.keys():
            raise ValueError(
                f"All rows of a published table have the same metrics, but paper.rows.{row} has {', '.join(found)} and "
                f"paper.rows.{first} has {', '.join(metrics)}; add what is missing, or leave it out of all."
            )
    groups = len(system.score.edges) + 1
    by_group = isinstance(next(iter(metrics.values())), list)
    columns, what = (groups, f"each of the {groups} groups of score.edges") if by_group else (1, "all pairs")
    for row, found in paper.rows.items():
        refuse_unknown(found, SCORERS, f"paper.rows.{row}")
        for metric, of in found.items():
            check_numbers(f"paper.rows.{row}.{metric}", of if isinstance(of, list) else [of], columns, what)
    if paper.n is not None and not (isinstance(paper.n, list) and len(paper.n) == columns and None not in paper.n):
        raise ValueError(f"paper.n must be a list with the number of pairs of {what}, but it is {paper.n!r}.")
    return paper


def check_numbers(where: str, numbers: list[Any], columns: int, what: str) -> None:
    """A ValueError if a published table has other than one number, or null, in each column."""
    if len(numbers) != columns or not all(type(number) in (int, float, NoneType) for number in numbers):
        raise ValueError(
            f"{where} must have a number, or null, for {what}, as the first metric of the first row has, but it is "
            f"{numbers}."
        )


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


def check_name(name: str) -> None:
    if not NAME.fullmatch(name) or name == "data":
        raise ValueError(
            "A system's name is a folder's: a letter or digit, then letters, digits, '.', '+', '-', '_', and not "
            f"'data', which holds the corpora; it is {name!r}."
        )


def check_test_sets(name: str, joined: list[str]) -> None:
    """Refuse names that two test sets have, or that no file can have or another table has."""
    refuse_same_names(joined, "test sets")
    for test in joined:
        if not NAME.fullmatch(test) or test in TABLES or test.removesuffix(BY_PREDICTION) in (set(joined) - {test}):
            raise ValueError(
                f"systems.{name}: a test set's name is a file's: a letter or digit, then letters, digits, '.', '+', "
                f"'-', '_', and not that of another table ({', '.join(TABLES)}, NAME{BY_PREDICTION}); it is {test!r}."
            )


def checked_system(name: str, row: str, sections: Mapping[str, Any]) -> System:
    """A system whose sections have only known keys, and whose model can be built."""
    check_name(name)
    for section, kind in (("data", DataSettings), ("score", ScoreSettings), ("train", TrainingArguments)):
        refuse_unknown(sections[section], [f.name for f in fields(kind)], f"systems.{name}: {section}")
        refuse_other_kinds(sections[section], kind, f"systems.{name}: {section}")
    for argument in ("output_dir", "resume_from_checkpoint"):
        if argument in sections["train"]:
            raise ValueError(f"systems.{name}: train.{argument} is the run's own; leave it out.")
    missing = [key for key in ("source_language", "target_language", "train", "test") if not sections["data"].get(key)]
    if missing:
        raise ValueError(f"systems.{name}: data needs {', '.join(missing)}; add what is missing under `data:`.")
    if not isinstance(tests := sections["data"]["test"], Mapping):
        raise ValueError(
            f"systems.{name}: data.test has the test sets by their names, but it is {tests!r}; write for example "
            "{news: {files: [news.de, news.en]}}."
        )
    data = DataSettings(**sections["data"])
    described = {"train": data.train, **{f"test.{test}": where for test, where in data.test.items()}}
    for key, where in (described | ({"validation": data.validation} if data.validation else {})).items():
        check_description(where, f"systems.{name}: data.{key}")
    if data.min_length and data.max_length and data.min_length > data.max_length:
        raise ValueError(
            f"systems.{name}: no pair can be at least min_length={data.min_length} and at most max_length="
            f"{data.max_length} subwords long; make min_length the smaller one."
        )
    if data.concatenate != [1] and "join" in data.train:
        raise ValueError(
            f"systems.{name}: data.concatenate={data.concatenate} joins training pairs, but data.train joins "
            f"{data.train['join']} already; leave one of them out."
        )
    if data.flat_lengths is not None:
        positive(f"systems.{name}: data.flat_lengths", data.flat_lengths)
    if data.subwords not in SUBWORDS:
        raise ValueError(
            f"systems.{name}: data.subwords must be one of {', '.join(SUBWORDS)}, but it is {data.subwords!r}."
        )
    if not (data.joint_vocabulary or data.tokenizer) and sections["model"].get("share_encoder_decoder_embeddings"):
        raise ValueError(
            f"systems.{name}: two vocabularies have no embeddings in common; set data.joint_vocabulary=true or "
            "model.share_encoder_decoder_embeddings=false."
        )
    score = ScoreSettings(**sections["score"])
    check_score(name, score)
    check_test_sets(name, [test if k == 1 else f"{test}-x{k}" for test in data.test for k in set(score.concatenate)])
    start = sections["start_from"]
    system = System(name, row, data, score, dict(sections["model"]), dict(sections["train"]), start_from=start)
    system.model_config(vocab_size=data.vocab_size)
    return system


def only(*types: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in types


def only_lists_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(type(one) is kind for one in value)


# What a value is called of which a field holds nothing else, and whether it is one.
KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", only(bool)),
    int: ("a whole number", only(int)),
    float: ("a number", only(int, float)),
    list[int]: ("a list of whole numbers, such as [1, 2]", only_lists_of(int)),
    list[str]: ("a list of names, such as [bleu, ter]", only_lists_of(str)),
}


def refuse_other_kinds(given: Mapping[str, Any], kind: type, where: str) -> None:
    """A ValueError for a value that is not of the one kind that the dataclass `kind` has for it."""
    for field in fields(kind):
        types = {*get_args(field.type)} - {type(None)} if isinstance(field.type, UnionType) else {field.type}
        if field.name not in given or given[field.name] is None or len(types) > 1 or not types <= KINDS.keys():
            continue
        called, is_one = KINDS[types.pop()]
        if not is_one(given[field.name]):
            raise ValueError(f"{where}.{field.name} must be {called}, but it is {given[field.name]!r}.")


def check_score(name: str, score: ScoreSettings) -> None:
    """Refuse before training what could not be scored after it. No table of ours is without intervals."""
    try:
        checked_edges(score.edges)
        metrics = checked_metrics(score.metrics)
        checked_number("bootstrap", score.bootstrap, 100)
        checked_choice("bleu_tokenize", score.bleu_tokenize, TOKENIZERS)
        if score.per_group is not None:
            checked_number("per_group", score.per_group, 2)
        if "bleu" not in metrics:
            raise ValueError(f"metrics must name bleu, which the figures show, but they are {list(metrics)}; add it")
        if "bertscore" in metrics:
            BertScore(score.bertscore_model, score.bertscore_layers)
    except ValueError as error:
        raise ValueError(f"systems.{name}: score: {error}") from None


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
