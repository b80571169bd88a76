"""What translating costs each system, by `capsnmt bench`: as sentences grow, and over the sentences of a test set.

Random weights at the sizes of the rows' recipes, int8, batch 1, two threads: no trained model is needed. A measurement
is kept until the rows, the command, the code that is measured or the processor change.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar

from capsnmt.analysis.processes import Command, run_command
from capsnmt.config import NO_SUBWORDS, RunConfig, dump_yaml
from capsnmt.errors import CapsNMTError
from capsnmt.machine import processor
from capsnmt.runtime.identity import code_hash

LENGTHS = (16, 32, 64, 128, 256)
FIXED_SOURCE = 32  # one of the lengths, so that its whole translation is the latency of the table
THREADS = 2
GROWTH_REPEATS = ("--repeats", "5", "--step-repeats", "9", "--pause", "0.1")
LATENCY_REPEATS = ("--sentences", "100", "--passes", "3", "--repeats", "1")
QUIET_LOAD = 0.5  # a core

Figures = TypeVar("Figures")


@dataclass(frozen=True)
class Measured(Generic[Figures]):
    """What was found of every row, the command behind it, and what must be known of when and where."""

    rows: dict[str, Figures]
    command: list[str]
    machine: str
    warnings: list[str]
    num_sentences: int  # of a test set


def growth(
    systems: Mapping[str, RunConfig], test_set: Path, report: Path, *, measure: bool
) -> Measured[dict[str, Any]] | None:
    """The figures of the paper's Time column, with beam 1; None if it may not `measure` what is not known yet."""
    lengths = ["--lengths", ",".join(map(str, LENGTHS)), "--fixed-source", str(FIXED_SOURCE)]
    if any(config.text.subwords.type in NO_SUBWORDS for config in systems.values()):
        lengths += ["--source", str(test_set.resolve())]
    command = _command(["growth", *lengths, *GROWTH_REPEATS], systems)
    found = _measured(command, systems, report, measure=measure)
    return None if found is None else _told({row: _growth_of(found, row) for row in systems}, command, found, report)


def _growth_of(found: Mapping[str, Any], row: str) -> dict[str, Any]:
    rows = [each for each in found["rows"] if each["name"] == row]
    latency = next(each["median_ms"] for each in rows if each["source_length"] == FIXED_SOURCE)
    return {**found["figures"][row], "latency_ms": latency}


def latencies(
    systems: Mapping[str, RunConfig], test_set: Path, beams: tuple[int, ...], report: Path, *, measure: bool
) -> Measured[list[float]] | None:
    """Milliseconds a sentence of the test set, for each beam; None as of `growth`."""
    options = ["--source", str(test_set.resolve()), "--beams", ",".join(map(str, beams)), "--threads", str(THREADS)]
    command = _command(["latency", *options, *LATENCY_REPEATS], systems)
    found = _measured(command, systems, report, measure=measure)
    if found is None:
        return None
    medians = {
        (each["name"], each["beam"]): float(each["median_ms"])
        for each in found["rows"]
        if each["protocol"] == "test set"
    }
    return _told({row: [medians[row, beam] for beam in beams] for row in systems}, command, found, report)


def _command(options: list[str], systems: Mapping[str, RunConfig]) -> list[str]:
    """Of the benchmark, where a recipe ROW.yaml lies for every row."""
    return ["capsnmt", "bench", *options, "--systems", ",".join(f"{row}.yaml" for row in systems)]


def _measured(
    command: list[str], systems: Mapping[str, RunConfig], report: Path, *, measure: bool
) -> dict[str, Any] | None:
    """The benchmark's own report with its systems called by their rows: the one that is kept, or a new one.

    Where nothing may be measured, what other code or another processor gave is better than nothing.
    """
    of, by = _what(command, systems), _by_whom()
    kept = _read(report) if report.exists() else {}
    if kept.get("of") == of and (kept["by"] == by or not measure):
        return kept
    if not measure:
        return None
    with tempfile.TemporaryDirectory() as folder:
        for row, config in systems.items():
            dump_yaml(config, Path(folder) / f"{row}.yaml")
        _write(report, _run(command[1:], Path(folder)), of, by)
    return _read(report)


def _what(command: list[str], systems: Mapping[str, RunConfig]) -> dict[str, Any]:
    """What is measured; where the test set lies does not matter."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in command]
    sizes = {
        row: {"model": config.model, "subwords": config.text.subwords.model_dump(mode="json")}
        for row, config in systems.items()
    }
    return {"systems": sizes, "command": words}


def _by_whom() -> dict[str, str]:
    """What a speed depends on beside what is measured."""
    code = code_hash("runtime", "models", "decoding")[:16]
    return {"code": code, "onnxruntime": version("onnxruntime"), "processor": processor()}


def _run(command: list[str], folder: Path) -> dict[str, Any]:
    """Runs it where the recipes of its systems lie."""
    log = folder / "bench.log"
    with log.open("w", encoding="utf-8") as out:
        options = ["--json", "report.json", "--quiet"]
        code = run_command(Command((*command, *options)), out, threads=THREADS, folder=folder)
    if code != 0:
        said = log.read_text(encoding="utf-8").strip()[-500:]
        raise CapsNMTError(f"`capsnmt {shlex.join(command)}` ended with {code}: {said}")
    return _read(folder / "report.json")


def _write(report: Path, found: dict[str, Any], of: dict[str, Any], by: dict[str, str]) -> None:
    """What the table needs, what it is of and by whom; nothing about this machine's folders."""
    rows = [{**row, "name": row["name"].removesuffix(".yaml")} for row in found["rows"]]
    figures = {name.removesuffix(".yaml"): values for name, values in found["figures"].items()}
    machine = {key: found["machine"][key] for key in ("processor", "cores", "load_before")}
    num_sentences = found["settings"].get("sentences_measured", 0)
    kept = {"of": of, "by": by, "machine": machine, "num_sentences": num_sentences, "rows": rows, "figures": figures}
    report.parent.mkdir(parents=True, exist_ok=True)
    temporary = report.with_suffix(".writing")
    temporary.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    temporary.replace(report)  # whole or not at all: half of it could not be read by the next `reproduce`


def _read(report: Path) -> dict[str, Any]:
    return json.loads(report.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _told(rows: dict[str, Figures], command: list[str], found: dict[str, Any], report: Path) -> Measured[Figures]:
    machine = found["machine"]
    told = f"{machine['processor']}, {machine['cores']} cores, load {machine['load_before']} before the start"
    warnings = []
    if machine["load_before"] > QUIET_LOAD * machine["cores"]:
        warnings.append(
            "**Others were at work on the machine before the start**, so times are too long and ratios uncertain; "
            f"without `{report.name}` they are measured again."
        )
    if found["by"] != _by_whom():
        warnings.append(
            "Measured with other code or on another processor than those that wrote this report; "
            "`reproduce --measure` measures again."
        )
    return Measured(rows, command, told, warnings, found["num_sentences"])
