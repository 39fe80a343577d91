"""Imported packages are declared, and declared packages have their licence listed."""

import ast
import re
import runpy
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = {
    "hf_posenc",
    "support",
    *(path.stem for folder in ("tests", "benchmarks") for path in (ROOT / folder).glob("*.py")),
}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirements: list[str]) -> set[str]:
    return {canonical(re.split(r"[\s<>=!~;\[]", requirement)[0]) for requirement in requirements}


def imported(folder: str) -> dict[str, str]:
    """The packages that the files of a folder import from elsewhere, each with a place where it does."""
    found = {}
    for path in (ROOT / folder).rglob("*.py") if (ROOT / folder).is_dir() else [ROOT / folder]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            found |= {
                name.partition(".")[0]: f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}" for name in names
            }
    return {name: place for name, place in found.items() if name not in sys.stdlib_module_names and name not in OURS}


@pytest.mark.full
@pytest.mark.parametrize("folder", ["src", "train.py", "benchmarks", "examples"])
def test_every_package_that_is_imported_is_declared(folder: str) -> None:
    extras = [one for extra, one in PROJECT["optional-dependencies"].items() if folder != "src" or extra != "dev"]
    declared = named([*PROJECT["dependencies"], *(name for one in extras for name in one)])
    distributions = packages_distributions()
    for module, place in imported(folder).items():
        known = {canonical(name) for name in distributions.get(module, [module])}
        assert known & declared, f"{place} imports {module}, but pyproject.toml declares none of {', '.join(known)}"


def test_the_licence_of_every_dependency_is_listed() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "licences.py"))
    text = (ROOT / "docs" / "reference" / "licences.md").read_text(encoding="utf-8")
    extras = PROJECT["optional-dependencies"]
    needed = named([*PROJECT["dependencies"], *(name for extra in extras if extra != "dev" for name in extras[extra])])
    assert {canonical(name) for name in page["declared"]()} == needed - {"hf-posenc"}
    rows = dict(re.findall(r"^\| `(.+)` \| .+ \| (.+) \|$", text, re.MULTILINE))
    assert rows.keys() == page["declared"]().keys()
    unlike = {
        name for name, said in rows.items() if not re.search(r"Apache|MIT|BSD|LGPL|MPL|PSF|Python Software", said)
    }
    assert unlike == {"mweralign"}, "which is GPL, and imported by a benchmark alone"
