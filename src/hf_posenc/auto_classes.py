"""What transformers' Auto classes know of the family, and which code its checkpoints carry."""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from .alignments.registry import ALIGNMENTS
from .baselines.rnn_nmt.configuration_rnn_nmt import RnnNmtConfig
from .baselines.rnn_nmt.modeling_rnn_nmt import RnnNmtForConditionalGeneration, RnnNmtModel
from .encodings.registry import POSITION_ENCODINGS, build_position_encodings
from .hosts.auto_classes import register_hosts
from .hosts.configuration_posenc_host import HostConfig
from .hosts.host_card import write_host_card
from .hub.checkpoint_code import write_checkpoint_code
from .tokenizer.tokenization_posenc import PosEncTokenizer
from .transformer.configuration_base import BaseConfig
from .transformer.configuration_encodings import EncodingsConfig
from .transformer.configuration_posenc import PosEncConfig
from .transformer.configuration_posenc_causal import PosEncCausalConfig
from .transformer.modeling_posenc import PosEncForConditionalGeneration, PosEncModel
from .transformer.modeling_posenc_causal import PosEncCausalModel, PosEncForCausalLM
from .transformer.plans.selection import PLANS, plan_name

FAMILIES = (
    (PosEncConfig, PosEncModel, PosEncForConditionalGeneration, AutoModelForSeq2SeqLM),
    (RnnNmtConfig, RnnNmtModel, RnnNmtForConditionalGeneration, AutoModelForSeq2SeqLM),
    (PosEncCausalConfig, PosEncCausalModel, PosEncForCausalLM, AutoModelForCausalLM),
)


def register_auto_classes() -> None:
    """Register all models with AutoConfig, AutoModel, AutoModelForSeq2SeqLM or AutoModelForCausalLM, and AutoTokenizer.

    What is saved then carries its code, so that it loads where this package is not installed.
    """
    for config, base_model, model_with_head, auto_with_head in FAMILIES:
        AutoConfig.register(config.model_type, config)
        AutoModel.register(config, base_model)
        auto_with_head.register(config, model_with_head)
    # By its name alone and for no config that a model has: for those, the code in a checkpoint would be run instead of
    # this class where trust_remote_code=True, which is not so for configs and models.
    AutoTokenizer.register(BaseConfig, tokenizer_class=PosEncTokenizer)
    register_hosts()
    BaseConfig.write_code = staticmethod(write_model_code)
    HostConfig.write_code = staticmethod(write_host_code)
    PosEncTokenizer.write_code = staticmethod(write_tokenizer_code)


def write_model_code(folder: Path, config: BaseConfig) -> None:
    """Write the code of a model's checkpoint into its folder: what the classes of its `auto_classes` need."""
    files = sorted({target.partition(".")[0] for target in config.auto_classes.values()})
    write_checkpoint_code(folder, files, used_entries(config))


def write_host_code(folder: Path, config: HostConfig) -> None:
    """Write the code of a host with other positions, ours alone as transformers has the host's, and a model card."""
    names = {name for encoding in config.layer_encodings for name in encoding.split("+")} & POSITION_ENCODINGS.keys()
    used: dict[str, dict[str, Any]] = {"transformer.plans.selection": {}}
    used["encodings.registry"] = {name: POSITION_ENCODINGS[name].encoding for name in sorted(names)}
    write_checkpoint_code(folder, ["configuration_posenc_host", "modeling_posenc_host"], used)
    write_host_card(folder, config)


def write_tokenizer_code(folder: Path) -> None:
    """Write the code of a tokenizer into its folder."""
    write_checkpoint_code(folder, ["tokenization_posenc"], {})


def used_entries(config: BaseConfig) -> dict[str, dict[str, Any]]:
    """By the module of a registry, the entries that a config uses, and those whose parameters it saves."""
    if not isinstance(config, EncodingsConfig):
        return {}
    saved = {name.removeprefix("cross_") for name in config.to_dict()}
    encodings = {name: encoding for side in config.sides for name, encoding in side.encodings.items()}
    for name, entry in POSITION_ENCODINGS.items():
        if any(parameter.name in saved for parameter in entry.config_parameters):
            encodings[name] = entry.encoding
    plans = {name: PLANS[name] for name in possible_plans(config)}
    used: dict[str, dict[str, Any]] = {"encodings.registry": encodings, "transformer.plans.selection": plans}
    if isinstance(config, PosEncConfig):
        used["alignments.registry"] = {
            name: alignment
            for name, alignment in ALIGNMENTS.items()
            if name == config.alignment_type or any(field.name in saved for field in alignment.config_parameters)
        }
    return used


def possible_plans(config: EncodingsConfig) -> list[str]:
    """The plans that self-attention with a config's encodings can take on long inputs, with dropout or without."""
    with torch.device("meta"):
        sums = [build_position_encodings(config, side) for side in config.sides if side.name != "cross"]
    names = {plan_name(positions, sys.maxsize, dropout) for positions in sums for dropout in (0.0, 0.1)}
    return sorted(name for name in names if name is not None)
