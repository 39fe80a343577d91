# SPDX-License-Identifier: Apache-2.0
"""The code that a checkpoint carries: this package's modules and a user's files, merged into a few files.

The Hub loads flat folders alone, in which a file imports its neighbours as `from .name import Name`. Saving writes what
the classes of a checkpoint need, directly or through others (merged_modules.py): the definitions that they read, of the
registries the entries in use. The file of an encoding or alignment that was registered at run time is written too, and
the configuration imports it. The checkpoint then loads where neither this package nor the user's file is installed.

A class that was loaded from such a folder has none of this: transformers copies its files when it is saved again.
"""

import ast
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from .merged_modules import MergedModules, Module, Name, read_module

PACKAGE = __name__.partition(".")[0]
ROOT = Path(inspect.getfile(sys.modules[PACKAGE])).parent
# The packages whose modules a checkpoint may carry.
CARRIED = ("encodings", "alignments", "transformer", "generation", "tokenizer", "hub", "baselines")
# What a user's file may import. The configuration, which imports that file, is above these packages.
BELOW_REGISTRIES = ("encodings", "alignments")
# The function of each registry that a user's file calls. (There are registries to which no user adds.)
REGISTRIES = {"encodings.registry": "register_position_encoding", "alignments.registry": "register_alignment"}

# The file of a model's checkpoint that the modules of a package go to, None for a file of each; the first prefix of a
# module's name decides. What has no prefix here goes to one of the entry files.
FILES = {
    "encodings.cache": "cache_layers",
    "encodings.positions": "positions",
    "encodings": "encodings",
    "alignments": "alignments",
    "transformer.plans.selection": "attention_plans",
    "transformer.plans": None,
    "transformer.loading": "pretrained",
    "transformer.pretrained": "pretrained",
    "generation": "generation",
    "tokenizer": "generation",
    "hub.errors": "errors",
}
# Docstrings of those files that several modules go to.
DOCSTRINGS = {
    "encodings": "The position encodings of this checkpoint: the interface, each of them, their sum, the registry.",
    "alignments": "The alignments of this checkpoint, which map target positions to source positions.",
    "pretrained": "The base classes of models and stacks: initialization, and loading that refuses what does not fit.",
    "generation": "Generation and translation: inputs, length limits, options, texts.",
}
# The entry files of a checkpoint have these prefixes. They keep their names, which are those of transformers' models.
CONFIGURATION, MODELING, TOKENIZATION = "configuration_", "modeling_", "tokenization_"


def carried_modules() -> list[str]:
    """The names of the modules that a checkpoint may carry."""
    paths = [path.relative_to(ROOT).with_suffix("") for package in CARRIED for path in (ROOT / package).rglob("*.py")]
    return sorted(".".join((PACKAGE, *path.parts)) for path in paths if path.name != "__init__")


def entry_modules() -> dict[str, str]:
    """The modules that entry files are named after, by the name of the file."""
    names = {module.rpartition(".")[2]: module for module in carried_modules()}
    return {name: module for name, module in names.items() if name.startswith((CONFIGURATION, MODELING, TOKENIZATION))}


def code_file_names() -> set[str]:
    """The names of all files of code that a checkpoint may have, those of a user apart."""
    names = {*entry_modules(), *map(shared_file, carried_modules())} - {None}
    return {f"{name}.py" for name in names}


def shared_file(module: str) -> str | None:
    """The file that a module goes to in the checkpoint of any model; None for an entry file."""
    path = module.removeprefix(f"{PACKAGE}.")
    prefix = next((prefix for prefix in FILES if f"{path}.".startswith(f"{prefix}.")), None)
    return None if prefix is None else FILES[prefix] or path.rpartition(".")[2]


def file_of(module: str, entry_files: Collection[str]) -> str:
    """The file of a checkpoint that a module goes to, from the checkpoint's entry files.

    A tokenizer is one file. It is saved at other times than a model, in the same folder, and with other definitions.
    """
    tokenization = [file for file in entry_files if file.startswith(TOKENIZATION)]
    if tokenization:
        return tokenization[0]
    is_configuration = module == f"{PACKAGE}.hub.version" or module.rpartition(".")[2].startswith(CONFIGURATION)
    prefix = CONFIGURATION if is_configuration else MODELING
    return shared_file(module) or next(file for file in entry_files if file.startswith(prefix))


def write_checkpoint_code(folder: Path, entry_files: Iterable[str], used: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the files named `entry_files` and all that they need into a saved `folder`.

    `used` has by registry the classes or functions in use, by name: copied registries have these alone. A class from a
    user's file is copied with that file. Warns about a class whose file cannot be copied, with the reason.
    """
    entries = {file: entry_modules()[file] for file in entry_files}
    place = partial(file_of, entry_files=entries)
    read = cache(partial(read_carried, used=used))
    wanted: list[Name] = []
    sources: dict[str, str] = {}
    user_imports = []
    for registry, classes in used.items():
        for name, registered_class in classes.items():
            if registered_class.__module__.partition(".")[0] == PACKAGE:
                continue
            try:
                source, imported = copy_of_user_file(registered_class, REGISTRIES[registry], place)
            except ValueError as reason:
                warnings.warn(f"The checkpoint in {folder} does not carry the code of `{name}`: {reason}", stacklevel=5)
                continue
            file = f"registered_{registered_class.__module__.replace('.', '__')}"  # `a.b_c` is not `a_b.c`
            if file not in sources:
                user_imports.append(f"from .{file} import {registered_class.__name__}  # noqa: F401")
            sources[file] = source
            wanted += imported
    for module in entries.values():
        wanted += (Name(module, name) for name in read(module).defined)
    merged = MergedModules(wanted, read, place)
    for file, modules in merged.files().items():
        docstring = read(entries.get(file, modules[0])).docstring
        if len(modules) > 1 and file in DOCSTRINGS:
            docstring = f'"""{DOCSTRINGS[file]}"""'
        imports = user_imports if file.startswith(CONFIGURATION) else ()
        sources[file] = merged.source_of(file, modules, docstring, imports)
    for file, source in sources.items():
        (folder / f"{file}.py").write_text(source, encoding="utf-8")


def read_carried(module: str, used: Mapping[str, Mapping[str, Any]]) -> Module:
    """A module of this package; a registry has the `used` entries alone, and that of `none`."""
    source = inspect.getsource(importlib.import_module(module))
    registry = module.removeprefix(f"{PACKAGE}.")
    if registry in used or registry in REGISTRIES:
        source = with_entries(source, used.get(registry, {}))
    return read_module(module, source)


def with_entries(source: str, names: Container[str]) -> str:
    """The source of a registry with the entries of these names and that of `none`."""
    lines = source.split("\n")
    values = (node.value for node in ast.parse(source).body if isinstance(node, ast.AnnAssign))
    entries = next(value for value in values if isinstance(value, ast.Dict))
    for key, value in zip(entries.keys, entries.values, strict=True):
        if isinstance(key, ast.Constant) and key.value not in names and key.value != "none":
            lines[key.lineno - 1 : value.end_lineno] = [""] * ((value.end_lineno or 0) - key.lineno + 1)
    first, last = entries.lineno, entries.end_lineno or 0
    source = "\n".join(line for number, line in enumerate(lines) if line or not first <= number < last)
    return source.replace(" = {\n}", " = {}")


def copy_of_user_file(
    registered_class: type, register_function: str, place: Callable[[str], str]
) -> tuple[str, list[Name]]:
    """The source of the file that defines and registers a class, with flat imports, and the names that it imports.

    `place` gives the file of a module of this package.

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
        lines[node.lineno - 1] = "\n".join(f"{indent}{flat_import(place(home), alias)}" for home, alias in homes)
        for import_line in range(node.lineno, node.end_lineno or node.lineno):
            lines[import_line] = ""
        imported += [Name(home, alias.name) for home, alias in homes]
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


def flat_import(file: str, alias: ast.alias) -> str:
    """The import of one name from another file of the checkpoint."""
    as_clause = f" as {alias.asname}" if alias.asname else ""
    return f"from .{file} import {alias.name}{as_clause}"
