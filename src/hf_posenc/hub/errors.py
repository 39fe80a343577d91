# SPDX-License-Identifier: Apache-2.0
"""Errors for names that are misspelt, for files of others that cannot be read, and for texts that are no UTF-8.

A reader of saved files raises one ValueError of one line that names the folder and the file. The packages that parse
them raise errors of twenty types for a file that is cut or has a value of another kind, and most name no file.
"""

import difflib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import regex
import torch
from safetensors import safe_open
from transformers import PreTrainedTokenizerBase


def closest_name(name: str, known: Iterable[str]) -> str:
    """The `known` name most like `name`; `known` must not be empty."""
    return difflib.get_close_matches(str(name), list(known), n=1, cutoff=0)[0]


def require(condition: object, message: str) -> None:
    """Raise a ValueError unless the condition holds; the message has the rule, the value and the remedy."""
    if not condition:
        raise ValueError(message)


def require_choice(subject: str, value: object, choices: Collection[str], remedy: str = "choose one of them") -> None:
    """Raise a ValueError unless the value is one of the choices."""
    require(value in choices, f"{subject} must be one of {', '.join(choices)}, but it is {value!r}; {remedy}.")


def require_new(path: Path) -> None:
    """Raise a ValueError if a file or a folder to write exists."""
    require(not path.exists(), f"What is written must be new, but {path} exists; choose another name, or delete it.")


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


# Texts to translate.

BLANKS = regex.compile(r"\p{White_Space}*")
TEXT_LABEL = "texts[{}]".format  # the name of a text in an error message
UNBOUNDED_ENCODING_REMEDY = "choose a model whose encoding is defined at every length"


def is_blank(text: str) -> bool:
    """Whether a text is empty or has blanks alone. Blanks are those of tokenizers; `str.isspace` has four more."""
    return BLANKS.fullmatch(text) is not None


def data_options(tokenizer: PreTrainedTokenizerBase) -> dict[str, bool]:
    """The options of a tokenizer's call that read no special token in a text; none for a class without them."""
    return getattr(tokenizer, "data_options", {})


def validate_texts(texts: Iterable[str], label: Callable[[int], str] = TEXT_LABEL) -> list[str]:
    """The texts as a list; a TypeError for a bare string or an item that is no string, a ValueError for bad UTF-8."""
    if isinstance(texts, str):
        raise TypeError("translate takes a list of sentences, but was given one string; write translate([text], ...).")
    texts = list(texts)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"translate takes strings, but {label(number)} is {text!r:.40}; leave it out or write ''.")
        validate_utf8(text, label(number))
    return texts


def validate_source_lengths(
    sources: Sequence[list[int]],
    max_length: int | None,
    label: Callable[[int], str] = TEXT_LABEL,
    remedy: str = UNBOUNDED_ENCODING_REMEDY,
) -> None:
    """Raise a ValueError for the first source (token ids) of more than `max_length` tokens; None for no maximum."""
    for number, ids in enumerate(sources):
        if max_length is not None and len(ids) > max_length:
            raise ValueError(
                f"A source must have at most {max_length} tokens, as many as there are positions for, but "
                f"{label(number)} has {len(ids)}; shorten it, or {remedy}."
            )


def validate_utf8(text: str, label: str) -> None:
    """Raise a ValueError for a text with a lone surrogate, half of a character, as in JSON or truncated strings."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"A text must be UTF-8, but {label} has half a character, {text[error.start]!a}, at index "
            f"{error.start} ({text[:40]!a}); remove it, for example by text.encode(errors='ignore').decode()."
        ) from None
