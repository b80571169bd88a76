"""What a benchmark found: rows, the figures that matter most, and what the machine was like."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from capsnmt.bench.measure import Spread
from capsnmt.errors import CapsNMTError
from capsnmt.machine import processor, usable_cores

PACKAGES = ("capsnmt", "onnxruntime", "ctranslate2", "numpy")
QUIET_LOAD = 0.5
_NAME_WIDTH = 24


@dataclass(frozen=True)
class Claim:
    """A figure, and what it should at least or at most be."""

    what: str
    value: float
    relation: Literal[">=", "<="]
    wanted: float

    @property
    def met(self) -> bool:
        """Whether the figure is what it should be."""
        return self.value >= self.wanted if self.relation == ">=" else self.value <= self.wanted


@dataclass(frozen=True)
class BenchReport:
    """`columns`: key of a row → heading; keys that are not named there are in the JSON alone.

    `groups`: keys by whose values the rows are shown in tables of their own.
    """

    kind: str
    title: str
    settings: dict[str, Any]
    columns: dict[str, str]
    rows: list[dict[str, Any]]
    groups: tuple[str, ...] = ()
    claims: list[Claim] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)  # what was computed from several rows
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for json.dumps."""
        return {
            "bench": self.kind,
            "settings": self.settings,
            "machine": self.machine,
            "rows": self.rows,
            "figures": self.figures,
            "claims": [asdict(claim) | {"met": claim.met} for claim in self.claims],
            "notes": self.notes,
        }


def spread_ms(seconds: Spread, prefix: str = "") -> dict[str, Any]:
    """The four figures of a row, in milliseconds."""
    return {
        f"{prefix}median_ms": round(1e3 * seconds.median, 4),
        f"{prefix}min_ms": round(1e3 * seconds.min, 4),
        f"{prefix}max_ms": round(1e3 * seconds.max, 4),
        f"{prefix}count": seconds.count,
    }


def ratio(value: float, base: float) -> float | None:
    """How many times the base; None where there is no base."""
    return round(value / base, 4) if base > 0.0 else None


def machine_now() -> dict[str, Any]:
    """What the figures depend on, and nothing that names the machine."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "load_before": round(os.getloadavg()[0], 2),
    }


def quiet_note(machine: Mapping[str, Any]) -> list[str]:
    """Says so if others were at work."""
    load = machine["load_before"]
    return [f"the machine was not quiet: load {load} before the start"] if load > QUIET_LOAD else []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_json(report: BenchReport, path: Path) -> None:
    """To a file, or to standard output for `-`."""
    text = json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n"
    if str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CapsNMTError(f"--json {path}: cannot be written ({error.strerror})") from None


def print_report(report: BenchReport, console: Console) -> None:
    """Tables, the claims with what they should be, and the notes."""
    console.print(report.title, style="bold", highlight=False, markup=False)
    for values in dict.fromkeys(tuple(row[key] for key in report.groups) for row in report.rows):
        title = ", ".join(f"{key} {value}" for key, value in zip(report.groups, values, strict=True))
        rows = [row for row in report.rows if tuple(row[key] for key in report.groups) == values]
        console.print(_table(title, report.columns, rows))
    if report.claims:
        console.print(_claims_table(report.claims))
    for note in report.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)


def _table(title: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title or None, title_justify="left")
    for key, heading in columns.items():
        is_text = any(isinstance(row.get(key), str) for row in rows)
        widest = max(len(shown(row.get(key))) for row in rows)
        # Headings may wrap and long names, figures may not.
        table.add_column(heading, justify="left" if is_text else "right", min_width=min(widest, _NAME_WIDTH))
    for row in rows:
        table.add_row(*(shown(row.get(key)) for key in columns))
    return table


def _claims_table(claims: Sequence[Claim]) -> Table:
    table = Table(title="what was wanted", title_justify="left")
    table.add_column("figure")
    for heading in ("measured", "wanted", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for claim in claims:
        table.add_row(
            claim.what, shown(claim.value), f"{claim.relation} {claim.wanted:g}", "met" if claim.met else "no"
        )
    return table


def shown(value: Any) -> str:
    """Numbers with as many digits as they deserve."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
