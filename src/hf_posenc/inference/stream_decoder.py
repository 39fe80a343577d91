"""The encoded source of a stream and its decoder, in torch and as ONNX graphs; greedy and beam search.

The steps read the part of the source that is there. Of the graphs, `prefill` projects the keys of each piece of the
source, and `decode` takes all steps but the first. The cache is that of a stream in torch, which drops the target
tokens that no later token can attend to.

Both searches take the logits of one step at a time, and give out the tokens that no later step can change: for greedy
search each token, for beam search those that all hypotheses share.

Beam search is that of transformers' `generate`, step by step and in float32: its candidates, length penalty and early
stopping. It can be streamed because end tokens are allowed only at the end of the source: before it no hypothesis
finishes, and therefore neither the penalty nor the length limit has an effect.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from ..alignments.base import Alignment
from ..alignments.registry import build_alignment
from ..encodings.cache import EncodingState, evict_outside_window, state_of_cache
from ..encodings.registry import build_position_encodings
from ..generation.limits import explicit_option, force_token
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from .onnx_engine import (
    ENCODER_STATES,
    LOGITS,
    SOURCE_POSITIONS,
    TARGET_POSITIONS,
    OnnxCache,
    PosEncOnnxModel,
    to_array,
)

# A model whose reach is known, in torch or as ONNX graphs.
StreamingModel = PosEncForConditionalGeneration | PosEncOnnxModel


class EncodedSource:
    """The encoder states of the part of the source that the decoder can still attend to.

    `num_read`: the source tokens that were read. `start`, `end`: the source positions of the first encoder state and
    after the last one. `ids`: the tokens from `first_id` on, which have no state yet or are the left margin of the next
    piece. `is_whole`: the end token has been read. `origin`: the source token from which the decoder counts positions.
    """

    # The most source tokens that are encoded at once. It bounds the memory, and outputs do not depend on it.
    tokens_per_piece = 256

    def __init__(self, model: StreamingModel, encoder_reach: tuple[int, int]) -> None:
        self.model, (self.left, self.right) = model, encoder_reach
        self.ids: list[int] = []
        self.num_read = self.first_id = self.start = self.end = self.origin = 0
        self.is_whole = False
        self.states_BSD: Tensor | None = None

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
        ids_BS = torch.tensor([piece], device=self.model.device)
        piece_BSD = self.model.get_encoder()(ids_BS).last_hidden_state
        new_BSD = piece_BSD[:, self.end - self.first_id : end - self.first_id]
        if self.states_BSD is not None:
            first_key = min(first_key, self.end)
            new_BSD = torch.cat((self.states_BSD[:, first_key - self.start :], new_BSD), dim=1)
            self.start = first_key
        self.states_BSD, self.end = new_BSD, end
        next_id = max(self.first_id, end - self.left)
        self.ids, self.first_id = self.ids[next_id - self.first_id :], next_id
        return True

    def states(self, num_hypotheses: int) -> Tensor:
        """The encoder states of a decoding step (N, S, D), the same for all hypotheses."""
        assert self.states_BSD is not None  # a step follows the first piece
        return self.states_BSD.expand(num_hypotheses, -1, -1)


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


# In the names of the target's keys, values and states: what stands before a layer's number, and before a state's name.
TARGET_CACHE, STATE = "self_attention_cache.layers.", "states."


class OnnxStreamDecoder(StreamDecoder):
    """The decoder of an exported model."""

    max_origin_distance = 1  # the graphs count positions from the first encoder state

    def __init__(self, model: PosEncOnnxModel) -> None:
        super().__init__(model.config, build_alignment(model.config))
        self.model = model
        self.window = build_position_encodings(model.config, model.config.side("decoder")).hiding_distance
        names = [name for name in model.graphs["decode"].inputs.values() if TARGET_CACHE in name]
        self.target_names = {name: name.partition(TARGET_CACHE)[2].partition(".")[::2] for name in names}
        self.source: dict[str, Any] = {}  # the encoder states of a piece, their mask, and their keys and values

    def forget_source(self) -> None:
        self.source = {}

    def step(self, ids_N1: Tensor, states_NSD: Tensor, source_start: int) -> tuple[Tensor, Tensor]:
        assert source_start == 0
        own_cache = self.cache.self_attention_cache
        if self.window is not None:
            evict_outside_window(own_cache, self.window)
        num_cached = own_cache.get_seq_length()
        new = {"decoder_input_ids": ids_N1, TARGET_POSITIONS: torch.full_like(ids_N1, num_cached)}
        inputs = {name: to_array(tensor) for name, tensor in new.items()}
        if not self.source:
            mask_NS = torch.ones(states_NSD.shape[:2], dtype=torch.long)
            self.source = {"attention_mask": to_array(mask_NS), ENCODER_STATES: to_array(states_NSD)}
            outputs, cache = self.model.step(inputs | self.source, None)
            self.source |= cache.of_source()
        if num_cached:
            cache = OnnxCache(self.source | self.target_arrays(), num_cached)
            outputs, cache = self.model.step(inputs | self.source, cache)
        self.keep_target(cache.arrays)
        return outputs[LOGITS][:, -1], outputs[SOURCE_POSITIONS][:, -1].double()

    def target_arrays(self) -> dict[str, Any]:
        """The cached keys, values and states of the target, as arrays of onnxruntime by their names in the graphs."""
        arrays = {}
        for name, (number, part) in self.target_names.items():
            layer = self.cache.self_attention_cache.layers[int(number)]
            is_state = part.startswith(STATE)
            arrays[name] = to_array(layer.states[part.removeprefix(STATE)] if is_state else getattr(layer, part))
        return arrays

    def keep_target(self, arrays: Mapping[str, Any]) -> None:
        """Cache the keys, values and states that a step has returned."""
        for name, (number, part) in self.target_names.items():
            layer, tensor = self.cache.self_attention_cache.layers[int(number)], torch.from_numpy(arrays[name].numpy())
            layer.is_initialized = True
            if part.startswith(STATE):
                layer.states[part.removeprefix(STATE)] = tensor
            else:
                setattr(layer, part, tensor)


# The score of what cannot be chosen, as in transformers.
EXCLUDED_SCORE = -1.0e9


class GreedySearch:
    """The best token at each step.

    `last_tokens` are the inputs of the next step, one for each hypothesis. `parents` are the hypotheses of the step
    before that they continue, None for the same ones. `num_tokens` counts the tokens of a hypothesis without end token.
    `is_exact` is False after hypotheses were given up.
    """

    is_exact = True

    def __init__(self, start_token: int, end_token_ids: list[int]) -> None:
        self.end_token_ids, self.last_tokens = end_token_ids, [start_token]
        self.parents: Tensor | None = None
        self.num_tokens = 0
        self.has_ended = self.truncated = False
        self.fixed: list[int] = []

    def step(self, logits_NV: Tensor, may_end: list[bool], must_end: list[bool], max_target_length: int) -> None:
        """Take the logits of the next token (N, V).

        `may_end` says for each hypothesis whether an end token is allowed, and `must_end` whether it is all that is
        allowed. `max_target_length` is the length limit of the source that has been read.
        """
        if must_end[0]:
            self.end_at_limit()
            return
        scores_V = logits_NV[0]
        if not may_end[0]:
            scores_V[self.end_token_ids] = float("-inf")
        self.last_tokens = [int(scores_V.argmax())]
        if self.last_tokens[0] in self.end_token_ids:
            self.has_ended = True
        else:
            self.num_tokens += 1
            self.fixed += self.last_tokens

    def end_at_limit(self) -> None:
        """End where the translation has reached its length limit."""
        self.has_ended = self.truncated = True

    def take_fixed(self) -> list[int]:
        """The tokens that have been fixed since the last call."""
        fixed, self.fixed = self.fixed, []
        return fixed


@dataclass(frozen=True)
class Finished:
    """A hypothesis with an end token: its score by the length penalty, and its unfixed tokens."""

    score: Tensor
    tokens: list[int]
    truncated: bool


class BeamSearch:
    """The `num_beams` best hypotheses at each step, with the attributes of GreedySearch.

    `length_penalty` and `early_stopping` are those of the generation config.
    """

    # Hypotheses that share none of this many tokens are given up, except the best one, or memory would grow without
    # end.
    max_unfixed_tokens = 4096
    # Scores below are counted from the best one, because in float32 a sum of more has too few decimals.
    min_score = -(2.0**16)

    def __init__(
        self, num_beams: int, start_token: int, end_token_ids: list[int], generation_config: GenerationConfig
    ) -> None:
        self.num_beams, self.end_token_ids = num_beams, end_token_ids
        length_penalty = explicit_option("length_penalty", {}, generation_config)
        self.length_penalty = 1.0 if length_penalty is None else length_penalty
        self.early_stopping = explicit_option("early_stopping", {}, generation_config) or False
        self.last_tokens = [start_token] * num_beams
        self.parents: Tensor | None = None
        self.num_tokens = 0
        self.has_ended = self.truncated = False
        self.is_exact = True
        self.scores_N = torch.tensor([0.0] + [EXCLUDED_SCORE] * (num_beams - 1))
        self.score_origin = 0.0
        self.unfixed: list[list[int]] = [[] for _ in range(num_beams)]
        self.finished: list[Finished] = []

    def step(self, logits_NV: Tensor, may_end: list[bool], must_end: list[bool], max_target_length: int) -> None:
        """As GreedySearch's."""
        scores_NV = logits_NV.float().log_softmax(-1).cpu()
        for row, allowed in enumerate(may_end):
            if not allowed:
                scores_NV[row, self.end_token_ids] = float("-inf")
        scores_NV = force_token(scores_NV, torch.tensor(must_end), self.end_token_ids[0])
        num_candidates = max(2, 1 + len(self.end_token_ids)) * self.num_beams
        scores_C, index_C = (scores_NV + self.scores_N[:, None]).flatten().topk(num_candidates)
        parents_C, tokens_C = index_C // scores_NV.shape[1], index_C % scores_NV.shape[1]
        is_end_C = torch.isin(tokens_C, torch.tensor(self.end_token_ids, dtype=tokens_C.dtype))
        self.num_tokens += 1
        for rank in range(self.num_beams):  # further candidates only replace those that end here
            if is_end_C[rank]:
                parent = int(parents_C[rank])
                self.add_finished(scores_C[rank], self.unfixed[parent], self.num_tokens, truncated=must_end[parent])
        best_N = (scores_C + is_end_C.float() * EXCLUDED_SCORE).topk(self.num_beams).indices
        self.scores_N, self.parents = scores_C[best_N] + is_end_C[best_N].float() * EXCLUDED_SCORE, parents_C[best_N]
        self.last_tokens = tokens_C[best_N].tolist()
        self.unfixed = [
            [*self.unfixed[parent], token]
            for parent, token in zip(self.parents.tolist(), self.last_tokens, strict=True)
        ]
        if not self.can_improve(max_target_length):
            self.end(self.finished[0])
        elif len(self.unfixed[0]) > self.max_unfixed_tokens and not self.finished:
            self.keep_best_prefix()
        if self.scores_N[0] < self.min_score:  # differences of similar numbers are exact
            self.score_origin += float(self.scores_N[0])
            self.scores_N = self.scores_N - self.scores_N[0]

    def add_finished(self, score: Tensor, unfixed: list[int], length: int, *, truncated: bool = False) -> None:
        """Add a hypothesis that ends here, and keep the best `num_beams` of them."""
        penalized = (score + self.score_origin) / (length**self.length_penalty)
        self.finished.append(Finished(penalized, list(unfixed), truncated))
        self.finished.sort(key=lambda hypothesis: float(hypothesis.score), reverse=True)
        del self.finished[self.num_beams :]

    def can_improve(self, max_target_length: int) -> bool:
        """Whether a running hypothesis may still be better than a finished one, by transformers' rule."""
        if len(self.finished) < self.num_beams:
            return True
        if self.early_stopping is True:
            return False
        length = self.num_tokens
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = max_target_length + 1
        best_possible = (self.scores_N[0] + self.score_origin) / (length**self.length_penalty)
        return bool(best_possible > self.finished[-1].score)

    def end_at_limit(self) -> None:
        """End all hypotheses where they have reached the length limit, with an end token that is no choice."""
        for score, unfixed in zip(self.scores_N, self.unfixed, strict=True):
            self.add_finished(score, unfixed, self.num_tokens + 1, truncated=True)
        self.end(self.finished[0])

    def end(self, best: Finished) -> None:
        """End with this hypothesis, whose tokens are fixed thereby."""
        self.has_ended, self.truncated = True, best.truncated
        self.finished, self.unfixed = [], [best.tokens]

    def keep_best_prefix(self) -> None:
        """Give up the hypotheses whose first unfixed token is not that of the best one, which takes their rows."""
        assert self.parents is not None  # it is called after a step
        self.is_exact = False
        for row, tokens in enumerate(self.unfixed):
            if tokens[0] != self.unfixed[0][0]:
                self.unfixed[row], self.last_tokens[row] = list(self.unfixed[0]), self.last_tokens[0]
                self.parents[row], self.scores_N[row] = self.parents[0], EXCLUDED_SCORE

    def take_fixed(self) -> list[int]:
        """The tokens that all hypotheses share and that were not taken before."""
        hypotheses = [*self.unfixed, *(hypothesis.tokens for hypothesis in self.finished)]
        num_fixed = 0
        for next_tokens in zip(*hypotheses, strict=False):
            if len(set(next_tokens)) > 1:
                break
            num_fixed += 1
        fixed = self.unfixed[0][:num_fixed]
        for tokens in hypotheses:
            del tokens[:num_fixed]
        return fixed
