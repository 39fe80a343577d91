"""What is pushed to the Hub of a saved model: the files that a reader needs, by name, and no link."""

import re
import shutil
import stat
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from .. import modeling

CODE_FILES = {path.name for path in Path(modeling.__file__).parent.glob("*.py")}
# Beside the code: config, weights, tokenizer, card, facts of the training, and a user's own encodings (custom_code.py).
PUSHED_FILES = re.compile(
    r"(config|generation_config|tokenizer|target_tokenizer|tokenizer_config|special_tokens_map|training)\.json"
    r"|model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|README\.md|registered_\w+\.py"
)


def pushed_files(folder: Path) -> list[str]:
    """The names of a saved model's files that are pushed, whatever else lies beside them.

    An OSError for a link among them: nobody sees by its name what it would publish.
    """
    names = sorted(
        path.name for path in folder.iterdir() if path.name in CODE_FILES or PUSHED_FILES.fullmatch(path.name)
    )
    for name in names:
        if not stat.S_ISREG((folder / name).lstat().st_mode):
            raise OSError(
                f"What is pushed must be plain files, but {folder / name} is a link or a folder; put the file itself "
                "there, and give the same command again."
            )
    return names


def push_files(folder: Path, repository: str, *, message: str, **options: Any) -> Any:
    """Push those files, and take back what earlier versions pushed of the Trainer's: a pickle of its arguments."""
    return HfApi().upload_folder(
        repo_id=repository,
        folder_path=folder,
        allow_patterns=pushed_files(folder),
        delete_patterns="training_args.bin",
        commit_message=message,
        **options,
    )


def push_checkpoint(checkpoint: Path, staging_folder: Path, repository: str, *, message: str, **options: Any) -> Future:
    """Begin to push a checkpoint's model, from a copy of it in `staging_folder`: the checkpoint may be deleted
    meanwhile."""
    names = pushed_files(checkpoint)
    shutil.rmtree(staging_folder, ignore_errors=True)
    staging_folder.mkdir(parents=True)
    for name in names:
        shutil.copyfile(checkpoint / name, staging_folder / name)
    return push_files(staging_folder, repository, message=message, run_as_future=True, **options)
