"""What translating costs each system, by `capsnmt bench`: as sentences grow, and over the sentences of a test set.

Random weights at the sizes of the rows' recipes, int8, batch 1, two threads: no trained model is needed. A measurement
is kept until the rows or the command change.
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
    """What was found of every row, the command behind it, and on which machine."""

    rows: dict[str, Figures]
    command: list[str]
    machine: str


def growth(systems: Mapping[str, RunConfig], report: Path, *, measure: bool) -> Measured[dict[str, Any]] | None:
    """The figures of the paper's Time column, with beam 1; None if it may not `measure` what is not known yet."""
    lengths = ["--lengths", ",".join(map(str, LENGTHS)), "--fixed-source", str(FIXED_SOURCE)]
    command = _command(["growth", *lengths, *GROWTH_REPEATS], systems)
    found = _measured(command, systems, report, measure=measure)
    if found is None:
        return None
    return Measured({row: _growth_of(found, row) for row in systems}, command, found["machine"])


def _growth_of(report: Mapping[str, Any], row: str) -> dict[str, Any]:
    rows = [each for each in report["rows"] if each["name"] == row]
    latency = next(each["median_ms"] for each in rows if each["source_length"] == FIXED_SOURCE)
    return {**report["figures"][row], "latency_ms": latency}


def latencies(
    systems: Mapping[str, RunConfig], test_set: Path, beams: tuple[int, ...], report: Path, *, measure: bool
) -> Measured[list[float]] | None:
    """Milliseconds a sentence of the test set, for each beam; None as of `growth`."""
    options = ["--source", str(test_set.resolve()), "--beams", ",".join(map(str, beams)), "--threads", str(THREADS)]
    # No row chooses among words, but their number must suit a small vocabulary.
    command = _command(["latency", *options, "--words", "8", *LATENCY_REPEATS], systems)
    found = _measured(command, systems, report, measure=measure)
    if found is None:
        return None
    medians = {
        (each["name"], each["beam"]): float(each["median_ms"])
        for each in found["rows"]
        if each["protocol"] == "test set"
    }
    return Measured({row: [medians[row, beam] for beam in beams] for row in systems}, command, found["machine"])


def _command(options: list[str], systems: Mapping[str, RunConfig]) -> list[str]:
    """Of the benchmark, where a recipe ROW.yaml lies for every row."""
    vocabulary = max(_target_size(config) for config in systems.values())
    recipes = ",".join(f"{row}.yaml" for row in systems)
    return ["capsnmt", "bench", *options, "--systems", recipes, "--vocabulary", str(vocabulary)]


def _measured(
    command: list[str], systems: Mapping[str, RunConfig], report: Path, *, measure: bool
) -> dict[str, Any] | None:
    """The benchmark's own report with its systems called by their rows: the one that is kept, or a new one."""
    models = {row: config.model for row, config in systems.items()}
    words = [Path(word).name if Path(word).is_absolute() else word for word in command]
    if report.exists() and (kept := _read(report)).get("of") == {"models": models, "command": words}:
        return kept
    if not measure:
        return None
    with tempfile.TemporaryDirectory() as folder:
        for row, config in systems.items():
            dump_yaml(config, Path(folder) / f"{row}.yaml")
        _write(report, _run(command[1:], Path(folder)), {"models": models, "command": words})
    return _read(report)


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


def _write(report: Path, found: dict[str, Any], of: dict[str, Any]) -> None:
    """What the table needs, and what it is of; nothing about this machine's folders."""
    rows = [{**row, "name": row["name"].removesuffix(".yaml")} for row in found["rows"]]
    figures = {name.removesuffix(".yaml"): values for name, values in found["figures"].items()}
    machine = found["machine"]
    told = f"{machine['processor']}, {machine['cores']} cores, load {machine['load_before']} before the start"
    report.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"of": of, "machine": told, "rows": rows, "figures": figures}, indent=1)
    report.write_text(text + "\n", encoding="utf-8")


def _read(report: Path) -> dict[str, Any]:
    return json.loads(report.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
