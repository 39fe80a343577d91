"""Every registered encoding has a test that compares it with a reference implementation."""

import importlib
from pathlib import Path

from hf_posenc import POSITION_ENCODINGS


def test_every_registered_encoding_has_a_reference_implementation():
    modules = [importlib.import_module(path.stem) for path in Path(__file__).parent.glob("test_*.py")]
    tests = [test for module in modules for test in vars(module).values()]
    marks = [mark for test in tests for mark in getattr(test, "pytestmark", []) if mark.name == "reference"]
    # `none` implements no hook, so nothing can be compared.
    assert {*POSITION_ENCODINGS} - {"none"} - {encoding for mark in marks for encoding in mark.args} == set()
