"""Algorithmic tasks on which length generalization is measured, with exact answers at every length.

copy, reverse, recopy: Jishnu Ray Chowdhury, Cornelia Caragea. Monotonic Location Attention for Length
Generalization. ICML 2023. https://arxiv.org/abs/2305.20019. Trained on 5 to 10 digits, tested on up to 100.

repeat_token: Amirhossein Kazemnejad et al. The Impact of Positional Encoding on Length Generalization in Transformers.
NeurIPS 2023. https://arxiv.org/abs/2305.19466. All symbols of an input are the same one. Trained on up to 20.

sort, parity: Grégoire Delétang et al. Neural Networks and the Chomsky Hierarchy. ICLR 2023.
https://arxiv.org/abs/2207.02098. Trained on up to 40 symbols, tested on up to 500.

addition: two numbers of `length` digits each, the most significant digit first, as it is written.
addition_reversed: the least significant digit first, so that a carry is known when its digit is written. Nayoung Lee et
al. Teaching Arithmetic to Small Transformers. ICLR 2024. https://arxiv.org/abs/2307.03381, who reverse the sum alone.

lookup: Adam Liška, Germán Kruszewski, Marco Baroni. Memorize or generalize? Searching for a compositional RNN in a
haystack. 2018. https://arxiv.org/abs/1802.06467. With every intermediate result in the answer, as in Yann Dubois et al.
Location Attention for Extrapolation to Longer Sequences. ACL 2020. https://arxiv.org/abs/1911.03872

mqar, multi-query associative recall: Simran Arora et al. Zoology: Measuring and Improving Recall in Efficient Language
Models. ICLR 2024. https://arxiv.org/abs/2312.04927. There keys and values are 8192 symbols, and a value is
predicted at its query; here each are 128, and all values follow all queries.

pcfg, PCFG SET: nested functions that edit strings, and the string that they make.

    append swap F1 G2 H3 , repeat I4 J5 -> H3 G2 F1 I4 J5 I4 J5

Dieuwke Hupkes, Verna Dankers, Mathijs Mul, Elia Bruni. Compositionality Decomposed: How Do Neural Networks Generalise?
JAIR 67, 2020. https://arxiv.org/abs/1908.08351. In the productivity split, expressions of up to 8 functions are trained
on, and longer ones tested. Functions and elements are the paper's, except that names have no underscore. There the
shapes of expressions follow English sentences; here each function of the grammar is equally likely, and so is each way
to share the others between two arguments.

scan: commands in a small language, and the actions that they stand for.

    jump around left after walk twice -> WALK WALK LTURN JUMP LTURN JUMP LTURN JUMP LTURN JUMP

Brenden Lake, Marco Baroni. Generalization without Systematicity: On the Compositional Skills of Sequence-to-Sequence
Recurrent Networks. ICML 2018. https://arxiv.org/abs/1711.00350. There are 20,910 commands. In the length split those of
up to 22 actions, 16,990, are trained on, and the 3,920 others tested. The names of actions are those of the paper.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from random import Random
from string import ascii_uppercase

Pair = tuple[list[str], list[str]]  # the symbols of an input and of its answer

DIGITS = "0123456789"


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


def copies(digit: str) -> int:
    """How often ReCopy repeats a digit: 0 to 3 once, 4 to 6 three times, 7 to 9 five times."""
    return 1 if digit < "4" else 3 if digit < "7" else 5


def recopy(rng: Random, length: int) -> Pair:
    """Each digit of the input, repeated as often as its value says (`copies`)."""
    digits = rng.choices(DIGITS, k=length)
    return digits, [digit for digit in digits for _ in range(copies(digit))]


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


NUM_TABLES, NUM_KEYS = 8, 128
BIT_STRINGS = [f"{number:03b}" for number in range(8)]
# The tables are part of the task, and therefore do not depend on the seed of a corpus.
TABLES = [
    dict(zip(BIT_STRINGS, Random(f"table {number}").sample(BIT_STRINGS, k=8), strict=True))
    for number in range(NUM_TABLES)
]


def lookup(rng: Random, length: int) -> Pair:
    """Three bits and the names of `length` tables -> the bits, and what each table makes of the result before it."""
    bits = rng.choice(BIT_STRINGS)
    tables = rng.choices(range(NUM_TABLES), k=length)
    results = [bits]
    for number in tables:
        results.append(TABLES[number][results[-1]])
    return [bits, *(f"t{number}" for number in tables)], results


def mqar(rng: Random, length: int) -> Pair:
    """`length` keys, each with its value, then all keys in another order -> their values in that order."""
    if length > NUM_KEYS:
        raise ValueError(f"mqar has {NUM_KEYS} different keys, but {length} are asked for; lower max_length.")
    keys = rng.sample(range(NUM_KEYS), k=length)
    values = rng.choices(range(NUM_KEYS), k=length)
    value_of = dict(zip(keys, values, strict=True))
    queries = rng.sample(keys, k=length)
    pairs = [symbol for key in keys for symbol in (f"k{key}", f"v{value_of[key]}")]
    return [*pairs, ";", *(f"k{key}" for key in queries)], [f"v{value_of[key]}" for key in queries]


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


ACTIONS = {verb: [verb.upper()] for verb in ("walk", "look", "run", "jump")}
TURNS = {"left": ["LTURN"], "right": ["RTURN"]}
REPETITIONS = {"": 1, " twice": 2, " thrice": 3}


@cache
def all_pairs() -> list[Pair]:
    """Every command with its actions, in the order of the grammar."""
    phrases = [
        (command + suffix, actions * times)
        for command, actions in verb_phrases()
        for suffix, times in REPETITIONS.items()
    ]
    commands = list(phrases)
    for first, first_actions in phrases:
        for second, second_actions in phrases:
            commands.append((f"{first} and {second}", first_actions + second_actions))
            commands.append((f"{first} after {second}", second_actions + first_actions))
    return [(command.split(), actions) for command, actions in commands]


def verb_phrases() -> list[tuple[str, list[str]]]:
    """The 34 phrases of a verb: by itself, and with a direction, `opposite` or `around`."""
    phrases = list(ACTIONS.items())
    for verb, actions in [*ACTIONS.items(), ("turn", [])]:
        for direction, turn in TURNS.items():
            phrases.append((f"{verb} {direction}", turn + actions))
            phrases.append((f"{verb} opposite {direction}", turn + turn + actions))
            phrases.append((f"{verb} around {direction}", (turn + actions) * 4))
    return phrases


ENDLESS_TASKS = (
    copy, reverse, repeat_token, sort, parity, recopy, addition, addition_reversed, lookup, mqar, pcfg,
)  # fmt: skip
# From random numbers and a length to one pair.
GENERATORS: Mapping[str, Callable[[Random, int], Pair]] = {task.__name__: task for task in ENDLESS_TASKS}
# All pairs of a finite task; its lengths are those of the answers.
FINITE_TASKS: Mapping[str, Callable[[], list[Pair]]] = {"scan": all_pairs}
TASKS = (*GENERATORS, *FINITE_TASKS)


def generate_task_pairs(
    name: str, seed: int, pairs: int | None, min_length: int, max_length: int
) -> Iterator[tuple[str, str]]:
    """Inputs and answers of a task, symbols separated by spaces, of lengths from `min_length` to `max_length`.

    Each length is equally frequent; what it counts is the task's. Of a finite task all pairs of these lengths come, in
    an order that the seed decides, or the first `pairs` of them; a ValueError if there are fewer.
    """
    rng = Random(seed)
    if name in GENERATORS:
        if pairs is None:
            raise ValueError(f"The task {name} has endless pairs; say how many are wanted, for example pairs: 10000.")
        generate = GENERATORS[name]
        generate(Random(0), max_length)  # so that a length that the task lacks is refused before any other
        for _ in range(pairs):
            symbols, answer = generate(rng, rng.randint(min_length, max_length))
            yield " ".join(symbols), " ".join(answer)
        return
    selected = [pair for pair in FINITE_TASKS[name]() if min_length <= len(pair[1]) <= max_length]
    if len(selected) < (1 if pairs is None else pairs):
        raise ValueError(
            f"The task {name} has {len(selected)} pairs of {min_length} to {max_length} symbols, but {pairs or 1} are "
            "asked for; ask for fewer, or for other lengths."
        )
    rng.shuffle(selected)
    for symbols, answer in selected[:pairs]:
        yield " ".join(symbols), " ".join(answer)
