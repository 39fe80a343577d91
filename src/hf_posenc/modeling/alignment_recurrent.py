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

from .alignment import Alignment, mean_step, source_ends
from .position import Knob, Place, angle_dtype
from .references import Reference

HEADS, HEAD_WIDTH = 4, 32
HIDDEN = -1e4  # added to the scores of padding


class RecurrentAlignment(Alignment):
    """An LSTM of `recurrent_hidden_size`, and what it reads the source with. Remembers its state and the place."""

    summary = "A small LSTM reads target and source token by token and learns how far to go on."
    remembers = True
    knobs = (
        Knob("recurrent_hidden_size", 256, "a whole number of units, 1 or more", lambda value: value >= 1),
        Knob("recurrent_reach", 16, "a whole number of source tokens, 1 or more", lambda value: value >= 1),
        Knob("recurrent_step", 1.0, "source tokens for a target token, above 0", lambda value: value > 0),
        Knob("recurrent_content", False, "True or False"),
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
        self.step = nn.Linear(width, 1)
        if config.recurrent_content:
            self.k_proj = nn.Linear(config.d_model, HEADS * HEAD_WIDTH)
            self.q_proj = nn.Linear(config.d_model + width, HEADS * HEAD_WIDTH)
            self.gain = nn.Linear(width, 1)

    @classmethod
    def measured(cls, source_lengths: Iterable[int], target_lengths: Iterable[int]) -> dict[str, Any]:
        return {"recurrent_step": mean_step(source_lengths, target_lengths)}

    def init_weights(self) -> None:
        distances = torch.linspace(-1, 1, 2 * self.reach + 1, device=self.beta.device)
        init.copy_(self.beta, (-4.5 * distances**2).expand(HEADS, -1))
        bound = self.cell.hidden_size**-0.5
        for parameter in self.cell.parameters():
            init.uniform_(parameter, -bound, bound)
        init.zeros_(self.step.weight)
        init.constant_(self.step.bias, math.log(math.expm1(self.config.recurrent_step)))
        if self.config.recurrent_content:
            init.zeros_(self.gain.weight)
            init.constant_(self.gain.bias, -2.0)

    def places(self, x_BTD: Tensor, memory_BSD: Tensor, at: Place) -> Tensor:
        wide = angle_dtype(x_BTD)
        with torch.autocast(x_BTD.device.type, enabled=False):
            return self.scan(x_BTD.to(self.beta.dtype), memory_BSD.to(self.beta.dtype), at, wide)

    def scan(self, x_BTD, memory_BSD, at, wide):
        batch, width = len(x_BTD), self.cell.hidden_size
        v_BSHC = self.v_proj(memory_BSD).unflatten(-1, (HEADS, HEAD_WIDTH))
        k_BSHC = self.k_proj(memory_BSD).unflatten(-1, (HEADS, HEAD_WIDTH)) if self.config.recurrent_content else None
        first_B1, last_B1 = (end.to(wide) for end in source_ends(at))
        hidden_BS = (at.mask == 0) * HIDDEN if isinstance(at.mask, Tensor) and at.mask.ndim == 2 else None
        state_BM = None if at.memory is None else at.memory.last("state", 2 * width + 1)
        if state_BM is None:
            state_BM = torch.zeros(batch, 2 * width + 1, dtype=wide, device=x_BTD.device)
        place_B1, h, c = state_BM[:, :1], state_BM[:, 1 : width + 1].to(x_BTD.dtype), state_BM[:, width + 1 :].to(x_BTD.dtype)
        states = []
        for t in range(x_BTD.shape[1]):
            d_BS = at.keys_BS - place_B1
            rows = d_BS.clamp(-self.reach, self.reach) + self.reach
            low = rows.floor()
            share = rows - low
            low = low.long()
            high = (low + 1).clamp(max=2 * self.reach)
            score_HBS = self.beta[:, low] * (1 - share) + self.beta[:, high] * share - (d_BS.abs() - self.reach).clamp(min=0)
            if hidden_BS is not None:
                score_HBS = score_HBS + hidden_BS
            if k_BSHC is not None:
                q_BHC = self.q_proj(torch.cat((x_BTD[:, t], h), -1)).unflatten(-1, (HEADS, HEAD_WIDTH))
                score_HBS = score_HBS + torch.einsum("bhc,bshc->hbs", q_BHC, k_BSHC) * HEAD_WIDTH**-0.5
            w_HBS = score_HBS.softmax(-1)
            ctx = torch.einsum("hbs,bshc->bhc", w_HBS.to(v_BSHC.dtype), v_BSHC).flatten(1)
            h2, c2 = self.cell(torch.cat((x_BTD[:, t], ctx), -1), (h, c))
            on = nn.functional.softplus(self.step(h2)).to(wide)
            if k_BSHC is not None:
                centre_B1 = (w_HBS * at.keys_BS).sum(-1).mean(0)[:, None]
                on = on + torch.sigmoid(self.gain(h2)).to(wide) * (centre_B1 - place_B1)
            p2 = torch.clamp(place_B1 + on, first_B1, last_B1)
            if at.tokens_BT is not None:
                is_token = at.tokens_BT[:, t, None]
                h2, c2, p2 = torch.where(is_token, h2, h), torch.where(is_token, c2, c), torch.where(is_token, p2, place_B1)
            h, c, place_B1 = h2, c2, p2
            states.append(torch.cat((place_B1, h.to(wide), c.to(wide)), -1))
        states = torch.stack(states, 1)
        if at.memory is not None:
            at.memory.keep("state", states)
        return states[..., 0]
