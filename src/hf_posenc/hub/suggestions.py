# SPDX-License-Identifier: Apache-2.0
"""Did-you-mean suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


def closest_name(name: str, known: Iterable[str]) -> str:
    """The `known` name most like `name`; `known` must not be empty."""
    return difflib.get_close_matches(str(name), list(known), n=1, cutoff=0)[0]


def validate_names(names: Iterable[str], known: Iterable[str], owner: str) -> None:
    """Raise a ValueError for the first of the `names` that is not `known`; the message names their `owner`."""
    known = list(known)
    for name in names:
        if name not in known:
            raise ValueError(f"{owner} has no key {name!r}; the nearest one is {closest_name(name, known)!r}.")


__all__ = ["closest_name", "validate_names"]
