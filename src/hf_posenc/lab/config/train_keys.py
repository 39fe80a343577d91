"""Keys of `train:`: the Trainer's arguments with transformers' types, and bounds of their numbers."""

from dataclasses import MISSING, field, fields, make_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Union, get_args, get_origin

from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)
from transformers.training_args import trainer_log_levels

from ..training.arguments import TrainingArguments
from .schema import Constraint, PositiveInt, Seed, above_zero, at_least, below_one, in_range, one_of

REPORTERS = (*INTEGRATION_TO_CALLBACK, "all", "none")
Reporter = Annotated[
    str,
    one_of(REPORTERS),
    Constraint(
        "{}, whose package is installed",
        lambda name: name in ("all", "none", *get_available_reporting_integrations()),
    ),
]
Fraction, NonNegative, Positive = (
    Annotated[float, below_one],
    Annotated[float, at_least(0)],
    Annotated[float, above_zero],
)
OptionalPositiveInt, NonNegativeInt = PositiveInt | None, Annotated[int, at_least(0)]
# Annotations narrower than transformers' own. Arguments that the installed version lacks are ignored.
NARROWED_TYPES: dict[str, object] = {
    **dict.fromkeys(
        ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "ddp_timeout"),
        PositiveInt,
    ),
    **dict.fromkeys(
        (
            "average_checkpoints", "ddp_bucket_cap_mb", "dataloader_prefetch_factor", "early_stopping_patience",
            "eval_accumulation_steps", "evaluations_per_epoch", "generation_max_length", "generation_num_beams",
            "lora_rank", "tokens_per_batch", "torch_empty_cache_steps",
        ),
        OptionalPositiveInt,
    ),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "label_smoothing_factor"), Fraction),
    **dict.fromkeys(("eval_delay", "learning_rate", "max_grad_norm", "warmup_steps", "weight_decay"), NonNegative),
    **dict.fromkeys(("adam_epsilon", "logging_steps", "num_train_epochs", "save_steps"), Positive),
    "data_seed": Seed | None,
    "dataloader_multiprocessing_context": Annotated[str, one_of(("fork", "forkserver", "spawn"))] | None,
    "dataloader_num_workers": Annotated[int, in_range(0, 1000)],
    "eval_steps": Positive | None,
    "include_num_input_tokens_seen": Annotated[str, one_of(("all", "non_padding", "no"))] | bool,
    "log_level": Annotated[str, one_of(trainer_log_levels)],
    "log_level_replica": Annotated[str, one_of(trainer_log_levels)],
    "max_steps": Annotated[
        int, Constraint("{} from 1 on, 0 for no training, or -1 for whole epochs", lambda steps: steps >= -1)
    ],
    "neftune_noise_alpha": NonNegative | None,
    "report_to": Reporter | list[Reporter] | None,
    "save_total_limit": NonNegativeInt | None,
    "seed": Seed,
    "train_sampling_strategy": Annotated[str, one_of(("random", "sequential", "group_by_length"))],
    "warmup_ratio": Annotated[float, in_range(0, 1)] | None,
}  # fmt: skip


def yaml_types(annotation: object) -> object:
    """The members of a union that a config file can contain. Paths and objects are left out."""
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    members = [
        member
        for member in get_args(annotation)
        if not isinstance(member, type) or issubclass(member, (Enum, *YAML_TYPES))
    ]
    return Union[tuple(members)]  # noqa: UP007


YAML_TYPES = (bool, int, float, str, list, dict, NoneType)
TrainKeys = make_dataclass(
    "TrainKeys",
    [
        (
            argument.name,
            NARROWED_TYPES.get(argument.name, yaml_types(argument.type)),
            field(default=argument.default, default_factory=MISSING),
        )
        if argument.default_factory is MISSING
        else (argument.name, yaml_types(argument.type), field(default_factory=argument.default_factory))
        for argument in fields(TrainingArguments)
    ],
)
