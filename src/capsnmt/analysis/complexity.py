"""What translating costs each system as sentences grow: the paper's Time column, measured by `capsnmt bench growth`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capsnmt.errors import CapsNMTError
from capsnmt.folder import read_folder_config

LENGTHS = (16, 32, 64, 128, 256)
FIXED_SOURCE = 32  # one of the lengths, so that its whole translation is the latency of the table
REPEATS = ("--repeats", "5", "--step-repeats", "15")


def measured(folders: Mapping[str, Path], report: Path) -> dict[str, dict[str, Any]]:
    """Row → its figures. Random weights at the folders' sizes, int8, batch 1, beam 1; kept until the rows change."""
    wanted = [str(folder) for folder in folders.values()]
    found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
    if found is None or found["settings"]["systems"] != wanted:
        sizes = [read_folder_config(folder).vocabulary.target_size for folder in folders.values()]
        _measure(wanted, max(sizes), report)
        found = json.loads(report.read_text(encoding="utf-8"))
    return {row: _figures(found, str(folder)) for row, folder in folders.items()}


def command(systems: list[str], vocabulary: int, report: Path) -> list[str]:
    """What is run, without the interpreter."""
    sizes = ["--lengths", ",".join(map(str, LENGTHS)), "--fixed-source", str(FIXED_SOURCE)]
    sizes += ["--vocabulary", str(vocabulary), *REPEATS]
    return ["bench", "growth", "--systems", ",".join(systems), *sizes, "--json", str(report), "--quiet"]


def _measure(systems: list[str], vocabulary: int, report: Path) -> None:
    argv = [sys.executable, "-m", "capsnmt", *command(systems, vocabulary, report)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CapsNMTError(f"`capsnmt bench growth` ended with {done.returncode}: {done.stderr.strip()[-500:]}")


def _figures(report: Mapping[str, Any], name: str) -> dict[str, Any]:
    rows = [row for row in report["rows"] if row["name"] == name]
    latency = next(row["median_ms"] for row in rows if row["source_length"] == FIXED_SOURCE)
    return {**report["figures"][name], "latency_ms": latency}
