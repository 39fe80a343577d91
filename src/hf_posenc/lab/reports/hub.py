"""Pushes systems with `train.push_to_hub` to the Hub: creates the repository, and pushes the finished model.

During training the model of each checkpoint is pushed, unless `train.hub_strategy` is "end". After scoring, the model
folder with its card is pushed. `training/push_to_hub.py` selects the files.
"""

import json
from collections.abc import Mapping

from huggingface_hub import HfApi
from transformers.trainer_utils import HubStrategy

from ...utils.atomic_io import atomic_write
from ...utils.run_folder import SystemPaths
from ..config.settings import System
from ..training.arguments import TrainingArguments
from ..training.push_to_hub import push_files
from .card import write_card


def validate_repositories(arguments: Mapping[str, TrainingArguments]) -> None:
    """Raise a ValueError if two systems push to one repository, or if a push would contain more than the model.

    `arguments` are the Trainer's, by the names of systems.
    """
    owner_by_repository: dict[str, str] = {}
    for name, args in arguments.items():
        if not args.push_to_hub:
            continue
        if args.hub_strategy not in (HubStrategy.EVERY_SAVE, HubStrategy.END):
            raise ValueError(
                "train.hub_strategy must be every_save or end, because a whole checkpoint holds paths of this machine, "
                f"but it is {args.hub_strategy.value!r}; leave it out, and keep checkpoints in a place of your own."
            )
        repository = args.hub_model_id
        if (owner := owner_by_repository.setdefault(repository, name)) != name:
            raise ValueError(
                f"Each system has a repository of its own, but {owner} and {name} would both push to "
                f"{repository}; give each its systems.NAME.train.hub_model_id, or none, and they are named after the "
                "run and the system."
            )


def is_pushed(system: System, paths: SystemPaths) -> bool:
    """Whether the system is pushed, or is not to be pushed."""
    return not system.train.get("push_to_hub") or paths.push_record.exists()


def push_system(args: TrainingArguments, paths: SystemPaths) -> None:
    """Push a scored system's model with its card, whose examples load it from its repository."""
    api = HfApi()
    repository = api.create_repo(args.hub_model_id, private=args.hub_private_repo, exist_ok=True).repo_id
    write_card(paths.folder.parent, paths.folder.name, repository)
    commit = push_files(paths.model, repository, message="Trained and scored", revision=args.hub_revision)
    record = {"repository": repository, "commit": commit.oid}
    atomic_write(paths.push_record, json.dumps(record, indent=1))
