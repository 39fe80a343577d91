"""Model cards, from the files of a scored system to its model's README.md, and the push of systems to the Hub.

A card contains only what these files contain. It cites the references of the model and of its encodings, so that a
registered encoding needs no further code.

With `train.push_to_hub`, the repository is created before training. After scoring, the model folder with its card is
pushed. `training/push_to_hub.py` selects the files.
"""

import glob
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path, PureWindowsPath

import jinja2
import yaml
from datasets import load_from_disk
from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING

from ...alignments.registry import get_alignment
from ...encodings.base import Reference
from ...encodings.registry import POSITION_ENCODINGS, parse_sum
from ...metrics.length_buckets.scorers import PRECOMPUTED_SCORERS
from ...transformer.configuration_posenc import PosEncConfig
from ...transformer.configuration_posenc_causal import PosEncCausalConfig
from ...utils.atomic_io import atomic_write
from ...utils.manifest import verified, verify_file
from ...utils.run_folder import RunPaths, SystemPaths
from ...utils.text_io import JsonObject
from ..config.settings import DataSettings, ScoreSettings, System
from ..config.yaml_io import read_yaml
from ..data.lengths import stratified_sample
from ..data.readers import CorpusSpec
from ..results.records import ScoredTestSet, SystemScores, TrainingSummary
from ..results.rendering import markdown_block, markdown_code, markdown_text, python_string, render_markdown
from ..results.saved_files import SavedSettings, parse_file, read_json_lines
from ..results.tables import SCORE_FORMATS, TableRows, length_table
from ..training.arguments import TrainingArguments, arguments_with_defaults
from ..training.push_to_hub import push_files

TEMPLATE = Path(__file__).with_name("model_card_template.md")
MAX_LINE_LENGTH = 130


def render_card(values: JsonObject) -> str:
    """The card's text, its long lines broken; every value is escaped as Markdown unless it is marked otherwise."""
    filters: dict[str, Callable[..., str]] = {"code": markdown_code, "block": markdown_block, "python": python_string}
    environment = jinja2.Environment(autoescape=True, finalize=escape_markdown)
    environment.filters |= {name: partial(apply_markup, markup) for name, markup in filters.items()}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return wrap_prose(template.render(values))


class Markdown(str):
    """Text that is Markdown already, which jinja leaves as it is."""

    def __html__(self) -> str:
        return self


def escape_markdown(value: object) -> object:
    return value if hasattr(value, "__html__") else Markdown(markdown_text(value))


def apply_markup(markup_filter: Callable[..., str], value: object, *options: str) -> Markdown:
    """What a filter makes of a value, which is not escaped again."""
    return Markdown(markup_filter(value, *options))


def wrap_prose(text: str) -> str:
    """The text with long lines broken, except in front matter, code and tables; a new line never begins with a mark."""
    lines, in_code = [], False
    head, mark, body = text.partition("\n---\n")
    for line in body.split("\n"):
        in_code ^= line.startswith("```")
        while len(line) > MAX_LINE_LENGTH and not in_code and not line.startswith(("|", "#", "```")):
            breaks = [match.start() for match in re.finditer(r" (?=[A-Za-z`(\[])", line[: MAX_LINE_LENGTH + 1])]
            if not breaks or breaks[-1] < MAX_LINE_LENGTH // 2:
                break
            lines.append(line[: breaks[-1]])
            line = ("  " if lines[-1].startswith(("- ", "  ")) else "") + line[breaks[-1] + 1 :]
        lines.append(line)
    return f"{head}{mark}" + "\n".join(lines)


def bibtex(reference: Reference) -> str:
    """A reference as a BibTeX entry."""
    surnames = re.split(r", | & ", reference.authors.removesuffix(" et al."))
    author = " and ".join([*surnames, "others"] if reference.authors.endswith(" et al.") else surnames)
    key = re.sub(r"\W", "", f"{surnames[0]}{reference.year}{reference.title.split()[0]}").lower()
    fields = {"author": reference.full_authors or author, "title": f"{{{reference.title}}}"}
    fields |= {"howpublished": reference.venue, "year": str(reference.year), "url": reference.url}
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@misc{{{key},", *lines, "}"])


REQUIRED_CONFIG_FIELDS = ("d_model", "vocab_size", "decoder_vocab_size", "encoder_layers", "decoder_layers")
REQUIRED_CAUSAL_FIELDS = ("hidden_size", "vocab_size", "num_hidden_layers")


@dataclass(frozen=True)
class ScoredSystem:
    """The contents of a scored system's files. `test_specs`: each test set's corpus, and how many pairs are
    concatenated."""

    settings: JsonObject
    scores: SystemScores
    config: JsonObject
    facts: TrainingSummary
    data: DataSettings
    score: ScoreSettings
    test_specs: dict[str, tuple[CorpusSpec, int]]


def read_scored_system(folder: Path) -> ScoredSystem:
    """Read the files of a scored system, each intact and all of one training."""
    paths = SystemPaths(folder)
    if not folder.is_dir() and (systems := RunPaths(folder.parent).model_folders()):
        raise ValueError(f"{folder.parent} has no system {folder.name!r}; name one of {', '.join(systems)}.")
    settings = read_complete(path := paths.settings, "data", "model", "train", "score")
    parse_file(SavedSettings, settings, path)
    with explain_malformed_files(folder, TypeError):
        system = System.from_saved(folder.name, folder.name, settings)
    if system.segment:
        raise ValueError(
            f"A card is of a trained model, but {folder.name} translates with that of {system.model_system_name}; ask "
            f"for the card of {system.model_system_name}."
        )
    scores = parse_file(SystemScores, read_complete(path := paths.scores, "training", "tests"), path)
    config = read_complete(paths.model_config, "model_type")
    read_complete(paths.model_config, *(REQUIRED_CAUSAL_FIELDS if is_causal(config) else REQUIRED_CONFIG_FIELDS))
    path = paths.training_summary
    training = parse_file(TrainingSummary, read_complete(path, "steps", "seconds", "parameters", "pairs"), path)
    if scores.training != training or not scores.tests.keys() <= system.test_sets.keys():
        raise ValueError(
            f"A card is of one run, but in {folder} scores.json tells of {', '.join(scores.tests)} and the training "
            f"{scores.training}, settings.yaml of {', '.join(system.test_sets)} and model/training.json of {training}; "
            "delete scores.json and run train.py again."
        )
    return ScoredSystem(settings, scores, config, training, system.data, system.score, system.test_sets)


def is_causal(config: JsonObject) -> bool:
    """Whether a saved config is a decoder-only model's."""
    return bool(config["model_type"] == PosEncCausalConfig.model_type)


def read_complete(path: Path, *keys: str) -> JsonObject:
    """The content of an intact JSON or YAML file that has these keys."""
    if not path.is_file():
        raise FileNotFoundError(f"A card is made from a scored system, but {path} is missing; run train.py first.")
    verify_file(path)
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


@contextmanager
def explain_malformed_files(folder: Path, *errors: type[Exception]) -> Iterator[None]:
    """Context manager: errors that values of an unexpected type cause become a ValueError that names the folder."""
    try:
        yield
    except errors as error:
        raise ValueError(
            f"A card is made from files as train.py writes them, but one of those in {folder} is not "
            f"({type(error).__name__}: {error}); restore it, or delete the folder and run train.py again."
        ) from error


METRIC_NAMES = {field: name for field, name, _ in SCORE_FORMATS if field in PRECOMPUTED_SCORERS}
MAX_METRICS = 6  # in the metadata; tables have all
MAX_EXAMPLE_WORDS = 120
# A sample input where a run's test text is not at hand: article 1 of the Universal Declaration of Human Rights.
SAMPLE_SENTENCES = {
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "en": "All human beings are born free and equal in dignity and rights.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
}


def write_card(run_folder: Path, system: str, repository: str | None = None) -> Path:
    """Write a scored system's card into its model folder. Returns the path."""
    card = str(model_card(run_folder, system, repository))
    path = RunPaths(run_folder).system(system).card
    atomic_write(path, card)
    return path


def model_card(
    run_folder: Path,
    system: str,
    repository: str | None = None,
    licence: str | None = None,
    domain: str | None = None,
) -> ModelCard:
    """The card of a scored system, from its saved files. `repository` is what its code loads, by default
    `repository_name`. `licence` and `domain` of the data replace those of the config.

    A FileNotFoundError if a file is missing, a ValueError if one is truncated or contradicts the others.
    """
    run = read_scored_system(run_folder / system)
    for field, value in {"license": licence, "domain": domain}.items():
        if value is not None:
            if not value.strip():
                raise ValueError(
                    f"The {field} must be a text, such as cc-by-4.0 or news, but it is empty. Leave it out."
                )
            run = replace(run, data=run.data.model_copy(update={field: value}))
    with explain_malformed_files(run_folder / system, AttributeError, KeyError, TypeError):
        name = repository or repository_name(run_folder.resolve().name, system, run)
        rows = translated_pairs(run_folder, system, run)
        case = letter_case(run, [row["reference"] for row in rows] or translated_texts(run_folder, system, run))
        values = card_values(run, system, name) | {"examples": examples(rows), "letter_case": case}
        values["sample"] = sample_input(run, [row["source"] for row in rows], case)
    with explain_malformed_files(run_folder / system, TypeError, ValueError, jinja2.UndefinedError):
        return ModelCard(render_card(values))


def repository_name(run_name: str, system: str, run: ScoredSystem) -> str:
    """Such as `posenc-deen-news-3.9M-aligned`: the languages, the run, the number of parameters, the system."""
    units = {1e9: "B", 1e6: "M", 1e3: "k", 1: ""}
    unit = max((unit for unit in units if unit <= run.facts.parameters), default=1)
    size = f"{run.facts.parameters / unit:.{1 if run.facts.parameters < 10 * unit else 0}f}{units[unit]}"
    languages = run.data.language or f"{run.data.source_language}{run.data.target_language}"
    name = f"posenc-{languages}-{run_name}-{size}-{system}"
    return re.sub(r"[^\w.-]+", "-", name)


def translated_pairs(run_folder: Path, system: str, run: ScoredSystem) -> list[dict[str, str]]:
    """Test set, source, translation and reference of each scored pair; none if the run's folder has no test sets."""
    rows = []
    for test in run.scores.tests:
        path = SystemPaths(run_folder / system).translation(test)
        test_sets = list(run_folder.glob(RunPaths(Path()).test_set(glob.escape(test), "[0-9a-f]" * 12).as_posix()))
        if len(test_sets) != 1 or not path.is_file():
            continue
        with verified(path):
            texts = [line["text"] for line in read_json_lines(path)]
        with verified(test_sets[0]):
            test_set = load_from_disk(str(test_sets[0]))
        if run.score.max_per_bucket:
            test_set = stratified_sample(test_set, run.score.bucket_edges, run.score.max_per_bucket)
        pairs = test_set["translation"]
        if len(pairs) != len(texts):
            continue
        for pair, text in zip(pairs, texts, strict=True):
            source, reference = pair[run.data.source_language], pair[run.data.target_language]
            rows.append({"test": test, "source": source, "translation": text, "reference": reference})
    return rows


def translated_texts(run_folder: Path, system: str, run: ScoredSystem) -> list[str]:
    """The saved translations of a run whose test text is not at hand."""
    files = [SystemPaths(run_folder / system).translation(test) for test in run.scores.tests]
    lines = chain.from_iterable(read_json_lines(path) for path in files if path.is_file())
    return [line["text"] for line in lines]


def letter_case(run: ScoredSystem, target_texts: Sequence[str]) -> str | None:
    """The case of the target's letters; None if there are no texts, or only of a script without case."""
    if any(text != text.lower() for text in target_texts):
        return "cased"
    is_lowercase = any(text != text.upper() for text in target_texts) or "lowercase" in run.data.normalize.get(
        "target", ()
    )
    return "lower-cased" if is_lowercase else None


def sample_input(run: ScoredSystem, sources: Sequence[str], case: str | None) -> str:
    """The text that the card's code translates: the shortest test source, else a sentence that everybody knows."""
    if texts := [source for source in sources if source.strip()]:
        return min(texts, key=len)
    language = run.data.language or run.data.source_language
    sentence = SAMPLE_SENTENCES.get(language, SAMPLE_SENTENCES["en"])
    return sentence.lower() if case == "lower-cased" else sentence


def examples(rows: Sequence[dict[str, str]]) -> dict[str, dict[str, str]]:
    """Two translations: of a pair of median source length, and of the longest with at most MAX_EXAMPLE_WORDS words."""
    rows = sorted(rows, key=lambda row: len(row["source"].split()))
    short = [row for row in rows if len(row["source"].split()) <= MAX_EXAMPLE_WORDS]
    return {"An": rows[len(rows) // 2], "A long": short[-1]} if short else {}


def card_values(run: ScoredSystem, system: str, repository: str) -> JsonObject:
    """The values of the template."""
    config_class = PosEncCausalConfig if is_causal(run.config) else PosEncConfig
    sides = {}
    for side, field in config_class.encoding_type_fields.items():
        if field in run.config:
            sides[side] = parse_sum(run.config[field])
    if not any(POSITION_ENCODINGS[name].modifies_attention for name in sides.get("cross", ())):
        sides.pop("cross", None)
    entries = {name: POSITION_ENCODINGS[name] for name in chain.from_iterable(sides.values())}
    alignment = get_alignment(run.config.get("alignment_type", PosEncConfig.alignment_type))
    models = MODEL_FOR_CAUSAL_LM_MAPPING if is_causal(run.config) else MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    model = models[CONFIG_MAPPING[run.config["model_type"]]]
    code = [model, *(entry.encoding for entry in entries.values()), alignment]
    modules = dict.fromkeys(item.__module__ for item in code)
    references = [*model.references, *chain.from_iterable(entry.references for entry in entries.values())]
    references += alignment.references
    rows = TableRows(scores={system: run.scores.tests})
    tables, notes = {}, list[str]()
    for test in run.scores.tests:
        table = length_table(rows, test)
        tables[test] = render_markdown(replace(table, notes=()))
        notes += table.notes
    own_settings = {source: without_folders(run.settings[source]) for source in ("model", "train")}
    return vars(run) | {
        "card_data": metadata(run, list(entries), repository).to_yaml(),
        "repository": repository,
        "architecture": model.summary.rstrip("."),
        "auto_class": "AutoModelForCausalLM" if is_causal(run.config) else "AutoModelForSeq2SeqLM",
        "width": run.config["hidden_size" if is_causal(run.config) else "d_model"],
        "stacks": stack_sizes(run.config),
        "sides": {side: "+".join(names) for side, names in sides.items()},
        "encodings": entries,
        "alignment": alignment,
        "knobs": {
            name: run.config[name] for name in PosEncConfig.parameter_fields() if run.config.get(name) is not None
        },
        "own_modules": [module for module in modules if module.partition(".")[0] != __package__.partition(".")[0]],
        "train": arguments_with_defaults(run.settings["train"]),
        "chosen": yaml.safe_dump(own_settings, sort_keys=False).strip(),
        "hub_id": partial(hub_id, run),
        "corpora": (corpora := corpus_leaves(run.data.train)),
        "is_synthetic": all(corpus.get("generator") for corpus in corpora),
        "tables": tables,
        "notes": list(dict.fromkeys(notes)),
        "references": list(dict.fromkeys(map(bibtex, references))),
        "decoding": decoding_arguments(run.score),
    }


def decoding_arguments(score: ScoreSettings) -> str:
    """The arguments of `translate` with which the scored translations were decoded."""
    length = f", max_new_tokens={score.max_new_tokens}" if score.max_new_tokens else ""
    return f"num_beams={score.num_beams}{length}"


def stack_sizes(config: JsonObject) -> JsonObject:
    """By stack: its numbers of layers and of attention heads, its feed-forward width and its vocabulary."""
    fields_by_stack = {
        "encoder": ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "vocab_size"),
        "decoder": ("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim", "decoder_vocab_size"),
    }
    if is_causal(config):
        fields_by_stack = {"decoder": ("num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")}
    return {stack: list(map(config.get, fields)) for stack, fields in fields_by_stack.items()}


def without_folders(value: object) -> object:
    """Settings without local folders: of a path, the last name."""
    if isinstance(value, Mapping):
        return {key: without_folders(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_folders(one) for one in value]
    if isinstance(value, str) and re.match(r"(file://)?(/|~|[A-Za-z]:[\\/])", value):
        return PureWindowsPath(value).name  # accepts both slashes
    return value


def metadata(run: ScoredSystem, encodings: list[str], model_name: str) -> ModelCardData:
    """The card's metadata. The Hub refuses a language that is no identifier, and a licence without an identifier is
    "other"."""
    parts = [vars(run.data), *corpus_leaves(run.data.train)]
    languages = dict.fromkeys(part.get(f"{side}_language") or "" for part in parts for side in ("source", "target"))
    results, licence = list(eval_results(run))[:MAX_METRICS], run.data.license or ""
    licence_id = licence if re.fullmatch(r"[a-z0-9.-]+", licence) else "other" if licence else None
    datasets = dict.fromkeys(hub_id(run, part.get("dataset")) for part in corpus_leaves(run.data.train))
    return ModelCardData(
        language=[name for name in languages if re.fullmatch(r"[a-z]{2,3}", name)] or None,
        license=licence_id,
        license_name=re.sub(r"[^a-z0-9.]+", "-", licence.lower()).strip("-") if licence_id == "other" else None,
        base_model=hub_id(run, run.settings.get("init_from")),
        library_name="transformers",
        pipeline_tag="text-generation" if is_causal(run.config) else "translation",
        tags=["text-generation" if run.data.is_text else "translation", "hf_posenc", *encodings],
        datasets=[name for name in datasets if name] or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=model_name,
        eval_results=results or None,
    )


def eval_results(run: ScoredSystem) -> Iterator[EvalResult]:
    """The scores of all pairs of each test set that was not sampled, the first metric of every set first.

    A model index has one name for all results of the same dataset, configuration, split and revision. Therefore a set
    has the Hub's id only if it is the unchanged dataset and no other set has that id. Otherwise it has its own name and
    hash.
    """
    task_type, task = "translation", f"Translation {run.data.source_language}-{run.data.target_language}"
    if run.data.is_text:
        task_type, task = "text-generation", f"Language modeling {run.data.language}"
    datasets: dict[str, JsonObject] = {}
    for test, result in run.scores.tests.items():
        spec, num_joined = run.test_specs[test]
        dataset: JsonObject = {"dataset_type": hub_id(run, spec.get("dataset"))}
        for key, field in (("name", "dataset_config"), ("split", "dataset_split"), ("revision", "dataset_revision")):
            dataset[field] = spec.get(key)
        is_changed = num_joined > 1 or spec.get("max_examples") or spec.get("concatenate")
        if is_changed or dataset["dataset_type"] is None or dataset in datasets.values():
            own_name = re.sub(r"[^\w.-]+", "-", test)
            dataset = {"dataset_type": own_name, "dataset_revision": result.test_set_sha256[:12]}
        datasets[test] = dataset
    for metric, metric_name in METRIC_NAMES.items():
        for test, result in run.scores.tests.items():
            score = result.overall.score(metric)
            if result.overall.n and score is not None and not is_sampled(run.score, result):
                yield EvalResult(
                    task_type=task_type, task_name=task, dataset_name=test, **datasets[test],
                    metric_type=metric, metric_value=round(score, 2), metric_name=metric_name,
                )  # fmt: skip


def is_sampled(score: ScoreSettings, result: ScoredTestSet) -> bool:
    """Whether pairs of a test set may have been left out, so that the score over all pairs is of no real text."""
    most = score.max_per_bucket
    return most is not None and any(bucket.n >= most for bucket in result.buckets)


def corpus_leaves(corpus_spec: CorpusSpec) -> list[CorpusSpec]:
    """The corpora in nested lists of corpora, or the corpus itself."""
    if not corpus_spec.get("corpora"):
        return [corpus_spec]
    return list(chain.from_iterable(map(corpus_leaves, corpus_spec["corpora"])))


def hub_id(run: ScoredSystem, name: str | None) -> str | None:
    """The name, if it is one on the Hub. Files of a local folder are in the settings' `files`."""
    local = any(file.startswith(f"{name}/") for file in run.settings.get("files", {}))
    return name if name and not local and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) else None


def validate_repositories(arguments: Mapping[str, TrainingArguments]) -> None:
    """Raise a ValueError if two systems push to one repository, or if a push would contain more than the model.

    `arguments` are the Trainer's, by the names of systems.
    """
    owner_by_repository: dict[str, str] = {}
    for name, args in arguments.items():
        if not args.push_to_hub:
            continue
        repository = args.hub_model_id
        if (owner := owner_by_repository.setdefault(repository, name)) != name:
            raise ValueError(
                f"Each system has a repository of its own, but {owner} and {name} would both push to "
                f"{repository}; give each its systems.NAME.train.hub_model_id, or none, and they are named after the "
                "run and the system."
            )


def is_pushed(system: System, paths: SystemPaths) -> bool:
    """Whether the system is pushed, or is not to be pushed."""
    return not system.train.get("push_to_hub") or paths.push_record.exists()


def push_system(args: TrainingArguments, paths: SystemPaths) -> None:
    """Push a scored system's model with its card, whose examples load it from its repository."""
    api = HfApi()
    repository = api.create_repo(args.hub_model_id, private=args.hub_private_repo, exist_ok=True).repo_id
    write_card(paths.folder.parent, paths.folder.name, repository)
    commit = push_files(paths.model, repository, message="Trained and scored", revision=args.hub_revision)
    record = {"repository": repository, "commit": commit.oid}
    atomic_write(paths.push_record, json.dumps(record, indent=1))
