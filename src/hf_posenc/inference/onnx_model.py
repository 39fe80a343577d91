"""An exported model with `generate` and `translate`, whose graphs onnxruntime runs on a CPU.

The folder is one that onnx_export.py has written. Search and sampling are transformers' own, with the family's length
limits. Loading needs onnxruntime, not the exporter's packages.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, GenerationConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import GENERATION_CONFIG_NAME

from ..alignments.base import has_source_position
from ..alignments.registry import build_alignment
from ..convert.auto_loading import auto_from_pretrained
from ..encodings.registry import build_position_encodings
from ..generation.generate import Seq2SeqGenerationMixin
from ..generation.limits import (
    READERS_ARGUMENT,
    SourcePositionReader,
    last_source_positions,
)
from ..generation.model_inputs import CACHE_NAME, CACHE_NAMES
from ..hub.errors import explain_unreadable
from ..transformer.configuration_posenc import PosEncConfig
from ..transformer.encoder_decoder import TranslationModelOutput
from ..utils.manifest import verify_folder
from .onnx_graph import TARGET_POSITIONS, OnnxCache, OnnxGraph, import_onnxruntime, to_array

# transformers' list of the graphs in a folder and of their files.
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
        if limit is not None and length > limit:
            raise ValueError(f"A source must have at most {limit} tokens, but one has {length}; shorten it.")
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
        if not is_onnx(folder):
            raise ValueError(f"A folder of ONNX graphs must have {EXPORT_FILE}, but {folder} has none; run to_onnx.")
        import_onnxruntime()
        verify_folder(folder, "export the model again")
        with explain_unreadable(folder, (EXPORT_FILE, "*.onnx")):
            files = graph_files(folder)
            graphs = {name: OnnxGraph(folder / files[name], threads or torch.get_num_threads()) for name in GRAPHS}
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
        if output_attentions or output_hidden_states:
            raise ValueError(
                "Attention weights and hidden states must be computed in torch, because ONNX graphs do not return "
                "them, but output_attentions or output_hidden_states is set; leave it out."
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
            new = {"decoder_input_ids": ids_B1, TARGET_POSITIONS: torch.full_like(ids_B1, num_cached)}
            inputs = {name: to_array(tensor) for name, tensor in new.items()}
            outputs, cache = self.step(source | inputs, cache)
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


def graph_files(folder: Path) -> dict[str, str]:
    """The file of each graph, by name; a ValueError if the folder has others than those of `to_onnx`, and for a file
    outside of the folder."""
    components = json.loads((folder / EXPORT_FILE).read_text(encoding="utf-8")).get("components", {})
    missing = [name for name in GRAPHS if name not in components]
    if missing:
        raise ValueError(
            f"{folder / EXPORT_FILE} must list the graphs {', '.join(GRAPHS)}, but {', '.join(missing)} is missing; "
            "export the model with to_onnx."
        )
    files = {name: components[name]["file"] for name in GRAPHS}
    for name, file in files.items():
        if not is_inside(folder / file, folder):
            raise ValueError(
                f"{folder / EXPORT_FILE} must name graphs in its own folder, but that of {name} is {file!r}, which "
                "leads elsewhere; export the model with to_onnx."
            )
    return files


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path leads into a folder, or from a snapshot of the Hub's cache, which holds links, to its blobs."""
    target, home = path.resolve(), folder.resolve()
    is_blob = home.parent.name == "snapshots" and target.parent == home.parents[1] / "blobs"
    return target.is_relative_to(home) or is_blob
