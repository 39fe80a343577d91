# SPDX-License-Identifier: Apache-2.0
"""Limits of a translation in `generate`, by its length and by its source position, and where options are taken from.

An option is taken from the call, else from its generation config, else from the model's generation config, never from
the model config. A model's generation config separates chosen values from defaults: an evaluation of Seq2SeqTrainer
writes all of transformers' defaults into it, such as a maximum length of 20 tokens.

Length. By default a target has at most 2 x source + 50 tokens, or the maximum length of the decoder's encoding.
`expected_length_range`, an option of a call, gives limits in multiples of the length E that the model expects
(`expected_target_lengths`), where `</s>` counts:

    floor(low E) <= number of target tokens <= ceil(high E)

Before the lower limit no end token can be chosen, and at the upper limit it is forced.

`eos_requires_source_end`. A decoder with local cross-attention sees a part of the source, whose end it can take for the
end of the source. With this option a step at source position g may write an end token only if the source's last token
is less than `window` away, and so is a key that the step can attend to:

    last - g < window

The option is in the generation config of each new model with an alignment and such a window; a saved model keeps what
was saved with it. A forced end, of a length limit, stays as it is.

`max_tokens_per_source_position`. A limit of 2 x source + 50 tokens for the whole allows the translation of a long
document to repeat itself thousands of times. With this option at most so many tokens in a row are written at one
source position, which is that of the nearest source token. Then the translation ends, and is truncated.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from ..hub.errors import require

# Keywords of `generate`, each of a type of its own.
GenerateOptions = dict[str, Any]
# A model that generates: an encoder-decoder or a decoder-only model of the family, or an exported one.
GeneratingModel: TypeAlias = Any

LENGTH_OPTIONS = ("max_length", "max_new_tokens")
EXPECTED_LENGTH_OPTION = "expected_length_range"
SOURCE_END_OPTION = "eos_requires_source_end"
POSITION_LIMIT_OPTION = "max_tokens_per_source_position"
POSITION_OPTIONS = (SOURCE_END_OPTION, POSITION_LIMIT_OPTION)
# The argument of `forward` that takes the readers of source positions.
READERS_ARGUMENT = "source_position_readers"
# Steps that are kept for assisted decoding, which rejects some of the newest.
NUM_KEPT_STEPS = 64


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
        is_default = defaults_only and kwargs == self._get_default_generation_params()
        empty = {name for name in kwargs if getattr(self, name, None) is None}
        unused = super().update(defaults_only, allow_custom_entries, **kwargs)
        if is_default:
            object.__setattr__(self, "defaulted_fields", defaulted_fields | empty)
        return unused

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


# Limits of length.


def force_token(scores: Tensor, rows_N: Tensor, token_id: int) -> Tensor:
    """The scores (N, V), in which these rows (N, Boolean) can choose this token alone."""
    forced_scores = torch.full_like(scores, float("-inf"))
    forced_scores[:, token_id] = 0
    return torch.where(rows_N.to(scores.device)[:, None], forced_scores, scores)


def forbid_tokens(scores: Tensor, rows_N1: Tensor, token_ids: Sequence[int]) -> Tensor:
    """The scores (N, V); these rows (N, 1, Boolean) can choose none of these tokens, unless nothing else is left."""
    tokens, allowed = list(token_ids), scores.clone()
    allowed[:, tokens] = float("-inf")
    is_forced_N1 = allowed.amax(1, keepdim=True) == float("-inf")
    is_forbidden_N1 = rows_N1.to(scores.device) & ~is_forced_N1
    allowed[:, tokens] = scores[:, tokens].masked_fill(is_forbidden_N1, float("-inf"))
    return allowed


class PerSentenceLength(LogitsProcessor):
    """Logits processor that ends each sentence of a batch at its own limit, and not before its own minimum.

    With one limit for the whole batch, the length of a translation would depend on its neighbours. Lengths are in
    target tokens, without the `prompt_length` tokens before them, here the start token; the minimum counts the end
    token. Every sentence has the same number of rows of scores, its beams. From the limit on, each token is
    `limit_token_id`: an end token, which ends the sentence, or else padding.
    """

    def __init__(
        self,
        max_lengths: Sequence[int] | None = None,
        limit_token_id: int = 0,
        *,
        min_lengths: Sequence[int] | None = None,
        end_token_ids: Sequence[int] = (),
        prompt_length: int = 1,
    ) -> None:
        self.max_lengths_B = None if max_lengths is None else torch.tensor(max_lengths)
        self.min_lengths_B = None if min_lengths is None else torch.tensor(min_lengths)
        self.limit_token_id, self.end_token_ids, self.prompt_length = limit_token_id, end_token_ids, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        num_tokens = input_ids.shape[1] - self.prompt_length
        if self.min_lengths_B is not None:
            is_early_B = num_tokens + 1 < self.min_lengths_B
            if is_early_B.any():
                is_early_N = is_early_B.repeat_interleave(len(scores) // len(is_early_B))
                scores = forbid_tokens(scores, is_early_N[:, None], self.end_token_ids)
        if self.max_lengths_B is not None:
            is_over_B = self.max_lengths_B <= num_tokens
            if is_over_B.any():
                is_over_N = is_over_B.repeat_interleave(len(scores) // len(is_over_B))
                scores = force_token(scores, is_over_N, self.limit_token_id)
        return scores


def max_target_lengths(lengths: Iterable[int], max_target_length: int | None) -> list[int]:
    """Each sentence's limit in target tokens, from source lengths with `</s>`: 2 x source + 50.

    `max_target_length` is the decoder's maximum with the start token, None without one.
    """
    return [min(2 * (length - 1) + 50, (max_target_length or sys.maxsize) - 1) for length in lengths]


def with_expected_lengths(
    model: GeneratingModel,
    source: Mapping[str, Any],
    options: GenerateOptions,
    generation_config: GenerationConfig | None = None,
) -> tuple[GenerateOptions, list[int] | None]:
    """The options of `generate` with a processor for the lower limit and None for `expected_length_range`; and each
    sentence's upper limit in target tokens, without special ones, None without the option.

    `source` has the arguments of the encoder, or `encoder_outputs`. A ValueError where no length is expected.
    """
    length_range = explicit_option(EXPECTED_LENGTH_OPTION, options, generation_config, model.generation_config)
    options = {**options, EXPECTED_LENGTH_OPTION: None}  # it is read once
    if length_range is None:
        return options, None
    low, high = validate_length_range(length_range)
    names = ("input_ids", "attention_mask", "encoder_outputs", "inputs_embeds")
    encoder_inputs = {name: source.get(name) for name in names}
    end_token_ids, pad_token_id = model.end_tokens(options, generation_config)
    ids, mask = encoder_inputs["input_ids"], encoder_inputs["attention_mask"]
    if mask is None and ids is not None and pad_token_id not in end_token_ids:
        encoder_inputs["attention_mask"] = (ids != pad_token_id).long()  # as transformers' `generate` does
    expected = model.expected_target_lengths(**encoder_inputs).tolist()
    shortest = [math.floor(low * length) for length in expected]
    limiter = PerSentenceLength(min_lengths=shortest, end_token_ids=end_token_ids)
    longest = (model.config.max_target_length or sys.maxsize) - 1
    limits = [min(max(2, math.ceil(high * length)) - 1, longest) for length in expected]  # without </s>
    return with_processors(options, limiter), limits


def validate_length_range(length_range: Any) -> tuple[float, float]:
    """The two factors; a ValueError unless they are numbers, the first from 0 on and not above the second."""
    factors = list(length_range) if isinstance(length_range, (list, tuple)) else []
    are_numbers = all(isinstance(factor, (int, float)) and not isinstance(factor, bool) for factor in factors)
    require(
        len(factors) == 2 and are_numbers and 0 <= factors[0] <= factors[1] < math.inf and factors[1] > 0,
        f"{EXPECTED_LENGTH_OPTION} must be two multiples of the expected length, from 0 on, the lower one first, but "
        f"it is {length_range!r}; (0.8, 1.3) allows from a fifth fewer tokens to three tenths more.",
    )
    return factors[0], factors[1]


def with_length_limits(
    model: GeneratingModel,
    max_target_lengths: list[int],
    options: GenerateOptions,
    generation_config: GenerationConfig | None = None,
) -> GenerateOptions:
    """The options of `generate` with those that end each sentence at its limit."""
    end_token_ids, pad_token_id = model.end_tokens(options, generation_config)
    limiter = PerSentenceLength(max_target_lengths, end_token_ids[0] if end_token_ids else pad_token_id)
    num_special_tokens = 2 if end_token_ids else 1  # the start token, and </s>
    limits = {"max_length": max(max_target_lengths) + num_special_tokens, "max_new_tokens": None}
    return with_processors(options, limiter) | limits


def with_processors(options: GenerateOptions, *processors: LogitsProcessor) -> GenerateOptions:
    """The options of `generate` with these logits processors after the given ones."""
    return options | {"logits_processor": LogitsProcessorList([*(options.get("logits_processor") or []), *processors])}


# Limits by source position.


class SourcePositionReader(LogitsProcessor):
    """Base class of the processors that read the source position of each decoding step.

    `generate` passes the readers of a call to each forward of this call. Therefore calls that share a model never read
    each other's positions.
    """

    def __init__(self) -> None:
        # Of the newest forward: the target tokens before it, the source's last position, and the new tokens' positions.
        self.steps: list[tuple[int | Tensor, Tensor, Tensor]] = []

    def read(self, num_cached: int | Tensor, positions_NT: Tensor, last_N1: Tensor) -> None:
        """Take the source positions of a forward's new tokens, before which there are `num_cached` others, and the
        positions of the sources' last tokens."""
        self.steps.append((num_cached, last_N1, positions_NT))

    def take_steps(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The steps since the last call: the target tokens before each, the source's last position (N, 1), and the
        step's (N, 1), in float64 as streaming has them. A forward of assisted decoding computes several steps."""
        steps, self.steps = self.steps, []
        for num_cached, last_N1, positions_NT in steps:
            for token, position_N1 in enumerate(positions_NT.cpu().double().split(1, dim=1)):
                yield int(num_cached) + token, last_N1.cpu(), position_N1

    def has_ended(self, sentence: int, ids: Sequence[int]) -> bool:
        """Whether this processor ended the translation of a sentence, with its start token and end token."""
        return False


class SourcePositionReaders(tuple[SourcePositionReader, ...]):
    """The readers of a call of `generate`, as an argument of `forward`."""

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """None: assisted decoding copies a call's arguments for its draft model, which has other source positions."""


def last_source_positions(mask: Tensor | None, position_ids: Tensor | None, encoder_states_BSD: Tensor) -> Tensor:
    """The position of each source's last token (B or 1, 1), from the mask (B, S) and the given position ids (B, S)."""
    if position_ids is None:
        if mask is None:
            return torch.tensor([[encoder_states_BSD.shape[1] - 1]])
        return (mask != 0).sum(1, keepdim=True) - 1
    return (position_ids if mask is None else position_ids.masked_fill(mask == 0, 0)).amax(1, keepdim=True)


class SourceEndProcessor(SourcePositionReader):
    """Forbids the end tokens in rows of scores whose source positions are `window` tokens or more before the end."""

    def __init__(self, end_token_ids: Sequence[int], window: int) -> None:
        super().__init__()
        self.end_token_ids, self.window = list(end_token_ids), window
        self.sees_end: dict[int, Tensor] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.steps:
            steps = self.take_steps()
            self.sees_end = {number: last_N1 - position_N1 < self.window for number, last_N1, position_N1 in steps}
        sees_end_N1 = self.sees_end.get(input_ids.shape[1] - 1)
        # Assisted decoding passes the processors to the draft model too, whose steps are not here.
        if sees_end_N1 is None or sees_end_N1.all():
            return scores
        return forbid_tokens(scores, ~sees_end_N1, self.end_token_ids)


@dataclass(frozen=True)
class SourceVisit:
    """The source token that is nearest to each row's source position, and the number of steps in a row near it (N)."""

    token_N: Tensor
    num_steps_N: Tensor

    @classmethod
    def after(cls, previous: "SourceVisit | None", position_N1: Tensor, last_N1: Tensor) -> "SourceVisit":
        """The visit after one more step at these source positions, in a source with this last position (N or 1, 1)."""
        token_N = torch.minimum((position_N1 + 0.5).floor(), last_N1.to(position_N1.dtype))[:, 0]
        if previous is None:
            return cls(token_N, torch.ones_like(token_N, dtype=torch.long))
        return cls(token_N, torch.where(token_N == previous.token_N, previous.num_steps_N, 0) + 1)

    def select(self, rows: Tensor) -> "SourceVisit":
        """The visits of these rows."""
        return SourceVisit(self.token_N[rows], self.num_steps_N[rows])


class SourcePositionLimit(SourcePositionReader):
    """Forces the end token in rows that have written `max_tokens` tokens at one source position.

    Each of `num_sentences` has the same number of rows.
    """

    def __init__(self, end_token_ids: Sequence[int], max_tokens: int, num_sentences: int) -> None:
        super().__init__()
        self.end_token_ids, self.max_tokens, self.num_sentences = torch.tensor(end_token_ids), max_tokens, num_sentences
        self.visits: dict[int, SourceVisit] = {}  # by the number of target tokens before the step
        self.previous_ids_NT: Tensor | None = None
        self.ended: set[tuple[int, ...]] = set()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        ids_NT = input_ids.cpu()
        if self.steps:
            self.count_steps(ids_NT)
        visit = self.visits.get(ids_NT.shape[1] - 1)
        if visit is None:  # scores of a draft model
            return scores
        must_end_N = visit.num_steps_N > self.max_tokens
        if not must_end_N.any():
            return scores
        has_ended_N = torch.isin(ids_NT[:, 1:], self.end_token_ids).any(1)  # behind its end, a row goes on with padding
        num_rows = len(ids_NT) // self.num_sentences
        for row in (must_end_N & ~has_ended_N).nonzero()[:, 0].tolist():
            self.ended.add((row // num_rows, *ids_NT[row].tolist()))
        return force_token(scores, must_end_N, int(self.end_token_ids[0]))

    def count_steps(self, ids_NT: Tensor) -> None:
        """Take the steps since the last call, which had other rows before them in beam search."""
        for index, (number, last_N1, position_N1) in enumerate(self.take_steps()):
            previous = self.visits.get(number - 1)
            if index == 0 and previous is not None:
                previous = previous.select(self.parents(ids_NT[:, :number]))
            self.visits[number] = SourceVisit.after(previous, position_N1, last_N1)
        self.visits = dict(list(self.visits.items())[-NUM_KEPT_STEPS:])
        self.previous_ids_NT = ids_NT

    def parents(self, ids_NT: Tensor) -> Tensor:
        """For each row, one of the last call with these tokens (N). Equal tokens have equal positions."""
        num_rows = len(ids_NT) // self.num_sentences
        if num_rows == 1 or self.previous_ids_NT is None:
            return torch.arange(len(ids_NT))
        now, before = (ids.unflatten(0, (-1, num_rows)) for ids in (ids_NT, self.previous_ids_NT[:, : ids_NT.shape[1]]))
        is_parent_BNN = (now[:, :, None] == before[:, None]).all(-1)
        return (is_parent_BNN.int().argmax(-1) + torch.arange(0, len(ids_NT), num_rows)[:, None]).flatten()

    def has_ended(self, sentence: int, ids: Sequence[int]) -> bool:
        return (sentence, *ids[:-1]) in self.ended


def validate_position_limit(max_tokens: object) -> int:
    """The limit; a ValueError unless it is a whole number from 1 on."""
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise ValueError(
            f"{POSITION_LIMIT_OPTION} must be a whole number from 1 on, or None for no limit, but it is "
            f"{max_tokens!r}; 50 is far above what a translation needs."
        )
    return max_tokens


def source_position_rules(
    model: GeneratingModel,
    options: Mapping[str, object],
    generation_config: GenerationConfig | None,
    num_sentences: int,
) -> SourcePositionReaders:
    """The processors of the options that read source positions.

    A ValueError for another number than a limit can be, for a model without source positions, for one without a window
    in the cross-attention, and for a limit without an end token.
    """
    end_token_ids, _ = model.end_tokens(options, generation_config)
    requires_source_end, max_tokens = (
        explicit_option(name, options, generation_config, model.generation_config) for name in POSITION_OPTIONS
    )
    if max_tokens is not None:
        max_tokens = validate_position_limit(max_tokens)
    for option, is_used in zip(POSITION_OPTIONS, (requires_source_end, max_tokens is not None), strict=True):
        require(
            not is_used or model.returns_source_positions,
            f"{option} must be used with a model whose alignment says where in the source it is, but this "
            f"{type(model).__name__} returns no source positions; leave it out.",
        )
    rules: list[SourcePositionReader] = []
    if requires_source_end:
        require(
            model.source_window is not None,
            f"{SOURCE_END_OPTION} must be used with a window in the cross-attention, but this model has none; leave it "
            "out.",
        )
        rules.append(SourceEndProcessor(end_token_ids, model.source_window))
    if max_tokens is not None:
        require(
            end_token_ids,
            f"{POSITION_LIMIT_OPTION} must be used with an end token, but eos_token_id is None; set it, or leave the "
            "limit out.",
        )
        rules.append(SourcePositionLimit(end_token_ids, max_tokens, num_sentences))
    return SourcePositionReaders(rules)
