"""Probes of encodings for figures: one stack of a new or saved model, validated before any compute."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel

from ...convert.auto_loading import auto_from_pretrained
from ...encodings.base import HOOKS
from ...encodings.registry import build_position_encodings, parse_sum, side_entries
from ...encodings.sum import PositionEncodingSum
from ...transformer.configuration_posenc import PosEncConfig
from ...transformer.stack import PosEncStack
from ...utils.manifest import COPY_AGAIN, validate_weights, verify_folder
from .probing import SEED, is_additive, standard_normal

# The width of a new model: for added vectors that of figures in the literature; for attention the default, with heads;
# for sequential encodings a small one, because their figure takes D backward passes a token.
WIDTH_BY_USE = {"vectors": 50, "narrower vectors": 20, "attention": 512, "influence": 64}
NUM_HEADS = 8
NUM_SENTENCES = 2
MAX_ELEMENTS = 2**26  # values in one array; in float64 half a GiB


@dataclass(frozen=True, kw_only=True)
class PlotExtent:
    """The extent of a figure, in tokens unless stated otherwise.

    The first `positions`; in figures of many positions `max_positions`; `distances` in each direction; sentences of
    `tokens`; a number of random `queries`; and a maximum number of single `channels` of a head.
    """

    positions: int = 20
    max_positions: int = 45000
    distances: int = 32
    tokens: int = 24
    queries: int = 256
    channels: int = 64

    def __post_init__(self) -> None:
        for name, minimum in (
            ("positions", 3),
            ("max_positions", 3),
            ("distances", 1),
            ("tokens", 2),
            ("queries", 1),
            ("channels", 1),
        ):
            if (value := getattr(self, name)) < minimum:
                raise ValueError(f"`{name}` must be {minimum} or more for a figure, but it is {value}; raise it.")

    def clipped_to(self, max_positions: int | None) -> "PlotExtent":
        """The extent, limited to an encoding of `max_positions` positions; None for no limit."""
        if max_positions is None:
            return self
        if max_positions < 3:
            raise ValueError(
                f"A figure shows at least 3 positions, but the encoding has {max_positions}; lengthen its table."
            )
        maxima = {
            "positions": max_positions,
            "max_positions": max_positions,
            "distances": (max_positions - 1) // 2,
            "tokens": max_positions,
        }
        return replace(self, **{name: min(getattr(self, name), maximum) for name, maximum in maxima.items()})


class EncodingProbe:
    """One stack's encodings, with the sizes of its model, which is made or loaded on first use.

    The constructor raises a ValueError, before that, for sizes that cannot be drawn.
    """

    def __init__(
        self,
        config: PosEncConfig,
        side: str,
        extent: PlotExtent,
        model: Callable[[], PreTrainedModel],
        *,
        trained: bool = False,
    ) -> None:
        spec = config.side(side)
        self.name: str = spec.encoding
        self.side, self.trained = side, trained
        self.entries = side_entries(spec)
        self.load_model = cache(lambda: model().double().eval())
        self.max_positions = config.max_length_of(spec)
        self.extent = extent.clipped_to(self.max_positions)
        self.width: int = config.d_model
        self.layers, self.heads = spec.layers, spec.heads
        if min(self.width, self.layers, self.heads) < 1:
            raise ValueError(
                f"A figure needs a width, a layer and a head, but d_model={self.width}, {side}_layers={self.layers} "
                f"and {side}_attention_heads={self.heads}; raise them."
            )
        self.head_dim = spec.head_dim
        self.validate_size()
        build = partial(build_position_encodings, config, spec)
        self.build_encodings = cache(lambda: build().double().eval())
        with torch.device("meta"):
            encodings = build()
        self.hooks = [hook for hook in HOOKS if encodings.has_hook(hook)]
        self.parameters = sum(parameter.numel() for parameter in encodings.parameters())
        self.has_weights = bool(encodings.state_dict())

    def with_extent(self, extent: PlotExtent) -> "EncodingProbe":
        """The same encodings with another extent; hooks raise an error for positions that they do not have."""
        other = copy(self)  # with the same cached model
        other.extent = extent
        other.validate_size()
        return other

    def validate_size(self) -> None:
        """Raise a ValueError if an array of a figure would have more than MAX_ELEMENTS values."""
        num_distances = 2 * self.extent.distances + 1
        for what, size in (
            (f"d_model={self.width}", self.width**2),
            (f"positions={self.extent.positions} of d_model={self.width}", self.extent.positions * self.width),
            (
                f"max_positions={self.extent.max_positions} of d_model={self.width}",
                self.extent.max_positions * self.width,
            ),
            (
                f"distances={self.extent.distances}",
                num_distances * max(num_distances, self.heads * (self.head_dim + self.extent.queries)),
            ),
            (f"tokens={self.extent.tokens} of d_model={self.width}", self.extent.tokens * self.width**2),
        ):
            if size > MAX_ELEMENTS:
                raise ValueError(
                    f"A figure must need at most {MAX_ELEMENTS} numbers, but {what} needs {size}; lower it."
                )

    @property
    def stack(self) -> PosEncStack:
        """The model's encoder or decoder."""
        return getattr(self.load_model(), f"get_{self.side}")()

    @property
    def positions(self) -> PositionEncodingSum:
        """The stack's encodings; encodings without weights need no model."""
        return self.stack.positions if self.has_weights else self.build_encodings()

    @cached_property
    def is_additive(self) -> bool:
        """Whether the encodings add vectors that depend on the position alone."""
        return is_additive(self.positions, self.width, self.max_positions)

    @property
    def has_shift_invariant_attention(self) -> bool:
        """Whether the hooks in attention depend on the distance alone, by the registry's properties."""
        return all(entry.shift_invariant for entry in self.entries.values() if entry.modifies_attention)

    @property
    def distances(self) -> np.ndarray:
        """The distances of the figure (S), in tokens; in a decoder none after the query."""
        return np.arange(-self.extent.distances, 1 if self.side == "decoder" else self.extent.distances + 1)

    @property
    def label(self) -> str:
        """The title of a figure: name, training state and stack."""
        suffix = (" (trained)" if self.trained else " (untrained)") if self.parameters else ""
        return f"{self.name}{suffix}, {self.side}" if self.side == "decoder" or self.trained else f"{self.name}{suffix}"

    def sample_inputs(self) -> Tensor:
        """Inputs of `embed` (N, T, D): a trained model's random tokens; else standard normal numbers."""
        if not self.trained:
            return standard_normal(NUM_SENTENCES, self.extent.tokens, self.width)
        shape, rng = (NUM_SENTENCES, self.extent.tokens), torch.Generator().manual_seed(SEED)
        ids = torch.randint(self.stack.embed_tokens.num_embeddings, shape, generator=rng)
        return self.stack.embed(ids, None).detach()


def untrained_probes(
    name: str, settings: Mapping[str, object], side: str, extent: PlotExtent, widths: Mapping[str, int] = WIDTH_BY_USE
) -> dict[str, EncodingProbe]:
    """Probes of an untrained encoding or sum, by use; `settings` are config fields, `widths` the default d_model."""
    parse_sum(name)
    small_sizes = {
        "vocab_size": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 1,
        "decoder_ffn_dim": 1,
    }
    probes = {}
    for use, width in widths.items():
        own_settings = {key: value for key, value in settings.items() if use == "attention" or "heads" not in key}
        d_model = settings.get("d_model", width)
        has_several_heads = use == "attention" and isinstance(d_model, int) and not d_model % (2 * NUM_HEADS)
        heads = dict.fromkeys(
            ("encoder_attention_heads", "decoder_attention_heads"), NUM_HEADS if has_several_heads else 1
        )
        try:
            config = PosEncConfig(
                **(small_sizes | heads | {"d_model": d_model} | own_settings | {"position_encoding_type": name})
            )
        except StrictDataclassError as error:  # its message has two lines and no remedy
            raise ValueError(f"{' '.join(str(error).split())}; give it such a value.") from error
        probes[use] = EncodingProbe(config, side, extent, partial(untrained_model, config))
    return probes


def untrained_model(config: PosEncConfig) -> PreTrainedModel:
    """A model before training; the same weights in every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return AutoModelForSeq2SeqLM.from_config(config)


def trained_probes(folder: Path, side: str, extent: PlotExtent) -> dict[str, EncodingProbe]:
    """Probes of a saved model's encoding, the same for every use."""
    verify_folder(folder, COPY_AGAIN)
    config = auto_from_pretrained(AutoConfig, folder)
    if config.model_type != PosEncConfig.model_type:
        raise ValueError(
            f"Figures of an encoding need a model that has one (model_type={PosEncConfig.model_type!r}), but {folder} "
            f"is of model_type={config.model_type!r}; name a Transformer's folder."
        )
    validate_weights(folder)
    return dict.fromkeys(
        WIDTH_BY_USE,
        EncodingProbe(config, side, extent, lambda: auto_from_pretrained(AutoModelForSeq2SeqLM, folder), trained=True),
    )
