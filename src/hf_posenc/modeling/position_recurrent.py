# SPDX-License-Identifier: Apache-2.0
"""Recurrent: an LSTM or a GRU reads the embedded tokens in order, and what it makes of them replaces them.

    x'_i = GRU(x_i, h_(i-1)),    x'_i = LSTM(x_i, (h, c)_(i-1)),    in the encoder also, if asked for, from the right

`lstm`: Rosendahl et al., "Analysis of Positional Encodings for Neural Machine Translation" (IWSLT 2019), section 3.3,
https://aclanthology.org/2019.iwslt-1.20: a bidirectional LSTM before the encoder, an LSTM before the decoder.
`gru`: Neishi & Yoshinaga, "On the Relation between Position Information and Sentence Length in Neural Machine
Translation" (CoNLL 2019), https://aclanthology.org/K19-1031: one layer in one direction on both sides, on the
dropped-out embeddings, with no residual connection; the system is their RNN-Transformer, and with `relative` their
RR-Transformer.

Departures: Rosendahl et al. do not give the width of their LSTM; here it is D for each direction, and a linear map
takes 2D back to D. Their "20 % more parameters" follows from none of the obvious widths.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .position import PositionEncoding
from .recurrence import read_in_order, run


class Recurrent(PositionEncoding):
    """A network of one layer on each side, `{cell}_hidden_size` wide in each direction; a linear map, unless that is D.

    Shift-invariant: it sees the order of the tokens and never their positions. Defined at every length. The state of
    the decoder is h, followed for an LSTM by c.
    """

    def __init__(
        self, config: Any, *, causal: bool, num_layers: int, num_heads: int, head_width: int, cell: str
    ) -> None:
        super().__init__(config, causal=causal, num_layers=num_layers, num_heads=num_heads, head_width=head_width)
        network = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
        self.hidden_size = getattr(config, f"{cell}_hidden_size") or config.d_model
        bidirectional = getattr(config, f"{cell}_bidirectional") and not causal
        self.rnn = network(config.d_model, self.hidden_size, batch_first=True, bidirectional=bidirectional)
        width = 2 * self.hidden_size if bidirectional else self.hidden_size
        self.projection = nn.Linear(width, config.d_model) if width != config.d_model else nn.Identity()
        self.num_states = 2 if cell == "lstm" else 1
        self.state_width = self.num_states * self.hidden_size if causal else None

    def embed(
        self, x_BTD: Tensor, pos_BT: Tensor, mask_BT: Tensor | None, state_BM: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if state_BM is None:
            return self.projection(read_in_order(self.rnn, x_BTD, mask_BT)[0]), None
        states = []
        for token in range(x_BTD.shape[1]):
            new_BM = self.step(x_BTD[:, token : token + 1], state_BM)
            state_BM = new_BM if mask_BT is None else torch.where(mask_BT[:, token, None], new_BM, state_BM)
            states.append(state_BM)
        states_BTM = torch.stack(states, dim=1)
        return self.projection(states_BTM[..., : self.hidden_size]), states_BTM

    def step(self, x_B1D: Tensor, state_BM: Tensor) -> Tensor:
        """The state after one more token (B, M)."""
        parts = [part[None].contiguous() for part in state_BM.chunk(self.num_states, dim=-1)]
        _, last = run(self.rnn, x_B1D, tuple(parts) if self.num_states > 1 else parts[0])
        return torch.cat(last, dim=-1)[0] if self.num_states > 1 else last[0]
