"""Addition of two numbers of `length` digits each, in three formats.

addition: the most significant digit first, as it is written.
addition_reversed: the least significant digit first, so that a carry is known when its digit is written. Nayoung Lee et
al. Teaching Arithmetic to Small Transformers. ICLR 2024. https://arxiv.org/abs/2307.03381, who reverse the sum alone.
addition_hints: the same with an index before each digit. Digits of one place have the same index. The indices are
consecutive and begin at random, so that all of them occur in training. Hattie Zhou et al. What Algorithms can
Transformers Learn? ICLR 2024. https://arxiv.org/abs/2310.16028, whose operands are as wide as the sum and not reversed.
"""

from collections.abc import Sequence
from random import Random

from .strings import DIGITS, Pair

NUM_INDICES = 256


def operands(rng: Random, length: int) -> tuple[list[str], list[str], list[str]]:
    """Two numbers of `length` digits, which may begin with zeros, and their sum of one digit more."""
    first, second = rng.choices(DIGITS, k=length), rng.choices(DIGITS, k=length)
    total, carry = [], 0  # digit by digit, because Python converts no number of more than 4300 digits
    for one, other in zip(reversed(first), reversed(second), strict=True):
        carry, digit = divmod(int(one) + int(other) + carry, 10)
        total.append(str(digit))
    return first, second, [str(carry), *reversed(total)]


def addition(rng: Random, length: int) -> Pair:
    """3 5 + 0 7 -> 0 4 2"""
    first, second, total = operands(rng, length)
    return [*first, "+", *second], total


def addition_reversed(rng: Random, length: int) -> Pair:
    """5 3 + 7 0 -> 2 4 0"""
    first, second, total = operands(rng, length)
    return [*first[::-1], "+", *second[::-1]], total[::-1]


def addition_hints(rng: Random, length: int) -> Pair:
    """i8 5 i9 3 + i8 7 i9 0 -> i8 2 i9 4 i10 0"""
    if length >= NUM_INDICES:
        raise ValueError(
            f"addition_hints has {NUM_INDICES} indices, one for each digit of a sum, but a sum of numbers of {length} "
            f"digits has {length + 1}; lower max_length to {NUM_INDICES - 1} or less."
        )
    start = rng.randrange(NUM_INDICES - length)

    def hinted(digits: Sequence[str]) -> list[str]:
        indexed = enumerate(reversed(digits), start)
        return [symbol for index, digit in indexed for symbol in (f"i{index}", digit)]

    first, second, total = map(hinted, operands(rng, length))
    return [*first, "+", *second], total
