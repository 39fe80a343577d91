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


def marian_tokenizer(folder: Path, separate: bool = False, tags: tuple[str, ...] = ()) -> PreTrainedTokenizerBase:
    """A MarianTokenizer with sentencepiece models of its own, saved in `folder`; `tags` are of target languages."""
    import sentencepiece
    from transformers import MarianTokenizer

    text = ["a dog sees a cat", "the cat sees the bird", "a bird and the dog sing"] * 20
    pieces = []
    for side, lines in (("source", [*text, "my fox jumps high, quick!"]), ("target", text)):
        with (folder / f"{side}.spm").open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines), model_writer=file, vocab_size=45, hard_vocab_limit=False,
                minloglevel=2, bos_id=-1, eos_id=0, unk_id=1,
            )  # fmt: skip
        spm = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        pieces.append([spm.id_to_piece(i) for i in range(spm.get_piece_size())])
    source, target = pieces
    assert len(target) < len(source)
    # One <pad> for both sides, as Marian has it, even if one vocabulary is shorter.
    numbers = {"vocab.json": [*target, "<pad>", *(p for p in source if p not in target), *tags]}
    if separate:
        numbers = {
            "vocab.json": [*source[:5], "<pad>", *source[5:]],
            "target_vocab.json": [*target[:5], "<pad>", *target[5:]],
        }
    for name, words in numbers.items():
        (folder / name).write_text(json.dumps({word: i for i, word in enumerate(words)}), encoding="utf-8")
    options = {"separate_vocabs": separate}
    if separate:
        options["target_vocab_file"] = str(folder / "target_vocab.json")
    files = (str(folder / name) for name in ("source.spm", "target.spm", "vocab.json"))
    tokenizer = MarianTokenizer(*files, **options)
    tokenizer.save_pretrained(folder)
    return tokenizer


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
