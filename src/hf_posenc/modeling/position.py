# SPDX-License-Identifier: Apache-2.0
"""The interface that every position encoding answers, and its identity: an encoding that answers nothing is `none`.

Shape letters, here and in every file of this folder:
    B batch, T new tokens, D model width, H heads, Q queries, S keys, K width of a head, M width of what is remembered.

An encoding is a module made once for each attention it serves: the encoder's, the decoder's, the cross-attention. It
answers some of the hooks and leaves the others None; whoever attends asks which ones are there and never which encoding
it is. Every hook is given `at`, a Place, which says where the tokens are.

    training_positions(pos_BT, at) -> pos_BT
        Other positions than those the tokens have, in training only: drawn or shifted, once a forward, the same for all
        hooks and layers.
    embed(x_BTD, at) -> x_BTD
        Changes the dropped-out, scaled token embeddings; cross-attention has none and never asks.
    prepare(x_BTD, at) -> anything
        What all layers share, made once a forward from the embedded tokens; the hooks below find it as `at.prepared`.
    rotate_queries(q_BHQK, at) -> q_BHQK
    rotate_keys(k_BHTK, at) -> k_BHTK
        Change queries, at `at.queries_BQ`, and new keys, at `at.new_keys_BT`, before the keys are cached.
    score_bias(q_BHQK, k_BHSK, at) -> broadcasts to (B, H, Q, S)
        Is added to the scores, in score units (after 1/sqrt(K)). `q` is as it was before `rotate_queries`; `k` is as it
        is cached, after `rotate_keys`.
    value_bias(p_BHQS, at) -> broadcasts to (B, H, Q, K)
        Is added to the attended values; `p` are the attention weights after dropout.
    init_weights()
        Fills the encoding's own parameters, by transformers.initialization.

An encoding whose biases are read off the distance alone may say so, for attention in linear memory
(attention_by_distance.py): from `clip_distance` tokens on, to either side, it says the same of all keys, whatever they
are; math.inf if each distance has a bias of its own. Where `sees_far` is False, keys from there on are hidden; where
`keeps_width` is False, `rotate_queries` and `rotate_keys` return wider ones, and attention never goes by distance.

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

from .cache import Memory
from .place import Place

# Added to a score it leaves no weight in any precision; and a row of nothing else is still no row of infinities.
HIDDEN = -1e4

# The hooks that act on what a model computes; `training_positions` and `prepare` only say from what.
HOOKS = ("embed", "rotate_queries", "rotate_keys", "score_bias", "value_bias")


@dataclass(frozen=True)
class Knob:
    """A config field that an encoding brings: its default says its type (None: a whole number or None), `rule` in words
    what `holds` tests."""

    name: str
    default: Any
    rule: str
    holds: Callable[[Any], bool] = lambda value: True

    def check(self, value: Any) -> None:
        kinds = {float: (float, int), type(None): (int, type(None))}.get(type(self.default), (type(self.default),))
        if type(value) not in kinds or not self.holds(value):
            raise ValueError(
                f"`{self.name}` must be {self.rule}, but it is {value!r}; its default is {self.default!r}."
            )


class PositionEncoding(nn.Module):
    """The base of every encoding and, as it stands, the encoding `none`: order is invisible to the encoder.

    No parameters; defined at every length. Its facts are class attributes, which the laws test both ways:
    `summary`: one sentence. `shift_invariant`: adding a number to all positions changes nothing. `order_blind`: with
    attention in both directions, permuting the tokens permutes the outputs. `reversal_blind`: so does reversing them.
    `has_state`: cached decoding must keep more than keys, values and positions (`at.memory`). `needs_another`: it only
    changes what another encoding of the sum does. `silent_at_zero`: with all its parameters at zero it changes nothing,
    and learns from there; so it can join a trained model. `longest`: the knob that bounds the length, if one does.
    `knobs`: its config fields. `formula`: in the code's own symbols. `references`. `also_called`: what else one may
    write, wanting it; the error names it then.
    """

    summary: str
    shift_invariant: bool
    order_blind = False
    reversal_blind = False
    has_state = False
    needs_another = False
    silent_at_zero = False
    longest: str | None = None
    knobs: tuple[Knob, ...] = ()
    formula = ""
    references: tuple[Any, ...] = ()
    also_called: tuple[str, ...] = ()

    # What sets `none` apart from whoever inherits from this class.
    nothing = {
        "summary": "No position information: the encoder sees a bag of words.",
        "shift_invariant": True,
        "order_blind": True,
        "reversal_blind": True,
        "silent_at_zero": True,
    }

    clip_distance: float | None = None
    sees_far = True
    keeps_width = True

    training_positions: Callable[..., Tensor] | None = None
    embed: Callable[..., Tensor] | None = None
    prepare: Callable[..., Any] | None = None
    rotate_queries: Callable[..., Tensor] | None = None
    rotate_keys: Callable[..., Tensor] | None = None
    score_bias: Callable[..., Tensor] | None = None
    value_bias: Callable[..., Tensor] | None = None

    def __init__(self, config: Any, side: Any) -> None:
        """`side` is a configuration's Side: its heads, their width, its layers, whether it is causal."""
        super().__init__()
        self.config, self.side = config, side
        self.scaling = side.head_width**-0.5

    @classmethod
    def check(cls, config: Any, side: Any) -> None:
        """Raise a ValueError (rule, value, remedy) if this encoding cannot work under `config` on that side."""

    @classmethod
    def refuse_window(cls, side: Any, why: str) -> None:
        """For `check`: a ValueError where another encoding of the sum hides keys by their distance."""
        for name, entry in side.entries.items():
            if not entry.encoding.sees_far:
                raise ValueError(f"{side.encoding!r}: {cls.__name__} {why}; leave it or `{name}` out.")

    @classmethod
    def refuse_turned_keys(cls, side: Any, why: str) -> None:
        """For `check`: a ValueError where another encoding of the sum changes keys by their position."""
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


class PositionEncodings(nn.ModuleList):
    """The sum of some encodings, by their registered names, as the Transformer sees it: what changes something is
    applied from left to right, biases add."""

    def __init__(self, encodings: Mapping[str, PositionEncoding]) -> None:
        super().__init__(encodings.values())
        # Cached state is kept under these: two encodings may have classes of one name, or be wrapped in one class.
        self.names = list(encodings)
        # Who answers which hook is known once; where nobody does, asking costs next to nothing.
        self.answering = {hook: self.those_with(hook) for hook in (*HOOKS, "training_positions")}
        self.scores, self.values = (self.answered(hook) for hook in ("score_bias", "value_bias"))
        self.act_in_attention = any(self.answered(hook) for hook in HOOKS if hook != "embed")

    def __iter__(self) -> Iterator[PositionEncoding]:
        return super().__iter__()  # type: ignore[return-value]

    def those_with(self, hook: str) -> list[int]:
        """By number: which module that is may change, as when an adapter is put around it."""
        return [number for number, encoding in enumerate(self) if getattr(encoding, hook) is not None]

    def answered(self, hook: str) -> bool:
        return bool(self.answering[hook])

    def ask(self, hook: str, at: Place) -> list[tuple[PositionEncoding, Place]]:
        """The encodings that answer a hook, each with the place as it is for that encoding alone."""
        asked = []
        for number in self.answering[hook]:
            encoding: Any = self[number]
            memory = self.own_memory(number, at) if encoding.has_state else None
            asked.append((encoding, at.but(prepared=at.prepared and at.prepared[number], memory=memory)))
        return asked

    def own_memory(self, number: int, at: Place) -> Memory | None:
        """What cached decoding remembers for one of the encodings and no other."""
        return at.memory and at.memory.of(self.names[number], at.layer)

    @property
    def sees_far(self) -> bool:
        return all(encoding.sees_far for encoding in self)

    @property
    def clip_distance(self) -> int | None:
        """From where on all of them say the same of every key, or no key is seen; None if there is no such distance."""
        biases = {self[number] for hook in ("score_bias", "value_bias") for number in self.answering[hook]}
        distances: dict[Any, Any] = {encoding: encoding.clip_distance for encoding in biases}
        if not biases or None in distances.values():
            return None
        windows = [distance for encoding, distance in distances.items() if not encoding.sees_far]
        clip = min(windows) if windows else max(distances.values())
        return None if clip == math.inf else int(clip)

    @property
    def hidden_from(self) -> int | None:
        """From how many tokens on keys are hidden, None if they are not."""
        return None if self.sees_far else self.clip_distance

    def training_positions(self, pos_BT: Tensor, at: Place) -> Tensor:
        for encoding, place in self.ask("training_positions", at):
            pos_BT = encoding("training_positions", pos_BT, place)
        return pos_BT

    def prepare(self, x_BTD: Tensor, at: Place, near: Place | None = None) -> Place:
        """The place with what each encoding has prepared for all layers. `near` is the same place with those keys alone
        that are not hidden (near_keys.py), and stands in for it where biases go by distance."""
        near = at if near is None else near

        def prepared(number: int, encoding: PositionEncoding) -> Any:
            goes_by_distance = encoding.clip_distance is not None
            if encoding.prepare is None or (at.by_distance and goes_by_distance):  # which then prepares for each part
                return None
            place = near if goes_by_distance else at
            return encoding("prepare", x_BTD, place.but(memory=self.own_memory(number, place)))

        return near.but(prepared=[prepared(number, encoding) for number, encoding in enumerate(self)])

    def embed(self, x_BTD: Tensor, at: Place) -> Tensor:
        for encoding, place in self.ask("embed", at):
            x_BTD = encoding("embed", x_BTD, place)
        return x_BTD

    def rotate_queries(self, q_BHQK: Tensor, at: Place) -> Tensor:
        for encoding, place in self.ask("rotate_queries", at):
            q_BHQK = encoding("rotate_queries", q_BHQK, place)
        return q_BHQK

    def rotate_keys(self, k_BHTK: Tensor, at: Place) -> Tensor:
        for encoding, place in self.ask("rotate_keys", at):
            k_BHTK = encoding("rotate_keys", k_BHTK, place)
        return k_BHTK

    def score_bias(self, q_BHQK: Tensor, k_BHSK: Tensor, at: Place) -> Tensor:
        return reduce(torch.add, [e("score_bias", q_BHQK, k_BHSK, place) for e, place in self.ask("score_bias", at)])

    def value_bias(self, p_BHQS: Tensor, at: Place) -> Tensor:
        return reduce(torch.add, [e("value_bias", p_BHQS, place) for e, place in self.ask("value_bias", at)])
