"""ONNX graphs: export of trained models by transformers' exporter, and models that onnxruntime runs on a CPU.

The graphs have free batch size and lengths. They are `encoder`, `prefill` and `decode`. `prefill` is the decoder's
first step, which reads the start token and makes the cache; `decode` reads one more token.

Search and sampling of an exported model are transformers' own, with the family's length limits. Loading needs
onnxruntime, not the exporter's packages.
"""

import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, EncoderDecoderCache, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import GENERATION_CONFIG_NAME

from ..alignments.base import has_source_position
from ..alignments.registry import build_alignment
from ..convert.folders import auto_from_pretrained, missing_extra_error, recurrent_modules, validate_export_call
from ..encodings.cache import EvictingLayer
from ..encodings.registry import build_position_encodings
from ..generation.generate import Seq2SeqGenerationMixin
from ..generation.limits import (
    POSITION_OPTIONS,
    READERS_ARGUMENT,
    GenerateOptions,
    SourcePositionReader,
    last_source_positions,
)
from ..generation.model_inputs import CACHE_NAME, CACHE_NAMES, get_cache
from ..hub.errors import explain_unreadable, require
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.encoder_decoder import TranslationModelOutput
from ..transformer.modeling_posenc import PosEncForConditionalGeneration
from ..utils.manifest import save_folder, verify_folder

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
    require(
        quantization in (None, "int8"),
        f"quantization must be int8 for ONNX, but it is {quantization!r}; leave it out for float32.",
    )
    exporter, exported_model, decompose = import_exporters()
    validate_export_call(model, tokenizer, folder, "ONNX")
    recurrent = recurrent_modules(model)
    require(
        not recurrent,
        "torch exports recurrent layers for one length only, and an ONNX graph must have none, but the model has "
        f"{', '.join(recurrent)}; translate with `model.translate`.",
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
    return {
        "encoder": (model.get_encoder(), inputs),
        "prefill": prefill["prefill"],
        "decode": decode["decode"],
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
            step_inputs["decoder_input_ids"] = made.sequences[:, number : number + 1]
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


# Part of the names of keys, values and states of the source. Every beam of a sentence has the same ones.
CROSS_CACHE = "cross_attention_cache"


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


# transformers' list of the graphs in a folder, which may come from anyone. The files are read by their fixed names.
EXPORT_FILE = "export.json"
GRAPHS = ("encoder", "prefill", "decode")
ENCODER_STATES = "encoder_outputs.last_hidden_state"
LOGITS, SOURCE_POSITIONS = "logits", "source_positions"


def is_onnx(folder: Path) -> bool:
    """Whether `to_onnx` has written the folder."""
    return (folder / EXPORT_FILE).is_file()


class OnnxEncoder(nn.Module):
    """The encoder's graph, as `generate` calls an encoder."""

    main_input_name = "input_ids"

    def __init__(self, graph: OnnxGraph, config: PosEncConfig) -> None:
        super().__init__()
        self.graph, self.config = graph, config

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: object) -> BaseModelOutput:
        """Source (B, S) to encoder states (B, S, D); a ValueError for more tokens than an encoding's table has."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        limit, length = self.config.max_source_length, int(attention_mask.sum(1).max())
        require(
            limit is None or length <= limit,
            f"A source must have at most {limit} tokens, but one has {length}; shorten it.",
        )
        inputs = {"input_ids": to_array(input_ids), "attention_mask": to_array(attention_mask.long())}
        (states,) = self.graph(inputs).values()
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states.numpy()))


class PosEncOnnxModel(PreTrainedModel, Seq2SeqGenerationMixin):
    """Translation model whose encoder and decoder are ONNX graphs. It has no weights in torch and cannot be trained.

        model = PosEncOnnxModel.from_pretrained(folder)
        model.translate(texts, AutoTokenizer.from_pretrained(folder), num_beams=5)

    `generate`, `translate` and `translations` take the options of PosEncForConditionalGeneration, except those that
    need attention weights, hidden states, another mask or other positions.
    """

    config: PosEncConfig
    config_class = PosEncConfig
    main_input_name = "input_ids"
    base_model_prefix = "model"

    def __init__(self, config: PosEncConfig, graphs: Mapping[str, OnnxGraph]) -> None:
        super().__init__(config)
        self.graphs = dict(graphs)
        self.encoder = OnnxEncoder(self.graphs["encoder"], config)
        self.eval()

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, threads: int = 0) -> "PosEncOnnxModel":
        """The model of a folder that `to_onnx` has written. `threads` for one batch; 0 is torch's number.

        A ValueError for another kind of folder, for files that have changed, and without the extra "onnx".
        """
        folder = Path(folder)
        require(
            is_onnx(folder),
            f"A folder of ONNX graphs must have {EXPORT_FILE}, but {folder} has none; run to_onnx.",
        )
        import_onnxruntime()
        verify_folder(folder, "export the model again")
        files = {name: folder / f"{name}.onnx" for name in GRAPHS}
        missing = [name for name, file in files.items() if not file.exists()]
        require(
            not missing,
            f"{folder} must have the graphs {', '.join(GRAPHS)}, but {', '.join(missing)} is missing; export the model "
            "with to_onnx.",
        )
        with explain_unreadable(folder, ("*.onnx",)):
            graphs = {name: OnnxGraph(file, threads or torch.get_num_threads()) for name, file in files.items()}
        model = cls(auto_from_pretrained(AutoConfig, folder), graphs)
        if (folder / GENERATION_CONFIG_NAME).is_file():
            with explain_unreadable(folder, (GENERATION_CONFIG_NAME,)):
                model.generation_config = GenerationConfig.from_pretrained(folder)
        return model

    def save_pretrained(self, *args: object, **kwargs: object) -> None:
        """A ValueError: the folder that was loaded is the saved form."""
        raise ValueError(
            "A model must have weights in torch to be saved, but a PosEncOnnxModel has graphs alone; copy its folder."
        )

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The CPU."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the logits."""
        return torch.float32

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """False: the graphs make the cache. transformers' hook (5.17 to 5.24 have it)."""
        return False

    def get_encoder(self, *args: object, **kwargs: object) -> OnnxEncoder:
        return self.encoder

    @property
    def returns_source_positions(self) -> bool:
        """Whether the model has an alignment with source positions, which its graphs return."""
        return has_source_position(build_alignment(self.config))

    @property
    def source_window(self) -> int | None:
        return build_position_encodings(self.config, self.config.side("cross")).hiding_lookahead

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """The tokens that are not cached yet, the encoder states and the cache."""
        cache = kwargs.get(CACHE_NAME)
        num_cached = 0 if cache is None else cache.get_seq_length()
        names = ("attention_mask", "encoder_outputs", "output_attentions", "output_hidden_states", READERS_ARGUMENT)
        inputs = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
        return inputs | {"decoder_input_ids": input_ids[:, num_cached:], CACHE_NAME: cache}

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: OnnxCache | None = None,
        past_key_values: OnnxCache | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        source_position_readers: Sequence[SourcePositionReader] | None = None,
    ) -> TranslationModelOutput:
        """New target tokens (B, T), after the cached ones, to their logits (B, T, V); the graphs read one at a time."""
        require(
            not (output_attentions or output_hidden_states),
            "Attention weights and hidden states must be computed in torch, because ONNX graphs do not return them, "
            "but output_attentions or output_hidden_states is set; leave it out.",
        )
        assert decoder_input_ids is not None
        cache = past_key_values if cache is None else cache
        if encoder_outputs is None:
            assert input_ids is not None
            encoder_outputs = self.encoder(input_ids, attention_mask)
        states_BSD = encoder_outputs[0]
        mask_BS = torch.ones(states_BSD.shape[:2]) if attention_mask is None else attention_mask
        source = {"attention_mask": to_array(mask_BS.long()), ENCODER_STATES: to_array(states_BSD)}
        logits, source_positions = [], []
        for ids_B1 in decoder_input_ids.split(1, dim=1):
            num_cached = 0 if cache is None else cache.length
            outputs, cache = self.step(source | {"decoder_input_ids": to_array(ids_B1)}, cache)
            logits.append(outputs[LOGITS])
            if SOURCE_POSITIONS in outputs:
                source_positions.append(outputs[SOURCE_POSITIONS])
                for reader in source_position_readers or ():
                    reader.read(num_cached, source_positions[-1], last_source_positions(mask_BS, None, states_BSD))
        positions_BT = torch.cat(source_positions, dim=1) if source_positions else None
        last: dict[str, Any] = {CACHE_NAME: cache}
        return TranslationModelOutput(logits=torch.cat(logits, dim=1), source_positions=positions_BT, **last)

    def step(self, inputs: Mapping[str, Any], cache: OnnxCache | None) -> tuple[dict[str, Tensor], OnnxCache]:
        """The logits (B, 1, V) and source positions (B, 1) of one more token, by name, and the cache with it."""
        if cache is None:
            outputs, num_cached, of_source = self.graphs["prefill"](inputs), 0, {}
        else:
            of_source, num_cached = cache.of_source(), cache.length
            outputs = self.graphs["decode"]({**inputs, **cache.arrays}, known=of_source)
        tensors = {
            name: torch.from_numpy(outputs[name].numpy()) for name in (LOGITS, SOURCE_POSITIONS) if name in outputs
        }
        prefixes = tuple(f"{name}." for name in CACHE_NAMES)
        arrays = {name: array for name, array in outputs.items() if name.startswith(prefixes)}
        return tensors, OnnxCache({**of_source, **arrays}, num_cached + 1)
