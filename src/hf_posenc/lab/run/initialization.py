"""The initial model of a training: new weights, or a trained checkpoint with the system's encodings."""

import logging
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from ...convert.checkpoints import convert_checkpoint
from ...convert.encodings import ARCHITECTURES, TUNABLE_FIELDS
from ...convert.folders import auto_model_class
from ...encodings.base import PositionEncoding
from ...encodings.registry import side_entries
from ...generation.translate import validate_tokenizer
from ...transformer.configuration_base import BaseConfig
from ...transformer.configuration_encodings import EncodingsConfig
from ...transformer.configuration_posenc import PosEncConfig
from ...utils.manifest import COPY_AGAIN, verify_folder
from ..config.init_from import checkpoint_model_section
from ..config.settings import System
from ..data.lengths import lengths
from .prepared_run import PreparedSystem

logger = logging.getLogger(__name__)


def initial_model(system: PreparedSystem, config: BaseConfig) -> PreTrainedModel:
    """The model of that `config` before training, in float32."""
    if not isinstance(config, EncodingsConfig) or (checkpoint := system.init_checkpoint) is None:
        return auto_model_class(config).from_config(config)
    verify_folder(Path(checkpoint), COPY_AGAIN)
    cross_fields = [
        f"cross_{parameter.name}"
        for side in config.sides
        if side.name == "cross"
        for entry in side_entries(side).values()
        for parameter in entry.config_parameters
    ]
    fields = (
        *ARCHITECTURES[config.model_type].encoding_fields,
        *config.parameter_fields_in_use,
        *(name for name in cross_fields if name in config.known_keywords()),
        *TUNABLE_FIELDS,
        "initializer",
    )
    overrides = {field: getattr(config, field) for field in fields}
    return convert_checkpoint(checkpoint, **overrides).float()


def training_config(system: PreparedSystem) -> BaseConfig:
    """The config of the model for the run's vocabulary. Alignment parameters that the config file leaves out are
    estimated on the training pairs. A ValueError for estimates that the other parameters do not allow."""
    settings, tokenizer = system.settings, system.tokenizer
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": tokenizer.target_vocab_size}
    config_fields = sizes | ids | {"decoder_start_token_id": tokenizer.bos_token_id}
    config = settings.model_config(**config_fields)
    if not isinstance(config, PosEncConfig):
        return config
    special = tokenizer.num_special_tokens_to_add()
    sides = (lengths(system.training_pairs, side) + special for side in ("source", "target"))
    estimated = config.alignment.estimate(*(side.tolist() for side in sides))
    try:
        return replace(settings, model=estimated | settings.model).model_config(**config_fields)
    except ValueError as error:
        values = ", ".join(f"{name}={value}" for name, value in estimated.items())
        raise ValueError(f"{error} (Of data.train was estimated: {values}.)") from None


def build_meta_model(system: System) -> PreTrainedModel:
    """A model on the meta device, with parameter shapes but without weights. No vocabulary is needed."""
    config = system.model_config(vocab_size=system.data.vocab_size, decoder_vocab_size=system.data.vocab_size)
    with torch.device("meta"):
        return auto_model_class(config).from_config(config)


def warn_of_untrained_distances(systems: Iterable[System]) -> None:
    """Warn, before training, of encodings that distinguish distances beyond the training length. Their parameters for
    these distances stay untrained, and longer input uses them."""
    systems_by_warning: dict[str, dict[str, None]] = defaultdict(dict)
    for system in systems:
        if system.segment or system.init_from is not None or (max_length := system.data.max_length) is None:
            continue
        for encoding in build_meta_model(system).modules():
            if isinstance(encoding, PositionEncoding) and max_length < (encoding.max_distance or 0) < math.inf:
                prefix = "cross_" if encoding.side.name == "cross" else ""
                parameter_names = [
                    f"{prefix}{parameter.name}={getattr(encoding.config, parameter.name)}"
                    for parameter in encoding.config_parameters
                ]
                warning = (
                    f"{type(encoding).__name__} tells distances of up to {encoding.max_distance} tokens apart, but of "
                    f"those beyond data.max_length={max_length} it learns nothing, and longer input may fail at once; "
                    f"lower what sets it ({', '.join(parameter_names)}), or take longer training pairs"
                )
                systems_by_warning[warning][system.name] = None
    for warning, names in systems_by_warning.items():
        logger.warning("systems.%s: %s", ", ".join(names), warning)


def validate_init_checkpoint(system: PreparedSystem) -> None:
    """Refuse, before training, a checkpoint and a tokenizer that do not match."""
    settings, checkpoint = system.settings, system.external_checkpoint
    if settings.init_from is None or checkpoint is None:
        return
    verify_folder(Path(checkpoint), COPY_AGAIN)
    try:
        validate_tokenizer(checkpoint_model_section(settings.init_from, settings.data.data_dir)[1], system.tokenizer)
    except ValueError as error:
        raise ValueError(
            f"systems.{settings.name}: init_from={settings.init_from!r}, data.tokenizer: {error}"
        ) from None
