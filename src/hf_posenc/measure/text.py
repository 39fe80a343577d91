"""Texts to blocks of tokens of one length, and prompts whose answer stands at a known depth.

Nelson Liu et al. Lost in the Middle: How Language Models Use Long Contexts. TACL 2024.
https://arxiv.org/abs/2307.03172 has the list of keys and values. Gregory Kamradt. Needle in a Haystack. 2023.
https://github.com/gkamradt/LLMTest_NeedleInAHaystack has the sentence in a long text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

MIN_LENGTH = 16  # tokens
CITIES = ("Berlin", "Lima", "Oslo", "Cairo", "Delhi", "Quito", "Seoul", "Rome", "Hanoi", "Accra")
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Block:
    """Consecutive tokens of a document (T), after the tokens that the tokenizer writes before a text."""

    document: int
    ids_T: Tensor


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a text without special tokens, however many."""
    return tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]


def prefix_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The special tokens that the tokenizer writes before a text, such as `<s>`; those after it are not used."""
    plain, whole = encode(tokenizer, "a"), tokenizer("a", truncation=False)["input_ids"]
    starts = range(len(whole) - len(plain) + 1)
    return next((whole[:start] for start in starts if whole[start : start + len(plain)] == plain), [])


def default_lengths(claimed: int | None, longest: int) -> list[int]:
    """Powers of two from 128 to twice the claimed length, as far as the longest document has tokens."""
    limit = longest if claimed is None else min(longest, 2 * claimed)
    shortest = min(128, max(MIN_LENGTH, limit // 4))
    lengths = [shortest]
    while 2 * lengths[-1] <= limit:
        lengths.append(2 * lengths[-1])
    return lengths


def validate_lengths(lengths: Sequence[int], minimum: int = MIN_LENGTH) -> None:
    """Raise a ValueError for lengths that are not ascending, or too short for a measurement."""
    if not lengths or min(lengths) < minimum or sorted(set(lengths)) != list(lengths):
        raise ValueError(
            f"lengths must ascend from {minimum} tokens or more, but they are {list(lengths)}; give for example "
            "128 256 512 1024."
        )


def make_blocks(documents: Sequence[list[int]], prefix: list[int], length: int, max_blocks: int) -> list[Block]:
    """Up to `max_blocks` blocks of `length` tokens: the first of each document, then the second of each, and so on.

    Raises a ValueError if no document is long enough.
    """
    step = length - len(prefix)
    longest = max(map(len, documents), default=0)
    if longest < step:
        raise ValueError(
            f"texts must have a document of at least {step} tokens, the longest of lengths, but the longest document "
            f"has {longest}; give a longer text, or lengths up to {longest + len(prefix)}."
        )
    blocks = []
    for start in range(0, longest - step + 1, step):
        for number, tokens in enumerate(documents):
            if start + step <= len(tokens):
                blocks.append(Block(number, torch.tensor(prefix + tokens[start : start + step])))
    return blocks[:max_blocks]


def random_word(rng: Random) -> str:
    """A word that can be spoken and has no meaning."""
    return "".join(rng.choice(letters) for letters in (CONSONANTS, VOWELS) * 3)


def question_and_answer(tokenizer: PreTrainedTokenizerBase, question: str, answer: str) -> tuple[list[int], list[int]]:
    """The tokens of a question and of the answer that continues it."""
    asked, whole = encode(tokenizer, question), encode(tokenizer, question + answer)
    common = 0
    while common < min(len(asked), len(whole) - 1) and asked[common] == whole[common]:
        common += 1
    return whole[:common], whole[common:]


def needle_prompt(
    tokenizer: PreTrainedTokenizerBase, haystack: list[int], rng: Random, length: int, depth: float
) -> tuple[list[int], int] | None:
    """A text with one sentence to be found, and its question; see `insert_at`."""
    city, number = rng.choice(CITIES), rng.randrange(10_000, 100_000)
    question, answer = question_and_answer(tokenizer, f"\nThe magic number of {city} is", f" {number}")
    fact = encode(tokenizer, f"\nThe magic number of {city} is {number}.\n")
    return insert_at(depth, length, fact, question, answer, lambda room: haystack[:room])


def key_value_prompt(
    tokenizer: PreTrainedTokenizerBase, haystack: list[int], rng: Random, length: int, depth: float
) -> tuple[list[int], int] | None:
    """A list of words with numbers, and one of the words; see `insert_at`. The haystack is not used."""

    def line() -> list[int]:
        return encode(tokenizer, f"\n{random_word(rng)}: {rng.randrange(10_000, 100_000)}")

    def lines(room: int) -> list[int]:
        tokens = line()
        while len(tokens) < room:
            tokens += line()
        return tokens[len(tokens) - room :]

    key, value = random_word(rng), rng.randrange(10_000, 100_000)
    question, answer = question_and_answer(tokenizer, f"\n{key}:", f" {value}")
    fact = encode(tokenizer, f"\n{key}: {value}")
    return insert_at(depth, length, fact, question, answer, lines)


def insert_at(
    depth: float,
    length: int,
    fact: list[int],
    question: list[int],
    answer: list[int],
    fill: Callable[[int], list[int]],
) -> tuple[list[int], int] | None:
    """`length` tokens that end with the question and its answer, and the number of tokens of the answer.

    `fill(n)` has n tokens, among which `fact` stands: after all of them for depth 1. None if `length` is too short.
    """
    room = length - len(fact) - len(question) - len(answer)
    if room < 0:
        return None
    filler, before = fill(room), round(depth * room)
    return [*filler[:before], *fact, *filler[before:], *question, *answer], len(answer)


def random_copy(tokens: Iterable[int], rng: Random, length: int) -> tuple[list[int], int]:
    """`length` tokens: a random string, other random tokens, and the string again; and the length of the string.

    The string has no token twice, as far as there are enough different `tokens`.
    """
    tokens = sorted(set(tokens))
    size = min(64, length // 4, max(2, len(tokens) // 2))
    string = rng.sample(tokens, k=size) if len(tokens) > size else rng.choices(tokens, k=size)
    others = sorted(set(tokens) - set(string)) or tokens
    return [*string, *rng.choices(others, k=length - 2 * size), *string], size
