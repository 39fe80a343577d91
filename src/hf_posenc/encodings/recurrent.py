# SPDX-License-Identifier: Apache-2.0
"""Recurrent: an LSTM or a GRU reads the embedded tokens in order, and its outputs replace them.

`lstm` is Rosendahl et al.'s (section 3.3): a bidirectional LSTM before the encoder, an LSTM before the decoder. `gru`
is Neishi & Yoshinaga's: one layer in one direction on both sides, on the dropped-out embeddings, with no residual
connection; the system is their RNN-Transformer, and with `relative` their RR-Transformer.

Departures: Rosendahl et al. do not give the width of their LSTM; here it is D for each direction, and a linear map
takes 2D back to D. Their "20 % more parameters" follows from none of the obvious widths.
"""

import torch
from torch import Tensor, nn

from .base import NEISHI, ROSENDAHL, EncodingConfig, EncodingParameter, PositionEncoding, StackSpec
from .positions import AttentionContext
from .rnn import run_dense_rnn, run_rnn


def cell_parameters(cell: str, bidirectional: bool) -> tuple[EncodingParameter, EncodingParameter]:
    """The config fields of one kind of cell; `bidirectional` is the default of the encoder's direction."""
    return (
        EncodingParameter(
            f"{cell}_hidden_size",
            None,
            "a whole number of units for each direction, 1 or more, or None for d_model",
            lambda value: value is None or value >= 1,
            meaning=f"Width of the {cell.upper()}'s state in each direction.",
        ),
        EncodingParameter(
            f"{cell}_bidirectional",
            bidirectional,
            "True (in the encoder it reads from both ends) or False",
            meaning=f"Whether the encoder's {cell.upper()} also reads from the right.",
        ),
    )


class Recurrent(PositionEncoding):
    """One recurrent layer, `{cell}_hidden_size` wide in each direction, and a linear map to D where the widths differ.

    Shift-invariant: it depends on the order of the tokens and not on their positions. Defined at every length. The
    decoder's state is h, followed for an LSTM by c (B, M).
    """

    shift_invariant = True
    is_stateful = True
    left_context = None
    LSTM = {
        "cell": "lstm",
        "summary": "An LSTM reads the embeddings in order, in the encoder from both ends, "
        "and its outputs replace them.",
        "config_parameters": cell_parameters("lstm", bidirectional=True),
        "formula": "x'_i = LSTM(x_i, (h, c)_(i-1)), in a bidirectional encoder also from the right",
        "references": (ROSENDAHL,),
    }
    GRU = {
        "cell": "gru",
        "summary": "A GRU reads the embeddings in order, and its outputs replace them.",
        "config_parameters": cell_parameters("gru", bidirectional=False),
        "formula": "x'_i = GRU(x_i, h_(i-1)), in a bidirectional encoder also from the right",
        "references": (NEISHI,),
    }

    def __init__(self, config: EncodingConfig, side: StackSpec, *, cell: str) -> None:
        super().__init__(config, side)
        network = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
        self.hidden_size = getattr(config, f"{cell}_hidden_size") or config.d_model
        bidirectional = getattr(config, f"{cell}_bidirectional") and not side.is_causal
        self.rnn = network(config.d_model, self.hidden_size, batch_first=True, bidirectional=bidirectional)
        self.lookahead = None if bidirectional else 0
        width = 2 * self.hidden_size if bidirectional else self.hidden_size
        self.projection = nn.Linear(width, config.d_model) if width != config.d_model else nn.Identity()
        self.num_states = 2 if cell == "lstm" else 1

    def embed(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """The network's outputs (B, T, D), from the cached state on with a cache; padding never advances it."""
        if ctx.state is None:
            return self.projection(run_rnn(self.rnn, x_BTD, ctx.valid_mask_BT)[0])
        width = self.num_states * self.hidden_size
        if (state_BM := ctx.state.last("states", width)) is None:
            state_BM = x_BTD.new_zeros(x_BTD.shape[0], width)
        states = []
        for token in range(x_BTD.shape[1]):
            new_BM = self.step(x_BTD[:, token : token + 1], state_BM)
            is_token_B1 = None if ctx.valid_mask_BT is None else ctx.valid_mask_BT[:, token, None]
            state_BM = new_BM if is_token_B1 is None else torch.where(is_token_B1, new_BM, state_BM)
            states.append(state_BM)
        states_BTM = torch.stack(states, dim=1)
        ctx.state.append("states", states_BTM)
        return self.projection(states_BTM[..., : self.hidden_size])

    def step(self, x_B1D: Tensor, state_BM: Tensor) -> Tensor:
        """The state after one more token (B, M), from the state before it (B, M)."""
        states = [state[None].contiguous() for state in state_BM.chunk(self.num_states, dim=-1)]
        _, last = run_dense_rnn(self.rnn, x_B1D, tuple(states) if self.num_states > 1 else states[0])
        return torch.cat(tuple(last), dim=-1)[0] if self.num_states > 1 else last[0]
