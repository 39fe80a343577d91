"""What a figure of an encoding is of: one side of a model, new or from a checkpoint, checked before it is computed."""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from ..from_checkpoint import from_checkpoint
from ..manifest import COPY_AGAIN, check_folder
from ..modeling.configuration_posenc import PosEncConfig
from ..modeling.position import HOOKS, PositionEncodings
from ..modeling.positions import build_position_encodings, parts_of
from ..training.checkpoints import check_weights
from .encoding_values import SEED, adds_by_position, normal

# The width of a new model: for vectors that are added, as the literature's pictures have it; for attention, the
# default, with its heads; for what is read token by token, narrow, because its picture costs D backward passes a token.
USES = {"vectors": 50, "narrower vectors": 20, "attention": 512, "influence": 64}
HEADS = 8
SENTENCES = 2
LARGEST = 2**26  # numbers in one array; in float64 half a GiB


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much is drawn: the first `positions`, `many` of them, `distances` either way, sentences of `tokens`; random
    `queries`, and `channels` of a head that are shown one by one, at most."""

    positions: int = 20
    many: int = 45000
    distances: int = 32
    tokens: int = 24
    queries: int = 256
    channels: int = 64

    def __post_init__(self) -> None:
        for name, least in (
            ("positions", 3),
            ("many", 3),
            ("distances", 1),
            ("tokens", 2),
            ("queries", 1),
            ("channels", 1),
        ):
            if (value := getattr(self, name)) < least:
                raise ValueError(
                    f"`{name}` must be {least} or more, or there is no figure, but it is {value}; raise it."
                )

    def within(self, longest: int | None) -> "Extent":
        """As much of it as an encoding has that knows `longest` positions."""
        if longest is None:
            return self
        if longest < 3:
            raise ValueError(
                f"A figure shows at least 3 positions, but the encoding has {longest}; lengthen its table."
            )
        most = {"positions": longest, "many": longest, "distances": (longest - 1) // 2, "tokens": longest}
        return replace(self, **{name: min(getattr(self, name), limit) for name, limit in most.items()})


class Subject:
    """One side's encodings, with the sizes of its model. The model is made, or read, when it is first asked for.

    A ValueError for what cannot be drawn, before that.
    """

    def __init__(
        self, config: Any, side: str, extent: Extent, model: Callable[[], Any], *, trained: bool = False
    ) -> None:
        sizes = config.side(side)
        self.name: str = sizes.encoding
        self.side, self.trained = side, trained
        self.entries = sizes.entries
        self.made = cache(lambda: model().double().eval())
        self.longest = config.longest(sizes)
        self.extent = extent.within(self.longest)
        self.width: int = config.d_model
        self.layers, self.heads = sizes.layers, sizes.heads
        if min(self.width, self.layers, self.heads) < 1:
            raise ValueError(
                f"A figure needs a width, a layer and a head, but d_model={self.width}, {side}_layers={self.layers} "
                f"and {side}_attention_heads={self.heads}; raise them."
            )
        self.head_width = sizes.head_width
        self.check_size()
        build = partial(build_position_encodings, config, sizes)
        self.built = cache(lambda: build().double().eval())
        with torch.device("meta"):
            empty = build()
        self.answers = [hook for hook in HOOKS if empty.answered(hook)]
        self.parameters = sum(parameter.numel() for parameter in empty.parameters())
        self.has_weights = bool(empty.state_dict())

    def showing(self, extent: Extent) -> "Subject":
        """The same encodings with another extent, whether or not they know so many positions: their hooks will say."""
        other = copy(self)  # with the same `made`
        other.extent = extent
        other.check_size()
        return other

    def check_size(self) -> None:
        reach = 2 * self.extent.distances + 1
        for what, size in (
            (f"d_model={self.width}", self.width**2),
            (f"positions={self.extent.positions} of d_model={self.width}", self.extent.positions * self.width),
            (f"many={self.extent.many} of d_model={self.width}", self.extent.many * self.width),
            (
                f"distances={self.extent.distances}",
                reach * max(reach, self.heads * (self.head_width + self.extent.queries)),
            ),
            (f"tokens={self.extent.tokens} of d_model={self.width}", self.extent.tokens * self.width**2),
        ):
            if size > LARGEST:
                raise ValueError(f"A figure is made of at most {LARGEST} numbers, but {what} needs {size}; lower it.")

    @property
    def stack(self) -> Any:
        return getattr(self.made(), f"get_{self.side}")()

    @property
    def positions(self) -> PositionEncodings:
        """Those of the model; without weights, no model is needed."""
        return self.stack.positions if self.has_weights else self.built()

    @cached_property
    def adds_by_position(self) -> bool:
        return adds_by_position(self.positions, self.width, self.longest)

    @property
    def attention_is_shift_invariant(self) -> bool:
        """Whether what is done to attention sees the distance alone, as the registry has it."""
        return all(one.shift_invariant for one in self.entries.values() if one.acts_in_attention)

    @property
    def distances(self) -> np.ndarray:
        """Those that attention can have: in a decoder, none behind the query."""
        return np.arange(-self.extent.distances, 1 if self.side == "decoder" else self.extent.distances + 1)

    @property
    def in_words(self) -> str:
        state = (" (trained)" if self.trained else " (untrained)") if self.parameters else ""
        return f"{self.name}{state}, {self.side}" if self.side == "decoder" or self.trained else f"{self.name}{state}"

    def sentences(self) -> Tensor:
        """What `embed` reads (N, T, D): a trained model's own tokens, at random; else numbers of deviation 1."""
        if not self.trained:
            return normal(SENTENCES, self.extent.tokens, self.width)
        shape, chance = (SENTENCES, self.extent.tokens), torch.Generator().manual_seed(SEED)
        ids = torch.randint(self.stack.embed_tokens.num_embeddings, shape, generator=chance)
        return self.stack.embed(ids, None).detach()


def new_subjects(
    name: str, settings: Mapping[str, Any], side: str, extent: Extent, widths: Mapping[str, int] = USES
) -> dict[str, Subject]:
    """A registered encoding or a sum, untrained, for each use; `settings` are fields of the config, `widths` d_model
    where they have none."""
    parts_of(name)
    small = {"vocab_size": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 1, "decoder_ffn_dim": 1}
    subjects = {}
    for use, width in widths.items():
        given = {key: value for key, value in settings.items() if use == "attention" or "heads" not in key}
        width = settings.get("d_model", width)
        several = use == "attention" and isinstance(width, int) and not width % (2 * HEADS)
        heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS if several else 1)
        try:
            config = PosEncConfig(**(small | heads | {"d_model": width} | given | {"position_encoding_type": name}))
        except StrictDataclassError as error:  # a value of another type, in two lines and without a remedy
            raise ValueError(f"{' '.join(str(error).split())}; give it such a value.") from error
        subjects[use] = Subject(config, side, extent, partial(new_model, config))
    return subjects


def new_model(config: Any) -> Any:
    """As training would begin; the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return AutoModelForSeq2SeqLM.from_config(config)


def trained_subjects(folder: Path, side: str, extent: Extent) -> dict[str, Subject]:
    """The encoding of a saved model, for every use the same."""
    check_folder(folder, COPY_AGAIN)
    config = from_checkpoint(AutoConfig, folder)
    if config.model_type != PosEncConfig.model_type:
        raise ValueError(
            f"Figures of an encoding need a model that has one (model_type={PosEncConfig.model_type!r}), but {folder} "
            f"is of model_type={config.model_type!r}; name a Transformer's folder."
        )
    check_weights(folder)
    return dict.fromkeys(
        USES, Subject(config, side, extent, lambda: from_checkpoint(AutoModelForSeq2SeqLM, folder), trained=True)
    )
