"""Probes of encodings for figures: one stack of a new or saved model, validated before any compute.

The arrays are by position, by distance and by pair of tokens. `positions` is a stack's `PositionEncodingSum`, in
float64 and evaluation mode, and is called as in the Transformer. Nothing here depends on which encoding it is: the
hooks' outputs for zeros, unit vectors and random vectors show what it does. Further shape letters, in addition to those
of base.py: P positions, N samples of a query, S distances (key minus query).
"""

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

from ...convert.folders import auto_from_pretrained
from ...encodings.base import HOOKS
from ...encodings.positions import AttentionContext
from ...encodings.registry import build_position_encodings, parse_sum, side_entries
from ...encodings.sum import PositionEncodingSum
from ...transformer.configuration_posenc import PosEncConfig
from ...transformer.stack import PosEncStack
from ...utils.manifest import COPY_AGAIN, validate_weights, verify_folder

SEED = 0
# Outputs of a hook that differ by less are equal, in float64.
TOLERANCE = 1e-8
NUM_PROBED_POSITIONS = 12
# The maximum number of values in the keys of all queries that are probed at once.
MAX_KEY_VALUES = 2**22


def standard_normal(*shape: int) -> Tensor:
    """Standard normal numbers, the same in every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)


def embed_at(positions: PositionEncodingSum, x_BTD: Tensor, pos_BT: Tensor) -> Tensor:
    """The tokens after `embed` at these positions (B, T, D)."""
    return positions.embed(x_BTD, AttentionContext(pos_BT, pos_BT))


def prepared_contexts(
    positions: PositionEncodingSum, pos_BQ: Tensor, pos_BS: Tensor, layer: int
) -> list[AttentionContext]:
    """The contexts in which a layer's hooks are probed with random tokens, after `prepare`."""
    (first, *_) = positions
    x_1QD = standard_normal(1, pos_BQ.shape[1], first.config.d_model)
    ctx = AttentionContext(pos_BQ, pos_BS, layer=layer, inputs_BTD=x_1QD, is_causal=first.side.is_causal)
    return positions.prepare(x_1QD, ctx)


@torch.no_grad()
def is_additive(positions: PositionEncodingSum, width: int, longest: int | None) -> bool:
    """Whether `embed` adds a vector that depends on the position alone, not on the token or its neighbours."""
    if not positions.has_hook("embed"):
        return False
    num_positions = min(NUM_PROBED_POSITIONS, longest or NUM_PROBED_POSITIONS)
    pos_1P, x_1PD = torch.arange(num_positions)[None], standard_normal(1, num_positions, width)
    added = embed_at(positions, torch.zeros_like(x_1PD), pos_1P)[0]
    added_in_context = embed_at(positions, x_1PD, pos_1P)[0] - x_1PD[0]
    alone = (embed_at(positions, x_1PD.transpose(0, 1), pos_1P.T) - x_1PD.transpose(0, 1))[:, 0]
    return is_close(added, added_in_context) and is_close(added, alone)


@torch.no_grad()
def added_vectors(positions: PositionEncodingSum, width: int, number: int) -> np.ndarray:
    """The vectors that `embed` adds at the first positions (P, D); for additive encodings."""
    zeros_1PD = torch.zeros(1, number, width, dtype=torch.float64)
    return embed_at(positions, zeros_1PD, torch.arange(number)[None])[0].numpy()


@torch.no_grad()
def score_biases_by_distance(
    positions: PositionEncodingSum,
    q_NHK: Tensor,
    distances: np.ndarray,
    layer: int,
    max_elements: int = MAX_KEY_VALUES,
) -> np.ndarray:
    """The score bias, in score units, of each query at each distance (N, H, S).

    The query's position is as far from the start as its most distant left key requires. `max_elements` bounds the
    values in the keys of all queries that are probed at once.
    """
    _, heads, width = q_NHK.shape
    chunk_size = max(1, max_elements // (heads * width * len(distances)))
    outputs = []
    for chunk_NHK in q_NHK.split(chunk_size):
        output = score_biases_at(positions, chunk_NHK, *query_and_keys(distances), layer)
        outputs.append(output.expand(len(chunk_NHK), heads, 1, len(distances))[:, :, 0])
    return torch.cat(outputs).numpy()


def score_biases_at(
    positions: PositionEncodingSum, q_NHK: Tensor, pos_1Q: Tensor, pos_1S: Tensor, layer: int
) -> Tensor:
    """The score bias of queries at one position, for keys of zeros (broadcasts to N, H, 1, S).

    If the bias depends on the tokens between query and key, it is computed for a query at every position, and that of
    the position is returned.
    """
    zeros_NHSK = q_NHK.new_zeros(*q_NHK.shape[:2], pos_1S.shape[1], q_NHK.shape[2])
    if not bias_depends_on_tokens(positions):
        return positions.score_bias(q_NHK[:, :, None], zeros_NHSK, prepared_contexts(positions, pos_1Q, pos_1S, layer))
    q_NHSK = q_NHK[:, :, None].expand_as(zeros_NHSK)
    bias = positions.score_bias(q_NHSK, zeros_NHSK, prepared_contexts(positions, pos_1S, pos_1S, layer))
    return bias[:, :, (pos_1S == pos_1Q)[0]]


def bias_depends_on_tokens(positions: PositionEncodingSum) -> bool:
    """Whether what is added to a score depends on the tokens between query and key."""
    return any(encoding.is_stateful and encoding.score_bias is not None for encoding in positions)


@torch.no_grad()
def rotated_products(positions: PositionEncodingSum, q_NHK: Tensor, distances: np.ndarray, layer: int) -> np.ndarray:
    """q . k after both are rotated, of a query and an equal key at each distance (N, H, S)."""
    pos_1Q, pos_1S = query_and_keys(distances)
    k_NHSK = q_NHK[:, :, None].expand(-1, -1, len(distances), -1).contiguous()
    rotated_q = positions.rotate_queries(k_NHSK[:, :, :1], prepared_contexts(positions, pos_1Q, pos_1Q, layer))
    rotated_k = positions.rotate_keys(k_NHSK, prepared_contexts(positions, pos_1S, pos_1S, layer))
    return (rotated_q * rotated_k).sum(-1).numpy()


@torch.no_grad()
def key_vectors(
    positions: PositionEncodingSum, heads: int, width: int, distances: np.ndarray, layer: int
) -> np.ndarray | None:
    """The vector v at each distance that acts like an addition to the key (H, S, K); None without such a vector.

    Then the bias of any query q is q . v / sqrt(K), plus the bias of a query of zeros. v is measured with unit queries
    and verified with a random one.
    """
    zero_and_units = torch.eye(width + 1, width, dtype=torch.float64).roll(1, 0)
    probes_NHK = torch.cat((zero_and_units, standard_normal(1, width)))[:, None].expand(-1, heads, -1)
    bias = torch.from_numpy(score_biases_by_distance(positions, probes_NHK, distances, layer))
    plain_HS, random_HS = bias[0], bias[-1]
    scaled_HSK = (bias[1:-1] - plain_HS).permute(1, 2, 0)
    linear = is_close(plain_HS + scaled_HSK @ standard_normal(1, width)[0], random_HS)
    return (scaled_HSK * width**0.5).numpy() if linear and bool(scaled_HSK.any()) else None


@torch.no_grad()
def value_vectors(
    positions: PositionEncodingSum, heads: int, width: int, distances: np.ndarray, layer: int
) -> np.ndarray:
    """What `value_bias` adds to the output of a query that attends to one key alone, at each distance (H, S, K)."""
    pos_1Q, pos_1S = query_and_keys(distances)
    alone_SHQS = torch.eye(len(distances), dtype=torch.float64)[:, None, None].expand(-1, heads, -1, -1)
    output = positions.value_bias(alone_SHQS, prepared_contexts(positions, pos_1Q, pos_1S, layer))
    return output.expand(len(distances), heads, 1, width)[:, :, 0].transpose(0, 1).numpy()


@torch.enable_grad()
def embed_influence(positions: PositionEncodingSum, x_NTD: Tensor) -> np.ndarray:
    """The influence of token j on the output of `embed` at token i (i, j).

    It is the root mean square over N sentences of the norm of the Jacobian d out_i / d x_j, divided by sqrt(D). An
    `embed` that changes nothing has 1 on the diagonal.

    Each sentence is copied D times, so that one backward pass gives the gradient of every channel of out_i.
    """
    squares_TT = np.zeros((x_NTD.shape[1],) * 2)
    for x_TD in x_NTD:
        x_CTD = x_TD.expand(x_TD.shape[1], -1, -1).clone().requires_grad_()
        out_CTD = embed_at(positions, x_CTD, torch.arange(len(x_TD))[None])
        own_CT = out_CTD.diagonal(dim1=0, dim2=2).T
        for i in range(len(x_TD)):
            (grad_CTD,) = torch.autograd.grad(own_CT[:, i].sum(), x_CTD, retain_graph=True)
            squares_TT[i] += grad_CTD.square().sum((0, 2)).numpy()
    return np.sqrt(squares_TT / (len(x_NTD) * x_NTD.shape[2]))


def wavelengths(values_PD: np.ndarray) -> np.ndarray:
    """The wavelength of each channel in positions (D).

    It is NaN for a channel that is not one sinusoid, and infinite for a constant channel. A sinusoid of frequency w,
    sampled at each position, satisfies v[p-1] + v[p+1] = 2 cos(w) v[p], and no other sequence does. Least squares gives
    w exactly, even if the positions contain only a fraction of a period. The equation must explain 99.9 % of the
    variation.
    """
    middle, around = values_PD[1:-1], values_PD[:-2] + values_PD[2:]
    power = np.maximum((middle**2).sum(0), np.finfo(float).tiny)
    twice_cos = (middle * around).sum(0) / power
    unexplained = ((around - twice_cos * middle) ** 2).sum(0) / np.maximum((around**2).sum(0), np.finfo(float).tiny)
    # 2 - 2 cos(w) = 4 sin(w/2)^2 keeps the digits that cos loses at long wavelengths.
    curvature = ((around - 2 * middle) * middle).sum(0) / power
    frequency = 2 * np.arcsin(np.sqrt(np.abs(np.clip(-curvature / 4, 0.0, 1.0))))
    with np.errstate(divide="ignore"):
        lengths = 2 * np.pi / frequency
    return np.where((unexplained < 0.001) & ((values_PD != 0).any(0)), lengths, np.nan)


def query_and_keys(distances: np.ndarray) -> tuple[Tensor, Tensor]:
    """Positions of one query (1, 1) and of the keys at those distances (1, S), none below 0."""
    pos_1S = torch.from_numpy(distances)[None]
    query = max(0, -int(distances.min()))
    return torch.tensor([[query]]), pos_1S + query


def is_close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a.double(), b.double(), rtol=TOLERANCE, atol=TOLERANCE)


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
        minima = {"positions": 3, "max_positions": 3, "distances": 1, "tokens": 2, "queries": 1, "channels": 1}
        for name, minimum in minima.items():
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
        return replace(
            self,
            positions=min(self.positions, max_positions),
            max_positions=min(self.max_positions, max_positions),
            distances=min(self.distances, (max_positions - 1) // 2),
            tokens=min(self.tokens, max_positions),
        )


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
        extent, width = self.extent, self.width
        num_distances = 2 * extent.distances + 1
        scores = self.heads * (self.head_dim + extent.queries)
        sizes = {
            f"d_model={width}": width**2,
            f"positions={extent.positions} of d_model={width}": extent.positions * width,
            f"max_positions={extent.max_positions} of d_model={width}": extent.max_positions * width,
            f"distances={extent.distances}": num_distances * max(num_distances, scores),
            f"tokens={extent.tokens} of d_model={width}": extent.tokens * width**2,
        }
        for what, size in sizes.items():
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
        label = self.name
        if self.parameters:
            label += " (trained)" if self.trained else " (untrained)"
        return f"{label}, {self.side}" if self.side == "decoder" or self.trained else label

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
    small_sizes = {"vocab_size": 8} | dict.fromkeys(
        ("encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim"), 1
    )
    without_heads = {key: value for key, value in settings.items() if "heads" not in key}
    probes = {}
    for use, width in widths.items():
        d_model = settings.get("d_model", width)
        own_settings, heads = without_heads, 1
        if use == "attention":
            own_settings = dict(settings)
            if isinstance(d_model, int) and not d_model % (2 * NUM_HEADS):
                heads = NUM_HEADS
        fields = small_sizes | {"encoder_attention_heads": heads, "decoder_attention_heads": heads, "d_model": d_model}
        try:
            config = PosEncConfig(**fields | own_settings | {"position_encoding_type": name})
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
