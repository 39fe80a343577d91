# SPDX-License-Identifier: Apache-2.0
"""Recurrent alignment: a small LSTM that computes the step through the source, token by token.

It is the alignment layer of Very Attentive Tacotron, for text. Before the decoder's layers, for each target token:

    w_t = softmax_j(beta[j - g_(t-1)])                 location-based, four heads, each with its own table beta
    h_t = LSTM([x_t; sum_j w_tj V m_j], h_(t-1))
    g_t = g_(t-1) + softplus(u h_t + b),    g_(-1) = 0

with m the encoder's output and x the embedded target. beta is interpolated between whole distances and decreases by 1 a
token beyond `recurrent_reach`. Initially beta is a parabola around 0, u is 0, and b gives steps of `recurrent_step`.
Source positions do not depend on whether a target is read at once or token by token, and not on its length.

Departures from Battenberg et al.: beta has a row for each distance instead of T5's buckets. Only the step reads the
LSTM's output. Source positions are at most that of the source's last token.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..encodings.base import MASK_VALUE, EncodingConfig, EncodingParameter, Reference, StackSpec
from ..encodings.positions import AttentionContext, at_least_float32
from .base import Alignment, source_bounds, source_padding_mask
from .tracking import inverse_softplus, mean_length_ratio

NUM_HEADS, HEAD_DIM = 4, 32


class RecurrentAlignment(Alignment):
    """An LSTM of `recurrent_hidden_size` units with local attention to the source.

    Its state is the source position, h and c of the newest token (B, 1 + 2 units). Defined at every length.
    """

    summary = "A small LSTM reads target and source token by token and computes each step through the source."
    config_parameters = (
        EncodingParameter(
            "recurrent_hidden_size",
            256,
            "a whole number of units, 1 or more",
            lambda value: value >= 1,
            meaning="Width of the LSTM that computes the steps.",
        ),
        EncodingParameter(
            "recurrent_reach",
            16,
            "a whole number of source tokens, 1 or more",
            lambda value: value >= 1,
            meaning="Source tokens on either side with a trained score; beyond them the score decreases by 1 a token.",
        ),
        EncodingParameter(
            "recurrent_step",
            1.0,
            "source tokens for a target token, above 0",
            lambda value: value > 0,
            meaning="Source tokens for each target token in an untrained model.",
        ),
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
            full_authors=(
                "Eric Battenberg and RJ Skerry-Ryan and Daisy Stanton and Soroosh Mariooryad and "
                "Matt Shannon and Julian Salazar and David Kao"
            ),
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        hidden_size, self.reach = config.recurrent_hidden_size, config.recurrent_reach
        self.beta = nn.Parameter(torch.empty(NUM_HEADS, 2 * self.reach + 1))
        self.v_proj = nn.Linear(config.d_model, NUM_HEADS * HEAD_DIM)
        self.cell = nn.LSTMCell(config.d_model + NUM_HEADS * HEAD_DIM, hidden_size)
        # No Linear, which quantisation would round, and bitsandbytes cannot pack with a single row.
        self.step_weight, self.step_bias = nn.Parameter(torch.empty(1, hidden_size)), nn.Parameter(torch.empty(1))

    @classmethod
    def estimate(cls, source_lengths: Iterable[int], target_lengths: Iterable[int]) -> dict[str, float]:
        """The mean step `recurrent_step`: source tokens for each target token."""
        return {"recurrent_step": mean_length_ratio(source_lengths, target_lengths)}

    def init_weights(self) -> None:
        """beta as a parabola around 0; a step of `recurrent_step` for every token."""
        distances = torch.linspace(-1, 1, 2 * self.reach + 1, device=self.beta.device)
        init.copy_(self.beta, (-4.5 * distances**2).expand(NUM_HEADS, -1))
        bound = self.cell.hidden_size**-0.5
        for parameter in self.cell.parameters():
            init.uniform_(parameter, -bound, bound)
        init.zeros_(self.step_weight)
        init.constant_(self.step_bias, inverse_softplus(self.config.recurrent_step))

    def source_positions(self, x_BTD: Tensor, encoder_states_BSD: Tensor, ctx: AttentionContext) -> Tensor:
        """Source positions (B, T), at most that of the source's last token."""
        with torch.autocast(x_BTD.device.type, enabled=False):  # half precision has no exact positions above 2048
            dtype = self.beta.dtype
            return self.run_lstm(x_BTD.to(dtype), self.v_proj(encoder_states_BSD.to(dtype)), ctx)

    def run_lstm(self, x_BTD: Tensor, v_BSN: Tensor, ctx: AttentionContext) -> Tensor:
        """Source positions after each target token (B, T), continued from the cached state.

        `v_BSN` are the source's values, N = heads x channels. Padding never advances the state.
        """
        position_dtype, hidden_size = at_least_float32(x_BTD), self.config.recurrent_hidden_size
        first_B1, last_B1 = source_bounds(ctx)
        key_pos_BS = (ctx.key_pos_BS - first_B1).to(position_dtype)
        max_position_B1 = (last_B1 - first_B1).to(position_dtype)
        padding_BS = source_padding_mask(ctx)
        mask_bias_BS = None if padding_BS is None else padding_BS * MASK_VALUE
        state_BM = None if ctx.state is None else ctx.state.last("state", 1 + 2 * hidden_size)
        if state_BM is None:
            state_BM = torch.zeros(x_BTD.shape[0], 1 + 2 * hidden_size, dtype=position_dtype, device=x_BTD.device)
        states = []
        for step, x_BD in enumerate(x_BTD.unbind(1)):
            position_B1, h_BN, c_BN = state_BM.split((1, hidden_size, hidden_size), dim=1)
            context_BN = self.attend_locally(v_BSN, key_pos_BS - position_B1, mask_bias_BS)
            h_BN, c_BN = self.cell(torch.cat((x_BD, context_BN), 1), (h_BN.to(x_BD.dtype), c_BN.to(x_BD.dtype)))
            step_B1 = nn.functional.softplus(nn.functional.linear(h_BN, self.step_weight, self.step_bias))
            position_B1 = (position_B1 + step_B1).clamp(max=max_position_B1)
            new_BM = torch.cat((position_B1, h_BN.to(position_dtype), c_BN.to(position_dtype)), 1)
            if ctx.valid_mask_BT is not None:
                new_BM = torch.where(ctx.valid_mask_BT[:, step, None], new_BM, state_BM)
            state_BM = new_BM
            states.append(state_BM)
        states_BTM = torch.stack(states, dim=1)
        if ctx.state is not None:
            ctx.state.append("state", states_BTM)
        return states_BTM[..., 0] + first_B1

    def attend_locally(self, v_BSN: Tensor, distance_BS: Tensor, mask_bias_BS: Tensor | None) -> Tensor:
        """Local attention to the source (B, N).

        `v_BSN` are the values, `distance_BS` each source token's distance from the current source position, in tokens.
        """
        index_BS = distance_BS.clamp(-self.reach, self.reach) + self.reach
        lower_BS = index_BS.floor()
        fraction_BS, lower_BS = index_BS - lower_BS, lower_BS.long()
        upper_BS = (lower_BS + 1).clamp(max=2 * self.reach)
        score_HBS = self.beta[:, lower_BS] * (1 - fraction_BS) + self.beta[:, upper_BS] * fraction_BS
        score_HBS = score_HBS - (distance_BS.abs() - self.reach).clamp(min=0)
        if mask_bias_BS is not None:
            score_HBS = score_HBS + mask_bias_BS
        weight_HBS = score_HBS.softmax(-1).to(v_BSN.dtype)
        v_BSHC = v_BSN.unflatten(-1, (NUM_HEADS, HEAD_DIM))
        return torch.einsum("hbs,bshc->bhc", weight_HBS, v_BSHC).flatten(1)
