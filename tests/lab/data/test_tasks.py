"""Algorithmic tasks: counts, answers computed another way, and corpora of them."""

import random
import re
import sys
from pathlib import Path

import pytest

from hf_posenc.lab.data import tasks
from hf_posenc.lab.data.corpus import load_pairs
from hf_posenc.lab.data.tasks import FINITE_TASKS, GENERATORS, TASKS, generate_task_pairs
from hf_posenc.tokenizer.tokenization_posenc import PosEncTokenizer

DIRECTIONS = {"left": "LTURN", "right": "RTURN"}


def value(digits: list[str]) -> int:
    return int("".join(digits))


def added(symbols: list[str], order: int) -> list[str]:
    plus = symbols.index("+")
    first, second = (part[::order] for part in (symbols[:plus], symbols[plus + 1 :]))
    return list(f"{value(first) + value(second):0{len(first) + 1}d}")[::order]


def looked_up(symbols: list[str]) -> list[str]:
    results = [symbols[0]]
    for table in symbols[1:]:
        results.append(tasks.TABLES[int(table[1:])][results[-1]])
    return results


def recalled(symbols: list[str]) -> list[str]:
    end = symbols.index(";")
    return [symbols[symbols.index(key) + 1] for key in symbols[end + 1 :] if symbols.index(key) < end]


def edited(symbols: list[str]) -> list[str]:
    """What an expression of PCFG SET makes, from its last symbol to its first, with a stack of strings."""
    stack = []
    string: list[str] = []
    for symbol in reversed(symbols):
        if symbol in tasks.ELEMENTS:
            string = [symbol, *string]
            continue
        if string:
            stack.append(string)
            string = []
        if symbol == ",":
            continue
        top = stack.pop()
        first, last, inner = top[:1], top[-1:], top[1:-1]
        if symbol in ("append", "prepend", "removefirst", "removesecond"):
            second = stack.pop()
            results = {"append": top + second, "prepend": second + top, "removefirst": second, "removesecond": top}
        else:
            results = {"copy": top, "reverse": list(reversed(top)), "shift": inner + last + first}
            results |= {"swap": last + inner + first, "repeat": top * 2, "echo": top + last}
        stack.append(results[symbol])
    (result,) = stack
    return result


# The answer to an input, computed another way than by the generator.
ANSWERS = {
    "copy": list,
    "reverse": lambda symbols: list(reversed(symbols)),
    "repeat_token": lambda symbols: [symbols[-1]] * len(symbols),
    "sort": lambda symbols: [digit for digit in "0123456789" for _ in range(symbols.count(digit))],
    "parity": lambda symbols: [str(sum(symbol == "1" for symbol in symbols) & 1)],
    "recopy": lambda symbols: "".join(d * {0: 1, 1: 3, 2: 5}[(int(d) - 1) // 3 if d > "3" else 0] for d in symbols),
    "addition": lambda symbols: added(symbols, 1),
    "addition_reversed": lambda symbols: added(symbols, -1),
    "lookup": looked_up,
    "mqar": recalled,
    "pcfg": edited,
}
# Symbols of an input of length 7, where these are not 7.
INPUT_SYMBOLS = {
    "addition": 15, "addition_reversed": 15, "lookup": 8, "mqar": 22,
    "pcfg": None,
}  # fmt: skip


def test_the_other_computation_of_pcfg_gives_the_papers_answers():
    expression = "append swap F1 G1 H1 , repeat I1 J1"
    assert " ".join(edited(expression.split())) == "H1 G1 F1 I1 J1 I1 J1"
    expression = "echo removefirst D1 K1 , E1 F1"
    assert " ".join(edited(expression.split())) == "E1 F1 F1"


@pytest.mark.parametrize("task", GENERATORS)
@pytest.mark.parametrize("length", [1, 2, 7, 100])
def test_an_answer_is_that_of_another_computation(task, length):
    rng = random.Random(length)
    for _ in range(20):
        symbols, answer = GENERATORS[task](rng, length)
        assert list(ANSWERS[task](symbols)) == answer
        wanted = INPUT_SYMBOLS.get(task, 7)
        if length == 7 and wanted is not None:
            assert len(symbols) == wanted


def test_numbers_may_be_longer_than_python_converts():
    symbols, answer = GENERATORS["addition"](random.Random(1), 5000)
    size = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(6000)
    try:
        first, second = "".join(symbols).split("+")
        assert int("".join(answer)) == int(first) + int(second) and len(answer) == 5001
    finally:
        sys.set_int_max_str_digits(size)


def interpret(command: list[str]) -> list[str]:
    """SCAN's interpretation function, from the last word to the first as the paper defines it."""
    for conjunction, order in (("and", 1), ("after", -1)):
        if conjunction in command:
            at = command.index(conjunction)
            first, second = [interpret(part) for part in (command[:at], command[at + 1 :])][::order]
            return first + second
    if command[-1] in ("twice", "thrice"):
        return interpret(command[:-1]) * {"twice": 2, "thrice": 3}[command[-1]]
    action = [] if command[0] == "turn" else [command[0].upper()]
    if len(command) == 1:
        return action
    turn = [DIRECTIONS[command[-1]]]
    if "opposite" in command:
        return turn * 2 + action
    return (turn + action) * (4 if "around" in command else 1)


def test_scan_has_the_papers_commands_actions_and_length_split():
    pairs = FINITE_TASKS["scan"]()
    assert len({" ".join(command) for command, _ in pairs}) == len(pairs) == 20910
    assert all(interpret(command) == actions for command, actions in pairs)
    lengths = [len(actions) for _, actions in pairs]
    assert sum(length <= 22 for length in lengths) == 16990
    assert max(lengths) == 48
    assert tasks.all_pairs() is pairs or tasks.all_pairs() == pairs


def test_pcfg_has_the_papers_functions_and_elements():
    assert len(tasks.UNARY) + len(tasks.BINARY) == 10
    assert len(set(tasks.ELEMENTS)) == 520
    rng = random.Random(1)
    for functions in (0, 3, 8):
        symbols, _ = tasks.pcfg(rng, functions)
        assert sum(symbol in {*tasks.UNARY, *tasks.BINARY} for symbol in symbols) == functions


def test_a_seed_and_lengths_decide_the_pairs():
    options = {"name": "copy", "pairs": 200, "min_length": 3, "max_length": 5}
    pairs = list(generate_task_pairs(seed=1, **options))
    assert pairs == list(generate_task_pairs(seed=1, **options))
    assert pairs != list(generate_task_pairs(seed=2, **options))
    assert {len(source.split()) for source, _ in pairs} == {3, 4, 5}
    shuffled = list(generate_task_pairs("scan", 1, None, 23, 48))
    assert len(shuffled) == 3920
    assert sorted(shuffled) == sorted(generate_task_pairs("scan", 2, None, 23, 48))
    assert shuffled != list(generate_task_pairs("scan", 2, None, 23, 48))


@pytest.mark.full
@pytest.mark.parametrize("task", TASKS)
def test_the_page_of_tasks_has_the_vocabulary_in_which_each_symbol_is_a_token(task):
    page = (Path(__file__).parents[3] / "docs" / "reference" / "tasks.md").read_text(encoding="utf-8")
    (vocab_size,) = re.findall(rf"^\| `{task}` \|.* (\d+) \|$", page, flags=re.MULTILINE)
    longest = {"pcfg": 4, "scan": 48}.get(task, 10)
    pairs = generate_task_pairs(task, 1, None if task == "scan" else 20000, 1, longest)
    texts = [text for pair in pairs for text in pair]
    tokenizer = PosEncTokenizer.train(texts, int(vocab_size))
    symbols = sorted({symbol for text in texts for symbol in text.split()})
    assert {len(ids) for ids in tokenizer(symbols)["input_ids"]} == {2}  # and </s>
    with pytest.raises(ValueError, match=rf"use at most {vocab_size}"):
        PosEncTokenizer.train(texts, int(vocab_size) + 1)


def test_a_corpus_of_a_task_is_pairs_of_both_languages():
    task = {"name": "reverse", "seed": 3, "pairs": 4, "min_length": 2, "max_length": 2}
    pairs = load_pairs({"task": task}, source_language="input", target_language="output")
    assert [row["input"].split() for row in pairs["translation"]] == [
        row["output"].split()[::-1] for row in pairs["translation"]
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": None}, r"task copy has endless pairs"),
        ({"name": "mqar", "max_length": 200}, r"mqar has 128 different keys, but 200"),
        ({"name": "scan", "min_length": 49, "max_length": 60}, r"scan has 0 pairs of 49 to 60"),
        ({"name": "scan", "pairs": 30000, "max_length": 60}, r"scan has 20910 pairs.* 30000 are asked for"),
    ],
)
def test_pairs_that_a_task_lacks_are_refused(changes, message):
    options = {"name": "copy", "seed": 1, "pairs": 5, "min_length": 1, "max_length": 3} | changes
    with pytest.raises(ValueError, match=message):
        list(generate_task_pairs(**options))
