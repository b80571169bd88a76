"""The plots of a report, as PNG bytes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

Curve = tuple[Sequence[float], Sequence[float], Sequence[float] | None]  # x, y and the deviation of y

_LEGEND_WIDTH, _LABEL_WIDTH = 28, 44  # characters of a line


def curves(lines: Sequence[tuple[str, Curve]], *, x: str, y: str, labels: Sequence[str] | None = None) -> bytes:
    """Lines over a common axis, with a band of one standard deviation; `labels` name the places 0, 1, … of x."""
    figure, axis = _figure(8.6, 3.6)
    for name, (places, values, deviations) in lines:
        label = textwrap.fill(name, _LEGEND_WIDTH)
        (drawn,) = axis.plot(places, values, marker="o" if len(places) < 20 else None, markersize=4, label=label)
        if deviations is not None:
            low, high = zip(*((v - d, v + d) for v, d in zip(values, deviations, strict=True)), strict=True)
            axis.fill_between(places, low, high, alpha=0.15, color=drawn.get_color(), linewidth=0)
    if labels is not None:
        axis.set_xticks(range(len(labels)), labels)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)  # lines leave no corner free for sure
    return _png(figure)


def bars(values: Sequence[tuple[str, float, float | None]], *, x: str) -> bytes:
    """One bar a row, from top to bottom, with its deviation if there is one: labels are long, and read across.

    The axis begins near the smallest, and says so by its numbers.
    """
    labels = [textwrap.fill(label, _LABEL_WIDTH) for label, _, _ in values]
    figure, axis = _figure(8.0, 0.9 + 0.17 * sum(1.0 + label.count("\n") + 0.6 for label in labels))
    lengths = [value for _, value, _ in values]
    axis.barh(range(len(values)), lengths, color="#0072B2", alpha=0.85)
    spreads = [(value, place, deviation) for place, (_, value, deviation) in enumerate(values) if deviation is not None]
    for value, place, deviation in spreads:
        axis.errorbar(value, place, xerr=deviation, capsize=3, color="black", linewidth=1)
    axis.set_yticks(range(len(values)), labels, fontsize=8)
    axis.set_ylim(len(values) - 0.4, -0.6)  # the first on top
    lowest, highest = min(lengths), max(lengths)
    axis.set_xlim(max(0.0, lowest - 0.5 * (highest - lowest) - 2.0), None)
    axis.set_xlabel(x)
    axis.grid(alpha=0.3, axis="x")
    return _png(figure)


def pyplot() -> Any:
    """Without a screen."""
    import matplotlib
    from matplotlib import pyplot as plt

    matplotlib.use("Agg")
    return plt


def save(figure: Any, file: str | Path | BinaryIO, kind: str, *, dpi: int) -> None:
    """Its texts as they are: a dollar sign in a sentence or in a label begins no formula."""
    from matplotlib import pyplot as plt
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    figure.savefig(file, format=kind, dpi=dpi)
    plt.close(figure)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    figure, axis = pyplot().subplots(figsize=(width, height), layout="constrained")
    return figure, axis


def _png(figure: Any) -> bytes:
    content = io.BytesIO()
    save(figure, content, "png", dpi=110)
    return content.getvalue()
