"""The plots of a report, as PNG bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

Curve = tuple[Sequence[float], Sequence[float], Sequence[float] | None]  # x, y and the deviation of y


def curves(lines: Mapping[str, Curve], *, x: str, y: str, labels: Sequence[str] | None = None) -> bytes:
    """Lines over a common axis, with a band of one standard deviation; `labels` name the places 0, 1, … of x."""
    figure, axis = _figure()
    for name, (places, values, deviations) in lines.items():
        (drawn,) = axis.plot(places, values, marker="o" if len(places) < 20 else None, markersize=4, label=name)
        if deviations is not None:
            low, high = zip(*((v - d, v + d) for v, d in zip(values, deviations, strict=True)), strict=True)
            axis.fill_between(places, low, high, alpha=0.15, color=drawn.get_color(), linewidth=0)
    if labels is not None:
        axis.set_xticks(range(len(labels)), labels)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.3)
    if len(lines) > 1:
        axis.legend(fontsize=8, frameon=False)
    return _png(figure)


def bars(values: Mapping[str, tuple[float, float | None]], *, y: str) -> bytes:
    """One bar a row, with its deviation; the axis begins near the smallest, and says so by its numbers."""
    figure, axis = _figure(width=1.5 + 0.9 * len(values))
    heights = [value for value, _ in values.values()]
    deviations = [deviation or 0.0 for _, deviation in values.values()]
    axis.bar(range(len(values)), heights, yerr=deviations, capsize=3, color="#0072B2", alpha=0.85)
    axis.set_xticks(range(len(values)), list(values), rotation=30, ha="right", fontsize=8)
    lowest, highest = min(heights), max(heights)
    axis.set_ylim(max(0.0, lowest - 0.5 * (highest - lowest) - 2.0), None)
    axis.set_ylabel(y)
    axis.grid(alpha=0.3, axis="y")
    return _png(figure)


def _figure(width: float = 6.4) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(max(width, 4.0), 3.6), layout="constrained")


def _png(figure: Any) -> bytes:
    from matplotlib import pyplot as plt

    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    plt.close(figure)
    return content.getvalue()
