"""Small tokenizers of several kinds."""

from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from hf_posenc.lab.data.synthetic import generate_pairs

TEXTS = [
    "Das Mädchen kauft 3 Äpfel, und der Junge isst sie.",
    "The girl buys 3 apples, and the boy eats them.",
    "Die Äpfel (rot) sind größer als der Kopf des Jungen!",
    "The apples (red) are bigger than the boy's head!",
]


ANY_TEXT = [
    "",
    "Das Mädchen kauft die Äpfel.",
    "Größe, Übel, Öl: straße ẞ",
    "„Zitat“ «citation» \"quote\" 'single' ‚tief‘",  # noqa: RUF001
    "3.5 % of 1,000 is 35; $5 + 5€ = x^2 ~ `code` | a<b>c",
    "he's the boys' re-do - and–so—on…",  # noqa: RUF001
    "https://example.org/a_b?c=d&e=%20#f",
    "\N{GRINNING FACE} \N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER} 中文没有空格。 Ελληνικά עברית",
    "e\u0301 is not \u00e9, and ﬁ is not fi",
    "the mark \u2581 of \u2581others\u2581",
    "<s> and </s>, <pad>, <unk> or <0x41> are characters here",
    " leading, trailing ",
    "two  spaces,   three",
    "tab\there, no-break\u00a0space, line\u2028separator, \x0b, \r and\n",
    " ",
    "\ufeff\x00\x1f",
]


PAIRS = list(generate_pairs(seed=1, pairs=100, min_words=6, max_words=20))


SOURCES, TARGETS = [*TEXTS[::2], *(source for source, _ in PAIRS)], [*TEXTS[1::2], *(target for _, target in PAIRS)]


KINDS: dict[str, dict[str, Any]] = {
    "bpe": {"subwords": "bpe"},
    "unigram": {"subwords": "unigram"},
    "two bpe": {"subwords": "bpe", "target_texts": TARGETS},
    "two unigram": {"subwords": "unigram", "target_texts": TARGETS},
}


def bert() -> PreTrainedTokenizerFast:
    """A word-piece tokenizer as BERT's is, in small."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "Das", "kauf", "##t", "3", "##e", "."]
    backend = Tokenizer(WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.enable_truncation(4)
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)
