"""The encoded source of a stream, and its decoder.

Both hold what a later step can attend to, and drop the rest.
"""

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from ..encodings.cache import EncodingState, state_of_cache
from ..transformer.modeling_posenc import PosEncForConditionalGeneration


class EncodedSource:
    """The encoder states of the part of the source that the decoder can still attend to.

    `num_read`: the source tokens that were read. `start`, `end`: the source positions of the first encoder state and
    after the last one. `ids`: the tokens from `first_id` on, which have no state yet or are the left margin of the next
    piece. `is_whole`: the end token has been read. `origin`: the source token from which the decoder counts positions.
    """

    # The most source tokens that are encoded at once. It bounds the memory, and outputs do not depend on it.
    tokens_per_piece = 256

    def __init__(self, model: PosEncForConditionalGeneration, encoder_reach: tuple[int, int]) -> None:
        self.model, (self.left, self.right) = model, encoder_reach
        self.ids: list[int] = []
        self.num_read = self.first_id = self.start = self.end = self.origin = 0
        self.is_whole = False
        self.states_1SD = torch.empty(1, 0, model.config.d_model, device=model.device, dtype=model.dtype)

    def append(self, ids: list[int]) -> None:
        """Read more of the source."""
        self.ids += ids
        self.num_read += len(ids)

    def encode_piece(self, first_key: int) -> bool:
        """Encode up to `tokens_per_piece` more tokens, and drop the states before `first_key`. False if none are fixed.

        The encoder counts each piece's positions from 0, which changes nothing: its encodings are shift-invariant.
        """
        num_fixed = self.num_read - (0 if self.is_whole else self.right)
        end = min(num_fixed, self.end + self.tokens_per_piece)
        if end <= self.end:
            return False
        piece = self.ids[: end + self.right - self.first_id]
        ids_1S = torch.tensor([piece], device=self.model.device)
        piece_1SD = self.model.get_encoder()(ids_1S).last_hidden_state
        new_1SD = piece_1SD[:, self.end - self.first_id : end - self.first_id]
        first_key = min(first_key, self.end)
        self.states_1SD = torch.cat((self.states_1SD[:, first_key - self.start :], new_1SD), dim=1)
        self.start, self.end = first_key, end
        next_id = max(self.first_id, end - self.left)
        self.ids, self.first_id = self.ids[next_id - self.first_id :], next_id
        return True


class StreamDecoder:
    """A model's decoder with the cache of one stream."""

    # After so many source tokens, positions are counted from another one. In float32 they are exact to 2^-9 there, and
    # would be whole numbers after 2^23 tokens.
    max_origin_distance = 2**15

    def __init__(self, model: PosEncForConditionalGeneration) -> None:
        self.model, self.alignment = model, model.model.decoder.alignment
        self.cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))

    def step(self, token: int, states_1SD: Tensor, source_start: int) -> tuple[Tensor, float]:
        """The logits (V) after one more target token, and the step's source position.

        `states_1SD` are the encoder states that the step can attend to, and `source_start` is the source position of
        the first one. They are those of the step before, unless `forget_source` was called since.
        """
        output = self.model(
            decoder_input_ids=torch.tensor([[token]], device=states_1SD.device),
            encoder_outputs=BaseModelOutput(states_1SD),
            position_ids=torch.arange(states_1SD.shape[1], device=states_1SD.device)[None] + source_start,
            cache=self.cache,
            use_cache=True,
        )
        return output.logits[0, -1], float(output.source_positions[0, -1])

    def forget_source(self) -> None:
        """Drop the keys of the source, because other encoder states follow, or other positions."""
        self.cache = EncoderDecoderCache(self.cache.self_attention_cache, DynamicCache(config=self.model.config))

    def next_source_position(self) -> float:
        """The source position of the next token."""
        return float(self.alignment("next_source_position", self.alignment_state())[0, 0])

    def shift_source_positions(self, distance: int) -> None:
        """Count source positions from another source token, `distance` tokens later."""
        self.alignment("shift_source_positions", self.alignment_state(), distance)

    def alignment_state(self) -> EncodingState:
        """The cached state of the alignment."""
        return state_of_cache(self.cache.self_attention_cache).scoped("cross")
