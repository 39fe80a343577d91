"""Keys of a config file, of the systems in it, and of its sections `train` and `model`.

Those of `train` are the Trainer's arguments with transformers' types, and bounds of their numbers. Those of `model` are
the fields of a config class, with the parameters of all encodings.
"""

from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from transformers.activations import ACT2FN
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)
from transformers.training_args import trainer_log_levels

from ...baselines.rnn_nmt.configuration_rnn_nmt import RnnNmtConfig
from ...encodings.base import EncodingParameter
from ...hub.errors import validate_names
from ...transformer.configuration_base import INITIALIZERS, BaseConfig
from ...transformer.configuration_encodings import EncodingsConfig
from ...transformer.configuration_posenc import PosEncConfig
from ...transformer.configuration_posenc_causal import PosEncCausalConfig
from ..data.segmentation import SEGMENTATIONS
from ..training.arguments import TrainingArguments
from .schema import (
    Constraint,
    MappingOf,
    NonEmptyStr,
    PositiveInt,
    Section,
    Seed,
    above_zero,
    at_least,
    below_one,
    in_range,
    join_key,
    one_of,
    validate,
)
from .settings import DataSettings, ReferenceTable, ScoreSettings

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
TRAIN_TYPES: dict[str, object] = {
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
            TRAIN_TYPES.get(argument.name, yaml_types(argument.type)),
            field(default=argument.default, default_factory=MISSING),
        )
        if argument.default_factory is MISSING
        else (argument.name, yaml_types(argument.type), field(default_factory=argument.default_factory))
        for argument in fields(TrainingArguments)
    ],
)


CONFIG_CLASSES: dict[str, type[BaseConfig]] = {
    cls.model_type: cls for cls in (PosEncConfig, RnnNmtConfig, PosEncCausalConfig)
}
# Fields that the tokenizer or the weights determine.
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
INFERRED_FIELDS = ("vocab_size", "decoder_vocab_size", *TOKEN_IDS, "dtype")
INTERNAL_FIELDS = ("hf_posenc_version", "is_encoder_decoder")
Size = Annotated[int, in_range(1, 2**24)]
MODEL_TYPES: dict[str, object] = {
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_hidden_layers"), Annotated[int, in_range(1, 1000)]),
    **dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), Size),
    "max_position_embeddings": Size | None,  # None for a decoder-only model that bounds no length
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_attention_heads"), Size),
    **dict.fromkeys(("hidden_size", "intermediate_size"), Size),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), Annotated[float, below_one]),
    **dict.fromkeys(("activation_function", "hidden_act"), Annotated[str, one_of(ACT2FN)]),
    "initializer": Annotated[str, one_of(INITIALIZERS)],
    "layer_norm_eps": Annotated[float, above_zero],
    "rope_parameters": Section | None,
}


def model_keys(config_class: type[BaseConfig]) -> dict[str, tuple[object, object]]:
    """The annotation and the default of each key for a model of that class."""
    own_fields = {name for cls in config_class.__mro__ if issubclass(cls, BaseConfig) for name in cls.__annotations__}
    keys = {
        field.name: (MODEL_TYPES.get(field.name, field.type), field.default)
        for field in fields(config_class)
        if field.name in own_fields and field.name not in (*INFERRED_FIELDS, *INTERNAL_FIELDS, "auto_classes")
    }
    if issubclass(config_class, EncodingsConfig):
        keys |= {
            name: (parameter_annotation(name, parameter), parameter.default)
            for name, parameter in config_class.parameter_fields().items()
        }
    keys |= {alias: keys[name] for alias, name in config_class.attribute_map.items() if name in keys}
    return keys | {
        "model_type": (Annotated[str, one_of(CONFIG_CLASSES)], None),
        "attn_implementation": (NonEmptyStr, "sdpa"),
    }


def parameter_annotation(name: str, parameter: EncodingParameter) -> object:
    """The annotation of an encoding's parameter, from its default. A cross-attention parameter may also be null."""
    annotation: Any = int | None if parameter.default is None else type(parameter.default)
    constrained: Any = Annotated[
        annotation, Constraint(parameter.constraint.replace("{", "{{").replace("}", "}}"), parameter.is_valid)
    ]
    return constrained if name == parameter.name else constrained | None


def validate_model(model: Section, key: str) -> None:
    """Raise a ValueError for an invalid value, or for a field that a config file must not set. The config class itself
    refuses unknown names."""
    model_type = model.get("model_type", PosEncConfig.model_type)
    validate(model_type, Annotated[str, one_of(CONFIG_CLASSES)], f"{key}.model_type")
    config_class = CONFIG_CLASSES[model_type]
    known_keys = model_keys(config_class)
    for alias, name in config_class.attribute_map.items():
        if alias in model and name in model and model[alias] != model[name]:
            raise ValueError(
                f"{join_key(key, alias)} is another name of {name}, but both are given, {model[alias]!r} and "
                f"{model[name]!r}; use one name."
            )
    for name, value in model.items():
        if name in INFERRED_FIELDS:
            raise ValueError(
                f"{key}.{name} is that of the tokenizer or the weights, but it is given as {value!r}; leave it out"
                + (", and set data.vocab_size." if "vocab" in name else ".")
            )
        if name in known_keys:
            annotation, default = known_keys[name]
            validate(value, annotation, join_key(key, name), default=default)
        elif config_class.accepts_keyword(name):
            validate_names([name], known_keys, key)


is_folder_name = Constraint(
    "{}, the name of a folder and no path", lambda name: name not in ("", ".", "..") and "/" not in name
)
FolderName = Annotated[str, is_folder_name]
Seeds = Annotated[
    list[Seed],
    Constraint("different whole numbers, such as [1, 2, 3]", lambda seeds: 0 < len(seeds) == len(set(seeds))),
]


@dataclass
class SystemKeys:
    """Keys of a system's own entry, which replace the file's. With `segment` it has none but those from there on.

    `segment`: no training; the model of that system translates its inputs segment by segment.
    `segmentation`: which segments: those that were concatenated (gold), sentences that a splitter finds (automatic), or
        chunks of words (fixed).
    `segment_words`: with `segmentation: fixed`, the number of source words of a segment.
    `overlap_words`: the number of source words that a fixed segment repeats from the one before.
    """

    data: Annotated[Section | None, MappingOf(DataSettings)] = None
    model: Section | None = None
    train: Annotated[Section | None, MappingOf(TrainKeys)] = None
    score: Annotated[Section | None, MappingOf(ScoreSettings)] = None
    seeds: Seeds | None = None
    init_from: NonEmptyStr | None = None
    segment: NonEmptyStr | None = None
    segmentation: Annotated[str, one_of(SEGMENTATIONS)] = "gold"
    segment_words: PositiveInt | None = None
    overlap_words: Annotated[int, at_least(0)] = 0


Systems = Annotated[
    dict[str, Annotated[Section | None, MappingOf(SystemKeys)]],
    Constraint("one system or more, by their names", bool),
]


@dataclass
class FileKeys:
    """Keys of a config file, once `extends` is resolved.

    `systems`: one row of the table each; a system's own entry changes what the file says.
    `data`: corpora, vocabulary and lengths; keys below.
    `model`: fields of PosEncConfig, or of the config that `model_type` names.
    `train`: fields of transformers' Seq2SeqTrainingArguments, and those of TrainingArguments.
    `score`: how test sets are translated and scored; keys below.
    `seeds`: each system is trained once for each of them.
    `init_from`: a system above this one, or a checkpoint, whose weights the training starts from.
    `baseline`: the system that significance marks compare with; the first system if left out.
    `name`: name of the run's folder in `output_dir`; the file's name if left out.
    `output_dir`: folder of all runs.
    `report_name`: a folder of this file's own for its tables, where several files share a run.
    `reference_table`: a published table, shown below ours; keys below.
    `num_parallel`: how many systems train side by side.
    `diagnose`: whether to compute the diagnostics that the figures show; they can be added later by the same command.
    `encoding_files`: Python files that register encodings of your own.
    """

    systems: Systems
    data: Annotated[Section | None, MappingOf(DataSettings)] = None
    model: Section | None = None
    train: Annotated[Section | None, MappingOf(TrainKeys)] = None
    score: Annotated[Section | None, MappingOf(ScoreSettings)] = None
    seeds: Seeds | None = None
    init_from: NonEmptyStr | None = None
    baseline: NonEmptyStr | None = None
    name: FolderName | None = None
    output_dir: NonEmptyStr = "runs"
    report_name: FolderName | None = None
    reference_table: Annotated[Section | None, MappingOf(ReferenceTable)] = None
    num_parallel: PositiveInt = 1
    diagnose: bool = True
    encoding_files: list[NonEmptyStr] | None = None
