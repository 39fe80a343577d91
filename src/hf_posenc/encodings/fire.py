# SPDX-License-Identifier: Apache-2.0
"""FIRE: a score bias that a small network computes from the distance, relative to the length at the query.

A network with one hidden layer of ReLUs is a piecewise linear function, with a corner at each unit. It is computed in
that form: each query and key has a segment, with a slope and an intercept for each head. The result and its gradients
are exact. No tensor of L x L x `fire_hidden_size` numbers exists.

Departures from Li et al.: in bidirectional attention the network's input has the sign of the distance. The divisor is
then the query's longest distance to either side, because the paper's max(i, L) would give ratios above 1. The network's
last bias is omitted, because a softmax does not depend on it. The 1e-6 and the initial c are those of their listing.
"""

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils.generic import maybe_autocast

from .base import EncodingConfig, EncodingParameter, PositionEncoding, Reference, StackSpec
from .positions import AttentionContext, at_least_float32


class Fire(PositionEncoding):
    """layers x (`fire_hidden_size` x (2 + heads) + 2) parameters. Not shift-invariant: beyond `fire_threshold` tokens
    distances are divided by the position. Defined at every length."""

    summary = "A small network maps the distance, relative to the length so far, to a score bias."
    shift_invariant = False
    left_context = lookahead = None  # a distance is divided by the number of tokens on either side
    config_parameters = (
        EncodingParameter(
            "fire_hidden_size",
            32,
            "a whole number of units, 1 or more",
            lambda value: value >= 1,
            meaning="Hidden units of the network that maps a distance to a bias.",
        ),
        EncodingParameter(
            "fire_threshold",
            512.0,
            "a number of tokens, above 0",
            lambda value: value > 0,
            meaning="Initial value of the trained threshold in tokens; a larger position replaces it as the divisor.",
        ),
    )
    formula = """
        score(i, j) = q_i . k_j / sqrt(K) + f_h(psi(i - j) / (psi(max(i, L)) + 1e-6))
        psi(x) = log(|c x| + 1), f = W2 relu(W1 x + b1), L = |m `fire_threshold`|
        in bidirectional attention: f_h(sign(i - j) psi(i - j) / (psi(max(i, n - 1 - i, L)) + 1e-6)), n keys
    """
    references = (
        Reference(
            "Li et al.",
            "Functional Interpolation for Relative Positions Improves Long Context Transformers",
            "ICLR",
            2024,
            "https://arxiv.org/abs/2310.04418",
            full_authors=(
                "Shanda Li and Chong You and Guru Guruganesh and Joshua Ainslie and Santiago Ontanon and "
                "Manzil Zaheer and Sumit Sanghai and Yiming Yang and Sanjiv Kumar and "
                "Srinadh Bhojanapalli"
            ),
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        shape = (side.layers, config.fire_hidden_size)
        self.weight_in, self.bias_in = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.weight_out = nn.Parameter(torch.empty(side.layers, side.heads, config.fire_hidden_size))
        self.c, self.multiple = nn.Parameter(torch.empty(side.layers)), nn.Parameter(torch.empty(side.layers))

    def prepare(self, x_BTD: Tensor, ctx: AttentionContext) -> tuple[Tensor, Tensor]:
        """Query minus key position (B, Q, S), and the longest such distance of each query (B, Q, 1)."""
        dtype = at_least_float32(x_BTD)
        queries_BQ1 = extent_BQ1 = ctx.query_pos_BQ[:, :, None].to(dtype)
        if not self.side.is_causal:
            extent_BQ1 = extent_BQ1.maximum(ctx.num_attendable_BQ[:, :, None] - 1 - queries_BQ1)
        return -ctx.distance_BQS.to(dtype), extent_BQ1

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        """The network's output for each head, query and key (B, H, Q, S)."""
        (distance_BQS, extent_BQ1), layer = ctx.prepared, ctx.layer
        assert layer is not None  # attention sets it before it calls this hook
        dtype = distance_BQS.dtype
        c, multiple = self.c[layer].to(dtype), self.multiple[layer].to(dtype)
        scale_BQ1 = extent_BQ1.maximum((multiple * self.config.fire_threshold).abs())
        normalized_BQS = (c * distance_BQS).abs().log1p() / ((c * scale_BQ1).abs().log1p() + 1e-6)
        if not self.side.is_causal:
            normalized_BQS = normalized_BQS * distance_BQS.sign()
        return self.piecewise_linear(normalized_BQS, layer).to(q_BHQK.dtype)

    def piecewise_linear(self, normalized_BQS: Tensor, layer: int) -> Tensor:
        """W2 relu(W1 x + b1) (B, H, Q, S), by slope and intercept of the segment that contains each x."""
        weight_U, bias_U, out_HU = (
            parameter[layer].to(normalized_BQS.dtype) for parameter in (self.weight_in, self.bias_in, self.weight_out)
        )
        # A unit's corner is where its input is 0. A unit of weight 0 has none: it is active everywhere or nowhere.
        infinite_U = torch.where(bias_U > 0, -torch.inf, torch.inf)
        corners_U, order_U = torch.where(weight_U == 0, infinite_U, -bias_U / weight_U).detach().sort()
        weight_U, bias_U, out_HU = weight_U[order_U], bias_U[order_U], out_HU[:, order_U]
        # To the right of its corner a unit of positive weight is active, to the left one of negative weight.
        unit_U, segment_S = (torch.arange(len(corners_U) + extra, device=normalized_BQS.device) for extra in (0, 1))
        on_SU = ((unit_U < segment_S[:, None]) == (weight_U >= 0)).to(normalized_BQS.dtype)
        with maybe_autocast(on_SU.device.type, enabled=False):  # the network takes positions
            slopes_SH, intercepts_SH = (on_SU @ (out_HU * numbers_U).T for numbers_U in (weight_U, bias_U))
        segment_BQS = torch.searchsorted(corners_U, normalized_BQS.detach())
        # An embedding takes the rows of all heads at once, and its backward adds rows: faster than an index.
        rows_BQSN = nn.functional.embedding(segment_BQS, torch.cat((slopes_SH, intercepts_SH), dim=1))
        slopes_BQSH, intercepts_BQSH = rows_BQSN.chunk(2, dim=-1)
        return torch.addcmul(intercepts_BQSH, slopes_BQSH, normalized_BQS[..., None]).permute(0, 3, 1, 2)

    def init_weights(self) -> None:
        """torch's bounds for linear layers; c = 0.1 as in the paper's listing; m = 1."""
        for parameter, inputs in ((self.weight_in, 1), (self.bias_in, 1), (self.weight_out, self.weight_in.shape[1])):
            init.uniform_(parameter, -(inputs**-0.5), inputs**-0.5)
        init.constant_(self.c, 0.1)
        init.ones_(self.multiple)
