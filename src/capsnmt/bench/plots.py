"""One picture per benchmark, from the rows of its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from capsnmt.bench.report import BenchReport
from capsnmt.errors import CapsNMTError

Row = Mapping[str, Any]

OURS, PEERS, GREY = "#2a6f97", "#c1666b", "#bbbbbb"


def save_plot(report: BenchReport, path: Path) -> None:
    """A PNG; matplotlib also knows PDF and SVG by their endings."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = PLOTS[report.kind](plt, report.rows)
    figure.suptitle(report.title, fontsize=11)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise CapsNMTError(f"--plot {path}: cannot be written ({error})") from None
    finally:
        plt.close(figure)


def _latency(plt: Any, rows: Sequence[Row]) -> Any:
    settings = list(dict.fromkeys((row["protocol"], row["threads"], row["beam"]) for row in rows))
    panels = {
        f"{protocol}, {threads} thread{'s' if threads > 1 else ''}, beam {beam}": [
            row for row in rows if (row["protocol"], row["threads"], row["beam"]) == (protocol, threads, beam)
        ]
        for protocol, threads, beam in settings
    }
    return _bar_panels(plt, panels, ("median_ms", "min_ms", "max_ms"), "ms per sentence")


def _throughput(plt: Any, rows: Sequence[Row]) -> Any:
    beams = dict.fromkeys(row["beam"] for row in rows)
    panels = {f"beam {beam}": [row for row in rows if row["beam"] == beam] for beam in beams}
    keys = ("sentences_per_s", "min_sentences_per_s", "max_sentences_per_s")
    return _bar_panels(plt, panels, keys, "sentences per second")


def _start(plt: Any, rows: Sequence[Row]) -> Any:
    named = [{**row, "system": row["what"], "name": row["what"]} for row in rows]
    return _bar_panels(plt, {"": named}, ("median_ms", "min_ms", "max_ms"), "ms to the first translation")


def _bar_panels(plt: Any, panels: Mapping[str, Sequence[Row]], keys: tuple[str, str, str], unit: str) -> Any:
    """Horizontal bars with whiskers from the smallest to the largest measurement."""
    columns = 1 if len(panels) == 1 else 2
    lines = -(-len(panels) // columns)
    most = max(len(rows) for rows in panels.values())
    figure, axes = plt.subplots(
        lines, columns, figsize=(6.5 * columns, 1.2 + lines * (0.7 + 0.32 * most)), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, rows) in zip(axes.flat, panels.items(), strict=False):
        middle, low, high = ([float(row[key]) for row in rows] for key in keys)
        whiskers = [
            [m - a for m, a in zip(middle, low, strict=True)],
            [b - m for m, b in zip(middle, high, strict=True)],
        ]
        colours = [PEERS if str(row["name"]).startswith("ct2") else OURS for row in rows]
        places = range(len(rows))
        axis.barh(places, middle, xerr=whiskers, color=colours, error_kw={"elinewidth": 1, "capsize": 2})
        axis.set_yticks(places, [str(row["system"]) for row in rows], fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel(unit, fontsize=8)
        axis.set_title(title, fontsize=9, loc="left")
        for place, value, end in zip(places, middle, high, strict=True):
            axis.annotate(f" {value:.4g}", (end, place), va="center", fontsize=7)
        axis.margins(x=0.15)
    return figure


def _growth(plt: Any, rows: Sequence[Row]) -> Any:
    panels = {
        "step_median_ms": "decoder, ms per step",
        "median_ms": "whole translation, ms",
        "peak_mb": "peak memory, MB",
    }
    lengths = sorted({int(row["source_length"]) for row in rows})
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    for axis, (key, title) in zip(axes, panels.items(), strict=True):
        for name in dict.fromkeys(row["name"] for row in rows):
            own = [row for row in rows if row["name"] == name]
            style = "--" if str(name).startswith("ct2") else "-"
            x, y = [row["source_length"] for row in own], [row[key] for row in own]
            axis.plot(x, y, style, marker="o", ms=3, label=own[0]["system"])
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, [str(length) for length in lengths], fontsize=8)
        axis.set_yscale("log" if key == "median_ms" else "linear")
        if key != "median_ms":
            axis.set_ylim(bottom=0)
        axis.set_xlabel("source tokens", fontsize=8)
        axis.set_title(title, fontsize=9, loc="left")
    axes[0].legend(fontsize=8)
    return figure


def _limit(plt: Any, rows: Sequence[Row]) -> Any:
    groups = list(dict.fromkeys((row["system"], row["beam"]) for row in rows))
    figure, axes = plt.subplots(1, len(groups), figsize=(5 * len(groups), 4), squeeze=False, layout="constrained")
    for axis, group in zip(axes[0], groups, strict=True):
        own = [row for row in rows if (row["system"], row["beam"]) == group]
        places = range(len(own))
        axis.barh([p - 0.2 for p in places], [row["floor_ms"] or 0.0 for row in own], 0.4, color=GREY, label="floor")
        achieved = [row["achieved_ms"] or 0.0 for row in own]
        axis.barh([p + 0.2 for p in places], achieved, 0.4, color=OURS, label="achieved")
        axis.set_yticks(places, [row["stage"] for row in own], fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel("ms per translation", fontsize=8)
        axis.set_title(f"{group[0]}, beam {group[1]}", fontsize=9, loc="left")
        for place, row in zip(places, own, strict=True):
            if row.get("times_the_floor") is not None:
                axis.annotate(
                    f" × {row['times_the_floor']:.3g}", (row["achieved_ms"], place + 0.2), va="center", fontsize=7
                )
        axis.margins(x=0.15)
    axes[0][0].legend(fontsize=8)
    return figure


def _pareto(plt: Any, rows: Sequence[Row]) -> Any:
    figure, axis = plt.subplots(figsize=(7.5, 5), layout="constrained")
    for row in rows:
        colour = PEERS if "CTranslate2" in str(row["system"]) else OURS
        axis.plot(row["median_ms"], row["bleu"], "o" if row["on_front"] else "x", color=colour)
        axis.annotate(
            f"{row['system']}, beam {row['beam']}",
            (row["median_ms"], row["bleu"]),
            xytext=(5, 3),
            textcoords="offset points",
            fontsize=7,
        )
    front = sorted((row["median_ms"], row["bleu"]) for row in rows if row["on_front"])
    axis.step(*zip(*front, strict=True), where="post", color=GREY, linewidth=1, zorder=0)
    axis.set_xscale("log")
    axis.set_xlabel("ms per sentence, batch 1")
    axis.set_ylabel("BLEU")
    axis.margins(x=0.2, y=0.1)
    return figure


PLOTS: dict[str, Callable[[Any, Sequence[Row]], Any]] = {
    "latency": _latency,
    "throughput": _throughput,
    "growth": _growth,
    "limit": _limit,
    "start": _start,
    "pareto": _pareto,
}
