"""What is registered, as Markdown tables for a reader: encodings, alignments."""

from collections.abc import Mapping

from ..modeling.alignment import Alignment
from ..modeling.configuration_posenc import PosEncConfig
from ..modeling.position import HOOKS
from ..modeling.positions import PositionEncodingEntry


def encodings_table(entries: Mapping[str, PositionEncodingEntry], config: PosEncConfig) -> str:
    """The registry as a Markdown table: what each encoding is, the hooks it answers, the laws it obeys, its knobs."""
    rows = []
    for name, entry in entries.items():
        made = entry(config, config.side("encoder"))
        hooks = [f"`{hook}`" for hook in (*HOOKS, "training_positions") if getattr(made, hook) is not None]
        knobs = [f"`{knob.name}` {knob.default}" for knob in entry.knobs]
        longest = f"`{entry.longest}`" if entry.longest else "any"
        invariant = "yes" if entry.shift_invariant else "no"
        # Whoever is blind to all order is blind to its reversal; what that is, is in the summary.
        blind = " An encoder cannot tell a text from its reversal." * (entry.reversal_blind and not entry.order_blind)
        cells = [entry.summary + blind, ", ".join(hooks) or "-", invariant, longest, ", ".join(knobs) or "-"]
        rows.append([f"`{name}`", *cells])
    return lines(["encoding", "what it is", "hooks", "shift-invariant", "longest", "knobs"], rows)


def alignments_table(alignments: Mapping[str, type[Alignment]]) -> str:
    """The registry of alignments as a Markdown table."""
    rows = []
    for name, alignment in alignments.items():
        knobs = ", ".join(f"`{knob.name}` {knob.default}" for knob in alignment.knobs)
        told = "yes" if alignment.reads_lengths else "no"
        rows.append([f"`{name}`", alignment.summary, told, knobs or "-"])
    return lines(["alignment", "what it is", "told the length in training", "knobs"], rows)


def lines(headers: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [headers, ["---"] * len(headers), *rows]) + "\n"
