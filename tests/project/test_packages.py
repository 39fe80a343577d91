"""What packages show and hold, and that no code of a checkpoint is trusted."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import hf_posenc

PACKAGE = Path(hf_posenc.__file__).parent


def test_what_the_package_shows_besides_modules_is_its_public_api():
    names = {name for name in dir(hf_posenc) if not isinstance(getattr(hf_posenc, name), ModuleType)}
    own = {name for name in names if not (name.startswith("__") and name.endswith("__"))}
    assert own | {"__version__"} == set(hf_posenc.__all__)


def test_an_init_file_defines_no_function_and_no_class():
    """Except the `__getattr__` by which the command line imports the API late."""
    defined = []
    for path in PACKAGE.rglob("__init__.py"):
        statements = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        defined += [(path, node.name) for node in statements if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert defined in ([], [(PACKAGE / "__init__.py", "__getattr__")])


def test_a_modules_name_means_the_module():
    """`from hf_posenc import config` is the package of that name, whatever else a package has imported."""
    others = {}
    for path in PACKAGE.rglob("__init__.py"):
        package = importlib.import_module(".".join(path.parent.relative_to(PACKAGE.parent).parts))
        for found in pkgutil.iter_modules(package.__path__):
            value = getattr(package, found.name, None)
            if value is not None and not isinstance(value, ModuleType):
                others[f"{package.__name__}.{found.name}"] = value
    assert others == {}


@pytest.mark.full
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
