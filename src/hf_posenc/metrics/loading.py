"""Loads this project's `evaluate` metrics without `evaluate.load`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .length_buckets.length_buckets import LengthBuckets
    from .translation_audit.translation_audit import TranslationAudit


def load_length_buckets(**options: object) -> LengthBuckets:
    """The metric length_buckets: BLEU and other scores by length bucket, with confidence intervals.

    Returns what `evaluate.load` on the metric's folder returns, without a copy of the script and without a network. A
    pickled metric finds its class again in a spawned process. `options` are those of `evaluate.load`: `num_process`,
    `process_id`, `experiment_id`, `keep_in_memory`, `cache_dir`, `seed`. The metric's card has its arguments and
    results. Raises a ModuleNotFoundError where evaluate or sacrebleu is not installed.
    """
    # Imported here because `evaluate` takes a second to import and need not be installed to translate.
    from .length_buckets.length_buckets import LengthBuckets

    return LengthBuckets(**options)


def load_translation_audit(**options: object) -> TranslationAudit:
    """The metric translation_audit: what translations of documents leave out, repeat, move and invent, and where.

    As `load_length_buckets`, with the same `options`. Raises a ModuleNotFoundError where evaluate or sacrebleu is not
    installed.
    """
    from .translation_audit.translation_audit import TranslationAudit

    return TranslationAudit(**options)
