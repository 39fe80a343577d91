"""Rules of the code: where encodings may be named, and what a checkpoint contains."""

import ast
import re
import sys
from pathlib import Path

import pytest
from support.source_text import words_of_the_code

import hf_posenc
from hf_posenc import POSITION_ENCODINGS, PositionEncoding
from hf_posenc.hub.checkpoint_code import CARRIED, carried_modules, read_carried

PACKAGE = Path(hf_posenc.__file__).parent
FILES = [PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py") for module in carried_modules()]
ENGLISH = {"none", "learned", "relative"}


def encoding_files() -> list[Path]:
    modules = {entry.encoding.__module__.rpartition(".")[2] for entry in POSITION_ENCODINGS.values()}
    return [PACKAGE / "encodings" / f"{module}.py" for module in sorted(modules)]


def calls(path: Path, *names: str) -> list[str]:
    """Where a file calls any of the functions or methods of these names."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", None))
            if name in names:
                found.append(f"{path.name}:{node.lineno} {name}")
    return found


def test_the_transformer_names_no_encoding():
    """Not in its code; in its prose neither, but for names that are English words first."""
    names = {*POSITION_ENCODINGS, *(entry.encoding.__name__.lower() for entry in POSITION_ENCODINGS.values())}
    names -= {"positionencoding", "shape"}  # every tensor has a shape
    named = {}
    for file in ("modeling_posenc.py", "stack.py", "attention.py"):
        path = PACKAGE / "transformer" / file
        words = set(re.findall(r"\w+", path.read_text(encoding="utf-8").lower()))
        named[file] = names & words_of_the_code(path) | (names - ENGLISH) & words
    assert {file: found for file, found in named.items() if found} == {}


@pytest.mark.full
def test_a_file_that_travels_needs_only_what_every_user_of_transformers_has():
    known = set(sys.stdlib_module_names) | {
        "torch",
        "transformers",
        "huggingface_hub",
        "regex",
        "safetensors",
        "tokenizers",
        "tqdm",
    }
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert node.module.partition(".")[0] in known, f"{path.name}:{node.lineno}"
            elif isinstance(node, ast.Import):
                assert all(alias.name.partition(".")[0] in known for alias in node.names), f"{path.name}:{node.lineno}"


def test_a_file_that_travels_says_under_which_licence():
    licence = "# SPDX-License-Identifier: Apache-2.0\n"
    assert [path.name for path in FILES if not path.read_text(encoding="utf-8").startswith(licence)] == []


def test_packages_that_travel_have_no_code_of_their_own():
    """Importing one of their modules must not import others, and a checkpoint has no packages."""
    markers = [path for package in CARRIED for path in (PACKAGE / package).rglob("__init__.py")]
    assert len(markers) >= 7
    assert all(path.read_text(encoding="utf-8") == "" for path in markers)


def test_nothing_that_travels_holds_a_buffer():
    assert [call for path in FILES for call in calls(path, "register_buffer", "Buffer")] == []


def test_an_encoding_inherits_the_interface_and_nothing_else(subtests):
    for encoding in {entry.encoding for entry in POSITION_ENCODINGS.values()} - {PositionEncoding}:
        with subtests.test(encoding.__name__):
            assert encoding.__bases__ == (PositionEncoding,)
            assert encoding.__subclasses__() == []


def test_no_encoding_uses_isinstance_or_hasattr():
    files = [
        PACKAGE / "encodings" / "base.py",
        PACKAGE / "encodings" / "sum.py",
        PACKAGE / "encodings" / "registry.py",
        PACKAGE / "transformer" / "attention.py",
        *encoding_files(),
    ]
    assert encoding_files()
    asked = [call for path in files for call in calls(path, "isinstance", "hasattr", "issubclass")]
    assert asked == []


def test_an_encoding_says_which_idea_it_is_and_whose(subtests):
    """One sentence, the formula, where it was published, and what its parameters are."""
    for name, entry in POSITION_ENCODINGS.items():
        with subtests.test(name):
            assert entry.summary.endswith(".")
            assert entry.encoding.__doc__
            if entry.encoding is not PositionEncoding:
                assert entry.formula, f"Give {name} a `formula`, in the symbols of its code."
                assert entry.references, f"Give {name} `references`: a paper, or where the idea stands."
                assert all(reference.url.startswith("https://") for reference in entry.references)


def test_only_the_registry_imports_encodings():
    encodings = {entry.encoding.__module__ for entry in POSITION_ENCODINGS.values()} - {PositionEncoding.__module__}
    for name in carried_modules():
        if name not in {*encodings, "hf_posenc.encodings.registry"}:
            module = read_carried(name, {})
            assert not encodings & {module.imports[imported].module for imported in module.own_imports}, name
