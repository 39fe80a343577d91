"""`Dataset.map` in batches, with a progress bar where the work takes long enough to deserve one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import datasets
from datasets import Dataset, Features, Value

LARGE = 100_000  # pairs
BATCH = 1_000


def mapped(pairs: Dataset, function: Callable[..., Any], features: Features, batch_size: int = BATCH) -> Dataset:
    """What `function` makes of each batch of columns, in place of all columns there were."""
    with progress_bars(shown=len(pairs) > LARGE):
        return pairs.map(
            function, batched=True, batch_size=batch_size, features=features, remove_columns=pairs.column_names
        )


def renamed(pairs: Dataset, languages: tuple[str, str], names: tuple[str, str]) -> Dataset:
    """Pairs of these languages, under other names."""
    if languages == names:
        return pairs
    features = Features({"translation": {name: Value("string") for name in names}})

    def rename(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows = batch["translation"]
        return {
            "translation": [dict(zip(names, (row[language] for language in languages), strict=True)) for row in rows]
        }

    return mapped(pairs, rename, features)


@contextmanager
def progress_bars(*, shown: bool) -> Iterator[None]:
    """Hide datasets' progress bars inside unless `shown`. A setting of the user's wins and is left as it was."""
    fixed = datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is not None or datasets.are_progress_bars_disabled()
    if shown or fixed:
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()
