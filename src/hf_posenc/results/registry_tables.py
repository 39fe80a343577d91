"""What is registered, as Markdown tables for a reader: encodings, alignments."""

from collections.abc import Mapping

from ..modeling.alignment_base import Alignment
from ..modeling.configuration_posenc import PosEncConfig
from ..modeling.position_base import HOOKS
from ..modeling.position_registry import PositionEncodingEntry


def encodings_table(entries: Mapping[str, PositionEncodingEntry], config: PosEncConfig) -> str:
    """The registry as a Markdown table: what each encoding is, the hooks it answers, the laws it obeys, its knobs."""
    rows = []
    for name, entry in entries.items():
        encoding = entry(config, config.side("encoder"))
        hooks = [f"`{hook}`" for hook in (*HOOKS, "augment_positions") if getattr(encoding, hook) is not None]
        knobs = [f"`{knob.name}` {knob.default}" for knob in entry.config_parameters]
        max_length = f"`{entry.max_length_field}`" if entry.max_length_field else "any"
        shift_invariant = "yes" if entry.shift_invariant else "no"
        # Whoever is blind to all order is blind to its reversal; what that is, is in the summary.
        reversal_note = " An encoder cannot tell a text from its reversal." * (
            entry.reversal_equivariant and not entry.permutation_equivariant
        )
        cells = [
            entry.summary + reversal_note,
            ", ".join(hooks) or "-",
            shift_invariant,
            max_length,
            ", ".join(knobs) or "-",
        ]
        rows.append([f"`{name}`", *cells])
    return markdown_table(["encoding", "what it is", "hooks", "shift-invariant", "longest", "knobs"], rows)


def alignments_table(alignments: Mapping[str, type[Alignment]]) -> str:
    """The registry of alignments as a Markdown table."""
    rows = []
    for name, alignment in alignments.items():
        knobs = ", ".join(f"`{knob.name}` {knob.default}" for knob in alignment.config_parameters)
        uses_length = "yes" if alignment.uses_target_length else "no"
        rows.append([f"`{name}`", alignment.summary, uses_length, knobs or "-"])
    return markdown_table(["alignment", "what it is", "told the length in training", "knobs"], rows)


def markdown_table(headers: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [headers, ["---"] * len(headers), *rows]) + "\n"
