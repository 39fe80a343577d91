"""The figure of an audit: the covered share of the source along the documents, a line for each system."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from .style import WIDTH_INCHES, label_axes, label_lines, line_styles, or_nan, style_axes


def coverage_figure(profiles: Mapping[str, Sequence[float | None]], num_documents: int) -> Figure:
    """Coverage in percent over the relative position in the document; `profiles` are those of translation_audit."""
    figure = Figure(figsize=(WIDTH_INCHES, 3.2), layout="constrained")
    axes = figure.subplots()
    styles = line_styles(profiles)
    ends = {}
    for name, shares in profiles.items():
        colour, _, line_style = styles[name]
        percent = 100 * np.array([or_nan(share) for share in shares])
        axes.stairs(percent, np.linspace(0, 100, len(percent) + 1), color=colour, linestyle=line_style, baseline=None)
        known = percent[~np.isnan(percent)]
        if len(known):
            ends[name] = (float(known[-1]), colour)
    axes.set_xlim(0, 100)
    axes.set_ylim(-2, 112)  # with room for labels
    style_axes(axes)
    label_axes(
        axes,
        f"position in the source, % of {num_documents} document{'s' if num_documents > 1 else ''}",
        "% of the source words\nwith a counterpart",
    )
    if len(profiles) > 1:
        label_lines(axes, ends)
    return figure
