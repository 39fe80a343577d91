"""`init_from`: the initial weights of a training, resolved to the complete `model` section of a system.

`init_from` names an earlier system of the same file, which is trained first. Otherwise it names a checkpoint of this
family, or one that `from_transformers` converts, by folder or Hub name. The model has the checkpoint's config with the
changes of the system's own `model:` section: encodings, alignment, their parameters, dropout (see
hf_posenc.convert_encodings). Only the config of the checkpoint is read here.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ...convert.checkpoints import is_convertible, load_any_config
from ...convert.encodings import ARCHITECTURES, TUNABLE_FIELDS, override_config
from ...transformer.configuration_encodings import EncodingsConfig
from ...transformer.configuration_posenc import PosEncConfig
from ..data.readers import resolve_name_or_path
from .file_keys import INFERRED_FIELDS
from .settings import System
from .yaml_io import Section, merge

INIT_FROM_RULE = "init_from names a system above it, or a checkpoint of this family or of transformers"


def resolve_init_from(
    name: str, sections: Section, own_model: Section | None, earlier_systems: Iterable[System]
) -> Section:
    """The sections of a system, with `model` complete: that of its initial model, with changes. If that is one of
    `earlier_systems`, only `own_model`, the section of the system's own entry, changes it."""
    start = sections["init_from"]
    if start is None:
        return dict(sections)
    origin = next((system for system in earlier_systems if start in (system.name, system.base_name)), None)
    try:
        if origin is not None:
            changes, base, config = own_model or {}, origin.model, origin.model_config(origin.data.vocab_size)
        else:
            validate_checkpoint_name(
                start, sections["data"].get("data_dir"), [system.name for system in earlier_systems]
            )
            changes, (base, config) = (
                sections["model"],
                checkpoint_model_section(start, sections["data"].get("data_dir")),
            )
            validate_tokenizer_setting(sections["data"].get("tokenizer"), start)
        validate_model_type(config.model_type, changes.get("model_type") or config.model_type)
        changes = {field: value for field, value in changes.items() if field != "model_type"}
        override_config(config, changes)
    except ValueError as error:
        raise ValueError(f"systems.{name}: init_from={start!r}: {error}") from None
    if "position_encoding_type" in changes:  # without the decoder's field it applies to both stacks
        base = {field: value for field, value in base.items() if field != "decoder_position_encoding_type"}
    return {**sections, "model": merge(base, changes)}


def validate_checkpoint_name(start: str, folder: str | None, earlier_systems: list[str]) -> None:
    """Raise a ValueError for a name that cannot be a checkpoint, before the Hub is contacted."""
    if "/" not in start and not Path(resolve_name_or_path(start, folder)).is_dir():
        earlier = f"are {', '.join(earlier_systems)}" if earlier_systems else "is no system"
        raise ValueError(
            f"{INIT_FROM_RULE}, but above it {earlier}, and there is no folder {start}; name one of them, "
            "a folder, or a model on the Hub with its owner."
        )


def checkpoint_model_section(name: str, folder: str | None) -> tuple[Section, EncodingsConfig]:
    """The `model` section that describes a checkpoint, and its config as one of this family."""
    name_or_path = resolve_name_or_path(name, folder)
    config = load_any_config(name_or_path, INIT_FROM_RULE)
    architecture = ARCHITECTURES[config.model_type]
    fields = (*architecture.preserved_fields, "initializer")
    if is_convertible(name_or_path, INIT_FROM_RULE):  # only the weights show whether it has an output bias
        fields = tuple(field for field in architecture.preserved_fields if field != "output_bias")
    fields += (*TUNABLE_FIELDS, *architecture.encoding_fields, *config.parameter_fields_in_use)
    section = {field: getattr(config, field) for field in fields if field not in INFERRED_FIELDS}
    if (rope_parameters := section.pop("rope_parameters")) is not None:
        section["rope_parameters"] = dict(rope_parameters)
    if config.model_type != PosEncConfig.model_type:
        section["model_type"] = config.model_type
    return section, config


def validate_tokenizer_setting(tokenizer: str | None, start: str) -> None:
    if tokenizer is None:
        raise ValueError(
            "a trained model goes with the tokenizer it was trained with, but data.tokenizer is not set, so that a new "
            f"one would be trained; set data.tokenizer={start}, if it is saved there."
        )


def validate_model_type(trained: str, wanted: str) -> None:
    if trained not in ARCHITECTURES or wanted != trained:
        raise ValueError(
            f"only a model of {' or '.join(ARCHITECTURES)} is given other encodings, and it stays of that kind, but a "
            f"`{trained}` model is to become a `{wanted}` one; start from another, or leave init_from out."
        )


def find_dependencies(systems: Iterable[System]) -> dict[str, System]:
    """The systems by name, each with the earlier system whose model it needs.

    If that has several seeds, a system starts from the one with its own seed; a ValueError if there is none.
    """
    systems = list(systems)
    rows = {system.base_name for system in systems}
    resolved: dict[str, System] = {}
    for system in systems:
        names = [f"{system.init_from}-seed{system.train.get('seed')}", str(system.init_from)]
        if system.segment:
            names = [system.segment.system]
        dependency = next((resolved[name] for name in names if name in resolved), None)
        if dependency is None and system.init_from in rows:
            raise ValueError(
                f"systems.{system.name}: a system starts from that of its own seed, but {system.init_from} has none "
                f"with train.seed={system.train.get('seed')}; give both the same seeds, or name one of them."
            )
        resolved[system.name] = replace(system, dependency=dependency)
    return resolved
