"""Pushes saved models to the Hub: the files that were saved with the model and its card, and no links."""

import stat
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.constants import REPOCARD_NAME

from ...utils.manifest import MANIFEST, read_manifest


def pushed_files(folder: Path) -> list[str]:
    """The names of a saved model's files that are pushed: its manifest's, and the card. All other files are left out.

    A ValueError without a manifest. An OSError for a link: its name does not show what it would publish.
    """
    if not (saved := read_manifest(folder)):
        raise ValueError(
            f"A push is of the files that {folder / MANIFEST} lists, but there is none; restore it, or push the folder "
            f"by `hf upload REPOSITORY {folder}`."
        )
    names = sorted({REPOCARD_NAME, *saved})
    for name in names:
        if not stat.S_ISREG((folder / name).lstat().st_mode):
            raise OSError(
                f"What is pushed must be plain files, but {folder / name} is a link or a folder; put the file itself "
                "there, and give the same command again."
            )
    return names


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
