"""Records of a measurement in a folder, each saved when it is made; and what a model's config claims."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..hub.version import __version__
from ..utils.atomic_io import atomic_write, exclusive_lock, short_hash
from ..utils.run_folder import LOCK_NAME

Record = dict[str, Any]
MAX_REASON = 300  # characters of an error
# Fields of configs with the longest input, in the order in which they are looked for.
LENGTH_FIELDS = (
    "max_sequence_length",
    "max_source_length",
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "n_ctx",
    "seq_length",
)


class Store:
    """Records in a folder, each saved when it is made; in no folder, nothing is saved.

    `inputs` are all that records depend on except the model. Raises a ValueError for a folder with the records of
    another measurement.
    """

    def __init__(self, folder: str | Path | None, inputs: Mapping[str, object], model: PreTrainedModel) -> None:
        self.folder = None if folder is None else Path(folder)
        if self.folder is None:
            return
        first_weights = [weight.detach().flatten()[:8].tolist() for weight in model.parameters()]
        content = {**inputs, "config": model.config.to_json_string(), "weights": first_weights, "version": __version__}
        settings = {name: short_hash(str(value)) for name, value in content.items()}
        path = self.folder / "settings.json"
        if path.exists() and json.loads(path.read_text(encoding="utf-8")) != settings:
            raise ValueError(
                f"output must be a new folder or that of the same measurement, but {self.folder} has one of another "
                "model, text or setting; choose another folder, or delete it."
            )
        atomic_write(path, json.dumps(settings, indent=1))

    @contextmanager
    def locked(self) -> Iterator["Store"]:
        """Context manager: no other process measures into the folder."""
        with nullcontext() if self.folder is None else exclusive_lock(self.folder / LOCK_NAME):
            yield self

    def saved(self, name: str, make: Callable[[], Record]) -> Record:
        """The saved record of this name; else that which `make` makes, saved.

        If the model cannot read as much, it is a record of the `failure`.
        """
        path = None if self.folder is None else self.folder / "parts" / f"{name}.json"
        if path is not None and path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
        try:
            record = make()
        except Exception as error:
            # Imported here, because it brings modules that `import hf_posenc` does without.
            from ..utils.worker_processes import is_out_of_memory

            if not isinstance(error, ValueError | IndexError) and not is_out_of_memory(error):
                raise
            record = {"failure": " ".join(str(error).split())[:MAX_REASON]}
        if path is not None:
            atomic_write(path, json.dumps(record))
        return record


def claimed_length(model: PreTrainedModel) -> int | None:
    """The longest input by the model's config, None if it has none."""
    config = model.config.get_text_config()
    values = [getattr(config, name, None) for name in LENGTH_FIELDS]
    return next((value for value in values if isinstance(value, int) and value > 0), None)
