# SPDX-License-Identifier: Apache-2.0
"""T5: a trained score bias for each head and bucket of distances; buckets widen with the distance.

The first half of a direction's buckets hold one distance each. The others widen with the logarithm of the distance, up
to `t5_max_distance`; all longer distances share the last. In bidirectional attention each direction has half of the
buckets, in the decoder the past has all. All layers of a stack read one table.

Departures from Raffel et al.: scores are divided by sqrt(K) as in every encoding here; they put that factor into the
initial weights of the queries. For a query between two tokens, as in cross-attention with an alignment, the biases of
both distances are interpolated. One of the 32 buckets is unused: distance 0 has no future variant.
"""

import math
from functools import reduce

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .base import EncodingConfig, EncodingParameter, PositionEncoding, Reference, StackSpec
from .positions import interpolation_weights, scale_by


class T5(PositionEncoding):
    """`t5_buckets` x heads parameters. Shift-invariant; defined at every length.

    Beyond `t5_max_distance` tokens only the direction matters. A bucket that no training sequence reaches keeps its
    initial value. Therefore `t5_max_distance` should be at most the training length.
    """

    summary = "A trained score bias for each head and bucket of distances; buckets widen with the distance."
    shift_invariant = True
    zero_init_is_identity = True
    config_parameters = (
        EncodingParameter(
            "t5_buckets",
            32,
            "a multiple of 4, 4 or more",
            lambda value: value >= 4 and value % 4 == 0,
            meaning="Number of distance buckets, for both directions together.",
        ),
        EncodingParameter(
            "t5_max_distance",
            128,
            "a whole number of tokens, above t5_buckets / 2",
            lambda value: value >= 1,
            meaning="Distances of this many tokens or more share the last bucket of their direction.",
        ),
    )
    formula = """
        score(i, j) = q_i . k_j / sqrt(K) + B[h, bucket(j - i)]
        bucket(d) = |d| if |d| < E else min(E + floor(E log(|d| / E) / log(max / E)), 2 E - 1), for d > 0 that + 2 E
        E = buckets / 4; in the decoder E = buckets / 2, and bucket(d) = 0 for d > 0
    """
    references = (
        Reference(
            "Raffel et al.",
            "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
            "JMLR",
            2020,
            "https://arxiv.org/abs/1910.10683",
            full_authors=(
                "Colin Raffel and Noam Shazeer and Adam Roberts and Katherine Lee and Sharan Narang and "
                "Michael Matena and Yanqi Zhou and Wei Li and Peter J. Liu"
            ),
        ),
    )

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        super().__init__(config, side)
        self.max_distance = config.t5_max_distance
        self.table = nn.Parameter(torch.empty(config.t5_buckets, side.heads))

    @classmethod
    def validate(cls, config: EncodingConfig, side: StackSpec) -> None:
        """Raise a ValueError unless the longest distance lies beyond the single buckets."""
        if config.t5_max_distance <= config.t5_buckets // 2:
            raise ValueError(
                f"t5_max_distance must be above t5_buckets / 2, where wider buckets start, but they are "
                f"{config.t5_max_distance} and {config.t5_buckets}; raise t5_max_distance or lower t5_buckets."
            )

    def bucket(self, distance: Tensor) -> Tensor:
        """The table's row for each distance, of any shape."""
        buckets_per_direction = len(self.table) if self.side.is_causal else len(self.table) // 2
        abs_distance = (-distance).clamp(min=0) if self.side.is_causal else distance.abs()
        num_exact = buckets_per_direction // 2
        log_ratio = (abs_distance.float() / num_exact).clamp(min=1).log() / math.log(
            self.config.t5_max_distance / num_exact
        )
        log_bucket = num_exact + (log_ratio * (buckets_per_direction - num_exact)).long()
        bucket = torch.where(abs_distance < num_exact, abs_distance, log_bucket.clamp(max=buckets_per_direction - 1))
        return bucket if self.side.is_causal else torch.where(distance > 0, bucket + buckets_per_direction, bucket)

    def distance_bias(self, distance_N: Tensor) -> Tensor:
        """The trained bias of each head (H, N), for a distance between two tokens interpolated."""
        # Only a query in cross-attention may lie between two tokens.
        distance_N = distance_N if self.side.name == "cross" else distance_N.long()
        terms = [
            scale_by(self.table.T[:, self.bucket(whole_distance_N)], weight_N)
            for whole_distance_N, weight_N in interpolation_weights(distance_N, self.table.dtype)
        ]
        return reduce(torch.add, terms)

    def init_weights(self) -> None:
        """Like the token embeddings."""
        init.normal_(self.table, std=1.0 if self.config.initializer == "torch" else self.config.d_model**-0.5)
