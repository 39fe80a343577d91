"""Tasks on strings of digits: an input of `length` symbols, and its answer.

copy, reverse, recopy, inverse_recopy: Jishnu Ray Chowdhury, Cornelia Caragea. Monotonic Location Attention for Length
Generalization. ICML 2023. https://arxiv.org/abs/2305.20019. Trained on 5 to 10 digits, tested on up to 100.

repeat_token: Amirhossein Kazemnejad et al. The Impact of Positional Encoding on Length Generalization in Transformers.
NeurIPS 2023. https://arxiv.org/abs/2305.19466. All symbols of an input are the same one. Trained on up to 20.

sort, parity: Grégoire Delétang et al. Neural Networks and the Chomsky Hierarchy. ICLR 2023.
https://arxiv.org/abs/2207.02098. Trained on up to 40 symbols, tested on up to 500. modular_sum is their modular
arithmetic with sums alone.
"""

from random import Random

Pair = tuple[list[str], list[str]]  # the symbols of an input and of its answer

DIGITS = "0123456789"
MODULUS = 5


def copy(rng: Random, length: int) -> Pair:
    """The input itself."""
    digits = rng.choices(DIGITS, k=length)
    return digits, digits


def reverse(rng: Random, length: int) -> Pair:
    """The input from its end to its start."""
    digits = rng.choices(DIGITS, k=length)
    return digits, digits[::-1]


def repeat_token(rng: Random, length: int) -> Pair:
    """The input itself, which is one digit again and again: only the number of its symbols is to be found."""
    digits = [rng.choice(DIGITS)] * length
    return digits, digits


def sort(rng: Random, length: int) -> Pair:
    """The digits of the input in ascending order."""
    digits = rng.choices(DIGITS, k=length)
    return digits, sorted(digits)


def parity(rng: Random, length: int) -> Pair:
    """Whether a string of bits has an odd number of ones, as one bit."""
    bits = rng.choices("01", k=length)
    return bits, [str(bits.count("1") % 2)]


def modular_sum(rng: Random, length: int) -> Pair:
    """The sum of digits below 5, modulo 5."""
    digits = rng.choices(DIGITS[:MODULUS], k=length)
    return digits, [str(sum(map(int, digits)) % MODULUS)]


def copies(digit: str) -> int:
    """How often ReCopy repeats a digit: 0 to 3 once, 4 to 6 three times, 7 to 9 five times."""
    return 1 if digit < "4" else 3 if digit < "7" else 5


def recopy(rng: Random, length: int) -> Pair:
    """Each digit of the input, repeated as often as its value says (`copies`)."""
    digits = rng.choices(DIGITS, k=length)
    return digits, [digit for digit in digits for _ in range(copies(digit))]


def inverse_recopy(rng: Random, length: int) -> Pair:
    """The answer of ReCopy as the input, and its `length` digits as the answer."""
    digits, repeated = recopy(rng, length)
    return repeated, digits
