# SPDX-License-Identifier: Apache-2.0
"""The interface that every position encoding answers, and its identity: an encoding that answers nothing is `none`.

Shape letters, here and in every file of this folder:
    B batch, T new tokens, D model width, H heads, Q queries, S keys, K width of a head, M width of a state.

An encoding is a module made once per stack (encoder, decoder). It answers some of the hooks and leaves the others None;
the Transformer asks which ones are there and never which encoding it is.

    embed(x_BTD, pos_BT, mask_BT, state_BM) -> (x_BTD, states_BTM | None)
        Changes the dropped-out, scaled token embeddings. `mask_BT` is True on tokens and None if there is no padding.
        An encoding with a `state_width` M is given `state_BM` in cached decoding: zeros at first, then what it returned
        as `states_BTM[:, -1]`; it returns the state after every token, unchanged by padding. Anywhere else `state_BM`
        is None, and nobody asks for states.
    rotate(q_BHTK, k_BHTK, pos_BT, layer) -> (q_BHTK, k_BHTK)
        Changes the new tokens' queries and keys of self-attention, before the keys are cached.
    score_bias(q_BHQK, pos_BQ, pos_BS, layer) -> broadcasts to (B, H, Q, S)
        Is added to the scores of self-attention, in score units (after 1/sqrt(K)). `q` is as it was before `rotate`.
    value_bias(p_BHQS, pos_BQ, pos_BS, layer) -> broadcasts to (B, H, Q, K)
        Is added to the attended values; `p` are the attention weights after dropout.
    init_weights()
        Fills the encoding's own parameters, by transformers.initialization.

Positions are integers counted from 0, of shape (B, T) or (1, T). Hooks take positions and never lengths, which is why
caching, left padding and holes in a mask need no case of their own.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn


class PositionEncoding(nn.Module):
    """The base of every encoding and, as it stands, the encoding `none`: order is invisible to the encoder.

    No parameters. Shift-invariant; order-blind unless the attention is causal; defined at every length.
    """

    embed: Callable[..., tuple[Tensor, Tensor | None]] | None = None
    rotate: Callable[..., tuple[Tensor, Tensor]] | None = None
    score_bias: Callable[..., Tensor] | None = None
    value_bias: Callable[..., Tensor] | None = None
    state_width: int | None = None

    def __init__(self, config: Any, *, causal: bool, num_layers: int, num_heads: int, head_width: int) -> None:
        super().__init__()

    @classmethod
    def check(cls, config: Any, *, num_heads: int) -> None:
        """Raise a ValueError (rule, value, remedy) if this encoding cannot work under `config`."""

    def init_weights(self) -> None:
        """Nothing to fill: there are no parameters."""

    def forward(self, hook: str, *arguments: Any) -> Any:
        """What a hook answers. Offloading brings a module's parameters for its `forward`, and for nothing else."""
        return getattr(self, hook)(*arguments)


class PositionEncodings(nn.ModuleList):
    """The sum of some encodings, as the Transformer sees it: `embed` and `rotate` chain left to right, biases add."""

    def __init__(self, encodings: Iterable[PositionEncoding]) -> None:
        super().__init__(encodings)
        self.rotates = self.answered("rotate")
        self.scores = self.answered("score_bias")
        self.values = self.answered("value_bias")
        self.state_width = next((e.state_width for e in self if e.state_width is not None), None)

    def __iter__(self) -> Iterator[PositionEncoding]:
        return super().__iter__()  # type: ignore[return-value]

    def answered(self, hook: str) -> bool:
        return any(getattr(encoding, hook) is not None for encoding in self)

    def embed(
        self, x_BTD: Tensor, pos_BT: Tensor, mask_BT: Tensor | None, state_BM: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The embedded tokens (B, T, D) and the states (B, T, M) of the one encoding that has a state, else None."""
        states_BTM = None
        for encoding in self:
            if encoding.embed is not None:
                x_BTD, new_states_BTM = encoding("embed", x_BTD, pos_BT, mask_BT, state_BM)
                states_BTM = new_states_BTM if states_BTM is None else states_BTM
        return x_BTD, states_BTM

    def rotate(self, q_BHTK: Tensor, k_BHTK: Tensor, pos_BT: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        for encoding in self:
            if encoding.rotate is not None:
                q_BHTK, k_BHTK = encoding("rotate", q_BHTK, k_BHTK, pos_BT, layer)
        return q_BHTK, k_BHTK

    def score_bias(self, q_BHQK: Tensor, pos_BQ: Tensor, pos_BS: Tensor, layer: int) -> Tensor:
        terms = [e("score_bias", q_BHQK, pos_BQ, pos_BS, layer) for e in self if e.score_bias is not None]
        return reduce(torch.add, terms)

    def value_bias(self, p_BHQS: Tensor, pos_BQ: Tensor, pos_BS: Tensor, layer: int) -> Tensor:
        terms = [e("value_bias", p_BHQS, pos_BQ, pos_BS, layer) for e in self if e.value_bias is not None]
        return reduce(torch.add, terms)


def distance(pos_BQ: Tensor, pos_BS: Tensor) -> Tensor:
    """Key position minus query position, in tokens (B, Q, S)."""
    return pos_BS[:, None, :] - pos_BQ[:, :, None]


def angle_dtype(x: Tensor) -> torch.dtype:
    """Angles grow with the position, so they are computed in float32 even for half precision, and in float64 for it."""
    return torch.promote_types(x.dtype, torch.float32)
