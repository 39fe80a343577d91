# SPDX-License-Identifier: Apache-2.0
"""Refusing a name that is not known, with the known one that looks most like it."""

import difflib
from collections.abc import Iterable


def nearest(name: object, known: Iterable[str]) -> str:
    """The known name that looks most like this one."""
    return difflib.get_close_matches(str(name), list(known), n=1, cutoff=0)[0]
