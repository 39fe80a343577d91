"""The report of a measurement: the numbers of each part, one line of verdict, and a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .parts import DEPTHS, FIRST_TOKENS, NEW_TOKENS
from .scoring import mean_with_interval
from .store import Record

FALL = 0.01  # nats: a loss that is lower by more than this, one percent of perplexity, is lower
RISE = 0.05  # nats: a loss that is higher by more than this has risen
THRESHOLD = 0.9  # of accuracies
# The parts that are right or wrong, and the keys of their records.
ACCURACIES = {"copying": ("copy", "accuracy"), "needle": ("retrieval", "needle"), "key-value": ("retrieval", "values")}
COLUMNS = (
    "length", "loss at these positions", "loss with this context", "gain", *ACCURACIES, "repeated 4-grams (text)",
    f"attention on first {FIRST_TOKENS}", "half of attention within",
)  # fmt: skip
Mean = Mapping[str, Any]  # of `mean_with_interval`


@dataclass(frozen=True)
class LengthReport:
    """What was measured of a model; `str` of it is the verdict.

    `numbers` has all numbers, as JSON takes them. `rows` are the cells of the table with these `columns`, a row for
    each length; `notes` are sentences for the reader of the table.
    """

    verdict: str
    numbers: dict[str, Any] = field(repr=False)
    columns: Sequence[str] = field(repr=False)
    rows: list[list[str]] = field(repr=False)
    notes: list[str] = field(repr=False)

    def __str__(self) -> str:
        return self.verdict

    def to_markdown(self) -> str:
        """The verdict, the table and the notes."""
        lines = [f"# Usable length of {self.numbers['model']}", "", f"**{self.verdict}**", ""]
        for cells in [self.columns, ["---"] * len(self.columns), *self.rows]:
            lines.append(f"| {' | '.join(cells)} |")
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"


def summarize(facts: dict[str, Any], parts: Mapping[str, Mapping[int, Record]]) -> LengthReport:
    """The report of a decoder-only model, from the records of its parts by length, which may lack some.

    `facts` are what else is known: model, claimed_length, lengths, documents, blocks, trials, failures,
    rope_wavelengths.
    """
    context, losses = parts["context"], parts["context"].items()
    useful, rising, is_clear = usable_context(context)
    numbers = facts | {
        "readable_length": max(context),
        "useful_length": useful,
        "rising_length": rising,
        "loss_by_position": loss_by_bucket(parts["loss"], facts["lengths"]),
        "loss_by_context": {length: mean_with_interval(record["loss"], groups(record)) for length, record in losses},
        "gain": {longer: gain(context, length, longer) for length, longer in pairwise(context)},
        "extra_loss": {length: gain(context, length, useful) for length in context},
        "accuracies": {},
        "retrieval": parts["retrieval"],
        "repetition": parts["repetition"],
        "attention": parts["attention"],
    }
    for name, (part, key) in ACCURACIES.items():
        records = parts[part].items()
        numbers["accuracies"][name] = {length: average(record[key]) for length, record in records if record[key]}
    rows = [table_row(numbers, length) for length in facts["lengths"]]
    return LengthReport(verdict(numbers, is_clear), numbers, COLUMNS, rows, notes(numbers))


def groups(record: Record) -> list[int]:
    """The document of each block; if there is one document, each block is a group."""
    documents = record["document"]
    return documents if len(set(documents)) > 1 else list(range(len(documents)))


def gain(context: Mapping[int, Record], short: int, long: int) -> Mean:
    """By how much the loss is lower with the `long` context than with the `short` one, with its interval."""
    pairs = zip(context[short]["loss"], context[long]["loss"], strict=True)
    return mean_with_interval([at_short - at_long for at_short, at_long in pairs], groups(context[short]))


def usable_context(context: Mapping[int, Record]) -> tuple[int, int | None, bool]:
    """The length at which the loss stops falling, the first one beyond at which it has risen, and whether that is
    clear.

    No length beyond the first one lowers the loss by more than FALL, with an interval above 0. It is not clear if one
    of them does without the interval. The second one is None if the loss does not rise by more than RISE.
    """
    lengths = sorted(context)
    useful = lengths[0]
    for length in lengths:
        if any(is_above(gain(context, length, longer), FALL) for longer in lengths if longer > length):
            continue
        useful = length
        break
    beyond = [length for length in lengths if length > useful]
    risen = [length for length in beyond if is_above(gain(context, length, useful), RISE)]
    is_clear = all(gain(context, useful, length)["mean"] <= FALL for length in beyond)
    return useful, min(risen, default=None), is_clear


def loss_by_bucket(records: Mapping[int, Record], lengths: Sequence[int]) -> dict[int, Mean]:
    """The loss at positions below each length and not below the length before it, with its interval."""
    by_bucket, first = dict[int, Mean](), 1
    for longest, record in records.items():
        for length in lengths:
            if length <= longest:
                means = [average(losses[first - 1 : length - 1]) for losses in record["loss"]]
                by_bucket[length], first = mean_with_interval(means, groups(record)), length
    return by_bucket


def verdict(numbers: Mapping[str, Any], is_clear: bool) -> str:
    """One line: the claimed length, and up to which length each part is good."""
    claimed, readable, useful = (numbers[f"{name}_length"] for name in ("claimed", "readable", "useful"))
    shortest, longest = numbers["lengths"][0], numbers["lengths"][-1]
    claims = ["claims no length" if claimed is None else f"claimed {claimed}"]
    if readable < longest:
        claims.append(f"reads up to {readable}")
    if useful == readable:
        claims.append(f"loss is still falling at {useful}, the longest")
    elif not is_clear:
        claims.append(f"loss falls up to {useful}, unclear beyond")
    elif useful == shortest:
        claims.append(f"loss does not fall beyond {useful}, the shortest")
    else:
        claims.append(f"loss stops falling at {useful}")
    if numbers["rising_length"] is not None:
        claims.append(f"loss rises from {numbers['rising_length']} on")
    for name, by_length in numbers["accuracies"].items():
        reached = reach(by_length)
        if reached is not None:
            claims.append(f"{name} above 90 % up to {reached}")
        elif by_length:
            claims.append(f"{name} below 90 % at {min(by_length)} already, {percent(max(by_length.values()))} at best")
    return "; ".join(claims)


def table_row(numbers: Mapping[str, Any], length: int) -> list[str]:
    """The cells of a length in the table; "-" for what was not measured."""
    cells = [str(length)]
    cells += [with_interval(numbers[name].get(length)) for name in ("loss_by_position", "loss_by_context", "gain")]
    cells += [percent(by_length.get(length)) for by_length in numbers["accuracies"].values()]
    repeated, attention = numbers["repetition"].get(length), numbers["attention"].get(length)
    shares = [percent(average(repeated[name])) for name in ("generated", "text")] if repeated else []
    cells.append(f"{shares[0]} ({shares[1]})" if shares else "-")
    cells += [percent(attention["first_tokens"]), str(half_distance(attention))] if attention else ["-", "-"]
    return cells


def notes(numbers: Mapping[str, Any]) -> list[str]:
    """What the columns of the table are, the wavelengths of RoPE, and what failed."""
    unit = "documents" if numbers["documents"] > 1 else "blocks of one document"
    lines = [
        f"{numbers['blocks']} blocks of {numbers['lengths'][-1]} tokens from {numbers['documents']} documents, "
        f"{numbers['trials']} random inputs for each length, in retrieval for each of {len(DEPTHS)} depths. Losses are "
        f"in nats a token, with 95 % bootstrap intervals over {unit}. The gain is that of this context over the one "
        f"before it, on the same tokens. A continuation has up to {NEW_TOKENS} tokens.",
        rope_note(numbers),
    ]
    return lines + [f"Not measured: {name}, because: {reason}" for name, reason in numbers["failures"].items()]


def rope_note(numbers: Mapping[str, Any]) -> str:
    """The wavelengths of RoPE against the claimed length."""
    found, claimed = numbers["rope_wavelengths"], numbers["claimed_length"]
    if not found:
        return "The model has no rotary embedding."
    note = f"Wavelengths of RoPE: {found[0]:.3g} to {found[-1]:.3g} tokens."
    if claimed is None:
        return note
    longer = sum(wavelength > claimed for wavelength in found)
    return (
        f"{note} {longer} of {len(found)} exceed the claimed length: beyond it, these channels take angles that no "
        "input of that length has."
    )


def is_above(difference: Mean, threshold: float) -> bool:
    """Whether a mean exceeds the threshold, and all of its interval exceeds 0."""
    interval = difference["interval"]
    return difference["mean"] > threshold and (interval is None or interval[0] > 0)


def reach(accuracies: Mapping[int, float]) -> int | None:
    """The longest length up to which all accuracies are THRESHOLD or more; None if that of the first is not."""
    reached = None
    for length in sorted(accuracies):
        if accuracies[length] < THRESHOLD:
            break
        reached = length
    return reached


def half_distance(attention: Record) -> int:
    """The distance within which half of the attention lies that is not on the first tokens: the end of its bucket."""
    reached, edges = 0.0, attention["from_distance"]
    for edge, mass in zip(edges[1:], attention["mass"], strict=False):
        reached += mass
        if reached >= sum(attention["mass"]) / 2:
            return edge - 1
    return 2 * edges[-1] - 1


def average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def with_interval(value: Mean | None) -> str:
    """A mean with its interval, to three decimals."""
    if value is None:
        return "-"
    interval = value["interval"]
    return f"{value['mean']:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")
