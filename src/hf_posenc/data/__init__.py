"""Parallel text: corpora -> datasets of pairs -> token ids, filtered, sampled and batched by length."""
