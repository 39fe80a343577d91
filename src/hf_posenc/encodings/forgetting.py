# SPDX-License-Identifier: Apache-2.0
"""Forgetting: a score bias that is the sum of log forget gates of all tokens between key and query, for each head.

Departures from Lin et al., whose attention is causal: in bidirectional attention keys after the query have a second set
of gates. The sums of log gates are cached with the keys. Cross-attention is refused, because its queries are not tokens
of the source.
"""

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils.generic import maybe_autocast

from .base import EncodingConfig, PositionEncoding, Reference, StackSpec
from .positions import AttentionContext, at_least_float32


class Forgetting(PositionEncoding):
    """layers x directions x heads x (D + 1) parameters. Depends on the order of the tokens and not on their
    positions; defined at every length. The decoder's state is the sum of log gates for each layer and head."""

    summary = "A forget gate, computed from each token for each head, lowers the scores of all keys beyond the token."
    aliases = ("fox", "forget_gate")
    shift_invariant = True
    is_stateful = True
    formula = """
        score(i, j) = q_i . k_j / sqrt(K) + sum_l log f_l, l = j+1..i
        f_l = sigmoid(w_h . x_l + b_h), x the input of the layer's attention; for j > i l = i+1..j, with w' and b'
    """
    references = (
        Reference(
            "Lin et al.",
            "Forgetting Transformer: Softmax Attention with a Forget Gate",
            "ICLR",
            2025,
            "https://arxiv.org/abs/2503.02130",
            full_authors="Zhixuan Lin and Evgenii Nikishin and Xu Owen He and Aaron Courville",
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        shape = (side.layers, 1 if side.is_causal else 2, side.heads)  # past, future
        self.weight = nn.Parameter(torch.empty(*shape, config.d_model))
        self.bias = nn.Parameter(torch.empty(shape))

    @classmethod
    def validate(cls, config: EncodingConfig, side: StackSpec) -> None:
        """Raise a ValueError in cross-attention."""
        if side.name == "cross":
            raise ValueError(
                f"cross_position_encoding_type={side.encoding!r}: `forgetting` sums the gates of the tokens between "
                "a query and a key of one text, but cross-attention has two texts; leave it out there."
            )

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        """Sums of log gates between query and key (B, H, Q, S)."""
        x_BTD = ctx.inputs_BTD
        assert x_BTD is not None  # attention sets it before it calls this hook
        dtype = at_least_float32(x_BTD)
        with maybe_autocast(x_BTD.device.type, enabled=False):  # rounding errors of gates would add up
            gates_BTRH = torch.einsum("btd,rhd->btrh", x_BTD.to(self.weight.dtype), self.weight[ctx.layer])
            gates_BTRH = gates_BTRH + self.bias[ctx.layer]
        logs_BTN = nn.functional.logsigmoid(gates_BTRH.to(dtype)).flatten(2)
        if ctx.valid_mask_BT is not None:
            logs_BTN = logs_BTN * ctx.valid_mask_BT[..., None]
        queries_BTN = keys_BSN = logs_BTN.cumsum(1)
        if ctx.state is not None:
            if (previous_BN := ctx.state.last("sums", logs_BTN.shape[-1])) is not None:
                queries_BTN = queries_BTN + previous_BN[:, None]
            keys_BSN = ctx.state.append("sums", queries_BTN)
        decay_BNQS = queries_BTN.transpose(1, 2)[..., None] - keys_BSN.transpose(1, 2)[:, :, None]
        if self.side.is_causal:
            return decay_BNQS.to(q_BHQK.dtype)
        past_BHQS, future_BHQS = decay_BNQS.chunk(2, dim=1)
        is_past_QS = torch.ones(past_BHQS.shape[2:], dtype=torch.bool, device=x_BTD.device).tril()
        return torch.where(is_past_QS, past_BHQS, -future_BHQS).to(q_BHQK.dtype)

    def init_weights(self) -> None:
        """Weights near 0 and zero biases, which give gates near 0.5."""
        init.normal_(self.weight, std=0.02)
        init.zeros_(self.bias)
