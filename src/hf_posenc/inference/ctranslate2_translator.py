"""Translation with CTranslate2, from a folder written by ctranslate2_export.py."""

import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers import AutoTokenizer

from ..convert.auto_loading import auto_from_pretrained
from ..generation.limits import max_target_lengths
from ..generation.translate import MAX_TOKENS_PER_BATCH, TranslationOutput, encode_texts, translate_in_batches
from ..hub.errors import explain_unreadable
from ..tokenizer.text import validate_source_lengths, validate_texts
from ..utils.manifest import verify_folder
from .export_validation import missing_extra_error

# This package's files in such a folder, in addition to CTranslate2's.
METADATA_FILE = "hf_posenc.json"
TOKENIZER_FOLDER = "tokenizer"
MORE_POSITIONS_REMEDY = "export with more `positions`"  # for a source that is longer than the table


def import_ctranslate2() -> ModuleType:
    """The package; a ValueError with the command that installs it."""
    try:
        import ctranslate2.converters.utils
        import ctranslate2.specs
    except ModuleNotFoundError:
        raise missing_extra_error("ctranslate2", "CTranslate2") from None
    return ctranslate2


class CTranslate2Translator:
    """Translator that runs CTranslate2 on a folder written by `to_ctranslate2`.

    Args:
        folder: the folder that `to_ctranslate2` returned.
        device: "cpu" or "cuda".
        compute_type: precision of the computation by CTranslate2's names. "default" is the saved precision.
        threads: threads for one batch. 0 is the number of cores, at most four.

    `translate(texts, num_beams=5, batch_size=32)` returns the translations in order, with a model's length limits.
    Raises a ValueError for another kind of folder, and without the extra "ctranslate2".
    """

    def __init__(
        self, folder: str | Path, *, device: str = "cpu", compute_type: str = "default", threads: int = 0
    ) -> None:
        folder = Path(folder)
        if not is_ctranslate2(folder):
            raise ValueError(
                f"A folder for CTranslate2 must have {METADATA_FILE}, but {folder} has none; run to_ctranslate2."
            )
        verify_folder(folder, "export the model again")
        self.metadata = read_metadata(folder)
        self.tokenizer = auto_from_pretrained(AutoTokenizer, folder / TOKENIZER_FOLDER)
        ctranslate2 = import_ctranslate2()
        with explain_unreadable(folder, ("*.json", "model.bin")):
            self.source, self.target = (read_vocabulary(folder, side) for side in ("source", "target"))
            self.token_to_id = {token: token_id for token_id, token in enumerate(self.target)}
            self.translator = ctranslate2.Translator(
                str(folder), device, compute_type=compute_type, intra_threads=threads
            )

    def translate(self, texts: Iterable[str], **options: Any) -> list[str]:
        """The translations of `texts`, in their order. Options and errors are those of `translations`."""
        return self.translations(texts, **options).texts

    def translations(
        self,
        texts: Iterable[str],
        *,
        batch_size: int = 32,
        tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
        num_beams: int = 5,
        progress: bool = False,
    ) -> TranslationOutput:
        """The translations of `texts`, with the length limits of a model's `translations`.

        Raises a ValueError, before any compute, that names a text which is not UTF-8 or longer than an encoding's
        table.
        """
        texts = validate_texts(texts)
        sources = encode_texts(texts, self.tokenizer)
        validate_source_lengths(sources, self.metadata["longest_source"], remedy=MORE_POSITIONS_REMEDY)
        return translate_in_batches(
            sources,
            lambda batch: self.translate_batch(batch, num_beams),
            batch_size=batch_size,
            tokens_per_batch=tokens_per_batch,
            progress=progress,
            # CTranslate2 has one limit for a batch, and a larger limit changes a beam's translation.
            max_target_lengths=max_target_lengths(map(len, sources), self.metadata["longest_target"]),
        )

    def translate_batch(self, sources: list[list[int]], num_beams: int) -> list[tuple[str, bool]]:
        """The translations of one batch of token ids, and whether each was truncated."""
        (max_length,) = set(max_target_lengths(map(len, sources), self.metadata["longest_target"]))
        search = self.metadata.get("search", {})
        results = self.translator.translate_batch(
            [list(map(self.source.__getitem__, source)) for source in sources],
            beam_size=num_beams,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=max_length,
            return_end_token=True,
            **search,
        )
        hypotheses = [result.hypotheses[0] for result in results]
        token_ids = [list(map(self.token_to_id.__getitem__, tokens)) for tokens in hypotheses]
        texts = self.tokenizer.batch_decode(token_ids, skip_special_tokens=True)
        end_tokens = search.get("end_token", [self.tokenizer.eos_token])
        return [
            (text, not tokens or tokens[-1] not in end_tokens) for text, tokens in zip(texts, hypotheses, strict=True)
        ]


def read_metadata(folder: Path) -> dict[str, Any]:
    """What `to_ctranslate2` says of a model: `longest_source` and `longest_target` in tokens or None, `search`."""
    with explain_unreadable(folder, (METADATA_FILE,)):
        metadata: dict[str, Any] = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
        for name in ("longest_source", "longest_target"):
            if type(metadata[name]) not in (int, type(None)):
                raise TypeError(f"{name} must be a number of tokens or null, but it is {metadata[name]!r:.100}")
        if not isinstance(metadata.get("search", {}), dict):
            raise TypeError(f"search must be an object, but it is {metadata['search']!r:.100}")
    return metadata


def read_vocabulary(folder: Path, side: str) -> list[str]:
    """The tokens of "source" or "target" by id."""
    shared = folder / "shared_vocabulary.json"
    return json.loads((shared if shared.exists() else folder / f"{side}_vocabulary.json").read_text(encoding="utf-8"))


def is_ctranslate2(folder: Path) -> bool:
    """Whether `to_ctranslate2` has written the folder."""
    return (folder / METADATA_FILE).is_file()
