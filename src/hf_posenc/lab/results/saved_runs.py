"""Rows of saved runs: the results of each, its seeds, and their sentence statistics.

Tables and tests of several runs begin here. A row is named by its name in results.json, and by `run/row` if rows of
several runs share that name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...hub.errors import closest_name
from ...utils.run_folder import RunPaths
from .length_limits import TableRows
from .records import LengthScores, RunResults, ScoredTestSet
from .saved_files import read_results, read_statistics


@dataclass(frozen=True)
class SavedRow:
    """A row of a run: its name in a table of several runs, and the systems that are its seeds.

    `system`: the one seed that is meant, None for all of them.
    """

    name: str
    row: str
    folder: Path
    results: RunResults
    system: str | None = None

    @property
    def systems(self) -> list[str]:
        """The names of its seeds, in the order of results.json."""
        if self.system is not None:
            return [self.system]
        return [name for name, system in self.results.systems.items() if system.row == self.row]

    @property
    def tests(self) -> Mapping[str, ScoredTestSet]:
        """The scores of its first seed. All seeds have the same test sets."""
        return self.results.systems[self.systems[0]].tests

    @property
    def means(self) -> Mapping[str, LengthScores]:
        """The scores of each test set, the mean over its seeds."""
        return TableRows.of(self.results).scores[self.row]

    def has_statistics(self, test: str) -> bool:
        """Whether the sentence statistics of each seed are in the run's folder."""
        paths = [RunPaths(self.folder).system(system).statistic(test) for system in self.systems]
        return all(path.exists() for path in paths)

    def statistics(self, test: str) -> list[dict[str, np.ndarray]]:
        """The sentence statistics of each seed: for each metric (pairs, counts), and the pairs' `lengths`."""
        return [read_statistics(RunPaths(self.folder).system(system).statistic(test)) for system in self.systems]


def read_rows(folders: Sequence[Path]) -> dict[str, SavedRow]:
    """All rows of the runs in these folders, by the names that tables show."""
    runs = {folder: read_results(folder) for folder in dict.fromkeys(folders)}
    names = [row for results in runs.values() for row in dict.fromkeys(results.row_by_system.values())]
    rows: dict[str, SavedRow] = {}
    for folder, results in runs.items():
        for row in dict.fromkeys(results.row_by_system.values()):
            name = row if names.count(row) == 1 else f"{folder.resolve().name}/{row}"
            if name in rows:
                raise ValueError(
                    f"Runs in one table must have names of their own, but {folder} and {rows[name].folder} both have a "
                    f"row {name}; rename one of the folders."
                )
            rows[name] = SavedRow(name, row, folder, results)
    return rows


def read_row(folder: Path, name: str, label: str) -> SavedRow:
    """The row of a run by its name, or one seed of a row by the system's name; `label` is the option that has it."""
    results = read_results(folder)
    rows = dict.fromkeys(results.row_by_system.values())
    chosen(f"{label}, of {folder},", [name], dict.fromkeys([*rows, *results.systems]))
    if name in rows:
        return SavedRow(name, name, folder, results)
    return SavedRow(name, results.row_by_system[name], folder, results, system=name)


def chosen(label: str, names: Iterable[str], known: Collection[str], remedy: str = "") -> list[str]:
    """The names, each checked to be a known one; `label` is the option that has them, `remedy` another way."""
    names = list(names)
    for name in names:
        if name not in known:
            nearest = closest_name(name, known)
            raise ValueError(
                f"{label} must be one of {', '.join(known)}, but {name!r} is none; the nearest one is "
                f"{nearest}{remedy}."
            )
    return names


def validate_same_test_sets(rows: Iterable[SavedRow], test: str) -> None:
    """Raise a ValueError unless all rows that have the test set have the same texts and lengths in it."""
    hashes = {row.name: row.tests[test].test_set_sha256 for row in rows if test in row.tests}
    first, *others = hashes
    for other in others:
        if hashes[other] != hashes[first]:
            raise ValueError(
                f"Rows are compared on one test set and with one tokenizer, but the pairs of {test} have the hash "
                f"{hashes[first][:12]} for {first} and {hashes[other][:12]} for {other}; leave one of them out, or "
                "train it again with the other's data.test and tokenizer."
            )
