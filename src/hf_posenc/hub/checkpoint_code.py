# SPDX-License-Identifier: Apache-2.0
"""The code that a checkpoint carries: this package's modules and a user's files, flattened into one folder.

The Hub loads flat folders alone, in which a file imports its neighbours as `from .name import Name`. Saving writes the
modules that the classes of a checkpoint need, directly or through others, and rewrites their imports. The file of an
encoding or alignment that was registered at run time is written too, and the copied registry imports it. The checkpoint
then loads where neither this package nor the user's file is installed.

A class that was loaded from such a folder has none of this: transformers copies its flat files when it is saved again.
"""

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

PACKAGE = __name__.partition(".")[0]
ROOT = Path(inspect.getfile(sys.modules[PACKAGE])).parent
# The packages whose modules a checkpoint may carry.
CARRIED = ("encodings", "alignments", "transformer", "generation", "tokenizer", "hub", "baselines")
# What a user's file may import. Other packages import the registries, which import that file.
BELOW_REGISTRIES = ("encodings", "alignments")
# The function of each registry that a user's file calls, by the name of the registry's copy.
REGISTRIES = {"encodings_registry": "register_position_encoding", "alignments_registry": "register_alignment"}
# Modules with these prefixes keep their names, which are those of transformers' own models.
KEPT_PREFIXES = ("configuration_", "modeling_", "tokenization_")


def flat_name(module: str) -> str:
    """The name of a module's copy: encodings_alibi for hf_posenc.encodings.alibi."""
    parts = module.split(".")[1:]
    return parts[-1] if parts[-1].startswith(KEPT_PREFIXES) else "_".join(parts)


@cache
def modules_by_flat_name() -> dict[str, str]:
    """Every module that a checkpoint may carry, by the name of its copy."""
    modules = [(PACKAGE, *path.relative_to(ROOT).with_suffix("").parts) for path in sorted(ROOT.rglob("*.py"))]
    carried = [".".join(parts) for parts in modules if parts[1] in CARRIED and parts[-1] != "__init__"]
    return {flat_name(module): module for module in carried}


def write_checkpoint_code(
    folder: Path, entry_files: Iterable[str], registered_classes: Mapping[str, Mapping[str, type]]
) -> None:
    """Write the files named `entry_files` and all that they import into a saved `folder`.

    `registered_classes` has the classes in use by registry and name: copied registries have these alone. A class from a
    user's file is copied with that file. Warns about a class whose file cannot be copied, with the reason.
    """
    user_files: dict[str, list[tuple[str, str]]] = {registry: [] for registry in registered_classes}
    sources: dict[str, str] = {}
    pending = [modules_by_flat_name()[name] for name in entry_files]
    for registry, classes in registered_classes.items():
        for name, registered_class in classes.items():
            if registered_class.__module__.partition(".")[0] == PACKAGE:
                continue
            try:
                source, imported = copy_of_user_file(registered_class, REGISTRIES[registry])
            except ValueError as reason:
                warnings.warn(f"The checkpoint in {folder} does not carry the code of `{name}`: {reason}", stacklevel=4)
                continue
            file = f"registered_{registered_class.__module__.replace('.', '__')}"  # `a.b_c` is not `a_b.c`
            # A file that registers encodings and alignments is imported by one registry alone: both would be a circle.
            if file not in sources:
                user_files[registry].append((file, registered_class.__name__))
            sources[file] = source
            pending += imported
    seen: set[str] = set()
    while pending:
        module = pending.pop()
        if module in seen:
            continue
        seen.add(module)
        source = inspect.getsource(importlib.import_module(module))
        if flat_name(module) in REGISTRIES:
            source = with_entries(source, registered_classes.get(flat_name(module), {}))
        source, imported = flatten(source, module)
        for file, class_name in user_files.get(flat_name(module), ()):
            source += f"\nfrom .{file} import {class_name}  # noqa: E402, F401\n"
        sources[flat_name(module)] = source
        pending += imported
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")


def with_entries(source: str, names: Container[str]) -> str:
    """The source of a registry with the entries of these names, that of `none`, and the imports that they need."""
    tree, lines = ast.parse(source), source.split("\n")
    values = (node.value for node in tree.body if isinstance(node, ast.AnnAssign))
    entries = next(value for value in values if isinstance(value, ast.Dict))
    unused: list[ast.expr | ast.stmt] = [
        value
        for key, value in zip(entries.keys, entries.values, strict=True)
        if isinstance(key, ast.Constant) and key.value not in names and key.value != "none"
    ]
    unread = {id(node) for value in unused for node in ast.walk(value)}
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in unread}
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level]
    unused += (node for node in imports if not any(alias.name in read for alias in node.names))
    dropped = {line for node in unused for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return "\n".join(line for number, line in enumerate(lines, start=1) if number not in dropped)


def flatten(source: str, module: str) -> tuple[str, list[str]]:
    """The source of a module with its imports from this package made flat, and the modules that it imports."""
    lines, imported = source.split("\n"), []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            name = importlib.util.resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0])
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = re.sub(r"from \.[\w.]* import", f"from .{flat_name(name)} import", line, count=1)
            imported.append(name)
    return "\n".join(lines), imported


def copy_of_user_file(registered_class: type, register_function: str) -> tuple[str, list[str]]:
    """The source of the file that defines and registers a class, with flat imports, and the modules that it imports.

    A ValueError if the file cannot be copied: the class is not at its top, it does not call `register_function`, or it
    imports from other files of its own.
    """
    module = sys.modules.get(registered_class.__module__)
    if module is None or module.__name__ == "__main__" or getattr(module, "__file__", None) is None:
        raise ValueError("its class was not defined in a file that can be imported; move it to one and import it.")
    if getattr(module, registered_class.__name__, None) is not registered_class:
        raise ValueError(
            f"{module.__file__} has no {registered_class.__name__} at its top, so its copy could not be imported; "
            "define the class there."
        )
    source = inspect.getsource(module)
    tree = ast.parse(source)
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if not any(isinstance(call, ast.Name) and call.id == register_function for call in called):
        raise ValueError(f"{module.__file__} does not call {register_function} itself; call it at its foot.")
    lines = source.rstrip("\n").split("\n")  # as `ast` counts them: a form feed ends none
    imported = []
    for node in package_imports(tree, module):
        homes = [(home_of(node.module or "", alias), alias) for alias in node.names]
        indent = " " * node.col_offset
        lines[node.lineno - 1] = "\n".join(f"{indent}{flat_import(home, alias)}" for home, alias in homes)
        for import_line in range(node.lineno, node.end_lineno or node.lineno):
            lines[import_line] = ""
        imported += [home for home, _ in homes]
    return "\n".join(lines) + "\n", imported


def package_imports(tree: ast.AST, module: ModuleType) -> Iterator[ast.ImportFrom]:
    """The statements of a user's file that import names from this package; a ValueError for other forms of import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise ValueError(f"{module.__file__} imports from its neighbours, which are not copied; make it one file.")
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == PACKAGE for alias in node.names):
            raise ValueError(f"{module.__file__} imports hf_posenc as a whole; write `from hf_posenc import ...`.")
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE:
            yield node


def home_of(module: str, alias: ast.alias) -> str:
    """The module that defines a name which a user's file imports; a ValueError for one that is not copied."""
    if alias.name == "*":
        raise ValueError(f"it imports * from {module}; name what it needs.")
    home = getattr(getattr(sys.modules[module], alias.name), "__module__", "")
    if not home.startswith(tuple(f"{PACKAGE}.{package}." for package in BELOW_REGISTRIES)):
        raise ValueError(
            f"`{alias.name}` of {module} is not copied with a checkpoint; import only what an encoding needs."
        )
    return home


def flat_import(home: str, alias: ast.alias) -> str:
    """The import of one name from a copied module."""
    as_clause = f" as {alias.asname}" if alias.asname else ""
    return f"from .{flat_name(home)} import {alias.name}{as_clause}"
