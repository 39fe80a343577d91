"""One subword vocabulary for both languages: frequent words stay whole, rare ones fall apart, nothing is lost.

Byte-pair encoding: begin with characters and join the most frequent neighbours until the vocabulary is full.
Rico Sennrich, Barry Haddow, Alexandra Birch. Neural Machine Translation of Rare Words with Subword Units. ACL 2016.
https://aclanthology.org/P16-1162

Departures: a subword carries the space before it (as in SentencePiece, which writes that space as U+2581; here it stays
a space, so a text that holds U+2581 comes back unchanged), and a character never seen in training becomes its UTF-8
bytes instead of an unknown token.
"""

import json
import sys
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PUNCTUATION = r"\p{P}$+<=>^`|~"
# Merges never cross these pieces: one punctuation mark, or a run of other characters, with the whitespace before it.
PIECE = rf"\s?[{PUNCTUATION}]|\s?[^\s{PUNCTUATION}]+|\s"


class PosEncTokenizer(PreTrainedTokenizerFast):
    """A byte-pair tokenizer for source and target alike.

    Laws: `decode(encode(text), skip_special_tokens=True) == text` for every text, any whitespace included. Encoding
    appends `</s>` and nothing else, and `text_target=` does the same: the decoder's start `<s>` is the model's to add.
    A text that spells a special token, such as `</s>`, is read as the characters it consists of.

    `len(tokenizer)` is the vocabulary size, special tokens included.
    """

    model_input_names = ["input_ids", "attention_mask"]

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "PosEncTokenizer":
        """Learn at most `vocab_size` tokens: 4 special tokens, 256 bytes, each character of `texts`, then merges.

        `texts` is read once and never held. The same texts in the same order give the same tokenizer. Where the texts
        do not have enough to merge there are fewer tokens than asked for. A ValueError if `texts` is empty or
        `vocab_size` has no room for what is not a merge.
        """
        learner = Tokenizer(BPE())
        learner.normalizer, learner.pre_tokenizer = normalizers.Prepend(" "), _split()
        reserved = [*SPECIAL_TOKENS.values(), *BYTES]
        trainer = trainers.BpeTrainer(
            vocab_size=max(vocab_size, 0), special_tokens=reserved, show_progress=sys.stderr.isatty()
        )
        learner.train_from_iterator(texts, trainer)
        learned = json.loads(learner.to_str())["model"]
        if len(learned["vocab"]) == len(reserved):
            raise ValueError(
                "a tokenizer is trained on at least one character, but the texts are empty: "
                "check the files or the filter they come from"
            )
        if len(learned["vocab"]) > vocab_size:
            raise ValueError(
                f"vocab_size must hold {len(SPECIAL_TOKENS)} special tokens, {len(BYTES)} bytes and the "
                f"{len(learned['vocab']) - len(reserved)} different characters of the texts, but it is {vocab_size}: "
                f"use at least {len(learned['vocab'])}, and more to have any merges"
            )
        # A second tokenizer, because the learner counts the bytes among its special tokens and would not decode them.
        merges = [(left, right) for left, right in learned["merges"]]
        backend = Tokenizer(BPE(learned["vocab"], merges, unk_token=SPECIAL_TOKENS["unk_token"], byte_fallback=True))
        backend.normalizer, backend.pre_tokenizer = learner.normalizer, _split()
        backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        end = SPECIAL_TOKENS["eos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, learned["vocab"][end])]
        )
        return cls(tokenizer_object=backend, split_special_tokens=True, padding_side="right", **SPECIAL_TOKENS)


def _split() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(PIECE), "isolated")
