# SPDX-License-Identifier: Apache-2.0
"""The code that a checkpoint carries: this package's modules and a user's files, merged into a few files.

The Hub loads flat folders alone, in which a file imports its neighbours as `from .name import Name`. Saving writes what
the classes of a checkpoint need, directly or through others: the definitions that they read, of the registries the
entries in use. The file of an encoding or alignment that was registered at run time is written too, and the
configuration imports it. The checkpoint then loads where neither this package nor the user's file is installed.

A module is a list of statements. The statements that define the wanted names are needed, and so are those that define
what these read, in every module. A file has the needed statements of its modules, each module after those that it
imports. Imports between modules of one file vanish, and all others stand once at the top.

Names are compared as text, local ones too: a definition too many may be kept, and none is missing. A class whose base
is from another package is needed wherever its module is: transformers registers some classes when they are defined.

A class that was loaded from such a folder has none of this: transformers copies its files when it is saved again.
"""

import ast
import builtins
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from .errors import require
from .version import __version__

PACKAGE = __name__.partition(".")[0]
ROOT = Path(inspect.getfile(sys.modules[PACKAGE])).parent
# The packages whose modules a checkpoint may carry.
CARRIED = ("encodings", "alignments", "transformer", "generation", "tokenizer", "hub", "baselines", "hosts")
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

# Modules as statements, and files of those that are needed.

HEADER = f"""# SPDX-License-Identifier: Apache-2.0
# Written by hf_posenc {__version__} when it saved this checkpoint: the parts of its modules that the checkpoint uses.
"""
MAX_LINE_LENGTH = 120  # in characters, of an import


class Name(NamedTuple):
    """A name at the top of a module; "" for the module itself, as in `import math`."""

    module: str
    name: str


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement at the top of a module, with the comments above it and the number of blank lines above these."""

    source: str
    blank_lines: int
    defined: frozenset[str]
    read: frozenset[str]
    is_always_needed: bool
    is_block: bool  # a function or a class


@dataclass(frozen=True)
class Module:
    """A module as statements, with its docstring as it is written.

    `imports` has what each imported name stands for, `own_imports` the names that come from the same package.
    """

    docstring: str
    statements: list[Statement] = field(default_factory=list)
    imports: dict[str, Name] = field(default_factory=dict)
    own_imports: set[str] = field(default_factory=set)

    @property
    def defined(self) -> set[str]:
        """The names of its functions, classes and constants."""
        return {name for statement in self.statements for name in statement.defined}


@cache
def read_module(name: str, source: str) -> Module:
    """A module as statements; a ValueError without a docstring, and for an import that a file could not have."""
    tree, lines = ast.parse(source), source.split("\n")  # as `ast` counts them: a form feed ends none
    own_imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    for statement in own_imports:
        if statement not in tree.body or not statement.module or any(alias.asname for alias in statement.names):
            raise ValueError(f"{name}:{statement.lineno} must be `from .module import name` at the top of the file.")
    require(ast.get_docstring(tree) is not None, f"{name} must begin with a docstring.")
    first = tree.body[0]
    module = Module("\n".join(lines[first.lineno - 1 : first.end_lineno]))
    last_line = first.end_lineno or 0
    for node in tree.body[1:]:
        end = node.end_lineno or 0
        if isinstance(node, ast.ImportFrom):
            home = importlib.util.resolve_name("." * node.level + (node.module or ""), name.rpartition(".")[0])
            module.imports.update({alias.asname or alias.name: Name(home, alias.name) for alias in node.names})
            module.own_imports.update(alias.name for alias in node.names if node.level)
        elif isinstance(node, ast.Import):
            module.imports.update({alias.asname or alias.name: Name(alias.name, "") for alias in node.names})
        else:
            module.statements.append(make_statement(node, lines[last_line:end], module))
        last_line = end
    return module


def make_statement(node: ast.stmt, lines: list[str], module: Module) -> Statement:
    """A statement from its lines and those above it, in a module whose imports are known."""
    text = "\n".join(lines)
    source = text.lstrip("\n")
    is_block = isinstance(node, ast.FunctionDef | ast.ClassDef)
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        defined = {node.name}
    else:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        defined = {target.id for target in targets if isinstance(target, ast.Name)}
    bases = [base.id for base in getattr(node, "bases", []) if isinstance(base, ast.Name)]
    has_foreign_base = any(base in module.imports and base not in module.own_imports for base in bases)
    blank_lines = len(text) - len(source)
    return Statement(
        source, blank_lines, frozenset(defined), frozenset(names_in(node)), not defined or has_foreign_base, is_block
    )


def names_in(node: ast.AST) -> Iterator[str]:
    """The names that code reads or writes, those in annotations that are strings included."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and "\n" not in part.value:
            try:
                yield from names_in(ast.parse(part.value, mode="eval"))
            except (SyntaxError, ValueError):  # no expression
                continue


class MergedModules:
    """What the wanted names need, as files. `read` gives a module, and `file_of` the name of the file it goes to."""

    def __init__(self, wanted: Iterable[Name], read: Callable[[str], Module], file_of: Callable[[str], str]) -> None:
        self.read, self.file_of = read, file_of
        self.needed: dict[str, set[Statement]] = {}
        pending = list(wanted)
        while pending:
            pending += self.add(*pending.pop())

    def add(self, module_name: str, name: str) -> list[Name]:
        """Add what defines a name of a module; returns the names that it reads."""
        module = self.read(module_name)
        needed = self.needed.setdefault(module_name, set())
        added = [one for one in module.statements if name in one.defined or one.is_always_needed]
        added = [statement for statement in added if statement not in needed]
        needed.update(added)
        read = {name for statement in added for name in statement.read}
        if name not in module.defined:
            read.add(name)
        found = [module.imports[name] for name in module.own_imports & read]
        return found + [Name(module_name, name) for name in module.defined & read]

    def home_of(self, name: Name) -> Name:
        """Where a name is defined, which another module may have imported in its turn."""
        module = self.read(name.module)
        return name if name.name in module.defined else self.home_of(module.imports[name.name])

    def files(self) -> dict[str, list[str]]:
        """The modules of each file, each after those that it imports."""
        files: dict[str, list[str]] = {}
        seen: set[str] = set()

        def visit(module_name: str) -> None:
            if module_name in seen or module_name not in self.needed:
                return
            seen.add(module_name)
            module = self.read(module_name)
            for imported in sorted({module.imports[name].module for name in module.own_imports}):
                visit(imported)
            if self.needed[module_name]:
                files.setdefault(self.file_of(module_name), []).append(module_name)

        for module_name in sorted(self.needed):
            visit(module_name)
        return files

    def source_of(self, file: str, module_names: list[str], docstring: str, more_imports: Iterable[str] = ()) -> str:
        """The text of a file, with this docstring, from its modules in order; `more_imports` end its imports."""
        self.validate_names(file, module_names)
        imports: dict[str, Name] = {}
        sections = []
        for module_name in module_names:
            module = self.read(module_name)
            statements = [statement for statement in module.statements if statement in self.needed[module_name]]
            imports |= self.imports_of(file, module, {name for statement in statements for name in statement.read})
            section = joined(statements)
            if len(module_names) > 1:
                heading = f"# {module_name.partition('.')[2].replace('.', '/')}.py ".ljust(MAX_LINE_LENGTH, "-")
                own_docstring = "" if module.docstring == docstring else f"{module.docstring}\n"
                section = f"\n{heading}\n{own_docstring}{section}"
            sections.append(section)
        all_imports = "\n".join([import_lines(imports), *more_imports])
        return f"{HEADER}{docstring}\n\n{all_imports}\n" + "\n".join(sections)

    def imports_of(self, file: str, module: Module, read: Set[str]) -> dict[str, Name]:
        """What the names that a module imports and reads stand for in its file; those of the same file are left out."""
        imports = {}
        for name in module.imports.keys() & read:
            origin = module.imports[name]
            if name in module.own_imports:
                home = self.home_of(origin)
                origin = Name(f".{self.file_of(home.module)}", home.name)
            if origin.module != f".{file}":
                imports[name] = origin
        return imports

    def validate_names(self, file: str, module_names: list[str]) -> None:
        """Raise a ValueError for a name with two meanings in the modules of one file, needed ones or not."""
        meanings = {name: Name("builtins", name) for name in dir(builtins)}
        for module_name in module_names:
            module = self.read(module_name)
            found = {name: Name(module_name, name) for name in module.defined - {"__all__"}}
            for name, origin in module.imports.items():
                found[name] = self.home_of(origin) if name in module.own_imports else origin
            for name, meaning in found.items():
                other = meanings.setdefault(name, meaning)
                require(
                    other == meaning,
                    f"A name must have one meaning in {file}.py of a checkpoint, but {name} is {'.'.join(other)} and "
                    f"{'.'.join(meaning)}; rename one of them.",
                )


def joined(statements: Iterable[Statement]) -> str:
    """Statements below each other, with two blank lines around functions and classes."""
    text, follows_block = "", False
    for statement in statements:
        is_apart = follows_block or statement.is_block
        text += "\n" * (2 if is_apart else statement.blank_lines) + statement.source + "\n"
        follows_block = statement.is_block
    return text


def import_lines(imports: Mapping[str, Name]) -> str:
    """Import statements as isort orders them: the standard library, other packages, files of the same folder."""
    blocks: list[list[str]] = [[], [], []]
    named: dict[str, list[str]] = {}
    aliased: dict[str, list[str]] = {}
    for name, origin in sorted(imports.items(), key=lambda item: item[1].module.lower()):
        if not origin.name:
            alias = "" if name == origin.module else f" as {name}"
            blocks[block_of(origin.module)].append(f"import {origin.module}{alias}")
        elif name == origin.name:
            named.setdefault(origin.module, []).append(name)
        else:
            aliased.setdefault(origin.module, []).append(f"from {origin.module} import {origin.name} as {name}")
    for module in sorted(named | aliased, key=str.lower):
        if names := sorted(named.get(module, ()), key=member_order):
            blocks[block_of(module)].append(from_import(module, names))
        blocks[block_of(module)] += sorted(aliased.get(module, ()))
    return "\n\n".join("\n".join(block) for block in blocks if block)


def block_of(module: str) -> int:
    """0 for a module of the standard library, 1 for one of another package, 2 for a file of the same folder."""
    if module.startswith("."):
        return 2
    return 0 if module.partition(".")[0] in sys.stdlib_module_names else 1


def member_order(name: str) -> tuple[int, str]:
    """Constants before classes before functions, each by the alphabet."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return kind, name.lower()


def from_import(module: str, names: Iterable[str]) -> str:
    """An import of names from a module, on a line for each name where one line is too long."""
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= MAX_LINE_LENGTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])


# The code of one checkpoint.


def carried_modules() -> list[str]:
    """The names of the modules that a checkpoint may carry."""
    paths = [path.relative_to(ROOT).with_suffix("") for package in CARRIED for path in (ROOT / package).rglob("*.py")]
    return sorted(".".join((PACKAGE, *path.parts)) for path in paths if path.name != "__init__")


def entry_modules() -> dict[str, str]:
    """The modules that entry files are named after, by the name of the file."""
    names = {module.rpartition(".")[2]: module for module in carried_modules()}
    return {name: module for name, module in names.items() if name.startswith((CONFIGURATION, MODELING, TOKENIZATION))}


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
    require(
        getattr(module, registered_class.__name__, None) is registered_class,
        f"{module.__file__} has no {registered_class.__name__} at its top, so its copy could not be imported; define "
        "the class there.",
    )
    source = inspect.getsource(module)
    tree = ast.parse(source)
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    require(
        any(isinstance(call, ast.Name) and call.id == register_function for call in called),
        f"{module.__file__} does not call {register_function} itself; call it at its foot.",
    )
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
    require(alias.name != "*", f"it imports * from {module}; name what it needs.")
    home = getattr(getattr(sys.modules[module], alias.name), "__module__", "")
    require(
        home.startswith(tuple(f"{PACKAGE}.{package}." for package in BELOW_REGISTRIES)),
        f"`{alias.name}` of {module} is not copied with a checkpoint; import only what an encoding needs.",
    )
    return home


def flat_import(file: str, alias: ast.alias) -> str:
    """The import of one name from another file of the checkpoint."""
    as_clause = f" as {alias.asname}" if alias.asname else ""
    return f"from .{file} import {alias.name}{as_clause}"
