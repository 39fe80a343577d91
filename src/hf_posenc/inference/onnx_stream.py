"""The decoder of a stream as ONNX graphs.

`prefill` projects the keys of each piece of the source, `decode` takes all steps but the first. The cache is that of a
stream in torch, which drops the target tokens that no later token can attend to.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..alignments.registry import build_alignment
from ..encodings.cache import evict_outside_window
from ..encodings.registry import build_position_encodings
from .onnx_graph import TARGET_POSITIONS, OnnxCache, to_array
from .onnx_model import ENCODER_STATES, LOGITS, SOURCE_POSITIONS, PosEncOnnxModel
from .stream_decoder import StreamDecoder

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
