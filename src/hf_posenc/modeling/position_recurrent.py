# SPDX-License-Identifier: Apache-2.0
"""Recurrent: an LSTM or a GRU reads the embedded tokens in order, and what it makes of them replaces them.

`lstm` is Rosendahl et al.'s (section 3.3): a bidirectional LSTM before the encoder, an LSTM before the decoder. `gru`
is Neishi & Yoshinaga's: one layer in one direction on both sides, on the dropped-out embeddings, with no residual
connection; the system is their RNN-Transformer, and with `relative` their RR-Transformer.

Departures: Rosendahl et al. do not give the width of their LSTM; here it is D for each direction, and a linear map
takes 2D back to D. Their "20 % more parameters" follows from none of the obvious widths.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .place import Place
from .position import Knob, PositionEncoding
from .recurrence import read_in_order, run
from .references import NEISHI, ROSENDAHL

WIDTH = "a whole number of units for each direction, 1 or more, or None for d_model"
BOTH_WAYS = "True (in the encoder it reads from both ends) or False"


class Recurrent(PositionEncoding):
    """A network of one layer on each side, `{cell}_hidden_size` wide in each direction; a linear map, unless that is D.

    Shift-invariant: it sees the order of the tokens and never their positions. Defined at every length. The state of
    the decoder is h, followed for an LSTM by c.
    """

    shift_invariant = True
    has_state = True
    lstm = {
        "cell": "lstm",
        "summary": "An LSTM reads the embeddings in order, in the encoder from both ends, "
        "and its outputs replace them.",
        "knobs": (
            Knob("lstm_hidden_size", None, WIDTH, lambda value: value is None or value >= 1),
            Knob("lstm_bidirectional", True, BOTH_WAYS),
        ),
        "formula": "x'_i = LSTM(x_i, (h, c)_(i-1)), in the encoder also, if asked for, from the right",
        "references": (ROSENDAHL,),
    }
    gru = {
        "cell": "gru",
        "summary": "A GRU reads the embeddings in order, and its outputs replace them.",
        "knobs": (
            Knob("gru_hidden_size", None, WIDTH, lambda value: value is None or value >= 1),
            Knob("gru_bidirectional", False, BOTH_WAYS),
        ),
        "formula": "x'_i = GRU(x_i, h_(i-1)), in the encoder also, if asked for, from the right",
        "references": (NEISHI,),
    }

    def __init__(self, config: Any, side: Any, *, cell: str) -> None:
        super().__init__(config, side)
        network = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
        self.hidden_size = getattr(config, f"{cell}_hidden_size") or config.d_model
        bidirectional = getattr(config, f"{cell}_bidirectional") and not side.is_causal
        self.rnn = network(config.d_model, self.hidden_size, batch_first=True, bidirectional=bidirectional)
        width = 2 * self.hidden_size if bidirectional else self.hidden_size
        self.projection = nn.Linear(width, config.d_model) if width != config.d_model else nn.Identity()
        self.num_states = 2 if cell == "lstm" else 1

    def embed(self, x_BTD: Tensor, at: Place) -> Tensor:
        if at.memory is None:
            return self.projection(read_in_order(self.rnn, x_BTD, at.tokens_BT)[0])
        width = self.num_states * self.hidden_size
        if (state_BM := at.memory.last("states", width)) is None:
            state_BM = x_BTD.new_zeros(x_BTD.shape[0], width)
        states = []
        for token in range(x_BTD.shape[1]):
            new_BM = self.step(x_BTD[:, token : token + 1], state_BM)
            is_token_B1 = None if at.tokens_BT is None else at.tokens_BT[:, token, None]
            state_BM = new_BM if is_token_B1 is None else torch.where(is_token_B1, new_BM, state_BM)
            states.append(state_BM)
        states_BTM = torch.stack(states, dim=1)
        at.memory.keep("states", states_BTM)
        return self.projection(states_BTM[..., : self.hidden_size])

    def step(self, x_B1D: Tensor, state_BM: Tensor) -> Tensor:
        """The state after one more token (B, M)."""
        parts = [part[None].contiguous() for part in state_BM.chunk(self.num_states, dim=-1)]
        _, last = run(self.rnn, x_B1D, tuple(parts) if self.num_states > 1 else parts[0])
        return torch.cat(last, dim=-1)[0] if self.num_states > 1 else last[0]
