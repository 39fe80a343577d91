"""The decoder of a stream: its cache, and steps that read the part of the source that is there."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from ..alignments.base import Alignment
from ..encodings.cache import EncodingState, state_of_cache
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.modeling_posenc import PosEncForConditionalGeneration


class StreamDecoder(ABC):
    """A decoder with the cache of one stream."""

    # After so many source tokens, positions are counted from another one. In float32 they are exact to 2^-9 there, and
    # would be whole numbers after 2^23 tokens.
    max_origin_distance = 2**15

    def __init__(self, config: PosEncConfig, alignment: Alignment) -> None:
        self.config, self.alignment = config, alignment
        self.cache = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))

    @abstractmethod
    def step(self, ids_N1: Tensor, states_NSD: Tensor, source_start: int) -> tuple[Tensor, Tensor]:
        """The logits (N, V) after one more token of each hypothesis, and the step's source positions (N).

        `states_NSD` are the encoder states that the step can attend to, and `source_start` is the source position of
        the first one. They are those of the step before, unless `forget_source` was called since.
        """

    def forget_source(self) -> None:
        """Drop the keys of the source, because other encoder states follow, or other positions."""
        self.cache = EncoderDecoderCache(self.cache.self_attention_cache, DynamicCache(config=self.config))

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis i continues hypothesis `parents[i]`. All of them have the same source."""
        self.cache.self_attention_cache.reorder_cache(parents)

    def next_source_positions(self) -> list[float]:
        """The source position of each hypothesis' next token."""
        return self.alignment("next_source_position", self.alignment_state())[:, 0].tolist()

    def shift_source_positions(self, distance: int) -> None:
        """Count source positions from another source token, `distance` tokens later."""
        self.alignment("shift_source_positions", self.alignment_state(), distance)

    def alignment_state(self) -> EncodingState:
        """The cached state of the alignment."""
        return state_of_cache(self.cache.self_attention_cache).scoped("cross")


class TorchStreamDecoder(StreamDecoder):
    """The decoder of a model in torch."""

    def __init__(self, model: PosEncForConditionalGeneration) -> None:
        super().__init__(model.config, model.model.decoder.alignment)
        self.model = model

    def step(self, ids_N1: Tensor, states_NSD: Tensor, source_start: int) -> tuple[Tensor, Tensor]:
        positions_1S = torch.arange(states_NSD.shape[1], device=states_NSD.device)[None] + source_start
        output = self.model(
            decoder_input_ids=ids_N1,
            encoder_outputs=BaseModelOutput(states_NSD),
            position_ids=positions_1S,
            cache=self.cache,
            use_cache=True,
        )
        return output.logits[:, -1], output.source_positions[:, -1].cpu().double()
