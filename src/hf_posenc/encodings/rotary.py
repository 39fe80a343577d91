# SPDX-License-Identifier: Apache-2.0
"""Rotary (RoPE): queries and keys, rotated by their positions; scores depend only on the relative distance.

Pairs are neighbouring channels, as in the paper (Llama's code pairs channel c with c + K/2: a fixed permutation of the
projections' rows). `rope_parameters` takes the frequency scalings of transformers ("linear", "yarn", "llama3",
"proportional") by their own code. Its `partial_rotary_factor` f rotates only the first f K channels of a head, as if
they were a narrower head. "proportional" keeps the K/2 frequencies of the whole head and rotates the fastest.

The preset `xpos` is Sun et al.'s, for decoders: a pair's product decays with the distance, faster at higher
frequencies. In bidirectional attention the product would grow for keys after the query; there `xpos` equals `rotary`.
Keys grow with the position, and a position at which they would leave the range of their dtype is a ValueError: in
float16 beyond some 2,260 tokens, in bfloat16 and float32 beyond 33,990.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from transformers import ROPE_INIT_FUNCTIONS

from .base import EncodingConfig, EncodingParameter, PositionEncoding, Reference, StackSpec
from .positions import AttentionContext, at_least_float32

# transformers' frequency scalings that do not depend on the input's length.
LENGTH_INDEPENDENT_ROPE_TYPES = ("default", "linear", "yarn", "llama3", "proportional")
SMALLEST_DECAY = 0.4 / 1.4  # of `xpos`: z_0
MAX_KEY = 256.0  # the largest unrotated key for which `xpos` has room in every dtype


class Rotary(PositionEncoding):
    """No parameters. Shift-invariant; defined at every length."""

    summary = "Queries and keys are rotated by an angle proportional to the position."
    aliases = ("rope",)
    shift_invariant = True
    formula = """
        (q[2c] + i q[2c+1]) <- (q[2c] + i q[2c+1]) exp(i p w_c), and the same for k
        w_c = theta^(-2c/K)
    """
    references = (
        Reference(
            "Su et al.",
            "RoFormer: Enhanced Transformer with Rotary Position Embedding",
            "",
            2021,
            "https://arxiv.org/abs/2104.09864",
            full_authors="Jianlin Su and Yu Lu and Shengfeng Pan and Ahmed Murtadha and Bo Wen and Yunfeng Liu",
        ),
    )

    XPOS = {
        "decays": True,
        "summary": "As rotary; in the decoder the products decay with the distance, faster at higher frequencies.",
        "config_parameters": (
            EncodingParameter(
                "xpos_scale_base",
                512.0,
                "a number of tokens, above 0",
                lambda value: value > 0,
                meaning="Tokens over which the product of a channel pair decays by its factor once.",
            ),
        ),
        "formula": """
            (q[2c] + i q[2c+1]) <- (q[2c] + i q[2c+1]) exp(i p w_c) z_c^(p/P), and for k with z_c^(-p/P)
            w_c = theta^(-2c/K), z_c = (2c + 0.4 K) / (1.4 K), P = `xpos_scale_base`; outside the decoder z_c = 1
        """,
        "references": (
            Reference(
                "Sun et al.",
                "A Length-Extrapolatable Transformer",
                "ACL",
                2023,
                "https://arxiv.org/abs/2212.10554",
                full_authors=(
                    "Yutao Sun and Li Dong and Barun Patra and Shuming Ma and Shaohan Huang and "
                    "Alon Benhaim and Vishrav Chaudhary and Xia Song and Furu Wei"
                ),
            ),
        ),
    }

    def __init__(self, config: EncodingConfig, side: StackSpec, *, decays: bool = False) -> None:
        super().__init__(config, side)
        self.decays = decays and side.is_causal
        # transformers' functions read a decoder-only config, in which the number of heads is that of this very side.
        self.rope_config = config.get_text_config(decoder=side.name != "encoder", encoder=side.name == "encoder")
        self.rope_type = config.rope_parameters["rope_type"]
        self.theta = config.rope_parameters["rope_theta"]

    @classmethod
    def validate(cls, config: EncodingConfig, side: StackSpec) -> None:
        """Raise a ValueError for an odd width, or for frequencies that depend on the input's length."""
        if side.head_dim % 2:
            raise ValueError(
                f"`rotary` needs an even width of a head, for pairs of channels, but a width of {config.d_model} over "
                f"{side.heads} heads gives {side.head_dim}; change the width or the number of heads."
            )
        rope_type = config.rope_parameters["rope_type"]
        if rope_type not in LENGTH_INDEPENDENT_ROPE_TYPES:
            raise ValueError(
                "`rotary` needs frequencies that do not change with the input's length, or cached decoding could not "
                f"equal a full forward, but rope_parameters has rope_type={rope_type!r}; choose from "
                f"{', '.join(LENGTH_INDEPENDENT_ROPE_TYPES)}."
            )
        factor = config.rope_parameters.get("partial_rotary_factor", 1.0)
        num_rotated = side.head_dim if rope_type == "proportional" else rotary_dim(side.head_dim, factor)
        if not 0 < factor <= 1 or num_rotated < 2 or num_rotated % 2:
            raise ValueError(
                "`rotary` rotates an even number of channels of a head, 2 or more, but rope_parameters has "
                f"partial_rotary_factor={factor}, which of {side.head_dim} channels is {side.head_dim * factor:g}; "
                "choose one above 0 and up to 1 that gives an even number, or leave it out."
            )

    def prepare(self, x_BTD: Tensor, ctx: AttentionContext) -> tuple[Any, ...]:
        """The cosines and sines of queries, then of new keys (B, 1, T, 2C), for C pairs of channels: see
        `apply_rotary`. Then, for `xpos`, the largest position."""
        frequencies, scale = self.frequencies(x_BTD)
        queries = keys = cos_sin(ctx.query_pos_BQ, frequencies, scale)
        if ctx.is_cross:
            keys = cos_sin(ctx.new_key_pos_BT, frequencies, scale)
        if self.decays:
            scale_B1QC = self.xpos_scale(ctx.query_pos_BQ, frequencies)
            scale_B1TC = self.xpos_scale(ctx.new_key_pos_BT, frequencies) if ctx.is_cross else scale_B1QC
            queries = queries[0] * scale_B1QC, queries[1] * scale_B1QC
            keys = keys[0] / scale_B1TC, keys[1] / scale_B1TC
            last = ctx.query_pos_BQ.max()  # read here, because on a GPU each layer would wait for it
            return *repeat_for_pairs(*queries), *repeat_for_pairs(*keys), last if is_compiling() else last.item()
        return *repeat_for_pairs(*queries), *repeat_for_pairs(*keys)

    def xpos_scale(self, pos_BT: Tensor, frequencies_C: Tensor) -> Tensor:
        """The factor by which `xpos` multiplies queries and divides keys (B, 1, T, C)."""
        channels_C = torch.arange(len(frequencies_C), device=pos_BT.device, dtype=frequencies_C.dtype) * 2
        width = 2 * len(frequencies_C)
        powers_B1T1 = pos_BT[:, None, :, None].to(frequencies_C.dtype) / self.config.xpos_scale_base
        return ((channels_C + 0.4 * width) / (1.4 * width)) ** powers_B1T1

    def rotate_queries(self, q_BHQK: Tensor, ctx: AttentionContext) -> Tensor:
        """Rotated queries (B, H, Q, K)."""
        return apply_rotary(q_BHQK, *ctx.prepared[:2])

    def rotate_keys(self, k_BHTK: Tensor, ctx: AttentionContext) -> Tensor:
        """Rotated keys (B, H, T, K); a ValueError where `xpos` would leave the range of their dtype."""
        if self.decays:
            self.check_position(ctx.prepared[4], k_BHTK.dtype)
        return apply_rotary(k_BHTK, *ctx.prepared[2:4])

    def check_position(self, position: Any, dtype: torch.dtype) -> None:
        """Raise a ValueError for a position whose keys may overflow; compiled code asserts it on the device."""
        decays = math.log(torch.finfo(dtype).max / MAX_KEY) / -math.log(SMALLEST_DECAY)
        num_positions = math.ceil(decays * self.config.xpos_scale_base)
        if is_compiling():
            torch._assert_async(position < num_positions, "a key of `xpos` leaves the range of its dtype")
        elif position >= num_positions:
            raise ValueError(
                f"`xpos` has the positions 0 to {num_positions - 1} in {dtype}, because its keys grow with the "
                f"position, but a token is at position {position}; shorten the input, use a dtype of a larger range, "
                "or train with a larger xpos_scale_base or with `rotary`."
            )

    def frequencies(self, like: Tensor) -> tuple[Tensor, float]:
        """The frequencies w_c, in radians a token (C), and the factor on queries and keys, 1 for most scalings."""
        if self.rope_type == "default":
            factor, dtype = self.config.rope_parameters.get("partial_rotary_factor", 1.0), at_least_float32(like)
            width = rotary_dim(self.side.head_dim, factor)
            return self.theta ** -(torch.arange(0, width, 2, device=like.device, dtype=dtype) / width), 1.0
        return ROPE_INIT_FUNCTIONS[self.rope_type](self.rope_config, like.device)


def rotary_dim(head_dim: int, factor: float) -> int:
    """The number of rotated channels of a head, rounded as transformers does."""
    return int(head_dim * factor)


def cos_sin(pos_BT: Tensor, frequencies_C: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles (B, 1, T, C), times `scale`."""
    angles_B1TC = pos_BT[:, None, :, None].to(frequencies_C.dtype) * frequencies_C
    return angles_B1TC.cos() * scale, angles_B1TC.sin() * scale


def repeat_for_pairs(cos_B1TC: Tensor, sin_B1TC: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines for both channels of each pair (B, 1, T, 2C): negative for the first channel."""
    return cos_B1TC.repeat_interleave(2, dim=-1), torch.stack((-sin_B1TC, sin_B1TC), dim=-1).flatten(-2)


def apply_rotary(x_BHTK: Tensor, cos_B1TC: Tensor, sin_B1TC: Tensor) -> Tensor:
    """Rotated queries or keys (B, H, T, K): the first C channels pair by pair, C cosines; the others unchanged."""
    cos_B1TC, sin_B1TC, num_rotated = cos_B1TC.to(x_BHTK.dtype), sin_B1TC.to(x_BHTK.dtype), cos_B1TC.shape[-1]
    x_BHTC = x_BHTK if num_rotated == x_BHTK.shape[-1] else x_BHTK[..., :num_rotated]
    others_BHTC = x_BHTC.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)  # the other channel of each pair
    whole = torch.addcmul(x_BHTC * cos_B1TC, others_BHTC, sin_B1TC)
    return whole if num_rotated == x_BHTK.shape[-1] else torch.cat((whole, x_BHTK[..., num_rotated:]), dim=-1)
