"""The audit of a run's concatenated test sentences: what each system drops, repeats, moves and invents."""

import json
from typing import Any

from ...metrics.loading import load_translation_audit
from ...utils.atomic_io import atomic_write
from ...utils.run_folder import ReportPaths
from ..reports.audit import count_rows
from ..results.saved_files import read_translations
from .prepared_run import PreparedRun, PreparedTestSet

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
    rows = test_set.subsample(numbered)["row"]
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
