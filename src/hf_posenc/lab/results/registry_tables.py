"""Markdown tables of the registered encodings and alignments."""

from collections.abc import Mapping

from ...alignments.base import Alignment
from ...encodings.base import HOOKS
from ...encodings.registry import PositionEncodingEntry
from ...transformer.configuration_posenc import PosEncConfig


def encodings_table(entries: Mapping[str, PositionEncodingEntry], config: PosEncConfig) -> str:
    """The registry as a Markdown table: summary, hooks, properties and parameters of each encoding."""
    rows = []
    for name, entry in entries.items():
        encoding = entry(config, config.side("encoder"))
        hooks = [f"`{hook}`" for hook in (*HOOKS, "augment_positions") if getattr(encoding, hook) is not None]
        parameters = [f"`{parameter.name}` {parameter.default}" for parameter in entry.config_parameters]
        max_length = f"`{entry.max_length_field}`" if entry.max_length_field else "any"
        shift_invariant = "yes" if entry.shift_invariant else "no"
        summary = entry.summary
        # Order-blind implies reversal-blind, and the summary of an order-blind encoding says so.
        if entry.reversal_equivariant and not entry.permutation_equivariant:
            summary += " An encoder cannot distinguish a text from its reversal."
        cells = [
            summary,
            ", ".join(hooks) or "-",
            shift_invariant,
            max_length,
            ", ".join(parameters) or "-",
        ]
        rows.append([f"`{name}`", *cells])
    return markdown_table(["encoding", "what it is", "hooks", "shift-invariant", "maximum length", "parameters"], rows)


def alignments_table(alignments: Mapping[str, type[Alignment]]) -> str:
    """The registry of alignments as a Markdown table."""
    rows = []
    for name, alignment in alignments.items():
        parameters = [f"`{parameter.name}` {parameter.default}" for parameter in alignment.config_parameters]
        uses_length = "yes" if alignment.uses_target_length else "no"
        rows.append([f"`{name}`", alignment.summary, uses_length, ", ".join(parameters) or "-"])
    return markdown_table(["alignment", "what it is", "uses the target length in training", "parameters"], rows)


def markdown_table(headers: list[str], rows: list[list[str]]) -> str:
    """A Markdown table of these cells."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [headers, ["---"] * len(headers), *rows]) + "\n"
