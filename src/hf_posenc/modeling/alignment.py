# SPDX-License-Identifier: Apache-2.0
"""The interface that every alignment answers, and its identity, `none`.

An alignment says where in the source the decoder is: it gives each target position a place in the source, possibly
between two tokens, and cross-attention's position encodings take these places for the positions of its queries. Shape
letters are those of position.py. Whatever is given, what an alignment sees is that of the tokens up to t, for place t.

    places(x_BTD, memory_BSD, at) -> places_BT
        The places of the new tokens, from their embeddings and the encoder's output. `at.queries_BQ` are the positions
        of the new tokens in the target, `at.keys_BS` those of the source; `at.tokens_BT` says which of the new tokens
        are no padding; `at.memory` remembers from step to step of a cached decoding, and is None where a whole target
        is read at once. In float32 or wider: half precision has no place 2703 but 2704.
    follow(weights, at)
        Asked behind the layers of a cached decoding, with `at.queries_BQ` the places and `weights` every layer's
        cross-attention (B, H, Q, S): what it makes of them for the next token it keeps in `at.memory`. The decoder then
        takes its tokens one by one.
    init_weights()
        Fills the alignment's own parameters, by transformers.initialization.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .place import Place
from .position import Knob


class Alignment(nn.Module):
    """The base of every alignment and, as it stands, `none`: target position t counts as place t of the source.

    Its facts are class attributes. `summary`: one sentence. `reads_lengths`: a pass over a whole target uses its
    length, which decoding cannot know; so the losses and perplexities of such a pass are those of a model that is told
    how long the translation is. `knobs`: its config fields. `formula`: in the code's own symbols. `references`.
    """

    summary = "No alignment: a target position counts as the place in the source with the same number."
    reads_lengths = False
    knobs: tuple[Knob, ...] = ()
    formula = "g_t = t"
    references: tuple[Any, ...] = ()

    follow: Callable[..., None] | None = None

    def __init__(self, config: Any, side: Any) -> None:
        """`side` is that of the cross-attention."""
        super().__init__()
        self.config, self.side = config, side

    @classmethod
    def measured(cls, source_lengths: Iterable[int], target_lengths: Iterable[int]) -> dict[str, Any]:
        """What a training corpus says of the knobs, by name; lengths are in tokens, special ones included."""
        return {}

    def init_weights(self) -> None:
        """Nothing to fill: there are no parameters."""

    def places(self, x_BTD: Tensor, memory_BSD: Tensor, at: Place) -> Tensor:
        return at.queries_BQ

    def forward(self, hook: str, *arguments: Any) -> Any:
        """What a hook answers. Offloading brings a module's parameters for its `forward`, and for nothing else."""
        return getattr(self, hook)(*arguments)


def source_padding(at: Place) -> Tensor | None:
    """Which of the source's keys are padding (B, S); None where no mask says it. A ValueError for a mask of another
    form, as for sentences packed into a row, which does not say where a source ends."""
    if not isinstance(at.mask, Tensor):
        return None
    if at.mask.ndim != 2:
        raise ValueError(
            f"An alignment must see where each source ends, but the mask of the source is of shape "
            f"{tuple(at.mask.shape)}; give one of (sentences, tokens), or give cross_position_ids."
        )
    return at.mask == 0


def source_ends(at: Place) -> tuple[Tensor, Tensor]:
    """The places of each source's first and last token (B or 1, 1)."""
    keys_BS, padding_BS = at.keys_BS, source_padding(at)
    if padding_BS is None:
        return keys_BS.amin(1, keepdim=True), keys_BS.amax(1, keepdim=True)
    first_B1 = torch.where(padding_BS, keys_BS.amax(1, keepdim=True), keys_BS).amin(1, keepdim=True)
    return first_B1, torch.where(padding_BS, first_B1, keys_BS).amax(1, keepdim=True)


def attention_centre(weights: Sequence[Tensor], keys_BS: Tensor) -> Tensor:
    """Where all heads of all layers look, by their `weights`, (B, H, Q, S) of each layer (B, Q):

        c = sum_lh m_lh / (v_lh + 1/4) / sum_lh 1 / (v_lh + 1/4)

    m_lh and v_lh are mean and variance of the keys' positions under a head's weights: the narrower it looks, the more
    it counts, but none for more than one that looks at two neighbours alike.
    """
    p_BNQS = torch.cat(list(weights), dim=1)
    p_BNQS = p_BNQS.to(torch.promote_types(p_BNQS.dtype, torch.float32))
    keys_B11S = keys_BS[:, None, None].to(p_BNQS.dtype)
    mean_BNQ = (p_BNQS * keys_B11S).sum(-1)
    trust_BNQ = 1 / ((p_BNQS * (keys_B11S - mean_BNQ[..., None]) ** 2).sum(-1) + 0.25)
    return (mean_BNQ * trust_BNQ).sum(1) / trust_BNQ.sum(1)


def mean_step(source_lengths: Iterable[int], target_lengths: Iterable[int]) -> float:
    """Source tokens for a target token: all sources' over all targets', the first of each left out."""
    source, target = (sum(lengths) - len(lengths) for lengths in (list(source_lengths), list(target_lengths)))
    return round(source / target, 4) if source > 0 and target > 0 else 1.0


def places_of(alignment: Alignment, x_BTD: Tensor, memory_BSD: Tensor, at: Place, *, given_BT: Tensor | None) -> Tensor:
    """The places of the new tokens (B or 1, T): the given ones, if they fit, or else the alignment's."""
    num_new = x_BTD.shape[1]
    if given_BT is not None:
        check_places(given_BT, num_new, len(memory_BSD), at)
        return given_BT
    if alignment.follow is not None and at.memory is not None and num_new > 1:
        raise ValueError(
            "With an alignment that follows the attention a decoder reads one token at a time into a cache, but it "
            f"was given {num_new}; call the whole model, which sees to that, or give cross_position_ids."
        )
    return alignment("places", x_BTD, memory_BSD, at)


def check_places(places_BT: Tensor, num_tokens: int, batch: int, at: Place) -> None:
    """A ValueError for given places that are not those of so many target tokens in that source."""
    if places_BT.ndim != 2 or places_BT.shape[0] not in (1, batch) or places_BT.shape[1] != num_tokens:
        raise ValueError(
            "cross_position_ids has a place in the source for each target token, but it is of shape "
            f"{tuple(places_BT.shape)} where there are {num_tokens} tokens in {batch} sentences; give as many."
        )
    if torch.compiler.is_compiling() or getattr(at.mask, "ndim", 2) != 2:
        return
    first_B1, last_B1 = source_ends(at)
    if bool(((places_BT < first_B1) | (places_BT > last_B1)).any()):
        raise ValueError(
            f"cross_position_ids are places in the source, but they go from {places_BT.min():g} to "
            f"{places_BT.max():g} where the shortest source ends at {last_B1.min()}; keep them within their sources."
        )


def refuse_places(places_BT: Tensor | None) -> None:
    """A ValueError for places given to a model whose cross-attention has no use for them."""
    if places_BT is not None:
        raise ValueError(
            "cross_position_ids are for the encodings of the cross-attention, but this model has "
            "cross_position_encoding_type='none', which asks for no places; leave them out."
        )
