"""`Dataset.map` in batches, with a progress bar where the work takes long enough to deserve one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import datasets
from datasets import Dataset, Features, Value

PROGRESS_BAR_MIN_PAIRS = 100_000  # pairs
BATCH_SIZE = 1_000


def map_batches(
    pairs: Dataset, function: Callable[..., Any], features: Features, batch_size: int = BATCH_SIZE
) -> Dataset:
    """What `function` makes of each batch of columns, in place of all columns there were."""
    with progress_bars(shown=len(pairs) > PROGRESS_BAR_MIN_PAIRS):
        return pairs.map(
            function, batched=True, batch_size=batch_size, features=features, remove_columns=pairs.column_names
        )


def rename_languages(pairs: Dataset, old_names: tuple[str, str], new_names: tuple[str, str]) -> Dataset:
    """Pairs of these languages, under other names."""
    if old_names == new_names:
        return pairs
    features = Features({"translation": {name: Value("string") for name in new_names}})

    def rename(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows = batch["translation"]
        return {
            "translation": [
                dict(zip(new_names, (row[language] for language in old_names), strict=True)) for row in rows
            ]
        }

    return map_batches(pairs, rename, features)


@contextmanager
def progress_bars(*, shown: bool) -> Iterator[None]:
    """Hide datasets' progress bars inside unless `shown`. A setting of the user's wins and is left as it was."""
    set_by_user = datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is not None or datasets.are_progress_bars_disabled()
    if shown or set_by_user:
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()
