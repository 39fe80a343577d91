# SPDX-License-Identifier: Apache-2.0
"""The interface of position encodings, and their references. The base class itself is the encoding `none`.

Shape letters, here and in every file of this folder:
    B batch, T new tokens, D model width, H heads, Q queries, S keys, K width of a head, M width of a recurrent state.

An encoding is a module, made once for each attention it serves: the encoder's, the decoder's, the cross-attention.
It implements some of the hooks; the others are None. Attention checks which hooks exist, never which encoding it has.
Every hook takes `ctx`, an AttentionContext with the positions of queries and keys.

    augment_positions(pos_BT, ctx) -> pos_BT
        Positions for training, sampled or shifted: once a forward, the same for all hooks and layers.
    embed(x_BTD, ctx) -> x_BTD
        Changes the dropped-out, scaled token embeddings. Cross-attention never calls it.
    prepare(x_BTD, ctx) -> anything
        What all layers share, computed once a forward; the hooks below read it as `ctx.prepared`. With a `max_distance`
        (below) it may use dtype, device and width of `x_BTD` only: linear attention passes other numbers. It runs
        outside of autocast, which would compute products of positions in half precision.
    prepare_layer(ctx) -> anything
        What all blocks of queries share in a layer, such as products of parameters; score_bias and value_bias read it
        as `ctx.prepared_layer`. Only the plan `blocked` calls it (transformer/plans/blocked_attention.py). There
        `prepare` computes what a block shares, from the tokens and the positions of its queries, unless the encoding
        changes queries or keys.
    rotate_queries(q_BHQK, ctx) -> q_BHQK
    rotate_keys(k_BHTK, ctx) -> k_BHTK
        Change queries, at `ctx.query_pos_BQ`, and new keys, at `ctx.new_key_pos_BT`, before the keys are cached.
    score_bias(q_BHQK, k_BHSK, ctx) -> broadcasts to (B, H, Q, S)
        Is added to the scores, in score units (after 1/sqrt(K)). `q` is the query before `rotate_queries`; `k` is the
        key as it is cached, after `rotate_keys`.
    distance_bias(distance_N) -> (H, N) or (1, N)
        In place of `prepare` and `score_bias`, for a bias that depends on head and distance alone: the bias of each
        distance, key minus query, a float. It must be defined for negative distances and between whole numbers.
    value_bias(p_BHQS, ctx) -> broadcasts to (B, H, Q, K)
        Is added to the attended values; `p` are the attention weights after dropout.
    init_weights()
        Initialises the encoding's own parameters, with transformers.initialization.

Positions count from 0 and have shape (B, T) or (1, T). Hooks take positions and never lengths. Therefore caching, left
padding and holes in a mask need no code in an encoding; `ctx.num_attendable_BQ` counts visible keys.

Properties for attention in linear memory (linear_attention.py): from `max_distance` tokens on, to either side, an
encoding's biases are the same for every key; math.inf if each distance has its own bias, None if a bias depends on more
than the distance. Where `is_global` is False, keys from `max_distance` on are hidden, and keys after the query from
`lookahead_distance` on, which is smaller or None. Where `preserves_head_dim` is False, `rotate_queries` and
`rotate_keys` return wider vectors, and linear attention is not used.

Properties for streaming (streaming.py): `left_context` and `lookahead` are the numbers of tokens before and after a
token that the encoding reads for it, None for all of them. Neither counts the keys that attention attends to, nor the
tokens between a query and a key: a window bounds both. They are 0 for an encoding of single tokens and of pairs.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from .positions import AttentionContext, at_least_float32


@dataclass(frozen=True)
class Reference:
    """A publication. `venue` may be empty.

    `authors` has surnames as a sentence has them: "Shaw, Uszkoreit & Vaswani" or "Su et al.". `full_authors` has whole
    names for BibTeX, joined by " and ".
    """

    authors: str
    title: str
    venue: str
    year: int
    url: str
    full_authors: str = ""

    def __str__(self) -> str:
        venue_and_year = f"{self.venue} {self.year}" if self.venue else str(self.year)
        return f'{self.authors}, "{self.title}" ({venue_and_year}), {self.url}'


VASWANI = Reference(
    "Vaswani et al.",
    "Attention Is All You Need",
    "NeurIPS",
    2017,
    "https://arxiv.org/abs/1706.03762",
    full_authors=(
        "Ashish Vaswani and Noam Shazeer and Niki Parmar and Jakob Uszkoreit and Llion Jones and "
        "Aidan N. Gomez and Łukasz Kaiser and Illia Polosukhin"
    ),
)
ROSENDAHL = Reference(
    "Rosendahl et al.",
    "Analysis of Positional Encodings for Neural Machine Translation",
    "IWSLT",
    2019,
    "https://aclanthology.org/2019.iwslt-1.20",
    full_authors="Jan Rosendahl and Viet Anh Khoa Tran and Weiyue Wang and Hermann Ney",
)
NEISHI = Reference(
    "Neishi & Yoshinaga",
    "On the Relation between Position Information and Sentence Length in Neural Machine Translation",
    "CoNLL",
    2019,
    "https://aclanthology.org/K19-1031",
    full_authors="Masato Neishi and Naoki Yoshinaga",
)
LUONG = Reference(
    "Luong, Pham & Manning",
    "Effective Approaches to Attention-based Neural Machine Translation",
    "EMNLP",
    2015,
    "https://arxiv.org/abs/1508.04025",
    full_authors="Minh-Thang Luong and Hieu Pham and Christopher D. Manning",
)


# Large enough for zero weight in any dtype; finite, so that a fully masked row is not NaN.
MASK_VALUE = -1e4

HookName = Literal[
    "augment_positions", "embed", "prepare", "prepare_layer",
    "rotate_queries", "rotate_keys", "score_bias", "distance_bias", "value_bias",
]  # fmt: skip
# The hooks that change activations; `augment_positions` and `prepare` only provide their inputs.
HOOKS = ("embed", "rotate_queries", "rotate_keys", "score_bias", "value_bias")

# The types of hooks. What `prepare` returns belongs to its encoding, which alone reads it.
TensorHook = Callable[[Tensor, AttentionContext], Tensor]
ScoreBiasHook = Callable[[Tensor, Tensor, AttentionContext], Tensor]
PrepareHook = Callable[[Tensor, AttentionContext], object]
DistanceBiasHook = Callable[[Tensor], Tensor]

ParameterValue = bool | int | float | None


@dataclass(frozen=True)
class EncodingParameter:
    """A config field that an encoding or an alignment adds, with its default and its constraint.

    The default gives the field's type; None stands for an integer or None. `constraint` says in words what `is_valid`
    tests. `meaning` is one sentence for `help(PosEncConfig)`: what the field changes, in which unit.

    Why a registry instead of dataclass fields: a user's encoding adds its own parameters at run time, each encoding is
    one file, and a config saves the parameters in use only.
    """

    name: str
    default: ParameterValue
    constraint: str
    is_valid: Callable[[Any], bool] = lambda value: True
    meaning: str = ""

    def validate(self, value: object) -> None:
        """Raise a ValueError unless `value` has the default's type and satisfies the constraint."""
        types = {float: (float, int), type(None): (int, type(None))}.get(type(self.default), (type(self.default),))
        if type(value) not in types or not self.is_valid(value):
            raise ValueError(
                f"`{self.name}` must be {self.constraint}, but it is {value!r}; its default is {self.default!r}."
            )


class EncodingConfig(Protocol):
    """The fields of a PosEncConfig that encodings and alignments read; the type of their `config`.

    In addition an encoding reads its own parameters (`config.relative_clip`), which exist once it is registered.
    """

    d_model: int
    initializer: str

    def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True)
class StackSpec:
    """Sizes and encodings of one attention: the encoder's, the decoder's, or the cross-attention's.

    `name` is "encoder", "decoder" or "cross"; cross-attention has the decoder's sizes. `encoding` is a registered name
    or a sum of names, `encodings` has the classes by name. `head_dim` is the width of a head, K.
    """

    name: str
    encoding: str
    layers: int
    heads: int
    ffn_dim: int
    vocab_size: int
    head_dim: int
    encodings: Mapping[str, "type[PositionEncoding]"]

    @property
    def is_causal(self) -> bool:
        """Whether a query attends to no later key."""
        return self.name == "decoder"


class PositionEncoding(nn.Module):
    """Base class of every encoding. By itself it is the encoding `none`: the encoder has no information on order.

    No parameters; defined at every length. A subclass implements hooks (see the module) and sets class attributes, its
    properties. The tests check that each property holds, and that its opposite does not:

    `summary`: one sentence.
    `shift_invariant`: adding a number to all positions changes nothing.
    `permutation_equivariant`: with attention in both directions, permuting the tokens permutes the outputs.
    `reversal_equivariant`: reversing the tokens reverses the outputs.
    `is_stateful`: cached decoding keeps more than keys, values and positions, in `ctx.state`.
    `is_modifier`: it only changes what another encoding of the sum does.
    `zero_init_is_identity`: with all parameters at zero it changes nothing, and has gradients. Therefore it can be
        added to a trained model.
    `max_length_field`: the parameter that bounds the length, None if none does.
    `config_parameters`: the config fields that it adds.
    `formula`: the score or the embedding, in the code's symbols. `references`: the sources.
    `aliases`: other names of the idea; the error for an unknown name suggests this encoding for them.
    `max_distance`, `lookahead_distance`, `is_global`, `preserves_head_dim`, `left_context`, `lookahead`: see the
        module.
    """

    summary: str
    shift_invariant: bool
    permutation_equivariant = False
    reversal_equivariant = False
    is_stateful = False
    is_modifier = False
    zero_init_is_identity = False
    max_length_field: str | None = None
    config_parameters: tuple[EncodingParameter, ...] = ()
    formula = ""
    references: tuple[Reference, ...] = ()
    aliases: tuple[str, ...] = ()

    # The registry's properties of `none`, which subclasses must not inherit.
    NONE = {
        "summary": "No position information: the encoder sees a bag of words.",
        "shift_invariant": True,
        "permutation_equivariant": True,
        "reversal_equivariant": True,
        "zero_init_is_identity": True,
        "aliases": ("nope",),
    }

    max_distance: float | None = None
    lookahead_distance: int | None = None
    is_global = True
    preserves_head_dim = True
    left_context: int | None = 0
    lookahead: int | None = 0

    # A preset may set a hook of its class to None in `__init__`. Later is too late: PositionEncodingSum records which
    # hooks exist when it is built.
    augment_positions: TensorHook | None = None
    embed: TensorHook | None = None
    prepare: PrepareHook | None = None
    prepare_layer: Callable[[AttentionContext], object] | None = None
    rotate_queries: TensorHook | None = None
    rotate_keys: TensorHook | None = None
    score_bias: ScoreBiasHook | None = None
    distance_bias: DistanceBiasHook | None = None
    value_bias: TensorHook | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        written = [name for name in ("prepare", "score_bias") if name in vars(cls)]
        if "distance_bias" in vars(cls) and written:
            raise TypeError(
                f"An encoding must state its bias once, but {cls.__name__} has distance_bias and "
                f"{' and '.join(written)}; leave one of them out."
            )
        if cls.distance_bias is not None:
            cls.prepare, cls.score_bias = prepare_distance_bias, score_distance_bias  # type: ignore[assignment]
            if cls.max_distance is None:
                cls.max_distance = math.inf

    def __init__(self, config: EncodingConfig, side: StackSpec) -> None:
        """`side` has the sizes of the attention that this encoding serves."""
        super().__init__()
        self.config, self.side = config, side
        self.scaling = side.head_dim**-0.5

    @classmethod
    def validate(cls, config: EncodingConfig, side: StackSpec) -> None:
        """Raise a ValueError (rule, value, remedy) if this encoding cannot work under `config` on that side."""

    @classmethod
    def require_global(cls, side: StackSpec, why: str) -> None:
        """For `validate`: raise a ValueError if another encoding of the sum hides keys by their distance."""
        for name, encoding in side.encodings.items():
            if not encoding.is_global:
                raise ValueError(f"{side.encoding!r}: {cls.__name__} {why}; leave it or `{name}` out.")

    @classmethod
    def require_unrotated_keys(cls, side: StackSpec, why: str) -> None:
        """For `validate`: raise a ValueError if another encoding of the sum changes keys by their position."""
        for name, encoding in side.encodings.items():
            if encoding is not cls and encoding.rotate_keys is not None:
                raise ValueError(
                    f"{side.encoding!r}: {cls.__name__} {why}, but `{name}` rotates keys by their position; leave one "
                    "of them out."
                )

    def init_weights(self) -> None:
        """Initialise the encoding's own parameters. The base class has none."""

    if TYPE_CHECKING:  # torch's takes anything

        def __call__(self, hook: HookName, *arguments: object) -> Any: ...

    def forward(self, hook: HookName, *arguments: object) -> Any:
        """The result of a hook. Hooks are called through `forward`, never directly.

        Offloading (accelerate) and FSDP gather a module's parameters around its `forward` alone: a hook called directly
        would read parameters that are on the meta device or sharded.
        """
        return getattr(self, hook)(*arguments)


def prepare_distance_bias(encoding: PositionEncoding, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
    """`prepare` of an encoding with a `distance_bias`: the biases of all layers (B, H, Q, S).

    The distances (B, Q, S) if the biases have gradients: each layer computes them, because gradient checkpointing
    replays a layer, but nothing computed before it.
    """
    distance_BQS = ctx.distance_BQS.to(at_least_float32(x_BTD))
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in encoding.parameters()):
        return distance_BQS
    return bias_of_distances(encoding, distance_BQS).to(x_BTD.dtype)


def score_distance_bias(encoding: PositionEncoding, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
    """`score_bias` of an encoding with a `distance_bias` (B, H, Q, S)."""
    prepared: Tensor = ctx.prepared
    return prepared if prepared.ndim == 4 else bias_of_distances(encoding, prepared).to(q_BHQK.dtype)


def bias_of_distances(encoding: PositionEncoding, distance_BQS: Tensor) -> Tensor:
    """The `distance_bias` of distances of any shape (B, H, Q, S)."""
    assert encoding.distance_bias is not None
    return encoding.distance_bias(distance_BQS.flatten()).unflatten(1, distance_BQS.shape).transpose(0, 1)


def validate_registration(kind: str, name: str, new_class: type, base: type, existing: type | None) -> None:
    """Raise an error unless `new_class` can be registered as `name`; `kind` is "encoding" or "alignment".

    `existing` is the class that has the name already, if one has. The same class may be registered again, as by a
    notebook cell that runs twice. Raises a ValueError for a name that is taken or not lower-case letters, digits and
    underscores. Raises a TypeError for a class that does not inherit `base` alone.
    """
    if not (name.isidentifier() and name == name.lower()):
        raise ValueError(f"An {kind}'s name is made of lower-case letters, digits and underscores, not {name!r}.")
    if new_class.__bases__ != (base,):
        raise TypeError(
            f"An {kind} inherits {base.__name__} and nothing else, but {new_class.__name__} inherits "
            f"{', '.join(cls.__name__ for cls in new_class.__bases__)}; derive it from hf_posenc.{base.__name__}."
        )
    if existing is not None and qualified_name(existing) != qualified_name(new_class):
        raise ValueError(f"`{name}` is already the name of {existing.__name__}; choose another name.")


def qualified_name(new_class: type) -> tuple[str, str]:
    """Module and name of a class, which identify it when its code runs again."""
    return new_class.__module__, new_class.__qualname__
