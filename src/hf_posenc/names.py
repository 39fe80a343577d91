"""Names that become files and folders: one rule, for what a config names and for what is read from a run's files."""

import re
from collections.abc import Iterable

NAME = re.compile(r"[^\W_][\w.+-]*")
MOST_BYTES = 100  # of a name, which stands in longer ones; a file system has 255
NAMED = "a letter or digit, then letters, digits, '.', '+', '-', '_', of at most 100 bytes together"
# What a run's folder holds beside its systems.
FOLDERS = ("data", "tokenizer")
ENDINGS = (".csv", ".json", ".lock", ".md", ".png", ".tex")
# Tables that are named after no test set, and what the second table of one has behind its name.
TABLES = ("fall", "overview", "paper", "time")
BY_PREDICTION = "-by-prediction"
RANKED = "of-test-sets"  # of the figure `ranking-of-test-sets`


def is_name(name: object) -> bool:
    """Whether it can be that of a file, and of nothing outside its folder."""
    return isinstance(name, str) and bool(NAME.fullmatch(name)) and len(name.encode()) <= MOST_BYTES


def validate_name(name: object, what: str) -> None:
    """Refuse what is no name, such as that of a language, which stands in files and in code."""
    if not is_name(name):
        raise ValueError(f"{what} must be {NAMED}, but it is {name!r:.200}. Name it otherwise.")


def validate_folder_name(name: object, what: str) -> None:
    """Refuse a name that no folder in a run's can have, or that the run needs for its own files."""
    if not is_name(name) or str(name).lower() in FOLDERS or str(name).lower().endswith(ENDINGS):
        raise ValueError(
            f"{what} is a folder's: {NAMED}, and not {' or '.join(map(repr, FOLDERS))} or one that ends in "
            f"{', '.join(ENDINGS)}, which are the run's own; it is {name!r:.200}. Name it otherwise."
        )


def validate_test_set_names(names: Iterable[object], where: str) -> None:
    """Refuse names that no table or figure of a test set can have, or that another one has."""
    names = list(names)
    others = {name for name in names if isinstance(name, str)}
    for name in names:
        if not is_name(name) or name in (*TABLES, RANKED) or str(name).removesuffix(BY_PREDICTION) in others - {name}:
            raise ValueError(
                f"{where}: a test set's name is a file's: {NAMED}, and not that of another table or figure "
                f"({', '.join(TABLES)}, {RANKED}, NAME{BY_PREDICTION}); it is {name!r:.200}. Name it otherwise."
            )
