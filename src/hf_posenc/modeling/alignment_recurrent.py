# SPDX-License-Identifier: Apache-2.0
"""Recurrent: a small LSTM reads the target so far and the source around its place, and decides how far to go on.

This is the alignment layer of Very Attentive Tacotron, for text. Before the decoder's layers, token by token:

    w_t = softmax_j(beta[j - g_(t-1)])                 by position alone, four heads, each with its own table beta
    h_t = LSTM([x_t; sum_j w_tj V m_j], h_(t-1))
    g_t = g_(t-1) + softplus(u h_t + b),    g_(-1) = 0

with m the encoder's output and x the embedded target. beta is interpolated between whole distances, falls by 1 a token
beyond `recurrent_reach`, and begins as a broad hill; u begins at 0 and b so that a step is `recurrent_step`. Places are
the same whether a target is read at once or token by token, and nothing needs to know its length.

Departures from the authors: beta has a row for each distance, where they have T5's buckets; the LSTM's output goes
nowhere but into the step; places stop at the source's last token.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .alignment import Alignment, mean_step, source_ends, source_padding
from .place import Place, angle_dtype
from .position import HIDDEN, Knob
from .references import Reference

HEADS, HEAD_WIDTH = 4, 32


class RecurrentAlignment(Alignment):
    """An LSTM of `recurrent_hidden_size`, and what it reads the source with. Remembers its state and the place."""

    summary = "A small LSTM reads target and source token by token and learns how far to go on."
    knobs = (
        Knob("recurrent_hidden_size", 256, "a whole number of units, 1 or more", lambda value: value >= 1),
        Knob("recurrent_reach", 16, "a whole number of source tokens, 1 or more", lambda value: value >= 1),
        Knob("recurrent_step", 1.0, "source tokens for a target token, above 0", lambda value: value > 0),
    )
    formula = """
        g_t = g_(t-1) + softplus(u h_t + b), g_(-1) = 0
        h_t = LSTM([x_t; sum_j w_tj V m_j], h_(t-1)), w_t = softmax_j(beta[j - g_(t-1)])
    """
    references = (
        Reference(
            "Battenberg et al.",
            "Very Attentive Tacotron: Robust and Unbounded Length Generalization in Autoregressive "
            "Transformer-Based Text-to-Speech",
            "NAACL",
            2025,
            "https://arxiv.org/abs/2410.22179",
        ),
    )

    def __init__(self, config: Any, side: Any) -> None:
        super().__init__(config, side)
        width, self.reach = config.recurrent_hidden_size, config.recurrent_reach
        self.beta = nn.Parameter(torch.empty(HEADS, 2 * self.reach + 1))
        self.v_proj = nn.Linear(config.d_model, HEADS * HEAD_WIDTH)
        self.cell = nn.LSTMCell(config.d_model + HEADS * HEAD_WIDTH, width)
        # No Linear, which quantisation would round, and bitsandbytes cannot pack with a single row.
        self.step_weight, self.step_bias = nn.Parameter(torch.empty(1, width)), nn.Parameter(torch.empty(1))

    @classmethod
    def measured(cls, source_lengths: Iterable[int], target_lengths: Iterable[int]) -> dict[str, Any]:
        return {"recurrent_step": mean_step(source_lengths, target_lengths)}

    def init_weights(self) -> None:
        distances = torch.linspace(-1, 1, 2 * self.reach + 1, device=self.beta.device)
        init.copy_(self.beta, (-4.5 * distances**2).expand(HEADS, -1))
        bound = self.cell.hidden_size**-0.5
        for parameter in self.cell.parameters():
            init.uniform_(parameter, -bound, bound)
        init.zeros_(self.step_weight)
        init.constant_(self.step_bias, math.log(math.expm1(self.config.recurrent_step)))

    def places(self, x_BTD: Tensor, memory_BSD: Tensor, at: Place) -> Tensor:
        with torch.autocast(x_BTD.device.type, enabled=False):  # half precision counts places badly
            dtype = self.beta.dtype
            return self.scan(x_BTD.to(dtype), self.v_proj(memory_BSD.to(dtype)), at)

    def scan(self, x_BTD: Tensor, v_BSN: Tensor, at: Place) -> Tensor:
        """The places after each of the tokens (B, T), from where the memory left off; N are all heads' channels."""
        wide, width = angle_dtype(x_BTD), self.cell.hidden_size
        first_B1, last_B1 = source_ends(at)
        keys_BS, furthest_B1 = (at.keys_BS - first_B1).to(wide), (last_B1 - first_B1).to(wide)
        padding_BS = source_padding(at)
        hidden_BS = None if padding_BS is None else padding_BS * HIDDEN
        state_BM = None if at.memory is None else at.memory.last("state", 1 + 2 * width)
        if state_BM is None:
            state_BM = torch.zeros(x_BTD.shape[0], 1 + 2 * width, dtype=wide, device=x_BTD.device)
        states = []
        for token, x_BD in enumerate(x_BTD.unbind(1)):
            place_B1, h_BN, c_BN = state_BM.split((1, width, width), dim=1)
            read_BN = self.read(v_BSN, keys_BS - place_B1, hidden_BS)
            h_BN, c_BN = self.cell(torch.cat((x_BD, read_BN), 1), (h_BN.to(x_BD.dtype), c_BN.to(x_BD.dtype)))
            step_B1 = nn.functional.softplus(nn.functional.linear(h_BN, self.step_weight, self.step_bias))
            place_B1 = (place_B1 + step_B1).clamp(max=furthest_B1)
            new_BM = torch.cat((place_B1, h_BN.to(wide), c_BN.to(wide)), 1)
            state_BM = new_BM if at.tokens_BT is None else torch.where(at.tokens_BT[:, token, None], new_BM, state_BM)
            states.append(state_BM)
        states_BTM = torch.stack(states, dim=1)
        if at.memory is not None:
            at.memory.keep("state", states_BTM)
        return states_BTM[..., 0] + first_B1

    def read(self, v_BSN: Tensor, distance_BS: Tensor, hidden_BS: Tensor | None) -> Tensor:
        """What stands around the place (B, N)."""
        rows_BS = distance_BS.clamp(-self.reach, self.reach) + self.reach
        lower_BS = rows_BS.floor()
        share_BS, lower_BS = rows_BS - lower_BS, lower_BS.long()
        upper_BS = (lower_BS + 1).clamp(max=2 * self.reach)
        score_HBS = self.beta[:, lower_BS] * (1 - share_BS) + self.beta[:, upper_BS] * share_BS
        score_HBS = score_HBS - (distance_BS.abs() - self.reach).clamp(min=0)
        if hidden_BS is not None:
            score_HBS = score_HBS + hidden_BS
        weight_HBS = score_HBS.softmax(-1).to(v_BSN.dtype)
        v_BSHC = v_BSN.unflatten(-1, (HEADS, HEAD_WIDTH))
        return torch.einsum("hbs,bshc->bhc", weight_HBS, v_BSHC).flatten(1)
