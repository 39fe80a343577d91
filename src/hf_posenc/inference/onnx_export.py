"""Export of trained models to ONNX graphs by transformers' exporter, with free batch size and lengths.

The graphs are `encoder`, `prefill` and `decode`. `prefill` is the decoder's first step, which reads the start token and
makes the cache; `decode` reads one more token, at a given position, because a stream drops cached tokens.
"""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache, PreTrainedTokenizerBase

from ..encodings.cache import EvictingLayer
from ..generation.limits import POSITION_OPTIONS, GenerateOptions
from ..generation.model_inputs import CACHE_NAME, get_cache
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from ..utils.manifest import save_folder
from .export_validation import missing_extra_error, recurrent_modules, validate_export_call
from .onnx_graph import TARGET_POSITIONS

if TYPE_CHECKING:
    from transformers.exporters import OnnxExporter
    from transformers.exporters.base import ExportedModel

# A module to export and the inputs to trace it with.
Component = tuple[nn.Module, Mapping[str, object]]
DecomposeFunction = Callable[..., dict[str, Component]]

# Sizes of the traced inputs, and the cached tokens of `decode`; a trace would take a size of 1 for a constant.
BATCH_SIZE, SOURCE_LENGTH, CACHED_LENGTH = 3, 9, 4
# Standard output, log level and warnings belong to the process: two exports would restore them in a wrong order.
OUTPUT_LOCK = Lock()


def to_onnx(
    model: PosEncForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    quantization: str | None = None,
) -> Path:
    """Write a trained model with its config and tokenizer as a folder of ONNX graphs: encoder and cached decoding.

    The graphs take any batch size and length. `PosEncOnnxModel.from_pretrained(folder)` translates with them in
    onnxruntime, and transformers' `ExportedModel` loads them too. With `quantization="int8"` matrix products are
    computed in int8. Weights have a scale for each output channel, activations one for each product of a batch. Returns
    the folder. Needs the extra "onnx", and transformers 5.23 or newer.

    Raises a ValueError, before anything is written, for recurrent layers (torch exports them for one length only), a
    folder that exists, another quantization, and a missing extra.
    """
    folder = Path(folder)
    if quantization not in (None, "int8"):
        raise ValueError(f"quantization must be int8 for ONNX, but it is {quantization!r}; leave it out for float32.")
    exporter, exported_model, decompose = import_exporters()
    validate_export_call(model, tokenizer, folder, "ONNX")
    if recurrent := recurrent_modules(model):
        raise ValueError(
            "torch exports recurrent layers for one length only, and an ONNX graph must have none, but the model has "
            f"{', '.join(recurrent)}; translate with `model.translate`."
        )
    model = deepcopy(model)
    model.eval().to("cpu", torch.float32)
    components = {}
    for name, (module, inputs) in export_components(model, decompose).items():
        try:
            with suppress_output():
                made = exporter.export(module, inputs, exporter.config_class(dynamic=True))
        except Exception as error:
            raise export_error(model, f"the export of the graph {name!r} fails", error) from error
        components[name] = made.components["model"]
    exported = exported_model(components, exporter.export_format, model.config, model.generation_config)
    verify_outputs(model, exported)
    if quantization:
        quantize_graphs(exported)

    def save(unfinished: Path) -> None:
        exported.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)

    save_folder(folder, save)
    return folder


def quantize_graphs(exported: "ExportedModel") -> None:
    """Quantize the matrix products with weights to int8, in place.

    The weights have 7 bits, because processors without VNNI instructions add pairs of products in 16 bits.
    """
    from transformers.exporters import OnnxRuntimeDynamicConfig, OnnxRuntimeQuantizer

    config = OnnxRuntimeDynamicConfig(op_types_to_quantize=["MatMul", "Gemm"], per_channel=True, reduce_range=True)
    with suppress_output():
        quantizer = OnnxRuntimeQuantizer(config)
        for component in exported.components.values():
            component.program = quantizer.quantize(component.program, {}, exported.export_format)


@contextmanager
def suppress_output() -> Iterator[None]:
    """Context manager: no printed progress, log messages or warnings, which torch's exporter has many of."""
    with OUTPUT_LOCK:
        disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            with redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(disabled)


def import_exporters() -> tuple["OnnxExporter", type["ExportedModel"], DecomposeFunction]:
    """transformers' exporter, the class of exported models, and the function that decomposes a model for generation.

    A ValueError with the command that installs them.
    """
    try:
        import onnxscript  # noqa: F401
        from transformers.exporters import OnnxExporter
        from transformers.exporters.base import ExportedModel
        from transformers.exporters.utils import decompose_for_generation
    except ImportError:
        raise missing_extra_error("onnx", "ONNX, with transformers 5.23 or newer,") from None
    return OnnxExporter(), ExportedModel, decompose_for_generation


def export_components(model: PosEncForConditionalGeneration, decompose: DecomposeFunction) -> dict[str, Component]:
    """The modules to export and the inputs to trace them with, by the graph's name."""
    config: PosEncConfig = model.config
    inputs = example_inputs(config, BATCH_SIZE, SOURCE_LENGTH)
    target = torch.full((BATCH_SIZE, CACHED_LENGTH), model.start_token())
    greedy = deepcopy(model.generation_config)
    greedy.update(num_beams=1, do_sample=False, num_return_sequences=1, use_cache=True)
    greedy.update(**dict.fromkeys(POSITION_OPTIONS))  # their readers are no inputs of a graph
    prefill, decode = (
        decompose(model, inputs | {"decoder_input_ids": decoder_input_ids}, generation_config=greedy)
        for decoder_input_ids in (target[:, :1], target)
    )
    _, decode_inputs = decode["decode"]
    cache = decode_inputs[CACHE_NAME]
    assert isinstance(cache, EncoderDecoderCache)
    for layer in cache.cross_attention_cache.layers:
        if isinstance(layer, EvictingLayer):
            layer.row_ids = None  # a hint for beam search in torch, which would be an input of the graph
    decode_step, decode_inputs = decode["decode"]
    decode_inputs = {**decode_inputs, TARGET_POSITIONS: torch.full((BATCH_SIZE, 1), CACHED_LENGTH)}
    return {
        "encoder": (model.get_encoder(), inputs),
        "prefill": prefill["prefill"],
        "decode": (decode_step, decode_inputs),
    }


def example_inputs(config: PosEncConfig, batch: int, length: int) -> dict[str, Tensor]:
    """A batch of sources: the first has `length` tokens, each other one token less."""
    lengths_B1 = length - torch.arange(batch)[:, None]
    ids_BS = torch.arange(batch * length).view(batch, length) % config.vocab_size
    return {"input_ids": ids_BS, "attention_mask": (torch.arange(length) < lengths_B1).long()}


def verify_outputs(model: PosEncForConditionalGeneration, exported: "ExportedModel") -> None:
    """Raise a ValueError unless the graphs' logits equal the model's, for other sizes than the traced ones.

    A size that the trace has taken for a constant gives other logits.
    """
    inputs: GenerateOptions = example_inputs(model.config, BATCH_SIZE - 1, SOURCE_LENGTH // 2)
    greedy: GenerateOptions = {
        "num_beams": 1,
        "do_sample": False,
        "num_return_sequences": 1,
        "min_new_tokens": 3,
        "max_new_tokens": 3,
    }
    made = model.generate(**inputs, **greedy, output_logits=True, return_dict_in_generate=True)
    step_inputs: dict[str, object] = {"attention_mask": inputs["attention_mask"]}
    try:
        step_inputs["encoder_outputs"] = exported.runners["encoder"](**inputs)
        for number, expected_BV in enumerate(made.logits):
            step = exported.runners["decode" if number else "prefill"]
            step_inputs["decoder_input_ids"] = new_ids_B1 = made.sequences[:, number : number + 1]
            step_inputs[TARGET_POSITIONS] = torch.full_like(new_ids_B1, number)
            out = step(**{name: value for name, value in step_inputs.items() if name in step.metadata.kwargs})
            torch.testing.assert_close(out.logits[:, -1], expected_BV, rtol=1e-3, atol=1e-3)
            step_inputs[CACHE_NAME] = get_cache(out)
    except (RuntimeError, AssertionError) as error:
        raise export_error(model, "its graphs are right for inputs of one size only", error) from error


def export_error(model: PosEncForConditionalGeneration, reason: str, error: Exception) -> ValueError:
    """The error for a model that cannot be exported, with the first line of its cause."""
    return ValueError(
        f"torch cannot export position_encoding_type={model.config.position_encoding_type!r}: {reason} "
        f"({root_cause(error)}); translate with `model.translate`."
    )


def root_cause(error: BaseException) -> str:
    """The first line of an error's root cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}".rstrip(": ")
