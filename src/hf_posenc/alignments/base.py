# SPDX-License-Identifier: Apache-2.0
"""The interface of alignments. The base class itself is the alignment `none`.

An alignment maps each target position to a source position, which may lie between two tokens. The position encodings of
cross-attention take source positions as the positions of its queries. The source position of token t may depend on the
tokens up to t only. Shape letters are those of encodings/base.py.

    source_positions(x_BTD, encoder_states_BSD, ctx) -> source_positions_BT
        The source positions of the new tokens, from their embeddings and the encoder's output. `ctx.query_pos_BQ` are
        the new tokens' positions in the target, `ctx.key_pos_BS` those of the source. `ctx.valid_mask_BT` is True for
        new tokens that are no padding. `ctx.state` is the cached state in decoding, and None where a whole target is
        read at once. Source positions are float32 or wider: half precision rounds position 2703 to 2704.
    update(weights, encoder_states_BSD, ctx)
        Is called after the layers of each cached decoding step, with the source positions as `ctx.query_pos_BQ` and
        every layer's cross-attention `weights` (B, H, Q, S). It appends to `ctx.state` what the next token needs. With
        this hook the decoder reads its tokens one at a time (transformer/modeling_posenc.py).
    next_source_position(state) -> source_position_B1
        The source position of the next token (B, 1) from the cached state alone, None before the first token. It may
        lie beyond the source's last token, where `source_positions` stops. Only a local alignment implements it: one
        that reads no source token outside the window of the cross-attention. Streaming needs it.
    shift_source_positions(state, distance)
        Counts the cached source positions from another source token, `distance` tokens later. A local alignment
        implements it, because in float32 the position of a token far from the origin is inexact.
    target_lengths(encoder_states_BSD, source_mask_BS) -> lengths_B
        The number of target tokens, `</s>` included, that the alignment predicts for each source.
    length_loss(encoder_states_BSD, source_mask_BS, target_mask_BT) -> scalar
        A term of the training loss from the lengths alone, summed over sentences; the summed cross-entropy is added to
        it. Masks are nonzero where there is no padding; None for a source without any.
    init_weights()
        Initialises the alignment's own parameters, with transformers.initialization.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..encodings.base import EncodingConfig, EncodingParameter, Reference, StackSpec
from ..encodings.cache import EncodingState
from ..encodings.positions import AttentionContext


class Alignment(nn.Module):
    """Base class of every alignment. By itself it is `none`: target position t is mapped to source position t.

    A subclass implements hooks (see the module) and sets class attributes, its properties:

    `summary`: one sentence.
    `uses_target_length`: a pass over a whole target uses its length, which is unknown in decoding. Losses and
        perplexities of such a pass are those of a model that has the length of the translation as an input.
    `is_monotonic`: in decoding no source position is before the one of the token before.
    `lookahead`: the source tokens after the source position that it reads. They must be in the window of the
        cross-attention, because a stream ends there.
    `max_first_position`: in decoding the largest source position of the first token.
    `config_parameters`: the config fields that it adds.
    `formula`: the source position g_t, in the code's symbols. `references`: the sources.
    """

    summary = "No alignment: target position t is mapped to source position t."
    uses_target_length = False
    is_monotonic = False
    lookahead = 0
    max_first_position = 0.0
    config_parameters: tuple[EncodingParameter, ...] = ()
    formula = "g_t = t"
    references: tuple[Reference, ...] = ()

    update: Callable[[Sequence[Tensor], Tensor, AttentionContext], None] | None = None
    target_lengths: Callable[[Tensor, Tensor | None], Tensor] | None = None
    length_loss: Callable[[Tensor, Tensor | None, Tensor], Tensor] | None = None
    next_source_position: Callable[[EncodingState], Tensor | None] | None = None
    shift_source_positions: Callable[[EncodingState, int], None] | None = None

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        """`side` has the sizes of the cross-attention."""
        super().__init__()
        self.config, self.side = config, side

    @classmethod
    def validate(cls, config: EncodingConfig) -> None:
        """Raise a ValueError (rule, value, remedy) for parameters that do not go together."""

    @classmethod
    def estimate(cls, source_lengths: Iterable[int], target_lengths: Iterable[int]) -> dict[str, float]:
        """Config fields estimated from a training corpus, by name; empty if there are none.

        `source_lengths` and `target_lengths` are in tokens, special ones included, in the order of the sentence pairs.
        """
        return {}

    def init_weights(self) -> None:
        """Initialise the alignment's own parameters. The base class has none."""

    def source_positions(self, x_BTD: Tensor, encoder_states_BSD: Tensor, ctx: AttentionContext) -> Tensor:
        """The new tokens' own positions (B or 1, T)."""
        return ctx.query_pos_BQ

    def forward(self, hook: str, *arguments: object) -> Any:
        """The result of a hook. Hooks are called through `forward`: see PositionEncoding.forward."""
        return getattr(self, hook)(*arguments)


def has_source_position(alignment: nn.Module) -> bool:
    """Whether a decoding step has a source position of its own: with every alignment except `none`."""
    return type(without_adapters(alignment)) is not Alignment


def without_adapters(alignment: nn.Module) -> Alignment:
    """The alignment inside the adapters that stand in for it, for its properties. Hooks are called on the adapters."""
    while (inner := alignment._modules.get("base_layer")) is not None:  # PEFT's name
        alignment = inner
    return cast(Alignment, alignment)


def source_padding_mask(ctx: AttentionContext) -> Tensor | None:
    """True for padding in the source (B, S), None without a mask.

    A ValueError for a mask that is not 2-D, such as that of sentences packed into one row: it has no end of a source.
    """
    if not isinstance(ctx.mask, Tensor):
        return None
    if ctx.mask.ndim != 2:
        raise ValueError(
            f"An alignment needs the end of each source, but the mask of the source is of shape "
            f"{tuple(ctx.mask.shape)}; give a mask of (sentences, tokens), or give cross_position_ids."
        )
    return ctx.mask == 0


def source_bounds(ctx: AttentionContext) -> tuple[Tensor, Tensor]:
    """The positions of each source's first and last token (B or 1, 1)."""
    key_pos_BS, padding_BS = ctx.key_pos_BS, source_padding_mask(ctx)
    if padding_BS is None:
        return key_pos_BS.amin(1, keepdim=True), key_pos_BS.amax(1, keepdim=True)
    first_B1 = torch.where(padding_BS, key_pos_BS.amax(1, keepdim=True), key_pos_BS).amin(1, keepdim=True)
    return first_B1, torch.where(padding_BS, first_B1, key_pos_BS).amax(1, keepdim=True)


def validate_lookahead(alignment: Alignment, hiding_lookahead: int | None) -> None:
    """Raise a ValueError for an alignment that reads source tokens that the window of the cross-attention hides."""
    if hiding_lookahead is not None and alignment.lookahead >= hiding_lookahead:
        raise ValueError(
            f"An alignment must read no source tokens outside the window of the cross-attention, but "
            f"{type(alignment).__name__} reads {alignment.lookahead} after its source position, and keys are hidden "
            f"from a distance of {hiding_lookahead} on; widen the window (cross_window_size), or lower the alignment's "
            "largest step."
        )


def resolve_source_positions(
    alignment: Alignment,
    x_BTD: Tensor,
    encoder_states_BSD: Tensor,
    ctx: AttentionContext,
    *,
    cross_position_ids: Tensor | None,
) -> Tensor:
    """The source positions of the new tokens (B or 1, T): the given ones, validated, or else the alignment's."""
    num_new, batch = x_BTD.shape[1], encoder_states_BSD.shape[0]  # `len` would fix the batch size of an export
    if cross_position_ids is None:
        if without_adapters(alignment).update is not None and ctx.state is not None and num_new > 1:
            raise ValueError(
                "With an alignment that tracks the attention, a decoder reads one token at a time into a cache, but it "
                f"was given {num_new}; call the whole model, which decodes sequentially, or give cross_position_ids."
            )
        return alignment("source_positions", x_BTD, encoder_states_BSD, ctx)
    shape = tuple(cross_position_ids.shape)
    if shape not in ((batch, num_new), (1, num_new)):
        raise ValueError(
            "cross_position_ids must have a source position for each target token, but its shape is "
            f"{shape} for {num_new} tokens in {batch} sentences; give one position a token."
        )
    if torch.compiler.is_compiling() or getattr(ctx.mask, "ndim", 2) != 2:
        return cross_position_ids
    first_B1, last_B1 = source_bounds(ctx)
    # A token occupies half a position on either side of its own.
    if bool(((cross_position_ids < first_B1 - 0.5) | (cross_position_ids > last_B1 + 0.5)).any()):
        raise ValueError(
            f"cross_position_ids must be positions in their sources, but they go from {cross_position_ids.min():g} "
            f"to {cross_position_ids.max():g} and the shortest source ends at {last_B1.min()}; clamp them to their "
            "sources."
        )
    return cross_position_ids


def validate_no_source_positions(source_positions_BT: Tensor | None) -> None:
    """Raise a ValueError for source positions given to a model whose cross-attention has no position encoding."""
    if source_positions_BT is not None:
        raise ValueError(
            "cross_position_ids must be given to a model whose cross-attention has a position encoding, but this one "
            "has cross_position_encoding_type='none', which reads no positions; leave them out."
        )
