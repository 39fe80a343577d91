"""Loads this project's `evaluate` metrics without `evaluate.load`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .length_buckets.length_buckets import LengthBuckets


def load_length_buckets(**options: Any) -> LengthBuckets:
    """The length_buckets metric, as `evaluate.load` on its folder returns it.

    The class is instantiated directly: no copy of the script into a cache, no network, and a pickled metric finds its
    class again in a spawned process. `options` are those of `evaluate.load`: `num_process`, `process_id`,
    `experiment_id`, `keep_in_memory`, `cache_dir`, `seed`.
    """
    # Imported here because `evaluate` takes a second to import and need not be installed to translate.
    from .length_buckets.length_buckets import LengthBuckets

    return LengthBuckets(**options)
