"""The report of a measurement: the numbers of each part, one line of verdict, JSON and Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .parts import DEPTHS, NEW_TOKENS
from .scoring import mean_with_interval
from .store import Record

FALL = 0.01  # nats: a loss that is lower by more than this, one percent of perplexity, is lower
RISE = 0.05  # nats: a loss that is higher by more than this has risen
THRESHOLD = 0.9  # of accuracies


@dataclass(frozen=True)
class LengthReport:
    """What was measured of a decoder-only model; `str` of it is the verdict.

    `claimed` is the length of the model's config, `readable` the longest of `lengths` that the model reads, with the
    `failure` at the next one. `parts` has the record of each part at each length, `wavelengths` are those of RoPE.
    """

    model: str
    claimed: int | None
    lengths: list[int]
    documents: int
    blocks: int
    trials: int
    wavelengths: list[float]
    parts: dict[str, dict[int, Record]] = field(repr=False)
    readable: int = 0
    failure: str | None = None

    def __str__(self) -> str:
        return self.verdict

    @property
    def verdict(self) -> str:
        """One line: the claimed length, and up to which length each part is good."""
        claims = ["claims no length" if self.claimed is None else f"claimed {self.claimed}"]
        if self.failure:
            claims.append(f"reads up to {self.readable}")
        useful, rises = self.useful_length, self.rising_length
        if useful == self.readable and useful > self.lengths[0]:
            claims.append(f"loss still falls at {useful}, the longest")
        elif useful == self.lengths[0]:
            claims.append(f"loss does not fall beyond {useful}, the shortest")
        else:
            claims.append(f"loss stops falling at {useful}")
        if rises is not None:
            claims.append(f"loss rises from {rises} on")
        for name, by_length in (("copying", self.copying), ("retrieval", self.retrieval)):
            if by_length:
                reached = reach(by_length)
                claims.append(f"{name} above 90 % {'at no length' if reached is None else f'up to {reached}'}")
        return "; ".join(claims)

    def records(self, part: str) -> dict[int, Record]:
        """The records of a part by length, without those that failed or are empty."""
        return {
            length: record for length, record in self.parts.get(part, {}).items() if record and "failure" not in record
        }

    def context_gain(self, short: int, long: int) -> Mapping[str, Any]:
        """By how much the loss is lower with the `long` context than with the `short` one, with its interval."""
        records = self.records("context")
        pairs = zip(records[short]["loss"], records[long]["loss"], strict=True)
        return mean_with_interval([at_short - at_long for at_short, at_long in pairs], self.groups)

    @property
    def groups(self) -> list[int]:
        """The document of each block; if there is one document, each block is a group."""
        documents = self.records("context")[self.lengths[0]]["document"]
        return documents if len(set(documents)) > 1 else list(range(len(documents)))

    @property
    def useful_length(self) -> int:
        """The shortest length than which no longer one lowers the loss by more than FALL, beyond the interval."""
        lengths = list(self.records("context"))
        for index, length in enumerate(lengths):
            gains = [self.context_gain(length, longer) for longer in lengths[index + 1 :]]
            if not any(is_above(gain, FALL) for gain in gains):
                return length
        return lengths[-1]

    @property
    def rising_length(self) -> int | None:
        """The first length beyond `useful_length` with a loss that is higher by more than RISE; None without one."""
        useful = self.useful_length
        for length in self.records("context"):
            if length > useful and is_above(self.context_gain(length, useful), RISE):
                return length
        return None

    @property
    def loss_by_bucket(self) -> dict[int, Mapping[str, Any]]:
        """The loss at positions below each length and not below the length before it, with its interval."""
        by_bucket, first = dict[int, Mapping[str, Any]](), 1
        for record in self.records("loss").values():
            for length in self.lengths:
                if length <= self.readable:
                    means = [sum(losses[first - 1 : length - 1]) / (length - first) for losses in record["loss"]]
                    by_bucket[length], first = mean_with_interval(means, self.groups), length
        return by_bucket

    @property
    def copying(self) -> dict[int, float]:
        """The accuracy of copying by length."""
        return {length: average(record["accuracy"]) for length, record in self.records("copy").items()}

    def answers(self, kind: str) -> dict[int, float]:
        """The accuracy of a kind of retrieval by length, over all depths."""
        records = self.records("retrieval").items()
        return {length: average(record[kind]) for length, record in records if record[kind]}

    @property
    def retrieval(self) -> dict[int, float]:
        """The accuracy of retrieval by length: of both kinds, or of the one whose prompts are short enough."""
        by_length = {}
        for length, record in self.records("retrieval").items():
            if hits := record["needle"] + record["key_value"]:
                by_length[length] = average(hits)
        return by_length

    def to_dict(self) -> dict[str, Any]:
        """All numbers of the report, as JSON takes them."""
        context = self.records("context")
        return {
            "model": self.model,
            "verdict": self.verdict,
            "claimed_length": self.claimed,
            "readable_length": self.readable,
            "failure": self.failure,
            "useful_length": self.useful_length,
            "rising_length": self.rising_length,
            "lengths": self.lengths,
            "documents": self.documents,
            "blocks": self.blocks,
            "trials": self.trials,
            "loss_by_position": self.loss_by_bucket,
            "loss_by_context": {length: mean_with_interval(context[length]["loss"], self.groups) for length in context},
            "extra_loss": {length: self.context_gain(length, self.useful_length) for length in context},
            "copying": self.copying,
            "needle": self.answers("needle"),
            "key_value": self.answers("key_value"),
            "retrieval_by_depth": self.records("retrieval"),
            "repetition": self.records("repetition"),
            "attention": self.records("attention"),
            "rope_wavelengths": self.wavelengths,
        }

    def to_markdown(self) -> str:
        """The verdict, a table with a row for each length, and what its columns are."""
        lines = [f"# Usable length of {self.model}", "", f"**{self.verdict}**", ""]
        headers = [
            "length", "loss at these positions", "loss with this context", "gain", "copying", "needle", "key-value",
            "repeated 4-grams (text)", "attention on first 4", "half of attention within",
        ]  # fmt: skip
        rows = [self.row(length, shorter) for length, shorter in zip(self.lengths, [None, *self.lengths], strict=False)]
        for cells in [headers, ["---"] * len(headers), *rows]:
            lines.append(f"| {' | '.join(cells)} |")
        unit = "documents" if self.documents > 1 else "blocks of one document"
        lines += [
            "",
            f"{self.blocks} blocks of {self.lengths[-1]} tokens from {self.documents} documents, {self.trials} random "
            f"inputs for each length, in retrieval for each of {len(DEPTHS)} depths. Losses are in nats a token, with "
            f"95 % bootstrap intervals over {unit}. The gain is that of this context over the one before it, on the "
            f"same tokens. A continuation has up to {NEW_TOKENS} tokens.",
            "",
            self.rope_line,
        ]
        if self.failure:
            lines += ["", f"At the next length after {self.readable} the model stops with: {self.failure}"]
        return "\n".join(lines) + "\n"

    @property
    def rope_line(self) -> str:
        """One sentence on the wavelengths of RoPE against the claimed length."""
        if not self.wavelengths:
            return "The model has no rotary embedding."
        span = f"{self.wavelengths[0]:.3g} to {self.wavelengths[-1]:.3g} tokens"
        if self.claimed is None:
            return f"Wavelengths of RoPE: {span}."
        longer = sum(wavelength > self.claimed for wavelength in self.wavelengths)
        return (
            f"Wavelengths of RoPE: {span}. {longer} of {len(self.wavelengths)} exceed the claimed length: beyond it, "
            "these channels take angles that no input of that length has."
        )

    def row(self, length: int, shorter: int | None) -> list[str]:
        """The cells of a length in the table."""
        contexts, repeated = self.records("context"), self.records("repetition").get(length)
        attention = self.records("attention").get(length)
        cells = [str(length), with_interval(self.loss_by_bucket.get(length))]
        has_both = length in contexts and shorter in contexts
        cells.append(
            with_interval(mean_with_interval(contexts[length]["loss"], self.groups) if length in contexts else None)
        )
        cells.append(with_interval(self.context_gain(shorter, length) if has_both and shorter is not None else None))
        for accuracies in (self.copying, self.answers("needle"), self.answers("key_value")):
            cells.append(percent(accuracies.get(length)))
        if repeated:
            cells.append(f"{percent(average(repeated['generated']))} ({percent(average(repeated['text']))})")
        else:
            cells.append("-")
        cells += [percent(attention["first_tokens"]), str(half_distance(attention))] if attention else ["-", "-"]
        return cells


def is_above(difference: Mapping[str, Any], threshold: float) -> bool:
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
    total, reached = sum(attention["mass"]), 0.0
    edges = attention["from_distance"]
    for end, mass in zip([*edges[1:], 2 * edges[-1]], attention["mass"], strict=True):
        reached += mass
        if reached >= total / 2:
            return end - 1
    return edges[-1]


def average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def with_interval(value: Mapping[str, Any] | None) -> str:
    """A mean with its interval, to three decimals."""
    if value is None:
        return "-"
    if value["interval"] is None:
        return f"{value['mean']:.3f}"
    low, high = value["interval"]
    return f"{value['mean']:.3f} [{low:.3f}, {high:.3f}]"
