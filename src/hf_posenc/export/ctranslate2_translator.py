"""Translation by CTranslate2, from a folder that ctranslate2.py has written."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from ..from_checkpoint import from_checkpoint
from ..manifest import check_folder
from ..modeling.generation_shared import most_tokens
from ..modeling.text_checks import check_lengths, checked_texts
from ..modeling.translation import TOKENS_PER_BATCH, Translations, in_batches, token_ids
from .calls import missing_extra

# What such a folder says of itself, beside CTranslate2's own files.
ABOUT = "hf_posenc.json"
MORE_POSITIONS = "export with more `positions`"  # the remedy for a source that is longer than its table


def engine() -> Any:
    """The package; a ValueError that says how to have it."""
    try:
        import ctranslate2.converters.utils
        import ctranslate2.specs
    except ModuleNotFoundError:
        raise missing_extra("ctranslate2", "CTranslate2") from None
    return ctranslate2


class CTranslate2Translator:
    """A folder that `to_ctranslate2` has written, to translate with.

    `compute_type` is CTranslate2's: in what precision it computes; by default in the one that was saved. `threads`: of
    one batch, 0 for as many as there are cores, up to four. Raises a ValueError for a folder of another kind.
    """

    def __init__(
        self, folder: str | Path, *, device: str = "cpu", compute_type: str = "default", threads: int = 0
    ) -> None:
        folder = Path(folder)
        if not is_ctranslate2(folder):
            raise ValueError(
                f"A translator for CTranslate2 has {ABOUT}, but {folder} has none; write one by to_ctranslate2."
            )
        check_folder(folder, "export the model again")
        self.about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        self.tokenizer = from_checkpoint(AutoTokenizer, folder / "tokenizer")
        self.source, self.target = (tokens_of(folder, side) for side in ("source", "target"))
        self.number_of = {token: number for number, token in enumerate(self.target)}
        self.translator = engine().Translator(str(folder), device, compute_type=compute_type, intra_threads=threads)

    def translate(self, texts: Iterable[str], **options: Any) -> list[str]:
        """The translations of `texts`, in their order; the options are those of `translations`."""
        return self.translations(texts, **options).texts

    def translations(
        self,
        texts: Iterable[str],
        *,
        batch_size: int = 32,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        num_beams: int = 5,
        progress: bool = False,
    ) -> Translations:
        """As a model's `translations`, with the same limits of length.

        Raises a ValueError, before anything is computed, that names a text which is no UTF-8 or longer than the table
        of an encoding.
        """
        texts = checked_texts(texts)
        sources = token_ids(texts, self.tokenizer)
        check_lengths(sources, self.about["longest_source"], remedy=MORE_POSITIONS)
        return in_batches(
            sources,
            lambda batch: self.translate_batch(batch, num_beams),
            batch_size=batch_size,
            tokens_per_batch=tokens_per_batch,
            progress=progress,
            # It has one limit for all of a batch, and where a beam may go on, what a sentence becomes changes.
            limits=most_tokens(map(len, sources), self.about["longest_target"]),
        )

    def translate_batch(self, sources: list[list[int]], num_beams: int) -> list[tuple[str, bool]]:
        """The translations of one batch of token ids, and whether each was truncated."""
        (most,) = set(most_tokens(map(len, sources), self.about["longest_target"]))
        search = self.about.get("search", {})
        results = self.translator.translate_batch(
            [[self.source[number] for number in source] for source in sources],
            beam_size=num_beams,
            max_input_length=0,
            min_decoding_length=0,
            max_decoding_length=most,
            return_end_token=True,
            **search,
        )
        made = [result.hypotheses[0] for result in results]
        numbers = [[self.number_of[token] for token in tokens] for tokens in made]
        texts = self.tokenizer.batch_decode(numbers, skip_special_tokens=True)
        ends = search.get("end_token", [self.tokenizer.eos_token])
        return [(text, not tokens or tokens[-1] not in ends) for text, tokens in zip(texts, made, strict=True)]


def tokens_of(folder: Path, side: str) -> list[str]:
    shared = folder / "shared_vocabulary.json"
    return json.loads((shared if shared.exists() else folder / f"{side}_vocabulary.json").read_text(encoding="utf-8"))


def is_ctranslate2(folder: Path) -> bool:
    return (folder / ABOUT).is_file()
