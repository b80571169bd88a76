"""What translating costs each system, by `capsnmt bench`: as sentences grow, and over the sentences of a test set.

Random weights at the sizes of the model folders, int8, batch 1, two threads. A measurement is kept until the rows
change.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from capsnmt.errors import CapsNMTError
from capsnmt.folder import read_folder_config

LENGTHS = (16, 32, 64, 128, 256)
FIXED_SOURCE = 32  # one of the lengths, so that its whole translation is the latency of the table
THREADS = 2
GROWTH_REPEATS = ("--repeats", "5", "--step-repeats", "15")
LATENCY_REPEATS = ("--sentences", "100", "--passes", "3", "--repeats", "1")

Figures = TypeVar("Figures")


@dataclass(frozen=True)
class Measured(Generic[Figures]):
    """What was found of every row, and the command behind it."""

    rows: dict[str, Figures]
    command: str


def growth(folders: Mapping[str, Path], report: Path) -> Measured[dict[str, Any]]:
    """The figures of the paper's Time column, with beam 1."""
    lengths = ["--lengths", ",".join(map(str, LENGTHS)), "--fixed-source", str(FIXED_SOURCE)]
    command = _command(["growth", *lengths, *GROWTH_REPEATS], folders, report)
    found = _report(command, folders, report)
    return Measured({row: _growth_of(found, str(folder)) for row, folder in folders.items()}, shlex.join(command))


def _growth_of(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    rows = [row for row in report["rows"] if row["name"] == name]
    latency = next(row["median_ms"] for row in rows if row["source_length"] == FIXED_SOURCE)
    return {**report["figures"][name], "latency_ms": latency}


def latencies(
    folders: Mapping[str, Path], test_set: Path, beams: tuple[int, ...], report: Path
) -> Measured[list[float]]:
    """Milliseconds a sentence of the test set, for each beam."""
    options = ["--source", str(test_set), "--beams", ",".join(map(str, beams)), "--threads", str(THREADS)]
    # No row chooses among words, but their number must suit a small vocabulary.
    command = _command(["latency", *options, "--words", "8", *LATENCY_REPEATS], folders, report)
    found = _report(command, folders, report)
    medians = {
        (row["name"], row["beam"]): float(row["median_ms"]) for row in found["rows"] if row["protocol"] == "test set"
    }
    by_row = {row: [medians[str(folder), beam] for beam in beams] for row, folder in folders.items()}
    return Measured(by_row, shlex.join(command))


def _command(options: list[str], folders: Mapping[str, Path], report: Path) -> list[str]:
    vocabulary = max(read_folder_config(folder).vocabulary.target_size for folder in folders.values())
    models = ["--systems", ",".join(map(str, folders.values())), "--vocabulary", str(vocabulary)]
    return ["capsnmt", "bench", *options, *models, "--json", str(report)]


def _report(command: list[str], folders: Mapping[str, Path], report: Path) -> dict[str, Any]:
    """The benchmark's own report."""
    systems = [str(folder) for folder in folders.values()]
    if not report.exists() or _read(report)["settings"]["systems"] != systems:
        done = subprocess.run([sys.executable, "-m", *command, "--quiet"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            fault = done.stderr.strip()[-500:]
            raise CapsNMTError(f"`{shlex.join(command)}` ended with {done.returncode}: {fault}")
    return _read(report)


def _read(report: Path) -> dict[str, Any]:
    return json.loads(report.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
