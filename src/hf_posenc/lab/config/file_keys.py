"""Models of a config file, of a system's own entry in it, and of the sections `train` and `model`.

`train` takes some of the Trainer's arguments, with ranges, and those of this project. Every other argument is refused:
it would break a guarantee of train.py, such as exact resumption, have no effect, or is not tested here. The keys of
`model` are the fields of a config class, with the parameters of all encodings.
"""

from dataclasses import fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Predicate
from pydantic import Field, create_model, model_validator
from transformers import SchedulerType
from transformers.activations import ACT2FN
from transformers.integrations.integration_utils import (
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)

from ...baselines.rnn_nmt.configuration_rnn_nmt import RnnNmtConfig
from ...encodings.base import EncodingParameter
from ...transformer.configuration_base import INITIALIZERS, BaseConfig
from ...transformer.configuration_encodings import EncodingsConfig
from ...transformer.configuration_posenc import PosEncConfig
from ...transformer.configuration_posenc_causal import PosEncCausalConfig
from ..data.segmentation import SEGMENTATIONS
from ..training.arguments import OPTIMIZERS, SAMPLING_STRATEGIES
from .errors import (
    Fraction,
    Keys,
    NonNegative,
    NonNegativeInt,
    OneOf,
    Positive,
    PositiveInt,
    Seed,
    Text,
)
from .settings import ReferenceTable
from .yaml_io import Section

REPORTERS = (*INTEGRATION_TO_CALLBACK, "all", "none")
Reporter = Annotated[
    str,
    OneOf(REPORTERS),
    Predicate(lambda name: name in ("all", "none", *get_available_reporting_integrations())),
]


class TrainKeys(Keys):
    """Keys of `train`: the Trainer's arguments that train.py supports, and four of its own.

    `max_steps`: optimizer steps; -1 for `num_train_epochs`, and 0 to score the model of `init_from` as it is.
    `num_train_epochs`: passes over the training pairs.
    `tokens_per_batch`: pairs of like length share a batch, at most so many tokens a side, padding included.
    `per_device_train_batch_size`: pairs in a batch, without `tokens_per_batch`.
    `per_device_eval_batch_size`: pairs in a batch of an evaluation.
    `gradient_accumulation_steps`: batches whose gradients make one step.
    `train_sampling_strategy`: whether pairs of like length share a batch.
    `dataloader_num_workers`: processes that make batches.
    `learning_rate`: the highest of the schedule.
    `lr_scheduler_type`: how the learning rate changes.
    `lr_scheduler_kwargs`: what that schedule takes.
    `warmup_steps`: steps until the highest learning rate; below 1 a fraction of all.
    `optim`: the optimizer.
    `weight_decay`, `adam_beta1`, `adam_beta2`, `adam_epsilon`: the optimizer's.
    `max_grad_norm`: longer gradients are shortened to this norm; 0 for none.
    `label_smoothing_factor`: how much of the probability goes to all other tokens.
    `seed`: of weights, dropout and the order of the data.
    `data_seed`: of the order of the data alone.
    `bf16`, `fp16`: whether to compute in half precision.
    `use_cpu`: whether to leave GPUs alone.
    `torch_compile`: whether to compile the model.
    `gradient_checkpointing`: whether to recompute activations, for less memory.
    `eval_strategy`, `eval_steps`: when the validation set is scored.
    `evaluations_per_epoch`: evaluate and save so often an epoch, whatever the strategies say.
    `early_stopping_patience`: stop after so many evaluations without a better `metric_for_best_model`.
    `metric_for_best_model`: loss, perplexity, or bleu with `predict_with_generate`.
    `greater_is_better`: set by the metric.
    `load_best_model_at_end`: whether the trained model is the best of those evaluated, not the last.
    `predict_with_generate`: whether evaluations translate, for bleu.
    `generation_num_beams`: the beams of these translations.
    `save_strategy`, `save_steps`: when checkpoints are saved.
    `save_total_limit`: how many checkpoints are kept; null for all.
    `logging_steps`: steps between two lines of training.jsonl.
    `report_to`: trackers of experiments.
    `project`, `trackio_space_id`: Trackio's project, and the Space that it sends losses to.
    `push_to_hub`, `hub_model_id`, `hub_private_repo`: whether a scored model is pushed to the Hub, and where.
    `skip_memory_metrics`: false measures the memory that training takes.
    `lora_rank`: train adapters of this rank in place of linear layers, and merge them; needs `init_from`.
    """

    max_steps: Annotated[
        int, Field(ge=-1, description="a whole number from 1 on, 0 for no training, or -1 for whole epochs")
    ] = -1
    num_train_epochs: Positive = 3.0
    tokens_per_batch: PositiveInt | None = None
    per_device_train_batch_size: PositiveInt = 8
    per_device_eval_batch_size: PositiveInt = 8
    gradient_accumulation_steps: PositiveInt = 1
    train_sampling_strategy: Annotated[str, OneOf(SAMPLING_STRATEGIES)] = "group_by_length"
    dataloader_num_workers: Annotated[int, Field(ge=0, le=1000)] = 0
    learning_rate: NonNegative = 5e-5
    lr_scheduler_type: Annotated[str, OneOf(kind.value for kind in SchedulerType)] = "linear"
    lr_scheduler_kwargs: Section | None = None
    warmup_steps: NonNegative = 0
    optim: Annotated[str, OneOf(OPTIMIZERS)] = "adamw_torch_fused"
    weight_decay: NonNegative = 0.0
    adam_beta1: Fraction = 0.9
    adam_beta2: Fraction = 0.999
    adam_epsilon: Positive = 1e-8
    max_grad_norm: NonNegative = 1.0
    label_smoothing_factor: Fraction = 0.0
    seed: Seed = 42
    data_seed: Seed | None = None
    bf16: bool = False
    fp16: bool = False
    use_cpu: bool = False
    torch_compile: bool = False
    gradient_checkpointing: bool | None = None
    eval_strategy: Literal["no", "steps", "epoch"] = "no"
    eval_steps: Positive | None = None
    evaluations_per_epoch: PositiveInt | None = None
    early_stopping_patience: PositiveInt | None = None
    metric_for_best_model: Text | None = None
    greater_is_better: bool | None = None
    load_best_model_at_end: bool = False
    predict_with_generate: bool = False
    generation_num_beams: PositiveInt | None = None
    save_strategy: Literal["no", "steps", "epoch", "best"] = "steps"
    save_steps: Positive = 500
    save_total_limit: NonNegativeInt | None = 2
    logging_steps: Positive = 500
    report_to: (
        Annotated[
            Reporter | list[Reporter],
            Field(description=f"one of {', '.join(REPORTERS)}, whose package is installed, or a list of these"),
        ]
        | None
    ) = "none"
    project: Text = "huggingface"
    trackio_space_id: Text | None = None
    push_to_hub: bool = False
    hub_model_id: Text | None = None
    hub_private_repo: bool | None = None
    skip_memory_metrics: bool = True
    lora_rank: PositiveInt | None = None


CONFIG_CLASSES: dict[str, type[BaseConfig]] = {
    cls.model_type: cls for cls in (PosEncConfig, RnnNmtConfig, PosEncCausalConfig)
}
# Fields that the tokenizer or the weights determine.
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
INFERRED_FIELDS = ("vocab_size", "decoder_vocab_size", *TOKEN_IDS, "dtype")
INTERNAL_FIELDS = ("hf_posenc_version", "is_encoder_decoder")
ModelType = Annotated[str, OneOf(CONFIG_CLASSES)]
Size = Annotated[int, Field(ge=1, le=2**24)]
MODEL_TYPES: dict[str, object] = {
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_hidden_layers"), Annotated[int, Field(ge=1, le=1000)]),
    **dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), Size),
    "max_position_embeddings": Size | None,  # None for a decoder-only model that bounds no length
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_attention_heads"), Size),
    **dict.fromkeys(("hidden_size", "intermediate_size"), Size),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), Fraction),
    **dict.fromkeys(("activation_function", "hidden_act"), Annotated[str, OneOf(ACT2FN)]),
    "initializer": Annotated[str, OneOf(INITIALIZERS)],
    "layer_norm_eps": Positive,
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
        "model_type": (ModelType, PosEncConfig.model_type),
        "attn_implementation": (Text, "sdpa"),
    }


def parameter_annotation(name: str, parameter: EncodingParameter) -> object:
    """The annotation of an encoding's parameter, from its default. A cross-attention parameter may also be null."""
    annotation: Any = int | None if parameter.default is None else type(parameter.default)
    constrained: Any = Annotated[annotation, Predicate(parameter.is_valid), Field(description=parameter.constraint)]
    return constrained if name == parameter.name else constrained | None


class ModelKeys(Keys):
    """Base class of the models of `model`; `model_schema` adds the fields."""

    config_class: ClassVar[type[BaseConfig]]

    @model_validator(mode="before")
    @classmethod
    def check_names(cls, model: Section) -> Section:
        for alias, name in cls.config_class.attribute_map.items():
            if alias in model and name in model and model[alias] != model[name]:
                raise ValueError(
                    f"{alias} is another name of {name}, but both are given, {model[alias]!r} and {model[name]!r}; use "
                    "one name."
                )
        for name in INFERRED_FIELDS:
            if name in model:
                sizes = ", and set data.vocab_size" if "vocab" in name else ""
                raise ValueError(
                    f"{name} is that of the tokenizer or the weights, but it is given as {model[name]!r}; "
                    f"leave it out{sizes}."
                )
        for name, value in model.items():
            if name not in cls.model_fields and not cls.config_class.accepts_keyword(name):
                cls.config_class(**{name: value})  # which says why it has no such field
        return model


def model_schema(config_class: type[BaseConfig]) -> type[ModelKeys]:
    """The pydantic model of `model` for a config class. Encodings that are registered later add keys to it."""
    return cached_schema(config_class.model_type, tuple(model_keys(config_class)))


@cache
def cached_schema(model_type: str, names: tuple[str, ...]) -> type[ModelKeys]:
    config_class = CONFIG_CLASSES[model_type]
    keys: dict[str, Any] = model_keys(config_class)
    schema = create_model("ModelKeys", __base__=ModelKeys, **{name: keys[name] for name in names})
    schema.config_class = config_class
    return schema


Seeds = Annotated[
    list[Seed],
    Predicate(lambda seeds: 0 < len(seeds) == len(set(seeds))),
    Field(description="different whole numbers, such as [1, 2, 3]"),
]
FolderName = Annotated[
    str,
    Predicate(lambda name: name not in ("", ".", "..") and "/" not in name),
    Field(description="text, the name of a folder and no path"),
]


class SystemKeys(Keys):
    """Keys of a system's own entry, which replace the file's. With `segment` it has none but those from there on.

    `segment`: no training; the model of that system translates its inputs segment by segment.
    `segmentation`: which segments: those that were concatenated (gold), sentences that a splitter finds (automatic), or
        chunks of words (fixed).
    `segment_words`: with `segmentation: fixed`, the number of source words of a segment.
    `overlap_words`: the number of source words that a fixed segment repeats from the one before.
    """

    data: Section | None = None
    model: Section | None = None
    train: Section | None = None
    score: Section | None = None
    seeds: Seeds | None = None
    init_from: Text | None = None
    segment: Text | None = None
    segmentation: Annotated[str, OneOf(SEGMENTATIONS)] = "gold"
    segment_words: PositiveInt | None = None
    overlap_words: NonNegativeInt = 0


class FileKeys(Keys):
    """Keys of a config file, once `extends` is resolved.

    `systems`: one row of the table each; a system's own entry changes what the file says.
    `data`: corpora, vocabulary and lengths; keys below.
    `model`: fields of PosEncConfig, or of the config that `model_type` names.
    `train`: arguments of the Trainer; keys below.
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

    systems: Annotated[
        dict[str, SystemKeys | None], Field(min_length=1, description="one system or more, by their names")
    ]
    data: Section | None = None
    model: Section | None = None
    train: Section | None = None
    score: Section | None = None
    seeds: Seeds | None = None
    init_from: Text | None = None
    baseline: Text | None = None
    name: FolderName | None = None
    output_dir: Text = "runs"
    report_name: FolderName | None = None
    reference_table: ReferenceTable | None = None
    num_parallel: PositiveInt = 1
    diagnose: bool = True
    encoding_files: list[Text] | None = None
