# SPDX-License-Identifier: Apache-2.0
"""Custom code in checkpoints: copies the file of a user's encoding or alignment next to the weights.

transformers copies this folder's files next to the weights. This module also copies the file of a class that was
registered at run time. Its imports from hf_posenc become imports from the copied files, and the copied registry imports
it. The checkpoint then loads where neither hf_posenc nor the user's file is installed.
"""

import ast
import inspect
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

REGISTER_FUNCTIONS = {"position_registry": "register_position_encoding", "alignment_registry": "register_alignment"}
PACKAGE = __name__.rpartition(".")[0]


def copy_custom_code(folder: Path, registry: str, classes: Mapping[str, type]) -> None:
    """Copy the files of `classes` that are not from this package into a saved `folder`; `registry` is their module.

    Warns about a class whose file cannot be copied, with the reason.
    """
    for name, custom_class in classes.items():
        if custom_class.__module__.rpartition(".")[0] == PACKAGE:
            continue
        try:
            source = rewrite_imports(custom_class, REGISTER_FUNCTIONS[registry])
        except ValueError as reason:
            warnings.warn(f"The checkpoint in {folder} does not carry the code of `{name}`: {reason}", stacklevel=4)
            continue
        module = f"registered_{custom_class.__module__.replace('.', '__')}"  # `a.b_c` is not `a_b.c`
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
        registry_file = folder / f"{registry}.py"
        import_line = f"\nfrom .{module} import {custom_class.__name__}  # noqa: E402, F401\n"
        # A file that registers encodings and alignments is imported by one of them alone: both would be a circle.
        registry_files = [folder / f"{other}.py" for other in REGISTER_FUNCTIONS]
        if not any(f"\nfrom .{module} import " in path.read_text(encoding="utf-8") for path in registry_files):
            registry_file.write_text(registry_file.read_text(encoding="utf-8") + import_line, encoding="utf-8")


def rewrite_imports(custom_class: type, register_function: str) -> str:
    """The source of the file that defines and registers `custom_class`, with imports from the copied files.

    A ValueError if the file cannot be copied: the class is not at its top, it does not call `register_function`, or it
    imports from other files of its own.
    """
    module = sys.modules.get(custom_class.__module__)
    if module is None or module.__name__ == "__main__" or getattr(module, "__file__", None) is None:
        raise ValueError("its class was not defined in a file that can be imported; move it to one and import it.")
    if getattr(module, custom_class.__name__, None) is not custom_class:
        raise ValueError(
            f"{module.__file__} has no {custom_class.__name__} at its top, so its copy could not be imported; define "
            "the class there."
        )
    source = inspect.getsource(module)
    tree = ast.parse(source)
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if not any(isinstance(call, ast.Name) and call.id == register_function for call in called):
        raise ValueError(f"{module.__file__} does not call {register_function} itself; call it at its foot.")
    lines = source.rstrip("\n").split("\n")  # as `ast` counts them: a form feed ends none
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise ValueError(f"{module.__file__} imports from its neighbours, which are not copied; make it one file.")
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == "hf_posenc" for alias in node.names):
            raise ValueError(f"{module.__file__} imports hf_posenc as a whole; write `from hf_posenc import ...`.")
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hf_posenc":
            indent = " " * node.col_offset
            lines[node.lineno - 1] = "\n".join(
                indent + relative_import(node.module or "", alias) for alias in node.names
            )
            for import_line in range(node.lineno, node.end_lineno or node.lineno):
                lines[import_line] = ""
    return "\n".join(lines) + "\n"


def relative_import(module: str, alias: ast.alias) -> str:
    """The import of one name of hf_posenc, as an import from a file of this folder."""
    if alias.name == "*":
        raise ValueError(f"it imports * from {module}; name what it needs.")
    home_module = getattr(getattr(sys.modules[module], alias.name), "__module__", "")
    prefix = home_module.rpartition(".")[2].partition("_")[0]
    if home_module.rpartition(".")[0] != PACKAGE or prefix in ("configuration", "modeling", "tokenization"):
        raise ValueError(
            f"`{alias.name}` of {module} is not copied with a checkpoint; import only what an encoding needs."
        )
    as_clause = f" as {alias.asname}" if alias.asname else ""
    return f"from .{home_module.rpartition('.')[2]} import {alias.name}{as_clause}"
