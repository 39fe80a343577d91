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

from ..config.settings import DataSettings, Experiment, System
from ..config.starting import RULE, checkpoint_model
from ..conversion import FREE, converted, saved_config
from ..data.files import digests, named_folder, path_digests
from ..from_checkpoint import from_checkpoint
from ..manifest import COPY_AGAIN, check_folder
from ..marian import from_marian
from ..modeling.configuration_posenc import SIDES, PosEncConfig
from ..modeling.configuration_shared import SharedConfig
from ..modeling.position import PositionEncoding
from ..modeling.tokenization_posenc import PosEncTokenizer
from ..modeling.translation import check_tokenizer
from ..whole_files import short_hash

logger = logging.getLogger(__name__)


def first_model(experiment: Experiment, system: System, config: SharedConfig) -> Any:
    """The model of that `config` before its training, in float32, as a new one is."""
    if not isinstance(config, PosEncConfig) or system.start_from is None:
        return AutoModelForSeq2SeqLM.from_config(config)
    check_folder(Path(place := start_place(experiment, system)), COPY_AGAIN)
    cross = [f"cross_{knob.name}" for entry in config.side("cross").entries.values() for knob in entry.knobs]
    knobs = (*config.knobs_in_use, *(name for name in cross if name in config.known_keywords()))
    fields = (*SIDES.values(), "alignment_type", *knobs, *FREE, "initializer", "rope_parameters")
    wanted = {field: getattr(config, field) for field in fields}
    is_marian = saved_config(place, RULE, "a model on the Hub")["model_type"] == MarianConfig.model_type
    return (from_marian if is_marian else converted)(place, **wanted).float()


def new_model_without_weights(system: System) -> Any:
    """A model of its shapes and on no device, for what can be known before there is a vocabulary."""
    config = system.model_config(vocab_size=system.data.vocab_size, decoder_vocab_size=system.data.vocab_size)
    with torch.device("meta"):
        return AutoModelForSeq2SeqLM.from_config(config)


def warn_of_untrained_distances(experiment: Experiment) -> None:
    """Say, before training, which encodings tell distances apart that no training pair has: what they do there is never
    learned, and comes into play with the first input that is longer."""
    said: dict[str, dict[str, None]] = defaultdict(dict)
    for system in experiment.systems.values():
        if system.split or system.start_from is not None or (limit := system.data.max_length) is None:
            continue
        for encoding in new_model_without_weights(system).modules():
            if isinstance(encoding, PositionEncoding) and limit < (encoding.clip_distance or 0) < math.inf:
                of_side = "cross_" if encoding.side.name == "cross" else ""
                knobs = [f"{of_side}{knob.name}={getattr(encoding.config, knob.name)}" for knob in encoding.knobs]
                rule = (
                    f"{type(encoding).__name__} tells distances of up to {encoding.clip_distance} tokens apart, but of "
                    f"those beyond data.max_length={limit} it learns nothing, and longer input may fail at once; lower "
                    f"what sets it ({', '.join(knobs)}), or take longer training pairs"
                )
                said[rule][system.name] = None
    for rule, names in said.items():
        logger.warning("systems.%s: %s", ", ".join(names), rule)


def start_place(experiment: Experiment, system: System) -> str | Path:
    """The folder or the Hub's name of the model from which it starts."""
    if (origin := experiment.origin(system)) is None:
        return named_folder(str(system.start_from), system.data.folder)
    if not (place := experiment.folder / origin.name / "model").exists():
        raise ValueError(
            f"systems.{system.name}: it starts from {origin.name}, but {place} is not there yet; give the command "
            "without --system, which trains that first, or goes on where that had stopped."
        )
    return place


def start_digests(experiment: Experiment, system: System) -> dict[str, str]:
    """A hash of each local file of weights from which it starts, or of what makes that system of the same run."""
    if system.start_from is None:
        return {}
    if (origin := experiment.origin(system)) is not None:
        return {f"settings of {origin.name}": short_hash(json.dumps(made_by(experiment, origin), sort_keys=True))}
    place = Path(named_folder(system.start_from, system.data.folder))
    weights = sorted(str(path) for kind in ("*.safetensors", "*.bin") for path in place.glob(kind))
    return path_digests(weights, system.data.folder)


def made_by(experiment: Experiment, system: System) -> dict[str, Any]:
    """What its weights are made by. A setting at its default is left out, and so one that is newer than a run."""
    settings, data = system.settings(), system.data
    for name, default in asdict(DataSettings("", "", {}, {})).items():
        if settings["data"].get(name) == default or name in ("test", "licence"):
            settings["data"].pop(name, None)
    del settings["score"]
    files = [digests(where, data.folder) for where in (data.train, data.validation or {})]
    return settings | {"files": files, "start": start_digests(experiment, system)}


def existing_tokenizer(name: str) -> Any:
    """A saved tokenizer. A MarianMT model starts from <pad>, has no <s>, and no row for one that would be added."""
    check_folder(Path(name), COPY_AGAIN)
    tokenizer = from_checkpoint(AutoTokenizer, name)
    try:
        family = saved_config(name, RULE, "a model on the Hub")["model_type"]
    except ValueError:  # a tokenizer by itself
        return tokenizer
    if family == MarianConfig.model_type and tokenizer.bos_token is None:
        tokenizer.bos_token = tokenizer.pad_token
    return tokenizer


def check_start(experiment: Experiment, system: System, tokenizer: PosEncTokenizer) -> None:
    """Refuse, before training, a checkpoint and a tokenizer that do not go together."""
    if system.start_from is None or experiment.origin(system):
        return
    check_folder(Path(named_folder(system.start_from, system.data.folder)), COPY_AGAIN)
    try:
        check_tokenizer(checkpoint_model(system.start_from, system.data.folder)[1], tokenizer)
    except ValueError as error:
        raise ValueError(f"systems.{system.name}: start_from={system.start_from!r}, data.tokenizer: {error}") from None
