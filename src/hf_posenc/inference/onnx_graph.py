"""ONNX graphs in onnxruntime sessions, and the cache that their decoding steps return."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .export_validation import missing_extra_error

# Part of the names of keys, values and states of the source. Every beam of a sentence has the same ones.
CROSS_CACHE = "cross_attention_cache"
# The positions of the new target tokens.
TARGET_POSITIONS = "decoder_position_ids"


def import_onnxruntime() -> ModuleType:
    """The package; a ValueError with the command that installs it."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise missing_extra_error("onnx", "onnxruntime") from None
    return onnxruntime


class OnnxGraph:
    """A graph in an onnxruntime session. Inputs and outputs are arrays of onnxruntime (OrtValue), by name.

    A cached tensor has one name as an input and as an output.
    """

    def __init__(self, path: Path, threads: int) -> None:
        onnxruntime = import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors only
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = {spec.name: spec.name.removeprefix("input.") for spec in self.session.get_inputs()}
        self.outputs = {spec.name: spec.name.removeprefix("output.") for spec in self.session.get_outputs()}

    def __call__(self, inputs: Mapping[str, Any], known: Iterable[str] = ()) -> dict[str, Any]:
        """The outputs, except those that are `known`, which are not computed."""
        skipped = set(known)
        wanted = {name: key for name, key in self.outputs.items() if key not in skipped}
        feed = {name: inputs[key] for name, key in self.inputs.items()}
        return dict(zip(wanted.values(), self.session.run_with_ort_values(list(wanted), feed), strict=True))


class OnnxCache:
    """Keys, values and states of the tokens so far, arrays of onnxruntime by name. They never become torch's."""

    def __init__(self, arrays: dict[str, Any], length: int) -> None:
        self.arrays, self.length = arrays, length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many target tokens are cached."""
        return self.length

    def of_source(self) -> dict[str, Any]:
        """The arrays of the source, which no step changes."""
        return {name: array for name, array in self.arrays.items() if CROSS_CACHE in name}

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes row `beam_idx[i]`. Both are beams of one sentence, and therefore the source's rows stay."""
        rows = beam_idx.numpy()
        if (rows == torch.arange(len(rows)).numpy()).all():
            return
        for name, array in self.arrays.items():
            if CROSS_CACHE not in name:
                self.arrays[name] = to_array(torch.from_numpy(array.numpy())[beam_idx])


def to_array(tensor: Tensor) -> Any:
    """A tensor as an array of onnxruntime, which reads the tensor's memory."""
    return import_onnxruntime().OrtValue.ortvalue_from_numpy(tensor.contiguous().numpy())
