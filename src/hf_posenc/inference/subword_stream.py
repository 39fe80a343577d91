"""Subwords of a text that is still being read, and the text of subwords that are still being written.

Both are exact: however a text is cut, its subwords are those of the whole text, and the characters of a translation are
those of the whole translation.
"""

import json

from tokenizers import Tokenizer, normalizers
from tokenizers.models import BPE

from ..hub.errors import is_blank, validate_utf8
from ..tokenizer.subwords import BYTE_TOKENS, build_normalizer, pretokenizer, split_normalizer
from ..tokenizer.tokenization_posenc import PosEncTokenizer

# A pretoken of more characters is refused, because its subwords are known only at its end.
MAX_PRETOKEN_LENGTH = 2**20


class StreamNormalizer:
    """The normalized text of a text that is still being read, each character as soon as no later text can change it.

    Every step normalizes the characters of a word one by one, and may remove whitespace and punctuation at the ends of
    a text or merge them into one space (tokenizer/subwords.py). Therefore all is fixed but such characters at the end.
    """

    def __init__(self, steps: list[str]) -> None:
        self.normalizer = build_normalizer(steps)
        self.held = ""
        self.anchor = ""  # stands for the text before, as soon as there is any

    def feed(self, text: str) -> str:
        """The normalized text that is fixed when this text has been read."""
        text = self.held + text
        num_fixed = len(text)
        while num_fixed and self.vanishes(text[num_fixed - 1]):
            num_fixed -= 1
        self.held = text[num_fixed:][:1]  # as many such characters in sequence are normalized as one of them
        return self.normalize(text[:num_fixed])

    def finish(self) -> str:
        """The normalized text of what was held back."""
        held, self.held = self.held, ""
        return self.normalize(held)

    def normalize(self, text: str) -> str:
        """The normalized text after the text before."""
        anchor = self.anchor
        normalized = self.normalizer.normalize_str(anchor + text)[len(anchor) :]
        self.anchor = anchor or ("a" if normalized else "")
        return normalized

    def vanishes(self, character: str) -> bool:
        """Whether a character is removed at the end of a text."""
        return self.normalizer.normalize_str("a" + character) == "a"


class SubwordReader:
    """The source's subwords, each as soon as no later text can change it.

    Subwords never cross the border of a pretoken (subwords.py): one punctuation mark, or a run of other characters,
    with the whitespace before it. Whether two characters have a border between them depends on these two alone.
    Therefore all pretokens are fixed but the last, and the last is fixed as well if it ends in a punctuation mark.
    """

    def __init__(self, tokenizer: PosEncTokenizer, max_pretoken_length: int = MAX_PRETOKEN_LENGTH) -> None:
        validate_tokenizer_streams(tokenizer)
        self.max_pretoken_length = max_pretoken_length
        self.backend: Tokenizer = tokenizer.backend_tokenizer
        self.normalizer = StreamNormalizer(split_normalizer(self.backend)[0])
        self.end_token_ids: list[int] = tokenizer("")["input_ids"]
        # The last pretoken, in pieces, and the last character. The tokenizer puts a space before a text.
        self.held, self.num_held, self.last = [" "], 0, " "
        self.is_blank = True

    def feed(self, text: str) -> list[int]:
        """The subwords that are fixed when this text has been read."""
        return self.feed_normalized(self.normalizer.feed(text))

    def feed_normalized(self, text: str) -> list[int]:
        """The same of a normalized text."""
        if not text:
            return []
        self.is_blank = self.is_blank and is_blank(text)
        borders = [end for _, (_, end) in self.backend.pre_tokenizer.pre_tokenize_str(self.last + text)]
        if not self.ends_pretoken(text[-1]):
            borders.pop()
        self.last = text[-1]
        if not borders:
            self.hold(text)
            return []
        num_fixed = borders[-1] - 1  # without the character before the text
        fixed = "".join(self.held) + text[:num_fixed]
        self.held, self.num_held = [], 0
        self.hold(text[num_fixed:])
        return self.subwords(fixed)

    def finish(self) -> list[int]:
        """The subwords of what was held back, and the end token."""
        fixed = self.feed_normalized(self.normalizer.finish())
        held, self.held, self.num_held = "".join(self.held), [], 0
        return fixed + self.subwords(held) + self.end_token_ids

    def hold(self, text: str) -> None:
        """Keep text back whose subwords are not fixed; a ValueError for too much of it."""
        self.held.append(text)
        self.num_held += len(text)
        if self.num_held > self.max_pretoken_length:
            raise ValueError(
                f"A text must have whitespace or punctuation within {self.max_pretoken_length} characters, but "
                f"{self.num_held} characters without either were read; put spaces between the words first."
            )

    def ends_pretoken(self, character: str) -> bool:
        """Whether a pretoken that ends in this character is fixed: whether another character begins a new one."""
        return len(self.backend.pre_tokenizer.pre_tokenize_str(character + "a")) == 2

    def subwords(self, text: str) -> list[int]:
        """The ids of whole pretokens."""
        pretokens = self.backend.pre_tokenizer.pre_tokenize_str(text) if text else []
        return [token.id for pretoken, _ in pretokens for token in self.backend.model.tokenize(pretoken)]


class SubwordWriter:
    """The text of target subwords, each character as soon as no later subword can change it.

    Only bytes are held back: several of them are one character.
    """

    def __init__(self, tokenizer: PosEncTokenizer) -> None:
        self.tokenizer = tokenizer
        vocabulary = tokenizer.target.get_vocab()
        self.byte_ids = {vocabulary[token] for token in BYTE_TOKENS if token in vocabulary}
        self.special_ids = {*tokenizer.all_special_ids, *tokenizer.extra_special_tokens_ids}
        self.held: list[int] = []
        self.last: list[int] = []

    def write(self, token: int) -> str:
        """The text that is fixed with this subword."""
        if token in self.special_ids:
            return ""
        self.held.append(token)
        return "" if token in self.byte_ids else self.finish()

    def finish(self) -> str:
        """The text of what was held back."""
        # After the token before, because a decoder takes away the space at the beginning of a text.
        before, text = (self.tokenizer.decode(ids) if ids else "" for ids in (self.last, self.last + self.held))
        self.last, self.held = self.held[-1:] or self.last, []
        return text[len(before) :]


def validate_piece(text: object) -> None:
    """Raise a TypeError for anything but text, and a ValueError for half a character."""
    if not isinstance(text, str):
        raise TypeError(
            f"`feed` takes text, but it was given {type(text).__name__}; give it a str. Bytes are decoded by "
            "codecs.getincrementaldecoder('utf-8')(), which keeps half characters for the next piece."
        )
    validate_utf8(text, "the text of `feed`")


def validate_tokenizer_streams(tokenizer: object) -> None:
    """Raise a ValueError for a tokenizer of which it is not known where subwords are fixed."""
    if not isinstance(tokenizer, PosEncTokenizer) or not reads_pretokens(tokenizer.backend_tokenizer):
        raise ValueError(
            "Streaming must know where the subwords of a text are fixed, which it does for tokenizers of "
            f"PosEncTokenizer.train, but this one is a {type(tokenizer).__name__} with another way to split a text; "
            "train a tokenizer, and the model with it."
        )
    named = {str(token) for token in tokenizer.special_tokens_map.values()}
    if added := sorted({str(token) for token in tokenizer.added_tokens_decoder.values()} - named):
        raise ValueError(
            f"Streaming must read a text as subwords alone, but this tokenizer also has the added tokens or tags "
            f"{', '.join(map(repr, added[:5]))}; use a tokenizer without them, or translate the text as a whole."
        )


def reads_pretokens(backend: Tokenizer) -> bool:
    """Whether a tokenizer splits texts as that of `train_subwords`: a space first, then `pretokenizer`.

    Normalization steps before that make no difference.
    """
    ours = Tokenizer(BPE())
    ours.normalizer, ours.pre_tokenizer = normalizers.Prepend(" "), pretokenizer()
    theirs, reference = (json.loads(tokenizer.to_str())["pre_tokenizer"] for tokenizer in (backend, ours))
    return theirs == reference and split_normalizer(backend)[1] == split_normalizer(ours)[1]
