# SPDX-License-Identifier: Apache-2.0
"""Rotary: queries and keys are turned by their position, so that their product sees only the distance.

Pairs are neighbouring channels, as in the paper (Llama's code pairs channel c with c + K/2: a fixed permutation of the
projections' rows). `rope_parameters` takes the frequency scalings of transformers ("linear", "yarn", "llama3",
"proportional") by their own code. Its `partial_rotary_factor` f turns the first f K channels of a head alone, as if
they were the whole of a narrower one; "proportional" keeps the K/2 frequencies of the whole head and turns the fastest.

The preset `xpos` is that of Sun et al. for decoders: a pair's product falls with the distance, the faster the faster it
turns. Where attention goes both ways it would grow for keys behind the query, so there it is `rotary`. Keys leave the
range of float16 beyond some 4,500 tokens, that of float32 beyond 36,000.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import ROPE_INIT_FUNCTIONS

from .place import Place, angle_dtype
from .position import Knob, PositionEncoding
from .references import Reference


class Rotary(PositionEncoding):
    """No parameters. Shift-invariant; defined at every length."""

    summary = "Queries and keys turned by an angle that grows with the position."
    also_called = ("rope",)
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
        ),
    )

    extrapolating = {
        "falling": True,
        "summary": "As rotary; in the decoder the products fall with the distance, fast turning channels first.",
        "knobs": (Knob("xpos_scale_base", 512.0, "a number of tokens, above 0", lambda value: value > 0),),
        "formula": """
            (q[2c] + i q[2c+1]) <- (q[2c] + i q[2c+1]) exp(i p w_c) z_c^(p/P), and for k with z_c^(-p/P)
            w_c = theta^(-2c/K), z_c = (2c + 0.4 K) / (1.4 K), P = `xpos_scale_base`; outside the decoder z_c = 1
        """,
        "references": (
            Reference(
                "Sun et al.", "A Length-Extrapolatable Transformer", "ACL", 2023, "https://arxiv.org/abs/2212.10554"
            ),
        ),
    }

    def __init__(self, config: Any, side: Any, *, falling: bool = False) -> None:
        super().__init__(config, side)
        self.falling = falling and side.is_causal
        # transformers' functions read a decoder-only config, in which the number of heads is that of this very side.
        self.view = config.get_text_config(decoder=side.name != "encoder", encoder=side.name == "encoder")
        self.kind = config.rope_parameters["rope_type"]
        self.theta = config.rope_parameters["rope_theta"]

    @classmethod
    def check(cls, config: Any, side: Any) -> None:
        if side.head_width % 2:
            raise ValueError(
                f"`rotary` turns pairs of channels, so the width of a head must be even, but d_model={config.d_model} "
                f"over {side.heads} heads gives {side.head_width}; change d_model or the number of heads."
            )
        if (kind := config.rope_parameters["rope_type"]) not in ("default", "linear", "yarn", "llama3", "proportional"):
            raise ValueError(
                "`rotary` needs frequencies that do not change with the input's length, or cached decoding could not "
                f"equal a full forward, but rope_parameters has rope_type={kind!r}; choose from default, linear, yarn, "
                "llama3, proportional."
            )
        factor = config.rope_parameters.get("partial_rotary_factor", 1.0)
        turned = side.head_width if kind == "proportional" else turned_channels(side.head_width, factor)
        if not 0 < factor <= 1 or turned < 2 or turned % 2:
            raise ValueError(
                "`rotary` turns an even number of channels of a head, 2 or more, but rope_parameters has "
                f"partial_rotary_factor={factor}, which of {side.head_width} channels is {side.head_width * factor:g}; "
                "choose one above 0 and up to 1 that gives an even number, or leave it out."
            )

    def prepare(self, x_BTD: Tensor, at: Place) -> tuple[Tensor, ...]:
        """The cosines and sines of queries, then of new keys (B, 1, T, 2C), for C pairs of channels: see `turn`."""
        frequencies, scale = self.frequencies(x_BTD)
        queries = keys = turns(at.queries_BQ, frequencies, scale)
        if at.is_cross:
            keys = turns(at.new_keys_BT, frequencies, scale)
        if self.falling:
            growth_B1TC = self.growth(at.queries_BQ, frequencies)
            queries = queries[0] * growth_B1TC, queries[1] * growth_B1TC
            keys = keys[0] / growth_B1TC, keys[1] / growth_B1TC
        return *by_channel(*queries), *by_channel(*keys)

    def growth(self, pos_BT: Tensor, frequencies_C: Tensor) -> Tensor:
        """By what `xpos` multiplies queries and divides keys (B, 1, T, C)."""
        channels_C = torch.arange(len(frequencies_C), device=pos_BT.device, dtype=frequencies_C.dtype) * 2
        width = 2 * len(frequencies_C)
        powers_B1T1 = pos_BT[:, None, :, None].to(frequencies_C.dtype) / self.config.xpos_scale_base
        return ((channels_C + 0.4 * width) / (1.4 * width)) ** powers_B1T1

    def rotate_queries(self, q_BHQK: Tensor, at: Place) -> Tensor:
        return turn(q_BHQK, *at.prepared[:2])

    def rotate_keys(self, k_BHTK: Tensor, at: Place) -> Tensor:
        return turn(k_BHTK, *at.prepared[2:])

    def frequencies(self, like: Tensor) -> tuple[Tensor, float]:
        """w_c, in radians a token (C), and the factor on queries and keys that some scalings bring."""
        if self.kind == "default":
            factor, dtype = self.config.rope_parameters.get("partial_rotary_factor", 1.0), angle_dtype(like)
            width = turned_channels(self.side.head_width, factor)
            return self.theta ** -(torch.arange(0, width, 2, device=like.device, dtype=dtype) / width), 1.0
        return ROPE_INIT_FUNCTIONS[self.kind](self.view, like.device)


def turned_channels(head_width: int, factor: float) -> int:
    """How many channels of a head are turned, as transformers rounds them."""
    return int(head_width * factor)


def turns(pos_BT: Tensor, frequencies_C: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    angles_B1TC = pos_BT[:, None, :, None].to(frequencies_C.dtype) * frequencies_C
    return angles_B1TC.cos() * scale, angles_B1TC.sin() * scale


def by_channel(cos_B1TC: Tensor, sin_B1TC: Tensor) -> tuple[Tensor, Tensor]:
    """Those of both channels of each pair (B, 1, T, 2C); of the first the sine is subtracted."""
    return cos_B1TC.repeat_interleave(2, dim=-1), torch.stack((-sin_B1TC, sin_B1TC), dim=-1).flatten(-2)


def turn(x_BHTK: Tensor, cos_B1TC: Tensor, sin_B1TC: Tensor) -> Tensor:
    """The first channels turned pair by pair, as many as there are cosines; the rest as they are."""
    cos_B1TC, sin_B1TC, turned = cos_B1TC.to(x_BHTK.dtype), sin_B1TC.to(x_BHTK.dtype), cos_B1TC.shape[-1]
    x_BHTC = x_BHTK if turned == x_BHTK.shape[-1] else x_BHTK[..., :turned]
    others_BHTC = x_BHTC.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)  # the other channel of each pair
    whole = torch.addcmul(x_BHTC * cos_B1TC, others_BHTC, sin_B1TC)
    return whole if turned == x_BHTK.shape[-1] else torch.cat((whole, x_BHTK[..., turned:]), dim=-1)
