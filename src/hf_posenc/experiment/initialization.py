"""The model that a training begins with: a new one, or one that is trained already, with the system's encodings."""

import json
import logging
import math
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig

from ..config.init_from import INIT_FROM_RULE, checkpoint_model_section
from ..config.settings import DataSettings, Experiment, System
from ..convert.encodings import TUNABLE_FIELDS, convert_encodings, load_config_dict
from ..convert.marian import from_marian
from ..data.readers import corpus_file_hashes, file_hashes, resolve_name_or_path
from ..modeling.configuration_posenc import ENCODING_TYPE_FIELDS, PosEncConfig
from ..modeling.configuration_shared import SharedConfig
from ..modeling.position_base import PositionEncoding
from ..modeling.position_registry import side_entries
from ..modeling.tokenization_posenc import PosEncTokenizer
from ..modeling.translation import validate_tokenizer
from ..utils.atomic_io import short_hash
from ..utils.auto_loading import auto_from_pretrained
from ..utils.manifest import COPY_AGAIN, verify_folder

logger = logging.getLogger(__name__)


def initial_model(experiment: Experiment, system: System, config: SharedConfig) -> Any:
    """The model of that `config` before its training, in float32, as a new one is."""
    if not isinstance(config, PosEncConfig) or system.start_from is None:
        return AutoModelForSeq2SeqLM.from_config(config)
    verify_folder(Path(checkpoint := init_checkpoint(experiment, system)), COPY_AGAIN)
    cross_fields = [
        f"cross_{parameter.name}"
        for entry in side_entries(config.side("cross")).values()
        for parameter in entry.config_parameters
    ]
    parameter_names = (
        *config.parameter_fields_in_use,
        *(name for name in cross_fields if name in config.known_keywords()),
    )
    fields = (
        *ENCODING_TYPE_FIELDS.values(),
        "alignment_type",
        *parameter_names,
        *TUNABLE_FIELDS,
        "initializer",
        "rope_parameters",
    )
    overrides = {field: getattr(config, field) for field in fields}
    is_marian = (
        load_config_dict(checkpoint, INIT_FROM_RULE, "a model on the Hub")["model_type"] == MarianConfig.model_type
    )
    return (from_marian if is_marian else convert_encodings)(checkpoint, **overrides).float()


def build_meta_model(system: System) -> Any:
    """A model of its shapes and on no device, for what can be known before there is a vocabulary."""
    config = system.model_config(vocab_size=system.data.vocab_size, decoder_vocab_size=system.data.vocab_size)
    with torch.device("meta"):
        return AutoModelForSeq2SeqLM.from_config(config)


def warn_of_untrained_distances(experiment: Experiment) -> None:
    """Say, before training, which encodings tell distances apart that no training pair has: what they do there is never
    learned, and comes into play with the first input that is longer."""
    systems_by_warning: dict[str, dict[str, None]] = defaultdict(dict)
    for system in experiment.systems.values():
        if system.split or system.start_from is not None or (max_length := system.data.max_length) is None:
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


def init_checkpoint(experiment: Experiment, system: System) -> str | Path:
    """The folder or the Hub's name of the model from which it starts."""
    if (origin := experiment.dependency_of(system)) is None:
        return resolve_name_or_path(str(system.start_from), system.data.folder)
    if not (checkpoint := experiment.paths.system(origin.name).model).exists():
        raise ValueError(
            f"systems.{system.name}: it starts from {origin.name}, but {checkpoint} is not there yet; give the command "
            "without --system, which trains that first, or goes on where that had stopped."
        )
    return checkpoint


def init_file_hashes(experiment: Experiment, system: System) -> dict[str, str]:
    """A hash of each local file of weights from which it starts, or of what makes that system of the same run."""
    if system.start_from is None:
        return {}
    if (origin := experiment.dependency_of(system)) is not None:
        return {
            f"settings of {origin.name}": short_hash(
                json.dumps(weights_fingerprint(experiment, origin), sort_keys=True)
            )
        }
    checkpoint = Path(resolve_name_or_path(system.start_from, system.data.folder))
    weights = sorted(str(path) for kind in ("*.safetensors", "*.bin") for path in checkpoint.glob(kind))
    return file_hashes(weights, system.data.folder)


def weights_fingerprint(experiment: Experiment, system: System) -> dict[str, Any]:
    """What its weights are made by. A setting at its default is left out, and so one that is newer than a run."""
    settings, data = system.settings(), system.data
    for name, default in asdict(DataSettings("", "", {}, {})).items():
        if settings["data"].get(name) == default or name in ("test", "licence"):
            settings["data"].pop(name, None)
    del settings["score"]
    files = [corpus_file_hashes(corpus_spec, data.folder) for corpus_spec in (data.train, data.validation or {})]
    return settings | {"files": files, "start": init_file_hashes(experiment, system)}


def load_pretrained_tokenizer(name: str) -> Any:
    """A saved tokenizer. A MarianMT model starts from <pad>, has no <s>, and no row for one that would be added."""
    verify_folder(Path(name), COPY_AGAIN)
    tokenizer = auto_from_pretrained(AutoTokenizer, name)
    try:
        model_type = load_config_dict(name, INIT_FROM_RULE, "a model on the Hub")["model_type"]
    except ValueError:  # a tokenizer by itself
        return tokenizer
    if model_type == MarianConfig.model_type and tokenizer.bos_token is None:
        tokenizer.bos_token = tokenizer.pad_token
    return tokenizer


def validate_init_checkpoint(experiment: Experiment, system: System, tokenizer: PosEncTokenizer) -> None:
    """Refuse, before training, a checkpoint and a tokenizer that do not go together."""
    if system.start_from is None or experiment.dependency_of(system):
        return
    verify_folder(Path(resolve_name_or_path(system.start_from, system.data.folder)), COPY_AGAIN)
    try:
        validate_tokenizer(checkpoint_model_section(system.start_from, system.data.folder)[1], tokenizer)
    except ValueError as error:
        raise ValueError(f"systems.{system.name}: start_from={system.start_from!r}, data.tokenizer: {error}") from None
