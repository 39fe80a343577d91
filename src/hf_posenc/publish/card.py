"""Saved results to a model card: pure functions from the files of a scored system to its model's README.md.

A card says what those files say, and what they do not hold it leaves out. It cites the references of the model and of
its encodings, so an encoding has its place in a card by being registered.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any

import jinja2
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import CONFIG_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING

from ..config.settings import DataSettings, ScoreSettings, test_sets
from ..config.yaml_io import read_yaml
from ..manifest import check_file
from ..metrics.length_buckets.scorers import SCORERS
from ..modeling.alignments import alignment_named
from ..modeling.configuration_posenc import SIDES, PosEncConfig, knob_fields
from ..modeling.positions import POSITION_ENCODINGS, parts_of
from ..modeling.references import Reference
from ..results.markup import markdown_block, markdown_code, markdown_text, python_string
from ..results.tables import SCORES, length_table, markdown
from ..results.validation import validate_scores, validate_settings
from ..training.arguments import arguments_with_defaults
from ..training.checkpoints import trained_systems
from ..whole_files import write_whole

TEMPLATE = Path(__file__).with_name("model_card_template.md")
METRICS = {field: name for field, name, _ in SCORES if field in SCORERS}
SIZES = ("d_model", "vocab_size", "decoder_vocab_size", "encoder_layers", "decoder_layers")


@dataclass(frozen=True)
class ScoredSystem:
    """What the files of a scored system hold; `tested_on`: each test set's description, how many pairs are joined."""

    settings: dict[str, Any]
    scores: dict[str, Any]
    config: dict[str, Any]
    facts: dict[str, Any]
    data: DataSettings
    score: ScoreSettings
    tested_on: dict[str, tuple[dict[str, Any], int]]


def write_card(run_folder: Path, system: str, repository: str | None = None) -> Path:
    """Write a scored system's card beside its weights; returns where."""
    write_whole(path := run_folder / system / "model" / "README.md", str(model_card(run_folder, system, repository)))
    return path


def model_card(run_folder: Path, system: str, repository: str | None = None) -> ModelCard:
    """A scored system's card, from its saved files; `repository` is what the examples load, else the system's name.

    A FileNotFoundError if a file is missing, a ValueError if one is not whole or does not go with the others.
    """
    run = read_system(run_folder / system)
    with of_another_form(run_folder / system, AttributeError, KeyError, TypeError):
        shown = card_values(run, system, repository or system)
    with of_another_form(run_folder / system, TypeError, ValueError, jinja2.UndefinedError):
        return ModelCard(template().render(shown))


@contextmanager
def of_another_form(folder: Path, *errors: type[Exception]) -> Iterator[None]:
    """A ValueError that names the folder for what a value of an unexpected kind leads to."""
    try:
        yield
    except errors as error:
        raise ValueError(
            f"A card is made from files as train.py writes them, but one of those in {folder} is not "
            f"({type(error).__name__}: {error}); restore it, or delete the folder and run train.py again."
        ) from error


def card_values(run: ScoredSystem, system: str, repository: str) -> dict[str, Any]:
    """What the template shows."""
    named = {side: parts_of(run.config[field]) for side, field in SIDES.items() if field in run.config}
    sides = {side: names for side, names in named.items() if side != "cross" or acting(names)}
    used = {name: POSITION_ENCODINGS[name] for names in sides.values() for name in names}
    alignment = alignment_named(run.config.get("alignment_type", PosEncConfig.alignment_type))
    model = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[CONFIG_MAPPING[run.config["model_type"]]]
    code = [model, *(entry.encoding for entry in used.values()), alignment]
    modules = dict.fromkeys(one.__module__ for one in code)
    references = dict.fromkeys(one for part in (model, *used.values(), alignment) for one in part.references)
    return vars(run) | {
        "card_data": metadata(run, list(used), repository).to_yaml(),
        "repository": repository,
        "architecture": model.summary.rstrip("."),
        "sides": {side: "+".join(names) for side, names in sides.items()},
        "encodings": used,
        "alignment": alignment,
        "knobs": {name: run.config[name] for name in knob_fields() if run.config.get(name) is not None},
        "own_modules": [module for module in modules if module.partition(".")[0] != __package__.partition(".")[0]],
        "train": arguments_with_defaults(run.settings["train"]),
        "chosen": yaml.safe_dump(
            {part: last_names(run.settings[part]) for part in ("model", "train")}, sort_keys=False
        ).strip(),
        "hub_id": partial(hub_id, run),
        "corpora": parts_of_corpus(run.data.train),
        "tables": {test: markdown(length_table({system: run.scores["tests"]}, test)) for test in run.scores["tests"]},
        "references": {str(reference): bibtex(reference) for reference in references},
    }


def template() -> jinja2.Template:
    """The card's template, in which every value is escaped as Markdown that is not marked as something else."""
    shown: dict[str, Callable[..., str]] = {"code": markdown_code, "block": markdown_block, "python": python_string}
    made = jinja2.Environment(autoescape=True, finalize=as_markdown)
    made.filters |= {name: partial(marked, markup) for name, markup in shown.items()}
    return made.from_string(TEMPLATE.read_text(encoding="utf-8"))


class Markdown(str):
    """Text that is Markdown already, which jinja leaves as it is."""

    def __html__(self) -> str:
        return self


def as_markdown(value: Any) -> Any:
    return value if hasattr(value, "__html__") else Markdown(markdown_text(value))


def marked(markup: Callable[..., str], value: Any, *options: str) -> Markdown:
    """What a filter makes of a value, which is not escaped again."""
    return Markdown(markup(value, *options))


def last_names(value: Any) -> Any:
    """Settings as others may read them: of a path into this machine's folders, the last name."""
    if isinstance(value, Mapping):
        return {key: last_names(one) for key, one in value.items()}
    if isinstance(value, list):
        return [last_names(one) for one in value]
    if isinstance(value, str) and re.match(r"(file://)?(/|~|[A-Za-z]:[\\/])", value):
        return PureWindowsPath(value).name  # which takes either slash
    return value


def acting(names: list[str]) -> bool:
    """Whether anything is done in attention."""
    return any(POSITION_ENCODINGS[name].acts_in_attention for name in names)


def read_system(folder: Path) -> ScoredSystem:
    """The files of a scored system, each whole and all of one run."""
    if not folder.is_dir() and (systems := trained_systems(folder.parent)):
        raise ValueError(f"{folder.parent} has no system {folder.name!r}; name one of {', '.join(systems)}.")
    settings = read_whole(path := folder / "settings.yaml", "data", "model", "train", "score")
    validate_settings(settings, path)
    if split := settings.get("split"):
        raise ValueError(
            f"A card is of a trained model, but {folder.name} translates with that of {split['system']}; ask for "
            f"the card of {split['system']}."
        )
    scores = read_whole(path := folder / "scores.json", "training", "tests")
    validate_scores(scores, path)
    config = read_whole(folder / "model" / "config.json", "model_type", *SIZES)
    facts = read_whole(folder / "model" / "training.json", "steps", "seconds", "parameters", "pairs")
    data, score = known_settings(DataSettings, settings["data"]), known_settings(ScoreSettings, settings["score"])
    tested_on = test_sets(data, score)
    if scores["training"] != facts or not scores["tests"].keys() <= tested_on.keys():
        raise ValueError(
            f"A card is of one run, but in {folder} scores.json tells of {', '.join(scores['tests'])} and the training "
            f"{scores['training']}, settings.yaml of {', '.join(tested_on)} and model/training.json of {facts}; delete "
            "scores.json and run train.py again."
        )
    return ScoredSystem(settings, scores, config, facts, data, score, tested_on)


def read_whole(path: Path, *keys: str) -> dict[str, Any]:
    """A JSON or YAML file that is whole, with these keys."""
    if not path.is_file():
        raise FileNotFoundError(f"A card is made from a scored system, but {path} is missing; run train.py first.")
    check_file(path)
    try:
        is_yaml = path.suffix == ".yaml"
        content = read_yaml(path, "It") if is_yaml else json.loads(path.read_text(encoding="utf-8"))
        reason = "".join(f" no {key!r}" for key in keys if content.get(key) is None)
    except (ValueError, AttributeError, RecursionError) as error:
        reason = f" {type(error).__name__}: {' '.join(str(error).split())}"
    if reason:
        raise ValueError(
            f"A card is made from whole files, but {path} is cut short or another:{reason}; restore "
            "it, or delete the system's folder and run train.py again."
        )
    return content


def known_settings(kind: type[Any], given: Mapping[str, Any]) -> Any:
    """A section of the settings; what is newer than the run is at its default."""
    return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})


def metadata(run: ScoredSystem, encodings: list[str], model_name: str) -> ModelCardData:
    """What the Hub reads; a language or licence that is no identifier it would refuse, so that is left to the text."""
    parts = [vars(run.data), *parts_of_corpus(run.data.train)]
    languages = dict.fromkeys(part.get(f"{side}_language") or "" for part in parts for side in ("source", "target"))
    results, licence = list(eval_results(run)), run.data.licence or ""
    datasets = dict.fromkeys(hub_id(run, part.get("dataset")) for part in parts_of_corpus(run.data.train))
    return ModelCardData(
        language=[name for name in languages if re.fullmatch(r"[a-z]{2,3}", name)] or None,
        license=licence if re.fullmatch(r"[a-z0-9.-]+", licence) else None,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "hf_posenc", *encodings],
        datasets=[name for name in datasets if name] or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=model_name,
        eval_results=results or None,
    )


def eval_results(run: ScoredSystem) -> Iterator[EvalResult]:
    """Every score of every test set, of all its pairs and of each length group that has pairs.

    A model index has one name for all results of the same dataset, configuration, split and revision. So a set goes by
    the Hub's id only if it is the Hub's as it is there and no other one is; else by its own name and its hash.
    """
    task, taken = f"Translation {run.data.source_language}-{run.data.target_language}", set()
    for test, result in run.scores["tests"].items():
        where, k = run.tested_on[test]
        changed = k > 1 or run.score.per_group or where.get("first") or where.get("join")
        on_hub = (hub_id(run, where.get("dataset")), *(where.get(key) for key in ("name", "split", "revision")))
        own = (re.sub(r"[^\w.-]+", "-", test), None, None, result["test_set_sha256"][:12])
        taken.add(identifier := own if changed or on_hub[0] is None or on_hub in taken else on_hub)
        fixed: dict[str, Any] = {"task_type": "translation", "task_name": task, "dataset_name": test}
        fixed |= zip(("dataset_type", "dataset_config", "dataset_split", "dataset_revision"), identifier, strict=True)
        for group in (result["all"], *result["groups"]):
            for metric in METRICS:
                if group["n"] and group.get(metric) is not None:
                    value, name = round(group[metric], 2), metric_name(metric, group, result.get("by", "source"))
                    yield EvalResult(**fixed, metric_type=metric, metric_value=value, metric_name=name)


def metric_name(metric: str, group: Mapping[str, Any], by: str) -> str:
    """The metric, and of which pairs it is: `BLEU, source length [26,50] (n=123, 95 % interval 25.80 ± 1.20)`."""
    pairs = "all lengths" if group["label"] == "all" else f"{by} length {group['label']}"
    mean, half = group.get(f"{metric}_mean"), group.get(f"{metric}_ci")
    interval = "" if mean is None or half is None else f", 95 % interval {mean:.2f} ± {half:.2f}"
    return f"{METRICS[metric]}, {pairs} (n={group['n']}{interval})"


def parts_of_corpus(where: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The descriptions in a list of corpora, or the one description."""
    return [leaf for part in where["corpora"] for leaf in parts_of_corpus(part)] if where.get("corpora") else [where]


def hub_id(run: ScoredSystem, name: str | None) -> str | None:
    """The name, if it is one on the Hub; that of a local folder has its files among those that the run read."""
    local = any(file.startswith(f"{name}/") for file in run.settings.get("files", {}))
    return name if name and not local and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) else None


def bibtex(reference: Reference) -> str:
    surnames = re.split(r", | & ", reference.authors.removesuffix(" et al."))
    author = " and ".join([*surnames, "others"] if reference.authors.endswith(" et al.") else surnames)
    key = re.sub(r"\W", "", f"{surnames[0]}{reference.year}{reference.title.split()[0]}").lower()
    given = {"author": author, "title": f"{{{reference.title}}}", "howpublished": reference.venue}
    given |= {"year": str(reference.year), "url": reference.url}
    return "\n".join([f"@misc{{{key},", *(f"  {name} = {{{value}}}," for name, value in given.items() if value), "}"])
