"""PCFG SET: nested functions that edit strings, and the string that they make.

    append swap F1 G2 H3 , repeat I4 J5 -> H3 G2 F1 I4 J5 I4 J5

Dieuwke Hupkes, Verna Dankers, Mathijs Mul, Elia Bruni. Compositionality Decomposed: How Do Neural Networks Generalise?
JAIR 67, 2020. https://arxiv.org/abs/1908.08351. In the productivity split, expressions of up to 8 functions are trained
on, and longer ones tested.

Functions and elements are the paper's, except that names have no underscore. There the shapes of expressions follow
English sentences; here each function of the grammar is equally likely, and so is each way to share the others between
two arguments.
"""

from collections.abc import Callable, Mapping
from random import Random
from string import ascii_uppercase

from .strings import Pair

ELEMENTS = [f"{letter}{number}" for letter in ascii_uppercase for number in range(1, 21)]
MIN_ELEMENTS, MAX_ELEMENTS = 2, 5  # of a string in an expression
SEPARATOR = ","

UNARY: Mapping[str, Callable[[list[str]], list[str]]] = {
    "copy": lambda x: x,
    "reverse": lambda x: x[::-1],
    "shift": lambda x: [*x[1:], x[0]],
    "swap": lambda x: [x[-1], *x[1:-1], x[0]],
    "repeat": lambda x: x + x,
    "echo": lambda x: [*x, x[-1]],
}
BINARY: Mapping[str, Callable[[list[str], list[str]], list[str]]] = {
    "append": lambda x, y: x + y,
    "prepend": lambda x, y: y + x,
    "removefirst": lambda x, y: y,
    "removesecond": lambda x, y: x,
}


def pcfg(rng: Random, length: int) -> Pair:
    """An expression of `length` functions, and the string that it makes."""
    if length == 0:
        elements = rng.choices(ELEMENTS, k=rng.randint(MIN_ELEMENTS, MAX_ELEMENTS))
        return elements, elements
    name = rng.choice([*UNARY, *BINARY])
    if name in UNARY:
        symbols, result = pcfg(rng, length - 1)
        return [name, *symbols], UNARY[name](result)
    in_first = rng.randrange(length)
    (first, x), (second, y) = pcfg(rng, in_first), pcfg(rng, length - 1 - in_first)
    return [name, *first, SEPARATOR, *second], BINARY[name](x, y)
