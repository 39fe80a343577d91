# SPDX-License-Identifier: Apache-2.0
"""Errors for names that are misspelt, and for files of others that cannot be read.

A reader of saved files raises one ValueError of one line that names the folder and the file. The packages that parse
them raise errors of twenty types for a file that is cut or has a value of another kind, and most name no file.
"""

import difflib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open


def closest_name(name: str, known: Iterable[str]) -> str:
    """The `known` name most like `name`; `known` must not be empty."""
    return difflib.get_close_matches(str(name), list(known), n=1, cutoff=0)[0]


def validate_names(names: Iterable[str], known: Iterable[str], owner: str) -> None:
    """Raise a ValueError for the first of the `names` that is not `known`; the message names their `owner`."""
    known = list(known)
    for name in names:
        if name not in known:
            raise ValueError(f"{owner} has no key {name!r}; the nearest one is {closest_name(name, known)!r}.")


# The files that are read of a checkpoint, as patterns.
CONFIG_FILES = ("config.json",)
MODEL_FILES = (*CONFIG_FILES, "generation_config.json", "model*.safetensors", "model*.index.json")
TOKENIZER_FILES = ("*token*.json", "chat_template*", "vocab*.json", "merges.txt", "*.spm", "*.model")
# Keywords of a loading function that say where the files are, not what the loaded object should be.
LOCATION_KEYWORDS = (
    "cache_dir", "config", "force_download", "local_files_only", "name_or_path", "proxies", "revision", "subfolder",
    "token", "trust_remote_code", "variant",
)  # fmt: skip
# tokenizers, written in Rust, raises this for its own faults. It is no Exception.
RUST_PANIC = "PanicException"
# In RuntimeErrors that no file causes: torch's lack of memory on a CPU, and a default device without memory.
CAUSES_ELSEWHERE = ("DefaultCPUAllocator", "meta device context manager")
MAX_REASON = 300  # characters of another package's message
MAX_NAMES = 6


@contextmanager
def explain_unreadable(name: object, patterns: Sequence[str], keywords: Collection[str] = ()) -> Iterator[None]:
    """Context manager: an error in reading a checkpoint's files becomes a ValueError with folder, file and remedy.

    `name` is a folder or a name on the Hub, or None; `patterns` are of the files that are read, and `keywords` those of
    the caller, who is at fault in an error that mentions one. Such an error stays as it is. So do lack of memory, a
    missing package, an error of one line that names the folder, and an OSError for a name on the Hub.
    """
    try:
        yield
    except (ImportError, MemoryError, torch.OutOfMemoryError):
        raise
    except BaseException as error:
        message, is_panic = str(error), type(error).__name__ == RUST_PANIC
        if not isinstance(name, str | os.PathLike) or not (is_panic or isinstance(error, Exception)):
            raise
        is_remote = isinstance(error, OSError) and not os.path.exists(name)
        is_clear = isinstance(error, ValueError | OSError) and str(name) in message and "\n" not in message
        is_callers = mentions(message, keywords) or any(cause in message for cause in CAUSES_ELSEWHERE)
        if is_remote or is_clear or is_callers:
            raise
        files = f"{' or '.join(suspects(Path(name), patterns))} of {name}"
        reason = " ".join(message.encode(errors="replace").decode().split())
        if type(error) is ValueError:  # a sentence, ours with its remedy; subclasses come from parsers
            raise ValueError(f"{files}: {reason}") from error
        raise ValueError(
            f"A checkpoint's files must be as they were saved, but {files} cannot be read ({type(error).__name__}: "
            f"{reason[:MAX_REASON]}); save, copy or download it again."
        ) from error


def mentions(message: str, keywords: Collection[str]) -> bool:
    """Whether an error message is about one of the caller's keywords; `padding_side` is written with a space, too."""
    text = message.lower().replace(" ", "_")
    return any(keyword.lower() in text for keyword in keywords if keyword not in LOCATION_KEYWORDS)


def suspects(folder: Path, patterns: Sequence[str]) -> list[str]:
    """The names of the files that cannot be parsed; if each of them can, of all that are read, or their patterns."""
    files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
    names = [file.name for file in files if not can_be_parsed(file)] or [file.name for file in files]
    return names if 0 < len(names) <= MAX_NAMES else list(patterns)


def can_be_parsed(file: Path) -> bool:
    """Whether a JSON file holds an object, and a file of weights a header; True for other kinds of files."""
    try:
        if file.suffix == ".json":
            return isinstance(json.loads(file.read_text(encoding="utf-8")), dict)
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt"):
                pass
    except Exception:  # whatever the reader raises
        return False
    return True
