"""Translation by a causal language model: a prompt before each segment, and what the model writes after it.

The prompt is a template with `{text}`, `{source_language}` and `{target_language}`, or the tokenizer's chat template
with an instruction. Languages stand in it by their English names, which a user may give instead of codes. Segments,
checks and repair are those of Translator.
"""

from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .languages import TranslationDirection, standard_tag
from .translator import Translator, mean_log_probability

INSTRUCTION = "Translate from {source_language} to {target_language}. Answer with the translation alone.\n\n{text}"
FIELDS = frozenset({"text", "source_language", "target_language"})


class CausalTranslator(Translator):
    """A Translator with a causal language model of transformers.

    `prompt_template`: a text with `{text}` and, as it likes, `{source_language}` and `{target_language}`. The model
    must write the translation after it, and ends at a line feed. By default, the tokenizer's chat template with an
    instruction. Other arguments are those of Translator. A ValueError for a template without `{text}` or with other
    fields, for a tokenizer without a chat template, and for missing languages.
    """

    architecture = "a causal language model"
    is_encoder_decoder = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        source_language: str | None = None,
        target_language: str | None = None,
        *,
        prompt_template: str | None = None,
        **options: Any,
    ) -> None:
        self.prompt_template = prompt_template
        self.language_names = {
            "source_language": language_name(source_language, "source_language"),
            "target_language": language_name(target_language, "target_language"),
        }
        if prompt_template is not None:
            validate_template(prompt_template)
            options = {"stop_strings": ["\n"], **options}
        elif tokenizer.chat_template is None:
            raise ValueError(
                f"A causal model needs a prompt, but {type(tokenizer).__name__} has no chat template; give "
                "prompt_template, such as '{source_language}: {text}\\n{target_language}:'."
            )
        super().__init__(model, tokenizer, source_language, target_language, **options)
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.tokenizer.padding_side = "left"
        self.generate_options.setdefault("pad_token_id", self.tokenizer.pad_token_id)

    def choose_direction(self, source: str | None, target: str | None) -> TranslationDirection:
        assert source is not None and target is not None
        return TranslationDirection(language_code(source), language_code(target))

    def encode(self, text: str) -> list[int]:
        """The tokens of the prompt with a text."""
        values = {"text": text, **self.language_names}
        with self.tokenizer_lock:
            if self.prompt_template is not None:
                encoded = self.tokenizer(self.prompt_template.format(**values), verbose=False)
            else:
                messages = [{"role": "user", "content": INSTRUCTION.format(**values)}]
                prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
                encoded = self.tokenizer(prompt, add_special_tokens=False, verbose=False)
        ids: list[int] = encoded["input_ids"]
        return ids

    def generate_tokens(self, sources: list[list[int]], options: Mapping[str, Any]) -> list[list[int]]:
        """The new tokens of each prompt, after a padding token in the place of a decoder's start token."""
        inputs = self.tokenizer.pad({"input_ids": sources}, return_tensors="pt").to(self.model.device)
        if "stop_strings" in options:
            options = {**options, "tokenizer": self.tokenizer}
        sequences = self.model.generate(**inputs, **options)[:, inputs["input_ids"].shape[1] :]
        return [[self.tokenizer.pad_token_id, *row] for row in sequences.tolist()]

    def max_new_tokens(self, source_length: int, given: int | None = None) -> int:
        """`given`, or twice the text and 50 tokens, within the positions that the prompt leaves."""
        wanted = 2 * max(source_length - self.num_added_tokens, 0) + 50 if given is None else given
        positions = getattr(self.config, "max_position_embeddings", None)
        return wanted if positions is None else max(1, min(wanted, positions - source_length))

    @torch.no_grad()
    def log_probabilities(self, source: str, translations: Sequence[str]) -> list[float]:
        prompt = self.encode(source)
        scores = []
        for text in translations:
            # The template decides whether a blank stands before the translation, so it belongs to neither.
            blank = " " if self.prompt_template is not None and not self.prompt_template[-1].isspace() else ""
            with self.tokenizer_lock:
                answer = self.tokenizer(blank + text, add_special_tokens=False)["input_ids"]
            ids = torch.tensor([[*prompt, *answer]], device=self.model.device)
            logits = self.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
            scores.append(mean_log_probability(logits, ids[0, len(prompt) :]))
        return scores


def validate_template(template: str) -> None:
    """A ValueError for a template without `{text}`, or with another field."""
    try:
        fields = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ValueError(f"prompt_template must be a format string, but {template!r} is none ({error}).") from None
    if "text" not in fields or fields - FIELDS:
        raise ValueError(
            f"prompt_template must have {{text}} and may have {{source_language}} and {{target_language}}, but it is "
            f"{template!r}; write other braces twice."
        )


def translator_class(model: Any) -> type[Translator]:
    """CausalTranslator for a causal language model of transformers, Translator for all others."""
    is_causal = not getattr(getattr(model, "config", None), "is_encoder_decoder", True)
    return CausalTranslator if is_causal and not hasattr(model, "translations") else Translator


def language_name(language: str | None, argument: str) -> str:
    """The English name of a language that a user names by a code, or by the name itself."""
    if language is None:
        raise ValueError(f"{argument} must be given for a causal model, because the prompt names it.")
    from transformers.models.whisper.tokenization_whisper import LANGUAGES  # not needed by `import hf_posenc`

    code = language_code(language)
    return LANGUAGES[code].title() if code in LANGUAGES else language


def language_code(language: str) -> str | None:
    """The code by BCP 47 of a code, or of a name such as German; None if unknown."""
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    code = TO_LANGUAGE_CODE.get(language.lower(), language)
    return standard_tag(code)
