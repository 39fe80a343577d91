# SPDX-License-Identifier: Apache-2.0
"""Fertility: the number of target tokens of each source token is predicted, and source positions follow.

Source token j has the fertility f_j, computed from its encoder state m_j, and occupies the source positions from
j - 1/2 to j + 1/2. F(g) is the number of target tokens before source position g: the piecewise linear cumulative sum
of f.

    f_j = softplus(w m_j + b) + 1 / R,    F(-1/2) = 0,    F(j + 1/2) = F(j - 1/2) + f_j

R (`fertility_max_step`) bounds the step of one target token: no more than R source tokens are passed.

The fertilities are trained by the length of the target alone. If the numbers of target tokens of source tokens are
Poisson variables with the rates f_j, then so is their sum. The negative log-likelihood of the T target tokens of a
pair, less its minimum, is added to the summed cross-entropy of these tokens:

    weight (r - T + T log(T / r)),    r = sum_j f_j

Its derivative by r is 1 - T / r, however long the pair is. A squared error grows with the length, and one pair that is
no translation then has most of a batch's gradient, which clipping leaves to it.

In a pass over a whole target, F is scaled to T tokens. In training the source positions have noise, for the reason that
is given in alignments/length_ratio.py, and no gradient flows through them:

    g_t = F^-1((t + 1/2) sum_j f_j / T) + U(-offset, offset) for the sentence + N(0, jitter^2) for each token

In decoding F is not scaled. A step of one target token is followed by a fraction a of the way to c_t, the centroid of
the step's attention (alignments/tracking.py). A step is at least the fraction l of the first part:

    g_0 = F^-1(1/2),    g_(t+1) = g_t + max(r_t + a (c_t - g_t), l r_t),    r_t = F^-1(F(g_t) + 1) - g_t

Source positions are clamped to the source, from the first token's left edge to the last one's right edge.

Fertilities are those of Brown et al.'s IBM Model 3; Gu et al. predict them to translate without autoregression. That
a monotonic decoder follows them, and that the length alone trains them, is ours.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..encodings.base import EncodingConfig, EncodingParameter, Reference, StackSpec
from ..encodings.cache import EncodingState
from ..encodings.positions import AttentionContext, at_least_float32
from .base import Alignment, source_bounds, source_padding_mask
from .tracking import (
    inverse_softplus,
    mean_length_ratio,
    target_indices,
    track_attention,
    tracking_parameters,
    with_noise,
)


class Fertility(Alignment):
    """One vector and a bias; defined at every length. Its state is the next token's source position plus 1 (B, 1)."""

    summary = (
        "Each source token's number of target tokens is predicted; source positions follow, tracking the attention."
    )
    uses_target_length = True
    config_parameters = (
        EncodingParameter(
            "fertility_step",
            1.0,
            "source tokens for a target token, above 0 and below fertility_max_step",
            lambda value: value > 0,
            meaning="Source tokens for each target token in an untrained model.",
        ),
        EncodingParameter(
            "fertility_max_step",
            8.0,
            "a number of source tokens, 1 or more",
            lambda value: value >= 1,
            meaning="The most source tokens that one target token passes; its inverse is the smallest fertility.",
        ),
        *tracking_parameters("fertility", 0.05, "the step that the fertilities give"),
        EncodingParameter(
            "fertility_loss_weight",
            1.0,
            "a weight, above 0",
            lambda value: value > 0,
            meaning="Weight of the loss of the target's length, which trains the fertilities.",
        ),
    )
    formula = """
        f_j = softplus(w m_j + b) + 1 / max_step, F their piecewise linear cumulative sum, F(-1/2) = 0
        a whole target: g_t = F^-1((t + 1/2) sum_j f_j / T), in training + U(-offset, offset) + N(0, jitter^2)
        decoding: g_(t+1) = g_t + max(r_t + gain (c_t - g_t), min_step r_t), r_t = F^-1(F(g_t) + 1) - g_t
    """
    references = (
        Reference(
            "Brown et al.",
            "The Mathematics of Statistical Machine Translation: Parameter Estimation",
            "Computational Linguistics",
            1993,
            "https://aclanthology.org/J93-2003/",
            full_authors="Peter F. Brown and Stephen A. Della Pietra and Vincent J. Della Pietra and Robert L. Mercer",
        ),
        Reference(
            "Gu et al.",
            "Non-Autoregressive Neural Machine Translation",
            "ICLR",
            2018,
            "https://arxiv.org/abs/1711.02281",
            full_authors="Jiatao Gu and James Bradbury and Caiming Xiong and Victor O. K. Li and Richard Socher",
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        self.lookahead = math.ceil(config.fertility_max_step)
        # Half a target token, of the smallest fertilities.
        self.max_first_position = config.fertility_max_step / 2 - 0.5
        self.is_monotonic = config.fertility_min_step >= 0
        # No Linear, which quantisation would round, and bitsandbytes cannot pack with a single row.
        self.weight, self.bias = nn.Parameter(torch.empty(1, config.d_model)), nn.Parameter(torch.empty(1))

    @classmethod
    def validate(cls, config: EncodingConfig) -> None:
        if config.fertility_step >= config.fertility_max_step:
            raise ValueError(
                f"fertility_step must be below fertility_max_step, but they are {config.fertility_step} and "
                f"{config.fertility_max_step}; raise fertility_max_step."
            )

    @classmethod
    def estimate(cls, source_lengths: Iterable[int], target_lengths: Iterable[int]) -> dict[str, float]:
        """The mean step `fertility_step`: source tokens for each target token."""
        return {"fertility_step": mean_length_ratio(source_lengths, target_lengths)}

    def init_weights(self) -> None:
        """Every source token's fertility is 1 / `fertility_step`."""
        fertility = 1 / self.config.fertility_step - 1 / self.config.fertility_max_step
        init.zeros_(self.weight)
        init.constant_(self.bias, inverse_softplus(fertility))

    def fertilities(self, encoder_states_BSD: Tensor, padding_BS: Tensor | None) -> Tensor:
        """Target tokens for each source token (B, S), in float32 or wider; 0 for padding."""
        dtype = at_least_float32(encoder_states_BSD)
        with torch.autocast(encoder_states_BSD.device.type, enabled=False):
            scores_BS = nn.functional.linear(encoder_states_BSD.to(dtype), self.weight.to(dtype), self.bias.to(dtype))
        fertilities_BS = nn.functional.softplus(scores_BS.squeeze(-1)) + 1 / self.config.fertility_max_step
        return fertilities_BS if padding_BS is None else fertilities_BS.masked_fill(padding_BS, 0.0)

    def target_lengths(self, encoder_states_BSD: Tensor, source_mask_BS: Tensor | None) -> Tensor:
        """The sum of each source's fertilities (B), in float32 or wider."""
        return self.fertilities(encoder_states_BSD, None if source_mask_BS is None else source_mask_BS == 0).sum(1)

    def length_loss(self, encoder_states_BSD: Tensor, source_mask_BS: Tensor | None, target_mask_BT: Tensor) -> Tensor:
        """The sum over sentences of the negative log-likelihood of the target's length, in nats (see the module).

        Masks are nonzero where there is no padding.
        """
        rate_B = self.target_lengths(encoder_states_BSD, source_mask_BS)
        num_target_B = target_mask_BT.ne(0).sum(1).to(rate_B.dtype)
        nll_B = rate_B - num_target_B + torch.special.xlogy(num_target_B, num_target_B / rate_B)
        return self.config.fertility_loss_weight * nll_B.sum()

    def source_positions(self, x_BTD: Tensor, encoder_states_BSD: Tensor, ctx: AttentionContext) -> Tensor:
        """Positions within the source (B, T): cached when decoding, else by fertilities scaled to the target."""
        first_B1, last_B1 = (end.to(at_least_float32(x_BTD)) for end in source_bounds(ctx))
        # The first token begins, and the last one ends, half a token beyond its position.
        left_edge_B1, right_edge_B1 = first_B1 - 0.5, last_B1 + 0.5
        if ctx.state is None:
            source_positions_BT: Tensor | None = self.scaled_positions(x_BTD, encoder_states_BSD, ctx)
        else:
            source_positions_BT = self.next_source_position(ctx.state)
        if source_positions_BT is None or isinstance(ctx.num_cached, Tensor):
            start_B1 = self.advance(left_edge_B1.expand(x_BTD.shape[0], 1), 0.5, encoder_states_BSD, ctx)
            if source_positions_BT is None:
                source_positions_BT = start_B1
            # A static cache that was reset holds zeros, which is one token before the source.
            source_positions_BT = torch.where(source_positions_BT == -1, start_B1, source_positions_BT)
        return torch.clamp(source_positions_BT, left_edge_B1, right_edge_B1)

    def next_source_position(self, state: EncodingState) -> Tensor | None:
        """The cached source position of the next token (B, 1), None before the first."""
        stored_B1 = state.last("source_position_plus_1", 1)
        return None if stored_B1 is None else stored_B1 - 1

    def shift_source_positions(self, state: EncodingState, distance: int) -> None:
        """Subtract `distance` from all cached source positions."""
        state.subtract("source_position_plus_1", distance)

    def scaled_positions(self, x_BTD: Tensor, encoder_states_BSD: Tensor, ctx: AttentionContext) -> Tensor:
        """Source positions of a whole target (B, T), without gradient. Padding counts for no length."""
        fertilities_BS = self.fertilities(encoder_states_BSD.detach(), source_padding_mask(ctx)).detach()
        ends_BS = fertilities_BS.cumsum(1)
        index_BT = target_indices(x_BTD, ctx.valid_mask_BT).to(ends_BS.dtype)
        spent_BT = (index_BT + 0.5) * ends_BS[:, -1:] / (index_BT.amax(1, keepdim=True) + 1)
        # The token whose interval of target tokens holds `spent`; padding has an empty interval and is never found.
        token_BT = torch.searchsorted(ends_BS, spent_BT, right=True).clamp(max=ends_BS.shape[1] - 1)
        width_BT = fertilities_BS.gather(1, token_BT)
        start_BT = ends_BS.gather(1, token_BT) - width_BT
        key_pos_BS = ctx.key_pos_BS.expand(x_BTD.shape[0], -1).to(ends_BS.dtype)
        source_positions_BT = key_pos_BS.gather(1, token_BT) - 0.5 + (spent_BT - start_BT) / width_BT.clamp(min=1e-6)
        if not self.training:
            return source_positions_BT
        return with_noise(source_positions_BT, self.config.fertility_offset, self.config.fertility_jitter)

    def advance(
        self, source_position_BQ: Tensor, num_target: float, encoder_states_BSD: Tensor, ctx: AttentionContext
    ) -> Tensor:
        """The source positions after `num_target` more target tokens, at most one (B, Q).

        Reads the fertilities of the next `fertility_max_step` source tokens only. Beyond the source its last token's
        continues.
        """
        edge_BQ1 = source_position_BQ[..., None] + 0.5
        token_BQ1 = edge_BQ1.floor()
        token_BQK = token_BQ1 + torch.arange(self.lookahead + 1, device=token_BQ1.device)
        fertility_BQK = self.fertilities_at(token_BQK.flatten(1), encoder_states_BSD, ctx).view_as(token_BQK)
        width_BQK = torch.cat((token_BQ1 + 1 - edge_BQ1, torch.ones_like(fertility_BQK[..., 1:])), -1)
        ends_BQK = (fertility_BQK * width_BQK).cumsum(-1)
        found_BQ1 = (ends_BQK <= num_target).sum(-1, keepdim=True).clamp(max=self.lookahead)
        spent_BQ1 = torch.where(found_BQ1 > 0, ends_BQK.gather(-1, (found_BQ1 - 1).clamp(min=0)), 0.0)
        start_BQ1 = torch.where(found_BQ1 > 0, token_BQ1 + found_BQ1, edge_BQ1)
        end_BQ1 = start_BQ1 + (num_target - spent_BQ1) / fertility_BQK.gather(-1, found_BQ1)
        return end_BQ1[..., 0] - 0.5

    def fertilities_at(self, token_BK: Tensor, encoder_states_BSD: Tensor, ctx: AttentionContext) -> Tensor:
        """The fertilities of the source tokens at these positions (B, K); those outside of the source are its ends'."""
        key_pos_BN, padding_BS = ctx.key_pos_BS.to(token_BK.dtype), source_padding_mask(ctx)
        lowest_BN = highest_BN = key_pos_BN
        if padding_BS is not None:
            padding_BN = ctx.gather_keys(padding_BS, 1)
            lowest_BN = key_pos_BN.masked_fill(padding_BN, math.inf)
            highest_BN = key_pos_BN.masked_fill(padding_BN, -math.inf)
        token_BK = torch.clamp(token_BK, lowest_BN.amin(1, keepdim=True), highest_BN.amax(1, keepdim=True))
        is_token_BKN = token_BK[..., None] == lowest_BN[:, None]
        fertilities_BN = self.fertilities(ctx.gather_keys(encoder_states_BSD, 1), None).to(token_BK.dtype)
        return torch.where(is_token_BKN, fertilities_BN[:, None], 0.0).sum(-1)

    def update(self, weights: Sequence[Tensor], encoder_states_BSD: Tensor, ctx: AttentionContext) -> None:
        """Cache the next token's source position, from the fertilities and the attention's centroid."""
        assert ctx.state is not None  # the decoder calls this hook with a cache only
        step_BQ = self.advance(ctx.query_pos_BQ, 1.0, encoder_states_BSD, ctx) - ctx.query_pos_BQ
        gain, min_step = self.config.fertility_gain, self.config.fertility_min_step
        position_BQ = track_attention(weights, ctx, step_BQ, gain=gain, min_step=min_step)
        ctx.state.append("source_position_plus_1", (position_BQ + 1)[..., None])
