"""Tiny tokenizers of transformers' own classes, one for each kind of language tag, without a download."""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase

TEXTS = ["a dog sees a cat", "the cat", "a bird and the dog sing"]
LETTERS = sorted(set("".join(TEXTS)) - {" "})
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


@dataclass(frozen=True)
class Multilingual:
    """A tokenizer with language tags: its model's `model_type`, a source and a target, and the target's token."""

    model_type: str
    source: str
    target: str
    target_token: str


M2M100 = Multilingual("m2m_100", "de", "en", "__en__")
NLLB = Multilingual("m2m_100", "deu_Latn", "eng_Latn", "eng_Latn")
MBART50 = Multilingual("mbart", "de_DE", "en_XX", "en_XX")


def m2m100_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """M2M-100's, which needs sentencepiece: words by a model of its own, tags such as `__de__` behind them."""
    import sentencepiece
    from transformers import M2M100Tokenizer

    folder.mkdir(parents=True)
    with (folder / "words.spm").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS * 20), model_writer=file, vocab_size=40, hard_vocab_limit=False, minloglevel=2
        )
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "words.spm"))
    pieces = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    words = [*SPECIAL, *(piece for piece in pieces if piece not in SPECIAL)]
    vocabulary = {word: number for number, word in enumerate(words)}
    (folder / "words.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return M2M100Tokenizer(str(folder / "words.json"), str(folder / "words.spm"))


def nllb_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import NllbTokenizer

    vocabulary = {word: number for number, word in enumerate([*SPECIAL, "▁", *LETTERS])}
    return NllbTokenizer(vocab=vocabulary, merges=[])


def mbart50_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import MBart50Tokenizer
    from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES

    pieces = [("▁", -2.0), *((letter, -3.0) for letter in LETTERS)]
    special, tags = [(word, 0.0) for word in SPECIAL], [(tag, 0.0) for tag in FAIRSEQ_LANGUAGE_CODES]
    return MBart50Tokenizer(vocab=[*special, *pieces, *tags, ("<mask>", 0.0)])


def bart_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import BartTokenizer

    words = [*SPECIAL, "<mask>", *sorted(ByteLevel.alphabet())]
    return BartTokenizer(vocab={word: number for number, word in enumerate(words)}, merges=[])


def pegasus_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import PegasusTokenizer

    special = [(word, 0.0) for word in ("<pad>", "</s>", "<unk>")]
    return PegasusTokenizer(vocab=[*special, ("▁", -2.0), *((letter, -3.0) for letter in LETTERS)])
