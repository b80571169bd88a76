"""A suite: many trainings that belong together, trained where missing, evaluated, and kept as one table of results.

    title: Routing study
    output: runs/routing
    seeds: [1, 2, 3]
    set: {training.steps: 4000}          # for every row
    rows:
      simple:  {recipe: recipes/multi30k-en-de/simple.yaml, set: {model.encoder_layers: 4}}
      capsule: {recipe: recipes/multi30k-en-de/capsnmt.yaml, seeds: [1]}

A run is a row with a seed; its model folder is `output/row-s1`, beside it its log, its translations of the recipe's
test set and its result. Whatever exists is kept: a suite that was killed goes on where it stopped.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from capsnmt.config import RunConfig, StrictModel, load_recipe, load_yaml, parse
from capsnmt.data.corpus import files_of
from capsnmt.errors import CapsNMTError
from capsnmt.folder import METRICS, WEIGHTS

Settings = dict[str, Any]


class RowConfig(StrictModel):
    """One row of the table: a recipe and what it changes."""

    recipe: str
    set: Settings = Field(default_factory=dict)  # dotted key: value
    seeds: list[int] | None = None  # instead of the suite's


class SuiteConfig(StrictModel):
    """A suite file."""

    title: str
    output: str
    seeds: list[int] = Field(default=[1], min_length=1)
    set: Settings = Field(default_factory=dict)
    rows: dict[str, RowConfig] = Field(min_length=1)


@dataclass(frozen=True)
class Run:
    """One training of a suite."""

    row: str
    seed: int
    recipe: Path
    overrides: tuple[str, ...]
    folder: Path

    @property
    def name(self) -> str:
        """Row and seed."""
        return self.folder.name

    @property
    def result(self) -> Path:
        """Its scores and counts, JSON."""
        return self.folder.with_name(f"{self.name}.json")

    @property
    def translations(self) -> Path:
        """What it made of the test set."""
        return self.folder.with_name(f"{self.name}.out")

    def config(self, data: str | None = None) -> RunConfig:
        """The recipe with the run's changes."""
        root = [f"data.root={json.dumps(data)}"] if data else []
        return load_recipe(self.recipe, [*self.overrides, *root])


def read_suite(path: str | Path) -> SuiteConfig:
    """Reads and checks a suite file."""
    return parse(SuiteConfig, load_yaml(path), str(path))


def runs_of(suite: SuiteConfig) -> list[Run]:
    """All runs, the first seed of every row before the second: a suite that is stopped early still compares rows."""
    runs = []
    rows = {name: row.seeds or suite.seeds for name, row in suite.rows.items()}
    for rank in range(max(len(seeds) for seeds in rows.values())):
        for name, seeds in rows.items():
            if rank >= len(seeds):
                continue
            row, folder = suite.rows[name], Path(suite.output) / f"{name}-s{seeds[rank]}"
            values = {**suite.set, **row.set, "training.seed": seeds[rank], "output": str(folder)}
            overrides = tuple(f"{key}={json.dumps(value)}" for key, value in values.items())
            runs.append(Run(name, seeds[rank], Path(row.recipe), overrides, folder))
    return runs


def run_suite(
    suite: SuiteConfig, *, data: str | None = None, jobs: int = 1, say: Callable[[str], None] = print
) -> list[Run]:
    """Trains and evaluates what is missing, `jobs` at a time; each has its share of the cores. Returns all runs."""
    runs = runs_of(suite)
    for run in runs:  # a typo in the last row must not wait for the first training
        run.config(data)
    missing = [run for run in runs if not run.result.exists()]
    say(f"{suite.title}: {len(runs)} runs, {len(runs) - len(missing)} of them done")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    failed = []
    with ThreadPoolExecutor(jobs) as pool:
        for run, fault in pool.map(lambda run: (run, _complete(run, data, threads)), missing):
            say(f"{run.name}: {fault or 'done'}")
            failed += [run.name] if fault else []
    if failed:
        raise CapsNMTError(f"{len(failed)} runs failed: {', '.join(failed)}; their logs are in {suite.output}")
    return runs


def _complete(run: Run, data: str | None, threads: int) -> str | None:
    """Trains and evaluates one run in processes of their own. Returns what went wrong, if anything."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    log = run.folder.with_name(f"{run.name}.log")
    config = run.config(data)
    files = [] if config.data.test is None else files_of(config.data.test, config.data.root)
    if len(files) != 2:
        return f"{run.recipe} names no source and target file in data.test to evaluate on"
    changes = [part for override in run.overrides for part in ("--set", override)]
    train = ["train", str(run.recipe), *changes, *(["--data", data] if data else [])]
    report = run.result.with_suffix(".report")
    evaluate = ["evaluate", str(run.folder), "--source", str(files[0]), "--reference", str(files[1])]
    evaluate += ["--save", str(run.translations), "--json", str(report)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with log.open("a", encoding="utf-8") as out:
        for command in (train, evaluate):
            done = subprocess.run(
                [sys.executable, "-m", "capsnmt", *command], stdout=out, stderr=out, env=environment, check=False
            )
            if done.returncode != 0:
                return f"`capsnmt {command[0]}` ended with {done.returncode}; see {log}"
    result = {**_counts(run), "evaluation": json.loads(report.read_text(encoding="utf-8"))}
    temporary = run.result.with_suffix(".writing")
    temporary.write_text(json.dumps(result, indent=1), encoding="utf-8")
    temporary.replace(run.result)
    report.unlink()
    return None


def _counts(run: Run) -> dict[str, Any]:
    """What the training itself says: validation, speed, time, parameters, routing."""
    records = list(read_metrics(run.folder))
    best = min((r for r in records if r["kind"] == "valid"), key=lambda r: r["loss"], default={})
    train = [r for r in records if r["kind"] == "train"]
    speeds = sorted(r["tokens_per_s"] for r in train)
    routing = [r for r in records if r["kind"] == "routing"]
    return {
        "row": run.row,
        "seed": run.seed,
        "steps": train[-1]["step"] if train else 0,
        "parameters": count_parameters(run.folder / WEIGHTS),
        "valid": {key: best.get(key) for key in ("loss", "perplexity", "bleu", "chrf")},
        "tokens_per_s": speeds[len(speeds) // 2] if speeds else None,
        "routing": routing[-1] if routing else None,
        "finished": time.strftime("%Y-%m-%d"),
    }


def read_metrics(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of a run."""
    with (folder / METRICS).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def count_parameters(weights: Path) -> int:
    """Numbers in a safetensors file, tied ones once."""
    from safetensors import safe_open

    with safe_open(weights, framework="numpy") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
