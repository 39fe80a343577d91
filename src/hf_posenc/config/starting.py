"""Where a training starts, if not from new weights: `start_from` -> the whole `model` section of a system.

It names a system that stands above it in the file, which is trained first; or else a checkpoint of this family or of
MarianMT, a folder or a name on the Hub. The model has the sizes and all else of that one, and what the system's own
`model:` changes: encodings, alignment, their knobs, dropout (see hf_posenc.converted). Of a checkpoint no more than its
config is read here.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import MarianConfig

from ..conversion import FIXED, FREE, KEPT, changed_config, posenc_config_of, saved_config
from ..data.files import named_folder
from ..marian import IN_MARIAN, marian_config, posenc_config
from ..modeling.configuration_posenc import SIDES, PosEncConfig
from .files import merge
from .model_keys import GIVEN
from .settings import System

RULE = "start_from names a system above it, or a checkpoint of this family or of MarianMT"


def started(
    name: str, sections: Mapping[str, Any], own: Mapping[str, Any] | None, above: Iterable[System]
) -> dict[str, Any]:
    """The sections of a system with a whole `model`: that from which it starts, with changes. `own` are those of its
    own entry, which are all that count where it starts from one of the systems `above`, as that has the file's."""
    start = sections["start_from"]
    if start is None:
        return dict(sections)
    origin = next((system for system in above if start in (system.name, system.row)), None)
    try:
        if origin is not None:
            changes, under, config = own or {}, origin.model, origin.model_config(origin.data.vocab_size)
        else:
            refuse_misspelt(start, sections["data"].get("folder"), [system.name for system in above])
            changes, (under, config) = sections["model"], checkpoint_model(start, sections["data"].get("folder"))
            refuse_own_tokenizer(sections["data"].get("tokenizer"), start)
        for one in (config.model_type, changes.get("model_type", PosEncConfig.model_type)):
            refuse_other_family(one)
        changes = {field: value for field, value in changes.items() if field != "model_type"}
        changed_config(config, changes)
    except ValueError as error:
        raise ValueError(f"systems.{name}: start_from={start!r}: {error}") from None
    if "position_encoding_type" in changes:  # by itself it is for both sides
        under = {field: value for field, value in under.items() if field != "decoder_position_encoding_type"}
    return {**sections, "model": merge(under, changes)}


def refuse_misspelt(start: str, folder: str | None, above: list[str]) -> None:
    """A ValueError for a name that can be no checkpoint's, before the Hub is asked for it."""
    if "/" not in start and not Path(named_folder(start, folder)).is_dir():
        there = f"are {', '.join(above)}" if above else "is no system"
        raise ValueError(
            f"{RULE}, but above it {there}, and there is no folder {start}; name one of them, "
            "a folder, or a model on the Hub with its owner."
        )


def checkpoint_model(name: str, folder: str | None) -> tuple[dict[str, Any], PosEncConfig]:
    """The `model` section that a checkpoint amounts to, and its config as one of this family."""
    place = named_folder(name, folder)
    if saved_config(place, RULE, "a model on the Hub")["model_type"] == MarianConfig.model_type:
        config = posenc_config(marian_config(place), position_encoding_type="sinusoidal")
        fields: tuple[str, ...] = (*FIXED, *IN_MARIAN)  # whether it has an output bias, only its weights say
    else:
        config, fields = posenc_config_of(place), (*KEPT, "initializer")
    fields += (*FREE, *SIDES.values(), "alignment_type", *config.knobs_in_use)
    section = {field: getattr(config, field) for field in fields if field not in GIVEN}
    if config.rope_parameters is not None:
        section["rope_parameters"] = dict(config.rope_parameters)
    return section, config


def refuse_own_tokenizer(tokenizer: str | None, start: str) -> None:
    if tokenizer is None:
        raise ValueError(
            "a trained model goes with the tokenizer it was trained with, but data.tokenizer is not set, so that a new "
            f"one would be trained; set data.tokenizer={start}, if it is saved there."
        )


def refuse_other_family(model_type: str) -> None:
    if model_type != PosEncConfig.model_type:
        raise ValueError(
            f"only a `{PosEncConfig.model_type}` model is given other encodings, but here is a `{model_type}` one; "
            "start from another, or leave start_from out."
        )


def refuse_lost_starts(systems: Mapping[str, System]) -> None:
    """Of several seeds, a system starts from that with its own."""
    rows = {system.row for system in systems.values()}
    for system in systems.values():
        if system.start_from in rows and system.origin_in(systems) is None:
            raise ValueError(
                f"systems.{system.name}: a system starts from that of its own seed, but {system.start_from} has none "
                f"with train.seed={system.train.get('seed')}; give both the same seeds, or name one of them."
            )
