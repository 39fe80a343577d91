# SPDX-License-Identifier: Apache-2.0
"""The interface that every alignment answers, and its identity, `none`.

An alignment says where in the source the decoder is: it gives each target position a place in the source, possibly
between two tokens, and cross-attention's position encodings take these places for the positions of its queries. Shape
letters are those of position_base.py. Whatever is given, what an alignment sees is that of the tokens up to t, for
place t.

    source_positions(x_BTD, encoder_states_BSD, ctx) -> source_positions_BT
        The places of the new tokens, from their embeddings and the encoder's output. `ctx.query_pos_BQ` are the
        positions of the new tokens in the target, `ctx.key_pos_BS` those of the source; `ctx.valid_mask_BT` says which
        of the new tokens are no padding; `ctx.state` remembers from step to step of a cached decoding, and is None
        where a whole target is read at once. In float32 or wider: half precision has no place 2703 but 2704.
    update(weights, ctx)
        Asked behind the layers of a cached decoding, with `ctx.query_pos_BQ` the places and `weights` every layer's
        cross-attention (B, H, Q, S): what it makes of them for the next token it keeps in `ctx.state`. The decoder then
        takes its tokens one by one.
    init_weights()
        Fills the alignment's own parameters, by transformers.initialization.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .attention_context import AttentionContext
from .citations import Reference
from .position_base import EncodingConfig, EncodingParameter, StackSpec


class Alignment(nn.Module):
    """The base of every alignment and, as it stands, `none`: target position t counts as place t of the source.

    Its facts are class attributes. `summary`: one sentence. `uses_target_length`: a pass over a whole target uses its
    length, which decoding cannot know; so the losses and perplexities of such a pass are those of a model that is told
    how long the translation is. `config_parameters`: its config fields. `formula`: in the code's own symbols.
    `references`.
    """

    summary = "No alignment: a target position counts as the place in the source with the same number."
    uses_target_length = False
    config_parameters: tuple[EncodingParameter, ...] = ()
    formula = "g_t = t"
    references: tuple[Reference, ...] = ()

    update: Callable[[Sequence[Tensor], AttentionContext], None] | None = None

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        """`side` is that of the cross-attention."""
        super().__init__()
        self.config, self.side = config, side

    @classmethod
    def estimate(cls, source_lengths: Iterable[int], target_lengths: Iterable[int]) -> dict[str, float]:
        """What a training corpus says of the knobs, by name; lengths are in tokens, special ones included."""
        return {}

    def init_weights(self) -> None:
        """Nothing to fill: there are no parameters."""

    def source_positions(self, x_BTD: Tensor, encoder_states_BSD: Tensor, ctx: AttentionContext) -> Tensor:
        return ctx.query_pos_BQ

    def forward(self, hook: str, *arguments: object) -> Any:
        """The result of a hook. Hooks are called through `forward`: see PositionEncoding.forward."""
        return getattr(self, hook)(*arguments)


def source_padding_mask(ctx: AttentionContext) -> Tensor | None:
    """Which of the source's keys are padding (B, S); None where no mask says it. A ValueError for a mask of another
    form, as for sentences packed into a row, which does not say where a source ends."""
    if not isinstance(ctx.mask, Tensor):
        return None
    if ctx.mask.ndim != 2:
        raise ValueError(
            f"An alignment must see where each source ends, but the mask of the source is of shape "
            f"{tuple(ctx.mask.shape)}; give one of (sentences, tokens), or give cross_position_ids."
        )
    return ctx.mask == 0


def source_bounds(ctx: AttentionContext) -> tuple[Tensor, Tensor]:
    """The places of each source's first and last token (B or 1, 1)."""
    key_pos_BS, padding_BS = ctx.key_pos_BS, source_padding_mask(ctx)
    if padding_BS is None:
        return key_pos_BS.amin(1, keepdim=True), key_pos_BS.amax(1, keepdim=True)
    first_B1 = torch.where(padding_BS, key_pos_BS.amax(1, keepdim=True), key_pos_BS).amin(1, keepdim=True)
    return first_B1, torch.where(padding_BS, first_B1, key_pos_BS).amax(1, keepdim=True)


def attention_centroid(weights: Sequence[Tensor], key_pos_BS: Tensor) -> Tensor:
    """Where all heads of all layers look, by their `weights`, (B, H, Q, S) of each layer (B, Q):

        c = sum_lh m_lh / (v_lh + 1/4) / sum_lh 1 / (v_lh + 1/4)

    m_lh and v_lh are mean and variance of the keys' positions under a head's weights: the narrower it looks, the more
    it counts, but none for more than one that looks at two neighbours alike.
    """
    p_BNQS = torch.cat(list(weights), dim=1)
    p_BNQS = p_BNQS.to(torch.promote_types(p_BNQS.dtype, torch.float32))
    keys_B11S = key_pos_BS[:, None, None].to(p_BNQS.dtype)
    mean_BNQ = (p_BNQS * keys_B11S).sum(-1)
    precision_BNQ = 1 / ((p_BNQS * (keys_B11S - mean_BNQ[..., None]) ** 2).sum(-1) + 0.25)
    return (mean_BNQ * precision_BNQ).sum(1) / precision_BNQ.sum(1)


def mean_length_ratio(source_lengths: Iterable[int], target_lengths: Iterable[int]) -> float:
    """Source tokens for a target token: all sources' over all targets', the first of each left out."""
    source, target = (sum(lengths) - len(lengths) for lengths in (list(source_lengths), list(target_lengths)))
    return round(source / target, 4) if source > 0 and target > 0 else 1.0


def resolve_source_positions(
    alignment: Alignment,
    x_BTD: Tensor,
    encoder_states_BSD: Tensor,
    ctx: AttentionContext,
    *,
    cross_position_ids: Tensor | None,
) -> Tensor:
    """The places of the new tokens (B or 1, T): the given ones, if they fit, or else the alignment's."""
    num_new = x_BTD.shape[1]
    if cross_position_ids is not None:
        validate_source_positions(cross_position_ids, num_new, len(encoder_states_BSD), ctx)
        return cross_position_ids
    if alignment.update is not None and ctx.state is not None and num_new > 1:
        raise ValueError(
            "With an alignment that follows the attention a decoder reads one token at a time into a cache, but it "
            f"was given {num_new}; call the whole model, which sees to that, or give cross_position_ids."
        )
    return alignment("source_positions", x_BTD, encoder_states_BSD, ctx)


def validate_source_positions(source_positions_BT: Tensor, num_tokens: int, batch: int, ctx: AttentionContext) -> None:
    """A ValueError for given places that are not those of so many target tokens in that source."""
    if (
        source_positions_BT.ndim != 2
        or source_positions_BT.shape[0] not in (1, batch)
        or source_positions_BT.shape[1] != num_tokens
    ):
        raise ValueError(
            "cross_position_ids has a place in the source for each target token, but it is of shape "
            f"{tuple(source_positions_BT.shape)} where there are {num_tokens} tokens in {batch} sentences; give as "
            "many."
        )
    if torch.compiler.is_compiling() or getattr(ctx.mask, "ndim", 2) != 2:
        return
    first_B1, last_B1 = source_bounds(ctx)
    if bool(((source_positions_BT < first_B1) | (source_positions_BT > last_B1)).any()):
        raise ValueError(
            f"cross_position_ids are places in the source, but they go from {source_positions_BT.min():g} to "
            f"{source_positions_BT.max():g} where the shortest source ends at {last_B1.min()}; keep them within their "
            "sources."
        )


def validate_no_source_positions(source_positions_BT: Tensor | None) -> None:
    """A ValueError for places given to a model whose cross-attention has no use for them."""
    if source_positions_BT is not None:
        raise ValueError(
            "cross_position_ids are for the encodings of the cross-attention, but this model has "
            "cross_position_encoding_type='none', which asks for no places; leave them out."
        )
