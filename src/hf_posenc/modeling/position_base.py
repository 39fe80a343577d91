# SPDX-License-Identifier: Apache-2.0
"""The interface that every position encoding answers, and its identity: an encoding that answers nothing is `none`.

Shape letters, here and in every file of this folder:
    B batch, T new tokens, D model width, H heads, Q queries, S keys, K width of a head, M width of what is remembered.

An encoding is a module made once for each attention it serves: the encoder's, the decoder's, the cross-attention. It
answers some of the hooks and leaves the others None; whoever attends asks which ones are there and never which encoding
it is. Every hook is given `ctx`, an AttentionContext, which says where the tokens are.

    augment_positions(pos_BT, ctx) -> pos_BT
        Other positions than those the tokens have, in training only: drawn or shifted, once a forward, the same for all
        hooks and layers.
    embed(x_BTD, ctx) -> x_BTD
        Changes the dropped-out, scaled token embeddings; cross-attention has none and never asks.
    prepare(x_BTD, ctx) -> anything
        What all layers share, made once a forward from the embedded tokens; the hooks below find it as `ctx.prepared`.
    rotate_queries(q_BHQK, ctx) -> q_BHQK
    rotate_keys(k_BHTK, ctx) -> k_BHTK
        Change queries, at `ctx.query_pos_BQ`, and new keys, at `ctx.new_key_pos_BT`, before the keys are cached.
    score_bias(q_BHQK, k_BHSK, ctx) -> broadcasts to (B, H, Q, S)
        Is added to the scores, in score units (after 1/sqrt(K)). `q` is as it was before `rotate_queries`; `k` is as it
        is cached, after `rotate_keys`.
    value_bias(p_BHQS, ctx) -> broadcasts to (B, H, Q, K)
        Is added to the attended values; `p` are the attention weights after dropout.
    init_weights()
        Fills the encoding's own parameters, by transformers.initialization.

An encoding whose biases are read off the distance alone may say so, for attention in linear memory
(linear_attention.py): from `max_distance` tokens on, to either side, it says the same of all keys, whatever they
are; math.inf if each distance has a bias of its own. Where `is_global` is False, keys from there on are hidden; where
`preserves_head_dim` is False, `rotate_queries` and `rotate_keys` return wider ones, and attention never goes by
distance.

Positions are counted from 0, of shape (B, T) or (1, T). Hooks take positions and never lengths, which is why caching,
left padding and holes in a mask need no case of their own; whoever needs a count, counts what is visible.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from .attention_context import AttentionContext
from .cache import EncodingState

# Added to a score it leaves no weight in any precision; and a row of nothing else is still no row of infinities.
MASK_VALUE = -1e4

# The hooks that act on what a model computes; `augment_positions` and `prepare` only say from what.
HOOKS = ("embed", "rotate_queries", "rotate_keys", "score_bias", "value_bias")


@dataclass(frozen=True)
class EncodingParameter:
    """A config field that an encoding brings: its default says its type (None: a whole number or None), `constraint` in
    words what `is_valid` tests."""

    name: str
    default: Any
    constraint: str
    is_valid: Callable[[Any], bool] = lambda value: True

    def validate(self, value: Any) -> None:
        types = {float: (float, int), type(None): (int, type(None))}.get(type(self.default), (type(self.default),))
        if type(value) not in types or not self.is_valid(value):
            raise ValueError(
                f"`{self.name}` must be {self.constraint}, but it is {value!r}; its default is {self.default!r}."
            )


class PositionEncoding(nn.Module):
    """The base of every encoding and, as it stands, the encoding `none`: order is invisible to the encoder.

    No parameters; defined at every length. Its facts are class attributes, which the laws test both ways:
    `summary`: one sentence. `shift_invariant`: adding a number to all positions changes nothing.
    `permutation_equivariant`: with attention in both directions, permuting the tokens permutes the outputs.
    `reversal_equivariant`: so does reversing them. `is_stateful`: cached decoding must keep more than keys, values and
    positions (`ctx.state`). `is_modifier`: it only changes what another encoding of the sum does.
    `zero_init_is_identity`: with all its parameters at zero it changes nothing, and learns from there; so it can join a
    trained model. `max_length_field`: the parameter that bounds the length, if one does. `config_parameters`: its
    config fields. `formula`: in the code's own symbols. `references`. `aliases`: what else one may write, wanting it;
    the error names it then.
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
    references: tuple[Any, ...] = ()
    aliases: tuple[str, ...] = ()

    # What sets `none` apart from whoever inherits from this class.
    NONE = {
        "summary": "No position information: the encoder sees a bag of words.",
        "shift_invariant": True,
        "permutation_equivariant": True,
        "reversal_equivariant": True,
        "zero_init_is_identity": True,
    }

    max_distance: float | None = None
    is_global = True
    preserves_head_dim = True

    augment_positions: Callable[..., Tensor] | None = None
    embed: Callable[..., Tensor] | None = None
    prepare: Callable[..., Any] | None = None
    rotate_queries: Callable[..., Tensor] | None = None
    rotate_keys: Callable[..., Tensor] | None = None
    score_bias: Callable[..., Tensor] | None = None
    value_bias: Callable[..., Tensor] | None = None

    def __init__(self, config: Any, side: Any) -> None:
        """`side` is a configuration's StackSpec: its heads, their width, its layers, whether it is causal."""
        super().__init__()
        self.config, self.side = config, side
        self.scaling = side.head_dim**-0.5

    @classmethod
    def validate(cls, config: Any, side: Any) -> None:
        """Raise a ValueError (rule, value, remedy) if this encoding cannot work under `config` on that side."""

    @classmethod
    def require_global(cls, side: Any, why: str) -> None:
        """For `validate`: a ValueError where another encoding of the sum hides keys by their distance."""
        for name, entry in side.entries.items():
            if not entry.encoding.is_global:
                raise ValueError(f"{side.encoding!r}: {cls.__name__} {why}; leave it or `{name}` out.")

    @classmethod
    def require_unrotated_keys(cls, side: Any, why: str) -> None:
        """For `validate`: a ValueError where another encoding of the sum changes keys by their position."""
        for name, entry in side.entries.items():
            if entry.encoding is not cls and entry.encoding.rotate_keys is not None:
                raise ValueError(
                    f"{side.encoding!r}: {cls.__name__} {why}, but `{name}` turns keys by their position; leave one "
                    "of them out."
                )

    def init_weights(self) -> None:
        """Nothing to fill: there are no parameters."""

    def forward(self, hook: str, *arguments: Any) -> Any:
        """What a hook answers. Offloading brings a module's parameters for its `forward`, and for nothing else."""
        return getattr(self, hook)(*arguments)


class PositionEncodingSum(nn.ModuleList):
    """The sum of some encodings, by their registered names, as the Transformer sees it: what changes something is
    applied from left to right, biases add."""

    def __init__(self, encodings: Mapping[str, PositionEncoding]) -> None:
        super().__init__(encodings.values())
        # Cached state is kept under these: two encodings may have classes of one name, or be wrapped in one class.
        self.names = list(encodings)
        # Who answers which hook is known once; where nobody does, asking costs next to nothing.
        self.hook_table = {hook: self.hook_indices(hook) for hook in (*HOOKS, "augment_positions")}
        self.has_score_bias, self.has_value_bias = (self.has_hook(hook) for hook in ("score_bias", "value_bias"))
        self.modifies_attention = any(self.has_hook(hook) for hook in HOOKS if hook != "embed")

    def __iter__(self) -> Iterator[PositionEncoding]:
        return super().__iter__()  # type: ignore[return-value]

    def hook_indices(self, hook: str) -> list[int]:
        """By number: which module that is may change, as when an adapter is put around it."""
        return [index for index, encoding in enumerate(self) if getattr(encoding, hook) is not None]

    def has_hook(self, hook: str) -> bool:
        return bool(self.hook_table[hook])

    def contexts_for(self, hook: str, ctx: AttentionContext) -> list[tuple[PositionEncoding, AttentionContext]]:
        """The encodings that answer a hook, each with the place as it is for that encoding alone."""
        contexts = []
        for index in self.hook_table[hook]:
            encoding: Any = self[index]
            state = self.state_of(index, ctx) if encoding.is_stateful else None
            contexts.append((encoding, ctx.replace(prepared=ctx.prepared and ctx.prepared[index], state=state)))
        return contexts

    def state_of(self, index: int, ctx: AttentionContext) -> EncodingState | None:
        """What cached decoding remembers for one of the encodings and no other."""
        return ctx.state and ctx.state.scoped(self.names[index], ctx.layer)

    @property
    def is_global(self) -> bool:
        return all(encoding.is_global for encoding in self)

    @property
    def max_distance(self) -> int | None:
        """From where on all of them say the same of every key, or no key is seen; None if there is no such distance."""
        biases = {self[index] for hook in ("score_bias", "value_bias") for index in self.hook_table[hook]}
        distances: dict[Any, Any] = {encoding: encoding.max_distance for encoding in biases}
        if not biases or None in distances.values():
            return None
        windows = [distance for encoding, distance in distances.items() if not encoding.is_global]
        clip = min(windows) if windows else max(distances.values())
        return None if clip == math.inf else int(clip)

    @property
    def sliding_window(self) -> int | None:
        """From how many tokens on keys are hidden, None if they are not."""
        return None if self.is_global else self.max_distance

    def augment_positions(self, pos_BT: Tensor, ctx: AttentionContext) -> Tensor:
        for encoding, own_ctx in self.contexts_for("augment_positions", ctx):
            pos_BT = encoding("augment_positions", pos_BT, own_ctx)
        return pos_BT

    def prepare(
        self, x_BTD: Tensor, ctx: AttentionContext, pruned_ctx: AttentionContext | None = None
    ) -> AttentionContext:
        """The place with what each encoding has prepared for all layers. `pruned_ctx` is the same place with those keys
        alone that are not hidden (window_pruning.py), and stands in for it where biases go by distance."""
        pruned_ctx = ctx if pruned_ctx is None else pruned_ctx

        def prepare_one(index: int, encoding: PositionEncoding) -> Any:
            has_max_distance = encoding.max_distance is not None
            if encoding.prepare is None or (
                ctx.use_linear_attention and has_max_distance
            ):  # which then prepares for each part
                return None
            own_ctx = pruned_ctx if has_max_distance else ctx
            return encoding("prepare", x_BTD, own_ctx.replace(state=self.state_of(index, own_ctx)))

        return pruned_ctx.replace(prepared=[prepare_one(index, encoding) for index, encoding in enumerate(self)])

    def embed(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        for encoding, own_ctx in self.contexts_for("embed", ctx):
            x_BTD = encoding("embed", x_BTD, own_ctx)
        return x_BTD

    def rotate_queries(self, q_BHQK: Tensor, ctx: AttentionContext) -> Tensor:
        for encoding, own_ctx in self.contexts_for("rotate_queries", ctx):
            q_BHQK = encoding("rotate_queries", q_BHQK, own_ctx)
        return q_BHQK

    def rotate_keys(self, k_BHTK: Tensor, ctx: AttentionContext) -> Tensor:
        for encoding, own_ctx in self.contexts_for("rotate_keys", ctx):
            k_BHTK = encoding("rotate_keys", k_BHTK, own_ctx)
        return k_BHTK

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, ctx: AttentionContext) -> Tensor:
        return reduce(
            torch.add, [e("score_bias", q_BHQK, k_BHSK, own_ctx) for e, own_ctx in self.contexts_for("score_bias", ctx)]
        )

    def value_bias(self, p_BHQS: Tensor, ctx: AttentionContext) -> Tensor:
        return reduce(
            torch.add, [e("value_bias", p_BHQS, own_ctx) for e, own_ctx in self.contexts_for("value_bias", ctx)]
        )
