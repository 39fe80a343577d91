"""A translation job: a saved or exported model and its options, loaded in the process that translates."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import CONFIG_NAME

from ..convert.auto_loading import auto_from_pretrained, load_model_with_head
from ..tokenizer.text import UNBOUNDED_ENCODING_REMEDY
from ..utils.encoding_files import register_encodings
from ..utils.manifest import validate_weights
from ..utils.run_folder import RunPaths, SystemPaths
from .ctranslate2_translator import (
    MORE_POSITIONS_REMEDY,
    TOKENIZER_FOLDER,
    CTranslate2Translator,
    is_ctranslate2,
    read_metadata,
)
from .onnx_model import PosEncOnnxModel, is_onnx
from .quantization import quantize_int8
from .streaming import StreamingTranslator

LINES_PER_CHUNK = 512

TranslateFunction = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class TranslationJob:
    """A translation model and its options.

    `folder`: a saved model, a system of a run, or a folder of CTranslate2 or of ONNX graphs. `quantize`: compute linear
    layers in int8, on a CPU. `register`: a file that registers a user's encodings. `lines_per_chunk`: lines that are
    sorted by length, translated and written together; a killed translation resumes after the last complete chunk.
    """

    folder: Path
    num_beams: int = 5
    quantize: bool = False
    register: Path | None = None
    lines_per_chunk: int = LINES_PER_CHUNK

    def __post_init__(self) -> None:
        if self.num_beams < 1:
            raise ValueError(f"A beam must be 1 or more wide, but it is {self.num_beams}; 1 is greedy search.")
        if self.lines_per_chunk < 1:
            raise ValueError(
                f"`lines_per_chunk` must be 1 or more, but it is {self.lines_per_chunk}; leave it out for "
                f"{LINES_PER_CHUNK}."
            )
        if (engine := engine_of(self.folder)) is None:
            validate_weights(model_folder(self.folder))
        elif self.quantize:
            raise ValueError(
                f"{self.folder} is a folder of {engine}, whose precision is set by the export; leave `quantize` out, "
                "and for int8 export the model again with quantization='int8'."
            )

    def tokenizer_and_limit(self) -> tuple[PreTrainedTokenizerBase, int | None, str]:
        """The tokenizer, a source's maximum number of tokens, and the remedy for more; weights are not loaded."""
        if is_ctranslate2(self.folder):
            return (
                auto_from_pretrained(AutoTokenizer, self.folder / TOKENIZER_FOLDER),
                read_metadata(self.folder)["longest_source"],
                MORE_POSITIONS_REMEDY,
            )
        folder = model_folder(self.folder)
        max_length = getattr(auto_from_pretrained(AutoConfig, folder), "max_source_length", None)
        return auto_from_pretrained(AutoTokenizer, folder), max_length, UNBOUNDED_ENCODING_REMEDY

    def translator(self, threads: int | None = None) -> TranslateFunction:
        """The loaded model's translate function, with this number of threads (None: torch's default)."""
        if self.register:
            register_encodings(self.register)
        if threads:
            torch.set_num_threads(threads)
        if is_ctranslate2(self.folder):
            return partial(CTranslate2Translator(self.folder, threads=threads or 0).translate, num_beams=self.num_beams)
        model, tokenizer = load_onnx(self.folder, threads) if is_onnx(self.folder) else self.load()
        return partial(model.translate, tokenizer=tokenizer, num_beams=self.num_beams)

    def streaming_translator(self) -> StreamingTranslator:
        """The same for one endless text."""
        if is_ctranslate2(self.folder):
            raise ValueError(
                f"Streaming must have a saved model or ONNX graphs, but {self.folder} is a folder of CTranslate2; name "
                "the model that it was exported from."
            )
        model, tokenizer = load_onnx(self.folder, None) if is_onnx(self.folder) else self.load()
        return StreamingTranslator(model, tokenizer, num_beams=self.num_beams)

    def load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """The model, quantized or on a GPU if there is one, and the tokenizer."""
        model, tokenizer = load_model(self.folder)
        if self.quantize:
            model = quantize_int8(model.float())
        elif torch.cuda.is_available():
            model.to("cuda")
        return model, tokenizer


def silence_logging() -> None:
    """Turn off transformers' warnings and progress bars."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def engine_of(folder: Path) -> str | None:
    """The engine that a folder was exported for, None for a saved model."""
    if is_ctranslate2(folder):
        return "CTranslate2"
    return "ONNX graphs" if is_onnx(folder) else None


def load_onnx(folder: Path, threads: int | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and the tokenizer of a folder of ONNX graphs."""
    model = PosEncOnnxModel.from_pretrained(folder, threads=threads or 0)
    return model, auto_from_pretrained(AutoTokenizer, folder)


def load_model(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and the tokenizer of a folder."""
    folder = model_folder(folder)
    validate_weights(folder)
    return load_model_with_head(folder), auto_from_pretrained(AutoTokenizer, folder)


def model_folder(folder: Path) -> Path:
    """The folder with config.json: `folder` or its `model`."""
    for candidate in (folder, SystemPaths(folder).model):
        if (candidate / CONFIG_NAME).is_file():
            return candidate
    hint = "name a run's system or a saved model"
    for subject, run in ((f"{folder} holds", folder), (f"{folder.parent} has", folder.parent)):
        systems = RunPaths(run).model_folders()
        if systems:
            hint = f"{subject} the systems {', '.join(systems)}; name one of them"
            break
    raise ValueError(f"There must be a saved model in FOLDER, but {folder} has no config.json; {hint}.")
