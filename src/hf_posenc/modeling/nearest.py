# SPDX-License-Identifier: Apache-2.0
"""For whoever writes a name that there is not: the nearest one that there is."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """The one of the `known` names, of which there is at least one, that is most like `name`."""
    return difflib.get_close_matches(str(name), list(known), n=1, cutoff=0)[0]


def refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """A ValueError for the first of the `given` names that is not `known`; `where` says whose names they are."""
    known = list(known)
    for name in given:
        if name not in known:
            raise ValueError(f"{where} has no key {name!r}; the nearest one is {nearest(name, known)!r}.")


__all__ = ["nearest", "refuse_unknown"]
