"""Normalization of pairs of text, by the steps that the tokenizer has too (tokenizer/subwords.py).

Sentence boundaries are searched, and translations scored, in the text that models read. Therefore corpora are
normalized as they are read, in training, validation and test alike.
"""

from collections.abc import Mapping, Sequence

from datasets import Dataset

from ...tokenizer.subwords import build_normalizer
from .pair_dataset import BATCH_SIZE, PROGRESS_BAR_MIN_PAIRS, Batch, progress_bars


def normalize_pairs(
    pairs: Dataset,
    normalize: Mapping[str, Sequence[str]],
    *,
    source_language: str,
    target_language: str,
    separator: str = " ",
) -> Dataset:
    """The pairs with the steps of `normalize`, by side: `{"source": ["lowercase"]}`. Other columns stay.

    Texts that were concatenated with a `separator` are normalized one by one. Those that become empty stay, because the
    other side has as many.
    """
    languages = {"source": source_language, "target": target_language}
    steps_by_language = {languages[side]: list(steps) for side, steps in normalize.items() if steps}
    if not steps_by_language:
        return pairs

    def normalize_batch(batch: Batch) -> Batch:
        normalizers = {language: build_normalizer(steps) for language, steps in steps_by_language.items()}
        rows = []
        for row in batch["translation"]:
            texts = dict(row)
            for language, normalizer in normalizers.items():
                parts = [row[language]] if separator.isspace() else row[language].split(separator)
                texts[language] = separator.join(map(normalizer.normalize_str, parts))
            rows.append(texts)
        return {"translation": rows}

    with progress_bars(shown=len(pairs) > PROGRESS_BAR_MIN_PAIRS):
        return pairs.map(normalize_batch, batched=True, batch_size=BATCH_SIZE, features=pairs.features)
