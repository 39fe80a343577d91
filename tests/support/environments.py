"""Python environments with fewer packages than the one that runs the tests."""

import importlib.metadata
import os
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LIGHT = ("torch", "transformers", "tokenizers")  # what models and tokenizers need
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def linked_environment(folder: Path, packages: Iterable[str]) -> Path:
    """The Python of a new environment in `folder` that holds links to the installed `packages` and to what these need,
    without extras. Nothing is downloaded or copied."""
    venv.create(folder, symlinks=True)
    site_packages = folder / "lib" / f"python{PYTHON_VERSION}" / "site-packages"
    for name in required_distributions(packages):
        for entry in top_level_entries(name):
            if not (link := site_packages / entry.name).exists():
                link.symlink_to(entry)
    return folder / "bin" / "python"


def required_distributions(packages: Iterable[str]) -> set[str]:
    """The packages and all that they need, directly or not, except extras."""
    found: set[str] = set()
    waiting = [canonicalize_name(package) for package in packages]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(requirement.name))
    return found


def top_level_entries(name: str) -> set[Path]:
    """The files and folders of an installed package that lie directly in site-packages."""
    distribution = importlib.metadata.distribution(name)
    first_parts = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    return {Path(os.fspath(distribution.locate_file(part))) for part in first_parts}
