"""Pushes saved models to the Hub: selected files by name, and no links."""

import re
import stat
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import AutoTokenizer
from transformers.tokenization_utils_base import (
    ADDED_TOKENS_FILE,
    FULL_TOKENIZER_FILE,
    SPECIAL_TOKENS_MAP_FILE,
    TOKENIZER_CONFIG_FILE,
)
from transformers.utils import CHAT_TEMPLATE_FILE

from ...convert.folders import auto_from_pretrained
from ...hub.checkpoint_code import code_file_names

# In addition to code and tokenizer: config, weights, card, training.json, registered encodings (checkpoint_code.py).
PUSHED_FILES = re.compile(
    r"(config|generation_config|training)\.json"
    r"|model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|README\.md|registered_\w+\.py"
)
# The files of a tokenizer in addition to those of its class.
TOKENIZER_FILES = {
    TOKENIZER_CONFIG_FILE, FULL_TOKENIZER_FILE, SPECIAL_TOKENS_MAP_FILE, ADDED_TOKENS_FILE, CHAT_TEMPLATE_FILE,
}  # fmt: skip


def pushed_files(folder: Path) -> list[str]:
    """The names of a saved model's files that are pushed. All other files are left out.

    An OSError for a link among them: its name does not show what it would publish.
    """
    known = code_file_names() | TOKENIZER_FILES | vocabulary_files(folder)
    names = sorted(path.name for path in folder.iterdir() if path.name in known or PUSHED_FILES.fullmatch(path.name))
    for name in names:
        if not stat.S_ISREG((folder / name).lstat().st_mode):
            raise OSError(
                f"What is pushed must be plain files, but {folder / name} is a link or a folder; put the file itself "
                "there, and give the same command again."
            )
    return names


def vocabulary_files(folder: Path) -> set[str]:
    """The names of the files that the class of the saved tokenizer reads, such as source.spm; empty without a
    tokenizer."""
    if not (folder / TOKENIZER_CONFIG_FILE).is_file():
        return set()
    return set(auto_from_pretrained(AutoTokenizer, folder).vocab_files_names.values())


def push_files(folder: Path, repository: str, *, message: str, **options: Any) -> Any:
    """Push these files, and delete training_args.bin, a pickle of the Trainer's that earlier versions pushed."""
    return HfApi().upload_folder(
        repo_id=repository,
        folder_path=folder,
        allow_patterns=pushed_files(folder),
        delete_patterns="training_args.bin",
        commit_message=message,
        **options,
    )
