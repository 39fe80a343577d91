"""The tasks by name, and corpora of them."""

from collections.abc import Callable, Iterator, Mapping
from random import Random

from . import arithmetic, pcfg, recall, scan, strings
from .strings import Pair

# From random numbers and a length to one pair.
GENERATORS: Mapping[str, Callable[[Random, int], Pair]] = {
    "copy": strings.copy,
    "reverse": strings.reverse,
    "repeat_token": strings.repeat_token,
    "sort": strings.sort,
    "parity": strings.parity,
    "modular_sum": strings.modular_sum,
    "recopy": strings.recopy,
    "inverse_recopy": strings.inverse_recopy,
    "addition": arithmetic.addition,
    "addition_reversed": arithmetic.addition_reversed,
    "addition_hints": arithmetic.addition_hints,
    "lookup": recall.lookup,
    "mqar": recall.mqar,
    "pcfg": pcfg.pcfg,
}
# All pairs of a finite task; its lengths are those of the answers.
FINITE_TASKS: Mapping[str, Callable[[], list[Pair]]] = {"scan": scan.all_pairs}
TASKS = (*GENERATORS, *FINITE_TASKS)


def generate_task_pairs(
    name: str, seed: int, pairs: int | None, min_length: int, max_length: int
) -> Iterator[tuple[str, str]]:
    """Inputs and answers of a task, symbols separated by spaces, of lengths from `min_length` to `max_length`.

    Each length is equally frequent; what it counts is the task's. Of a finite task all pairs of these lengths come, in
    an order that the seed decides, or the first `pairs` of them; a ValueError if there are fewer.
    """
    rng = Random(seed)
    for symbols, answer in sample_pairs(name, rng, pairs, min_length, max_length):
        yield " ".join(symbols), " ".join(answer)


def sample_pairs(name: str, rng: Random, pairs: int | None, min_length: int, max_length: int) -> Iterator[Pair]:
    """The pairs of `generate_task_pairs`, as symbols."""
    if name in GENERATORS:
        if pairs is None:
            raise ValueError(f"The task {name} has endless pairs; say how many are wanted, for example pairs: 10000.")
        generate = GENERATORS[name]
        generate(Random(0), max_length)  # so that a length that the task lacks is refused before any other
        for _ in range(pairs):
            yield generate(rng, rng.randint(min_length, max_length))
        return
    selected = [pair for pair in FINITE_TASKS[name]() if min_length <= len(pair[1]) <= max_length]
    if len(selected) < (1 if pairs is None else pairs):
        raise ValueError(
            f"The task {name} has {len(selected)} pairs of {min_length} to {max_length} symbols, but {pairs or 1} are "
            "asked for; ask for fewer, or for other lengths."
        )
    rng.shuffle(selected)
    yield from selected[:pairs]
