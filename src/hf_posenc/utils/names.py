"""Validation of names that become files and folders, in configs and in a run's files."""

import re
from collections.abc import Iterable

from .run_folder import RESERVED_FOLDERS, RESERVED_SUFFIXES

NAME_PATTERN = re.compile(r"[^\W_][\w.+-]*")
MAX_NAME_BYTES = 100  # names are parts of file names, which may have 255 bytes
NAME_RULE = "a letter or digit, then letters, digits, '.', '+', '-', '_', of at most 100 bytes together"
# Tables without a test set in their names, and the suffix of a test set's second table.
RESERVED_TABLES = ("fall", "overview", "paper", "time")
BY_PREDICTION = "-by-prediction"
RANKING_SUFFIX = "of-test-sets"  # of the figure `ranking-of-test-sets`


def is_valid_name(name: object) -> bool:
    """Whether it is a valid file name without a path."""
    return isinstance(name, str) and bool(NAME_PATTERN.fullmatch(name)) and len(name.encode()) <= MAX_NAME_BYTES


def validate_name(name: object, label: str) -> None:
    """Raise a ValueError for an invalid name, such as that of a language; `label` is the setting."""
    if not is_valid_name(name):
        raise ValueError(f"{label} must be {NAME_RULE}, but it is {name!r:.200}. Name it otherwise.")


def validate_folder_name(name: object, label: str) -> None:
    """Raise a ValueError for a name that is invalid or reserved as a folder of a run."""
    if (
        not is_valid_name(name)
        or str(name).lower() in RESERVED_FOLDERS
        or str(name).lower().endswith(RESERVED_SUFFIXES)
    ):
        raise ValueError(
            f"{label} is a folder's: {NAME_RULE}, and not {' or '.join(map(repr, RESERVED_FOLDERS))} or one that "
            f"ends in {', '.join(RESERVED_SUFFIXES)}, which are the run's own; it is {name!r:.200}. Name it otherwise."
        )


def validate_test_set_names(names: Iterable[object], label: str) -> None:
    """Raise a ValueError for names that tables and figures of test sets cannot have, or that collide."""
    names = list(names)
    others = {name for name in names if isinstance(name, str)}
    for name in names:
        if (
            not is_valid_name(name)
            or name in (*RESERVED_TABLES, RANKING_SUFFIX)
            or str(name).removesuffix(BY_PREDICTION) in others - {name}
        ):
            raise ValueError(
                f"{label}: a test set's name is a file's: {NAME_RULE}, and not that of another table or figure "
                f"({', '.join(RESERVED_TABLES)}, {RANKING_SUFFIX}, NAME{BY_PREDICTION}); it is {name!r:.200}. "
                "Name it otherwise."
            )


def name_conflict(tests: Iterable[str], systems: Iterable[str] = ()) -> str | None:
    """The error of a name that is invalid or collides with another file's, None without one."""
    try:
        validate_test_set_names(tests, "tests")
        for system in systems:
            validate_folder_name(system, "A system's name")
    except ValueError as error:
        return str(error).rstrip(".")
    return None
