"""Training of tokenizers on pairs, and encoding of pairs as token ids."""

from collections.abc import Iterator, Sequence

import datasets
from datasets import Dataset, Features, Value
from transformers import PreTrainedTokenizerBase

from ...tokenizer.text import data_options
from ...tokenizer.tokenization_posenc import PosEncTokenizer
from .pair_dataset import BATCH_SIZE, Batch, map_batches


def train_tokenizer(
    pairs: Dataset,
    vocab_size: int,
    *,
    source_language: str,
    target_language: str,
    joint: bool = True,
    subwords: str = "bpe",
    tags: Sequence[str] = (),
) -> PosEncTokenizer:
    """Train a tokenizer on unfiltered `pairs`: one vocabulary if `joint`, else one for each side."""

    def texts(*languages: str) -> Iterator[str]:
        for batch in pairs.iter(BATCH_SIZE):
            for row in batch["translation"]:
                yield from (row[language] for language in languages)

    sides = (source_language, target_language)
    first, second = (texts(*sides), None) if joint else map(texts, sides)
    return PosEncTokenizer.train(first, vocab_size, target_texts=second, subwords=subwords, tags=tags)


def tokenize_pairs(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, *, source_language: str, target_language: str
) -> Dataset:
    """Encode pairs: `input_ids` and `labels` end in `</s>` and are neither truncated nor padded. `source_length` and
    `target_length` are in subwords without special tokens. All pairs are kept, in order."""
    num_special = tokenizer.num_special_tokens_to_add()
    options = {"truncation": False, "return_attention_mask": False} | data_options(tokenizer)

    def tokenize(batch: Batch) -> Batch:
        sources = [row[source_language] for row in batch["translation"]]
        targets = [row[target_language] for row in batch["translation"]]
        input_ids = tokenizer(sources, **options)["input_ids"]
        labels = tokenizer(text_target=targets, **options)["input_ids"]
        return {
            "input_ids": input_ids,
            "labels": labels,
            "source_length": [len(ids) - num_special for ids in input_ids],
            "target_length": [len(ids) - num_special for ids in labels],
        }

    ids, length = datasets.Sequence(Value("int32")), Value("int32")
    features = Features({"input_ids": ids, "labels": ids, "source_length": length, "target_length": length})
    return map_batches(pairs, tokenize, features)
