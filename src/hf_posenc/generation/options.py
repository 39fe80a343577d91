# SPDX-License-Identifier: Apache-2.0
"""Options of `generate`: where each is taken from.

An option is taken from the call, else from its generation config, else from the model's generation config, never from
the model config. A model's generation config separates chosen values from defaults: an evaluation of Seq2SeqTrainer
writes all of transformers' defaults into it, such as a maximum length of 20 tokens.
"""

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

LENGTH_OPTIONS = ("max_length", "max_new_tokens")
# Options of the family, which generation/source_end.py describes.
SOURCE_END_OPTION = "eos_requires_source_end"
POSITION_LIMIT_OPTION = "max_tokens_per_source_position"
POSITION_OPTIONS = (SOURCE_END_OPTION, POSITION_LIMIT_OPTION)


class ExplicitGenerationConfig(GenerationConfig):
    """A generation config that neither saves nor applies defaults that transformers has filled in.

    Defaults can be read: Seq2SeqTrainer compares lengths with them. A value that is set later is a choice, even if it
    equals the default.
    """

    defaulted_fields: frozenset[str] = frozenset()

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, "defaulted_fields", self.defaulted_fields - {name})
        if name in POSITION_OPTIONS:  # transformers reads no option of ours from a file that a model config gave
            object.__setattr__(self, "_from_model_config", False)
        super().__setattr__(name, value)

    def update(
        self, defaults_only: bool = False, allow_custom_entries: bool = False, **kwargs: object
    ) -> dict[str, object]:
        """transformers' `update`; fields that it fills with defaults are recorded as such.

        `_get_default_generation_params` is private (transformers 5.17 to 5.24 have it). If it is renamed, every
        evaluation of Seq2SeqTrainer raises an AttributeError here.
        """
        defaulted_fields = self.defaulted_fields
        if defaults_only and kwargs == self._get_default_generation_params():
            defaulted_fields |= {name for name in kwargs if getattr(self, name, None) is None}
            unused = super().update(defaults_only, allow_custom_entries, **kwargs)
            object.__setattr__(self, "defaulted_fields", defaulted_fields)
            return unused
        return super().update(defaults_only, allow_custom_entries, **kwargs)

    def to_dict(self) -> dict[str, object]:
        """Chosen values; None for the others."""
        saved = super().to_dict() | dict.fromkeys(self.defaulted_fields)
        saved.pop("defaulted_fields", None)
        return saved


def explicit_option(name: str, options: Mapping[str, object], *configs: GenerationConfig | None) -> Any:
    """The call's value of an option, even None; else that of the first generation config that chooses one."""
    if name in options:
        return options[name]
    for config in configs:
        value = None if name in getattr(config, "defaulted_fields", ()) else getattr(config, name, None)
        if value is not None:
            return value
    return None


def explicit_max_new_tokens(
    options: Mapping[str, object], *configs: GenerationConfig | None, prompt_length: int = 1
) -> int | None:
    """The maximum number of tokens after the prompt, by default the start token, by the call's options or the first
    generation config with a limit; None without a limit. `max_length` counts the prompt, too."""
    for source_options, config in [(options, None), *(({}, config) for config in configs)]:
        length, new_tokens = (explicit_option(name, source_options, config) for name in LENGTH_OPTIONS)
        if new_tokens is not None:
            return new_tokens
        if length is not None:
            return length - prompt_length
    return None
