# SPDX-License-Identifier: Apache-2.0
"""Base classes of all configs of the family: validated keywords, saved fields of other versions, shared fields."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import GenerationConfig, PreTrainedConfig

from ..generation.model_inputs import CACHE_NAMES
from ..hub.errors import CONFIG_FILES, closest_name, explain_unreadable
from ..hub.version import __version__

# Keywords that transformers passes to any config beyond its fields. Others are refused: PreTrainedConfig would save a
# misspelt `dropuot=0.3`, which changes nothing. A keyword that a newer transformers adds belongs here.
UPSTREAM_KEYWORDS = {
    "_commit_hash", "_name_or_path", "attn_implementation", "auto_map", "experts_implementation", "model_type",
    "name_or_path", "num_labels", "output_attentions", "per_layer_config", "quantization_config", "rope_scaling",
    "rope_theta", "partial_rotary_factor", "torch_dtype", "tie_last_hidden_states", "transformers_weights",
}  # fmt: skip
INITIALIZERS = ("xavier", "torch")
SIZE_FIELDS = ("d_model", "hidden_size", "intermediate_size")
# Without bounds a wrong config.json would take forever to construct, even where no memory is allocated.
MAX_SIZE, MAX_LAYERS = 2**24, 1000


@strict
class BaseConfig(PreTrainedConfig):
    """Fields of every model of the family, their validation, and the loading of saved ones."""

    keys_to_ignore_at_inference = [*CACHE_NAMES, "source_positions"]
    # The classes in the code next to a saved config, by their Auto class.
    auto_classes: ClassVar[dict[str, str]]
    # Writes a checkpoint's code into its folder. The package sets it; in the code of a checkpoint, whose files
    # transformers copies, it is None.
    write_code: ClassVar[Callable[[Path, "BaseConfig"], None] | None] = None

    vocab_size: int = 32000
    dropout: float | int = 0.1
    scale_embedding: bool = True
    tie_word_embeddings: bool = False
    initializer: str = "xavier"
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    hf_posenc_version: str | None = None

    def __post_init__(self, **kwargs: object) -> None:
        self.check_keywords(kwargs)
        self._validate_aliases(kwargs)
        if kwargs.pop("transformers_weights", None) is not None:  # transformers would load any file of that name
            raise ValueError("transformers_weights must be left out: weights of this family are model.safetensors.")
        self.auto_map = dict(self.auto_classes)
        kwargs.pop("auto_map", None)
        super().__post_init__(**kwargs)
        if self.initializer not in INITIALIZERS:
            raise ValueError(f"initializer must be one of {', '.join(INITIALIZERS)}, but it is {self.initializer!r}.")
        self._validate_numbers()

    def _validate_numbers(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name.endswith("vocab_size"):
                is_valid, constraint = 1 <= value < 2**32, "from 1 to below 2**32"
            elif name in SIZE_FIELDS or name.endswith("_ffn_dim"):
                is_valid, constraint = 1 <= value <= MAX_SIZE, f"from 1 to {MAX_SIZE}"
            elif name.endswith(("_layers", "_heads")):
                is_valid, constraint = 1 <= value <= MAX_LAYERS, f"from 1 to {MAX_LAYERS}"
            elif name.endswith("dropout"):
                is_valid, constraint = 0 <= value < 1, "a probability from 0 to below 1"
            elif name == "layer_norm_eps":
                is_valid, constraint = value > 0, "above 0"
            elif name in ("pad_token_id", "decoder_start_token_id"):
                is_valid, constraint = value is not None, "a token id, for padding and for the start of targets"
            else:
                continue
            if not is_valid:
                raise ValueError(f"{name} must be {constraint}, but it is {value!r}; its default is {field.default!r}.")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | PathLike[str], **kwargs: object) -> Self:
        """transformers' loading; a ValueError for a config.json that cannot be read."""
        with explain_unreadable(pretrained_model_name_or_path, CONFIG_FILES, kwargs):
            return super().from_pretrained(pretrained_model_name_or_path, **kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, object], **kwargs: object) -> Self:
        """transformers' `from_dict`, with keywords that replace saved fields before validation.

        An error names the version that saved the config, and its folder if AutoConfig gives it. Unknown fields in a
        config of this version are a user's: they are kept, with a warning.
        """
        with explain_unreadable(kwargs.get("name_or_path"), CONFIG_FILES, kwargs):
            return cls._from_saved_fields(config_dict, **kwargs)

    @classmethod
    def _from_saved_fields(cls, config_dict: dict[str, object], **kwargs: object) -> Self:
        for name, value in config_dict.items():
            if "implementation" in name and "/" in str(value):  # a kernel of the Hub
                raise ValueError(
                    f"A saved config must name no code from elsewhere, but it has {name}={value!r}; remove it, "
                    "and give it to from_pretrained if you trust it."
                )
        if (model_type := config_dict.get("model_type")) not in (None, "", cls.model_type):
            raise ValueError(
                f"{cls.__name__} reads configs of model_type={cls.model_type!r}, but this one has {model_type!r}; load "
                "it with AutoConfig, and its model with the Auto class that its auto_map names."
            )
        own_fields = cls.known_keywords() - {field.name for field in fields(PreTrainedConfig)}
        overrides = {cls.attribute_map.get(name, name): kwargs.pop(name) for name in own_fields & kwargs.keys()}
        unknown_fields = {name: value for name, value in config_dict.items() if not cls.accepts_keyword(name)}
        if config_dict.get("hf_posenc_version") != __version__:  # another version may have fields of its own
            unknown_fields = {}
        for name in unknown_fields:
            warnings.warn(
                f"{name!r} is no field of {cls.__name__} and has no effect on the model; the nearest field is "
                f"{cls.nearest_field(name)!r}.",
                stacklevel=3,
            )
        config_dict = config_dict | overrides
        try:
            loaded = super().from_dict(
                {name: value for name, value in config_dict.items() if name not in unknown_fields}, **kwargs
            )
        except (ValueError, StrictDataclassError) as error:
            if (hint := cls.hint(config_dict)) is None:
                raise
            raise ValueError(f"{error} {hint}") from error
        for name, value in unknown_fields.items():
            setattr(loaded[0] if isinstance(loaded, tuple) else loaded, name, value)
        return loaded

    @classmethod
    def hint(cls, config_dict: Mapping[str, object]) -> str | None:
        """A remedy to append to the error for an invalid saved config, None without one."""
        saved_version = config_dict.get("hf_posenc_version")
        if saved_version in (None, __version__):
            return None
        return (
            f"This config was written by hf_posenc {saved_version} and is read by {__version__}: install the version "
            "that wrote it. (With hf_posenc imported, it reads every checkpoint, with trust_remote_code or without.)"
        )

    @classmethod
    def known_keywords(cls) -> set[str]:
        """The names of all fields and their aliases."""
        return {field.name for field in fields(cls)} | set(cls.attribute_map)

    @classmethod
    def accepts_keyword(cls, name: str) -> bool:
        """Whether `name` is a field, or a keyword that transformers passes to any config."""
        known = cls.known_keywords() | UPSTREAM_KEYWORDS
        return name in known or name.startswith("_") or name in GenerationConfig().to_dict()

    @classmethod
    def nearest_field(cls, name: str) -> str:
        """The field most like a misspelt `name`, for error messages."""
        return closest_name(name, cls.known_keywords())

    def check_keywords(self, kwargs: Iterable[str]) -> None:
        for name in kwargs:
            if not self.accepts_keyword(name):
                raise ValueError(
                    f"{name!r} is no field of {type(self).__name__}; the nearest one is {self.nearest_field(name)!r}."
                )

    def _validate_aliases(self, kwargs: Mapping[str, object]) -> None:
        """Raise a ValueError for two values of one field, by both of its names."""
        defaults = {field.name: field.default for field in fields(self)}
        for alias, name in self.attribute_map.items():
            if alias in kwargs and getattr(self, name) not in (defaults[name], kwargs[alias]):
                raise ValueError(
                    f"{alias} is another name of {name} and must not have another value, but {alias}={kwargs[alias]!r} "
                    f"and {name}={getattr(self, name)!r} are given; leave one out."
                )

    def to_dict(self) -> dict[str, object]:
        """transformers' dictionary, with the version that writes it."""
        return super().to_dict() | {"hf_posenc_version": __version__}

    def save_pretrained(self, save_directory: str | PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> None:
        """transformers' saving, with the code of the classes that `auto_classes` names."""
        super().save_pretrained(save_directory)
        write_code = type(self).write_code
        if write_code is not None:
            write_code(Path(save_directory), self)
        if push_to_hub:  # transformers' save_pretrained would push before the code is written
            self.push_to_hub(kwargs.pop("repo_id", Path(save_directory).name), **kwargs)

    def describe(self) -> str:
        """The config's fields that identify a model, for error messages."""
        return f"model_type={self.model_type!r}"

    @property
    def target_vocab_size(self) -> int:
        """The number of subwords of the model's output."""
        return self.vocab_size

    @property
    def max_source_length(self) -> int | None:
        """The maximum number of tokens of a source or a prompt, with `</s>`; None without a maximum."""
        return None

    @property
    def sides(self) -> Sequence[object]:
        """The attentions with position encodings (see EncodingsConfig.side); none in this class."""
        return []

    def decoder_cache_layer_types(self, num_layers: int) -> list[str]:
        """The type of each layer of the decoder's self-attention cache, by transformers' names."""
        raise NotImplementedError


# The section on these fields in the docstring of every config.
SHARED_FIELDS = """    Vocabularies, embeddings, initialization, generation
        `vocab_size`, `decoder_vocab_size`: subwords of source and target; None for one size.
        `scale_embedding`: multiply embeddings by sqrt(d_model).
        `share_encoder_decoder_embeddings`: one table for source and target, which then have one vocabulary.
        `tie_word_embeddings`: the output projection is the target's embedding table.
        `output_bias`: whether the output projection has a bias.
        `initializer`: "xavier" (Xavier-uniform matrices, zero biases, embeddings of deviation d_model^-1/2) or "torch"
            (defaults of torch.nn, embeddings of deviation 1, for which `scale_embedding` should be False).
        `use_cache`: whether generating caches keys, values and states.
        `pad_token_id`, `bos_token_id`, `eos_token_id`, `decoder_start_token_id`: ids of special tokens.
        `hf_posenc_version`: the version that wrote a saved config; None in a new one.
"""


@strict
class SharedConfig(BaseConfig):
    """Fields of every encoder-decoder of the family, named as BART's and Marian's, and their validation."""

    decoder_vocab_size: int | None = None
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    share_encoder_decoder_embeddings: bool = False
    output_bias: bool = False
    is_encoder_decoder: bool = True
    decoder_start_token_id: int | None = 1

    def __post_init__(self, **kwargs: object) -> None:
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        super().__post_init__(**kwargs)
        if self.share_encoder_decoder_embeddings and self.decoder_vocab_size != self.vocab_size:
            raise ValueError(
                f"Shared embeddings need one vocabulary, but vocab_size={self.vocab_size} and decoder_vocab_size="
                f"{self.decoder_vocab_size}; make them equal or set share_encoder_decoder_embeddings=False."
            )

    @property
    def target_vocab_size(self) -> int:
        """`decoder_vocab_size` as an integer: it is None only before `__post_init__`."""
        return cast(int, self.decoder_vocab_size)

    @property
    def max_target_length(self) -> int | None:
        """The decoder's maximum number of tokens, with the start token; None without a maximum."""
        return None

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """This config as one stack sees it, for transformers' caches.

        Every field that starts with `decoder_` (or `encoder_`) loses that prefix in the view, new fields too:
        `decoder_start_token_id` is `start_token_id` there. Therefore only a stack's own field may have the prefix.
        """
        if bool(decoder) == bool(encoder):
            return self
        view, side = copy(self), "decoder_" if decoder else "encoder_"
        names = {"layers": "num_hidden_layers", "attention_heads": "num_attention_heads"}
        for name in [name for name in vars(self) if name.startswith(side)]:
            field = name.removeprefix(side)
            field = names.get(field, field)
            value = getattr(view, name)
            delattr(view, name)
            setattr(view, self.attribute_map.get(field, field), value)
        if decoder:
            view.layer_types = self.decoder_cache_layer_types(view.num_hidden_layers)
        return view
