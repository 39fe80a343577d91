"""Imports go one way, between packages and between files."""

import ast
import importlib
import pkgutil
import re
import shutil
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

import hf_posenc

PACKAGE = Path(hf_posenc.__file__).parent
# From the ground up: a room imports those of floors below its own.
FLOORS = (
    {"utils"},
    {"modeling", "metrics"},
    {"auto_classes", "convert"},
    {"data"},
    {"training"},
    {"config"},
    {"inference", "results"},
    {"analysis"},
    {"plotting"},
    {"reporting"},
    {"experiment"},
    {"explorer"},
    {"__init__"},
    {"__main__"},
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# A checkpoint carries the one to the Hub, and evaluate.load the other: nothing of ours goes along.
TRAVELS_ALONE = {"modeling", "metrics"}


def files_of(package: Path) -> dict[tuple[str, ...], Path]:
    """Every module by its place in the package, a folder's `__init__` by the folder's."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        *folders, name = path.relative_to(package).with_suffix("").parts
        found[tuple(folders) if name == "__init__" and folders else (*folders, name)] = path
    return found


def imports_of(path: Path, place: tuple[str, ...], places: set[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The modules of the package that a file imports, at its top or inside a function."""
    folder = place if path.name == "__init__.py" and place != ("__init__",) else place[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            named = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                origin = (*folder[: len(folder) - node.level + 1], *named)
            elif named[0] == PACKAGE.name:
                origin = named[1:]
            else:
                continue
            imported = [(*origin, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
            imported = [name[1:] for name in names if name[0] == PACKAGE.name]
        else:
            continue
        for name in imported:
            yield next((name[:n] for n in range(len(name), 0, -1) if name[:n] in places), ("__init__",))


def imports_upwards(package: Path) -> list[str]:
    files = files_of(package)
    found = []
    for place, path in files.items():
        for other in imports_of(path, place, set(files)):
            ours, theirs = place[0], other[0]
            below = FLOOR_OF[theirs] < FLOOR_OF[ours] and ours not in TRAVELS_ALONE
            if ours != theirs and not below:
                found.append(f"{'.'.join(place)} imports {'.'.join(other)}")
    return found


def test_every_package_has_an_import_level():
    assert {place[0] for place in files_of(PACKAGE)} == set(FLOOR_OF)


def test_a_package_imports_only_packages_below_it():
    assert imports_upwards(PACKAGE) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("training/trainer.py", "from ..config.settings import System", "training.trainer imports config.settings"),
        ("data/samplers.py", "import hf_posenc.training.arguments", "data.samplers imports training.arguments"),
        ("results/tables.py", "from hf_posenc import reporting", "results.tables imports reporting"),
        ("modeling/cache.py", "from ..utils.atomic_io import atomic_write", "modeling.cache imports utils.atomic_io"),
        ("metrics/__init__.py", "from ..data import lengths", "metrics imports data.lengths"),
        ("data/corpus.py", "def late():\n    from ..config import loading", "data.corpus imports config.loading"),
        ("config/loading.py", "from hf_posenc import PosEncConfig", "config.loading imports __init__"),
    ],
)
def test_an_import_of_a_higher_package_is_found(tmp_path, file, line, said):
    shutil.copytree(PACKAGE, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "copy" / file
    path.write_text(f"{path.read_text(encoding='utf-8')}\n{line}\n", encoding="utf-8")
    assert imports_upwards(tmp_path / "copy") == [said]


def test_no_file_imports_itself_by_way_of_others():
    files = files_of(PACKAGE)
    graph = {place: set(imports_of(path, place, set(files))) - {place} for place, path in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(".".join(place) for place in error.args[1]))


def test_what_the_package_shows_besides_modules_is_its_public_api():
    names = {name for name in dir(hf_posenc) if not isinstance(getattr(hf_posenc, name), ModuleType)}
    own = {name for name in names if not (name.startswith("__") and name.endswith("__"))}
    assert own | {"__version__"} == set(hf_posenc.__all__)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_an_init_file_defines_no_function_and_no_class(path):
    statements = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    assert [node.name for node in statements if isinstance(node, ast.FunctionDef | ast.ClassDef)] == []


@pytest.mark.parametrize("place", [place for place, path in files_of(PACKAGE).items() if path.name == "__init__.py"])
def test_a_modules_name_means_the_module(place):
    """`from hf_posenc import config` is the package of that name, whatever else a package has imported."""
    package = importlib.import_module(".".join([PACKAGE.name, *(place if place != ("__init__",) else ())]))
    for found in pkgutil.iter_modules(package.__path__):
        value = getattr(package, found.name, None)
        assert value is None or isinstance(value, ModuleType), f"{package.__name__}.{found.name} is {value!r}"


def test_no_code_of_a_checkpoint_is_trusted():
    """Where an Auto class loads something, it says so: by itself it would ask whoever sits at a terminal."""
    for path in [
        *PACKAGE.rglob("*.py"),
        *(PACKAGE.parents[1] / "benchmarks").glob("*.py"),
        PACKAGE.parents[1] / "train.py",
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                assert getattr(node.value, "value", None) is False, f"{path}:{node.value.lineno}"
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".from_pretrained")):
                continue
            if re.match(r"(Auto\w*|auto)\.", ast.unparse(node.func)):
                assert "trust_remote_code" in [keyword.arg for keyword in node.keywords], f"{path}:{node.lineno}"
