"""Python files of users that register encodings: `encoding_files` of a config file, `--register` of a command."""

import importlib.util
import sys
from pathlib import Path


def register_encodings(file: Path) -> None:
    """Import a Python file that registers encodings. A second call does nothing."""
    if not file.is_file():
        raise FileNotFoundError(f"Encodings are registered by a Python file, but there is none at {file}; name one.")
    if (existing := sys.modules.get(file.stem)) is not None:
        if (existing_file := getattr(existing, "__file__", None)) and file.samefile(existing_file):
            return
        raise ValueError(
            f"A file of encodings is imported by the name {file.stem!r}, "
            f"which that of {existing_file or 'Python itself'} has already; rename {file}."
        )
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[file.stem]
        raise
