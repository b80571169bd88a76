"""What translating costs each system, by `capsnmt bench`: as sentences grow, and over the sentences of a test set.

Random weights at the sizes of the rows' recipes, int8, batch 1, two threads: no trained model is needed. A measurement
is kept until the rows change.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from capsnmt.config import RunConfig, dump_yaml
from capsnmt.errors import CapsNMTError

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
    command: list[str]


def growth(systems: Mapping[str, RunConfig], report: Path) -> Measured[dict[str, Any]]:
    """The figures of the paper's Time column, with beam 1."""
    lengths = ["--lengths", ",".join(map(str, LENGTHS)), "--fixed-source", str(FIXED_SOURCE)]
    found, command = _measured(["growth", *lengths, *GROWTH_REPEATS], systems, report)
    return Measured({row: _growth_of(found, row) for row in systems}, command)


def _growth_of(report: Mapping[str, Any], row: str) -> dict[str, Any]:
    rows = [each for each in report["rows"] if each["name"] == row]
    latency = next(each["median_ms"] for each in rows if each["source_length"] == FIXED_SOURCE)
    return {**report["figures"][row], "latency_ms": latency}


def latencies(
    systems: Mapping[str, RunConfig], test_set: Path, beams: tuple[int, ...], report: Path
) -> Measured[list[float]]:
    """Milliseconds a sentence of the test set, for each beam."""
    options = ["--source", str(test_set.resolve()), "--beams", ",".join(map(str, beams)), "--threads", str(THREADS)]
    # No row chooses among words, but their number must suit a small vocabulary.
    found, command = _measured(["latency", *options, "--words", "8", *LATENCY_REPEATS], systems, report)
    medians = {
        (each["name"], each["beam"]): float(each["median_ms"])
        for each in found["rows"]
        if each["protocol"] == "test set"
    }
    return Measured({row: [medians[row, beam] for beam in beams] for row in systems}, command)


def _measured(options: list[str], systems: Mapping[str, RunConfig], report: Path) -> tuple[dict[str, Any], list[str]]:
    """The benchmark's own report with its systems called by their rows, and the command behind it."""
    vocabulary = max(_target_size(config) for config in systems.values())
    recipes = [f"{row}.yaml" for row in systems]
    command = ["bench", *options, "--systems", ",".join(recipes), "--vocabulary", str(vocabulary)]
    models = {row: config.model for row, config in systems.items()}
    if not report.exists() or _read(report)["models"] != models:
        with tempfile.TemporaryDirectory() as folder:
            for row, config in systems.items():
                dump_yaml(config, Path(folder) / f"{row}.yaml")
            _write(report, _run(command, Path(folder)), models)
    return _read(report), ["capsnmt", *command]


def _target_size(config: RunConfig) -> int:
    size = config.text.subwords.vocabulary
    return size if isinstance(size, int) else size[1]  # of source and target, where they have their own


def _run(command: list[str], folder: Path) -> dict[str, Any]:
    """Runs it where the recipes of its systems lie."""
    argv = [sys.executable, "-m", "capsnmt", *command, "--json", "report.json", "--quiet"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode != 0:
        raise CapsNMTError(f"`{shlex.join(command)}` ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return _read(folder / "report.json")


def _write(report: Path, found: dict[str, Any], models: dict[str, Any]) -> None:
    """What the table needs, and the models that it is of; nothing about this machine's folders."""
    rows = [{**row, "name": row["name"].removesuffix(".yaml")} for row in found["rows"]]
    figures = {name.removesuffix(".yaml"): values for name, values in found["figures"].items()}
    report.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"models": models, "rows": rows, "figures": figures}, indent=1)
    report.write_text(text + "\n", encoding="utf-8")


def _read(report: Path) -> dict[str, Any]:
    return json.loads(report.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
