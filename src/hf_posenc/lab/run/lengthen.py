"""`lengthen`: a trained translator is fine-tuned for longer input, and scored by length before and after.

The command writes an ordinary config file, `lengthen.yaml` in the run folder, and runs it as train.py does. Rows:

    before       the model as it is
    segmented    the same model, sentence by sentence: an upper bound for documents
    lengthened   local attention and an alignment in place of its encodings, fine-tuned on pairs and concatenated pairs

An audit of concatenated test sentences says what each system drops, repeats, moves and invents.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...convert.checkpoints import load_any_config
from ...convert.folders import language_token
from ...hub.errors import validate_names
from ...metrics.loading import load_translation_audit
from ...transformer.configuration_posenc import PosEncConfig
from ...utils.atomic_io import atomic_write
from ...utils.run_folder import ReportPaths
from ..config.loading import parse_experiment
from ..config.yaml_io import Section, dump_yaml, merge, parse_override
from ..reports.audit import count_rows
from ..reports.report import write_report
from ..results.aggregation import aggregate
from ..results.saved_files import read_translations
from .corpora import sampled_pairs
from .pipeline import run_system
from .prepare import prepare
from .prepared_run import PreparedRun, PreparedTestSet
from .shared_tokenizer import load_pretrained_tokenizer

CONFIG_FILE = "lengthen.yaml"
# Encodings and recipe of configs/multi30k-convert.yaml, with a lower learning rate, because models differ in size. The
# window is narrow, and concatenations are long: where layers x window is as long as the training inputs, the encoder
# sees both ends of each, and misses them in longer input.
LENGTHENED: Section = {
    "model": {
        "position_encoding_type": "relative+window",
        "window_size": 4,
        "cross_position_encoding_type": "rotary+window",
        "cross_window_size": 12,
        "alignment_type": "length_ratio",
    },
    "data": {"concatenate": [1, 2, 4]},
    "train": {"num_train_epochs": 1, "warmup_steps": 40},
}
TRAIN: Section = {
    "seed": 1,
    "learning_rate": 5e-4,
    "label_smoothing_factor": 0.1,
    "tokens_per_batch": 4096,
    "logging_steps": 50,
    "save_strategy": "steps",
    "save_steps": 500,
}
LORA_LEARNING_RATE = 2e-3
SCORE: Section = {"concatenate": [1, 2, 3, 5, 10], "bucket_edges": [10, 20, 30, 45, 60, 90], "num_beams": 5}


@dataclass(frozen=True)
class LengthenJob:
    """A model, the pairs to fine-tune and to score it with, and their languages.

    `model`: a folder or a name on the Hub, of this family or of one that `from_transformers` converts, with its
    tokenizer. `pairs`, `test`: two aligned texts, or one .tsv or .jsonl file. `source_tag`, `target_tag`: languages or
    tags of a multilingual model, by its tokenizer. `lora_rank`: train adapters of this rank; None trains all weights.
    """

    model: str
    pairs: Sequence[str]
    test: Sequence[str]
    source_language: str
    target_language: str
    source_tag: str | None = None
    target_tag: str | None = None
    lora_rank: int | None = None

    def with_tag_tokens(self) -> "LengthenJob":
        """The job with its languages' tags as tokens; a ValueError for a language that the tokenizer lacks."""
        if self.source_tag is None and self.target_tag is None:
            return self
        tokenizer = load_pretrained_tokenizer(self.model)
        source, target = (
            None if language is None else language_token(tokenizer, language)
            for language in (self.source_tag, self.target_tag)
        )
        return replace(self, source_tag=source, target_tag=target)

    def config(self) -> Section:
        """The config of the three rows. Names of files and folders are absolute."""
        model = absolute_if_local(self.model)
        tags = {"source_tag": self.source_tag, "target_tag": self.target_tag}
        tags = {name: tag for name, tag in tags.items() if tag is not None}
        data: Section = {
            "source_language": self.source_language,
            "target_language": self.target_language,
            "train": {"files": corpus_files(self.pairs), **tags},
            "test": {"test": {"files": corpus_files(self.test), **tags}},
            "tokenizer": model,
            "tags": list(dict.fromkeys(tags.values())),
        }
        lora = (
            {}
            if self.lora_rank is None
            else {"train": {"lora_rank": self.lora_rank, "learning_rate": LORA_LEARNING_RATE}}
        )
        systems: Section = {
            "before": {"train": {"max_steps": 0}},
            "lengthened": merge(LENGTHENED, lora),
            "segmented": {"segment": "before"},
        }
        return {
            "data": data, "init_from": model, "train": TRAIN, "score": SCORE, "systems": systems, "baseline": "before",
            "diagnose": not self.target_tag,
        }  # fmt: skip


def lengthen(job: LengthenJob, folder: Path, overrides: Sequence[str] = ()) -> str:
    """Fine-tune and score the model of a job in `folder`, and return the tables by length and the audit of documents.

    `overrides` are `dotted.key=value` for the config, such as `systems.lengthened.model.window_size=16`. The same call
    resumes after a kill. The new model and its tokenizer are in `folder/lengthened/model`.

    Raises a ValueError, before any weight is read, for a model that cannot be converted, files that do not fit, and
    settings that differ from those of the folder.
    """
    if not isinstance(config := load_any_config(job.model, "lengthen needs a checkpoint"), PosEncConfig):
        raise ValueError(
            f"lengthen needs an encoder-decoder, but {job.model} holds a `{config.model_type}` model; fine-tune that "
            "on longer sequences with `init_from` in a config file."
        )
    job = job.with_tag_tokens()
    section: Section = {"name": folder.resolve().name, "output_dir": str(folder.resolve().parent)} | job.config()
    for override in overrides:
        section = merge(section, parse_override(override))
    validate_names(section.get("systems") or {}, job.config()["systems"], "systems")
    path = folder / CONFIG_FILE
    experiment = parse_experiment(section, path)
    atomic_write(path, dump_yaml(section))
    prepare(experiment)
    run = PreparedRun(experiment)
    for name in experiment.systems:
        run_system(run, name)
    report = write_report(aggregate(experiment), experiment.tables_folder)
    return "\n\n".join(filter(None, (report, write_audit(run))))


def absolute_if_local(name: str) -> str:
    """The absolute path of a file or folder that exists; any other name as it is."""
    return str(Path(name).resolve()) if Path(name).exists() else name


def corpus_files(files: Sequence[str]) -> list[str] | str:
    """The key `files` of a corpus; a ValueError unless there are one or two."""
    if len(files) not in (1, 2):
        raise ValueError(
            f"Pairs must be two aligned texts, or one .tsv or .jsonl file, but {len(files)} files were given; "
            "concatenate them first."
        )
    names = [absolute_if_local(file) for file in files]
    return names if len(names) == 2 else names[0]


MIN_SENTENCES = 5  # of a source; shorter ones are no documents
Audits = dict[str, dict[str, dict[str, Any]]]  # by test set and system


def audit_documents(run: PreparedRun) -> Audits:
    """The audit of each test set of MIN_SENTENCES or more concatenated sentences, for each system of a scored run."""
    audits: Audits = {}
    for system in run:
        for name, test_set in system.test_sets.items():
            if test_set.num_concatenated >= MIN_SENTENCES:
                sources, references = gold_documents(test_set)
                translations = read_translations(system.paths.translation(name), len(sources))
                result = load_translation_audit().compute(
                    predictions=list(translations.texts), sources=sources, references=references
                )
                assert result is not None  # in the first process, the only one here
                audits.setdefault(name, {})[system.name] = result
    return audits


def gold_documents(test_set: PreparedTestSet) -> tuple[list[list[str]], list[list[str]]]:
    """The source and reference sentences of each scored pair of a concatenated test set, without sentence pairs that
    have an empty side: a sentence without a counterpart cannot be audited."""
    sources, references = test_set.corpora.gold_segments(test_set.name, test_set.corpus_spec, test_set.num_concatenated)
    numbered = test_set.all_pairs.add_column("row", list(range(len(sources))))
    rows = sampled_pairs(numbered, test_set.settings.score)["row"]
    documents = [whole_pairs(sources[row], references[row]) for row in rows]
    return [source for source, _ in documents], [reference for _, reference in documents]


def whole_pairs(sources: list[str], references: list[str]) -> tuple[list[str], list[str]]:
    """The texts of both sides whose counterparts, by position, have text too."""
    pairs = [pair for pair in zip(sources, references, strict=True) if all(text.strip() for text in pair)]
    return [source for source, _ in pairs], [reference for _, reference in pairs]


def write_audit(run: PreparedRun) -> str:
    """Audit a scored run, write audit.json and a table for each test set, and return the tables in Markdown.

    Empty, and nothing is written, if no test set has documents.
    """
    paths, texts = ReportPaths(run.experiment.tables_folder), []
    audits = audit_documents(run)
    for name, results in audits.items():
        lines = count_rows([{"label": system, **result["all"]} for system, result in results.items()])
        table = "\n".join(lines) + "\n"
        atomic_write(paths.table(f"audit-{name}", "md"), table)
        num_documents = next(iter(results.values()))["all"]["documents"]
        texts.append(
            f"What is dropped, repeated, moved and invented in the {num_documents} documents of {name}:\n\n{table}"
        )
    if audits:
        atomic_write(paths.audit, json.dumps(audits, ensure_ascii=False, indent=1) + "\n")
    return "\n".join(texts)
