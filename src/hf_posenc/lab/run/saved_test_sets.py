"""The test sets of a saved run: the pairs that a system translated, and the document of each.

Scoring again and tests by document need them. Their texts are in the run's `data` folder.
"""

import re
from dataclasses import dataclass
from itertools import groupby

from datasets import Dataset

from ...utils.run_folder import RunPaths
from ...utils.text_io import read_lines
from ..config.settings import System
from ..data.corpus import group_by_min_words, hash_test_set, load_pairs
from ..data.readers import absolute_path, corpus_file_hashes
from ..results.records import RunResults
from .corpora import languages, load_saved_pairs, sampled_pairs


@dataclass(frozen=True)
class SavedTestSet:
    """A test set as a system of a run translated it: all pairs with their `source_length`, and those that are scored.

    `files`: the hash of each file that the system reads.
    """

    name: str
    settings: System
    files: dict[str, str]
    all_pairs: Dataset
    pairs: Dataset


def read_test_set(paths: RunPaths, results: RunResults, system: str, test: str) -> SavedTestSet:
    """The pairs of a test set that have the saved hash, from the run's `data` folder."""
    result = results.systems[system]
    settings, saved = System.read_saved(paths.system(system).settings, system, result.row)
    expected = result.tests[test].test_set_sha256
    pattern = re.compile(re.escape(paths.test_set(test, "").name) + "[0-9a-f]+")
    folders = sorted(folder for folder in paths.data.glob("*") if pattern.fullmatch(folder.name))
    for folder in folders:
        all_pairs = load_saved_pairs(folder)
        pairs = sampled_pairs(all_pairs, settings.score)
        if hash_test_set(pairs) == expected:
            return SavedTestSet(test, settings, saved.get("files", {}), all_pairs, pairs)
    raise ValueError(
        f"The pairs of {test} must have the hash {expected[:12]}, with which {system} was scored, but {paths.data} has "
        f"{len(folders)} data sets of that name and none with it; restore the folder, or run train.py CONFIG again."
    )


def document_labels(test_set: SavedTestSet, data_dir: str | None) -> list[str]:
    """The document of each scored pair, for a test set with `document_ids`, whose files are in `data_dir`."""
    settings, name = test_set.settings, test_set.name
    corpus_spec, num_concatenated = settings.test_sets[name]
    if "document_ids" not in corpus_spec or num_concatenated != 1:
        raise ValueError(
            f"--units document needs a test set with document_ids, but {name} has none or concatenates its pairs; "
            "give a file that names the unit of each scored pair, --units FILE."
        )
    hashes = corpus_file_hashes(corpus_spec, data_dir)
    if changed := [file for file, digest in hashes.items() if test_set.files.get(file) != digest]:
        raise ValueError(
            f"The files of {name} must be those of the run, but {changed[0]} is another one; name their folder by "
            "--data-dir."
        )
    sentences = {key: value for key, value in corpus_spec.items() if key not in ("document_ids", "min_words")}
    rows = load_pairs(sentences, folder=data_dir, **languages(settings.data))["translation"]
    names = read_lines(absolute_path(corpus_spec["document_ids"], data_dir))
    labels: list[str] = []
    for document, named_rows in groupby(zip(names, rows, strict=True), key=lambda named_row: named_row[0]):
        texts = (row for _, row in named_rows)
        groups = group_by_min_words(texts, corpus_spec["min_words"], settings.data.source_language)
        labels += [document] * sum(1 for _ in groups)
    return list(sampled_pairs(test_set.all_pairs.add_column("unit", labels), settings.score)["unit"])
