"""Parallel text: corpora to datasets of token ids, filtered, sampled and batched by length."""
