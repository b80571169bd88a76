"""A suite: many trainings that belong together, trained where missing, evaluated, and kept as one table of results.

    title: Routing study
    output: runs/routing
    seeds: [1, 2, 3]
    set: {training.steps: 4000}          # for every row
    rows:
      simple:  {recipe: recipes/multi30k-en-de/simple.yaml, set: {model.encoder_layers: 4}}
      capsule: {recipe: recipes/multi30k-en-de/capsnmt.yaml, seeds: [1]}
      buck:    {recipe: recipes/multi30k-en-de/simple.yaml, hypotheses: buck.de, origin: their submission to WMT14}
      student: {recipe: recipes/multi30k-en-de/capsnmt.yaml, distilled_from: teacher}     # of a row's first seed
      grid: {recipe: recipes/multi30k-en-de/capsnmt.yaml, over: {model.num_iterations: [1, 2, 3]}}  # a row for each
    report:                              # what `capsnmt reproduce` writes of them
      - {kind: table, title: Systems, rows: [simple, capsule], against: simple}

A run is a row with a seed; its model folder is `output/row-s1`, beside it its log, its translations of the recipe's
test set and its record. Whatever exists is kept: a suite that was killed goes on where it stopped. A row with
`hypotheses` is an outside system: its recipe says languages and test set, and nothing is trained. With `kept: docs/x`
records and report are written there, to be committed: what has a record there is not trained again, on any machine.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from capsnmt.analysis.processes import run_command
from capsnmt.analysis.records import (
    check_settings,
    counts_of_sentences,
    counts_of_training,
    fingerprint,
    read_record,
    settings_of,
    write_record,
)
from capsnmt.config import RunConfig, StrictModel, load_recipe, load_yaml, parse
from capsnmt.data.corpus import files_of
from capsnmt.distillation import MANIFEST
from capsnmt.distillation.identity import is_distilled_by
from capsnmt.errors import CapsNMTError
from capsnmt.folder import CONFIG, WEIGHTS, read_folder_config
from capsnmt.machine import processor, usable_cores

Settings = dict[str, Any]


class RowConfig(StrictModel):
    """One row of the table: a recipe and what it changes."""

    recipe: str
    set: Settings = Field(default_factory=dict)  # dotted key: value
    seeds: list[int] | None = None  # instead of the suite's
    over: dict[str, list[Any]] = Field(default_factory=dict)  # dotted key: values; a row for every combination
    distilled_from: str | None = None  # the row that teaches: it rewrites the target side of the training text
    label: str | None = None  # for the report
    paper_bleu: float | None = None  # what the paper reports on its own data; shown as theirs
    hypotheses: str | None = None  # an outside system's translations of the recipe's test set
    origin: str | None = None  # where they come from

    @model_validator(mode="after")
    def _outside_systems_have_an_origin(self) -> RowConfig:
        if (self.hypotheses is None) != (self.origin is None):
            raise ValueError("hypotheses and origin need each other: whose translations are they?")
        return self


class SectionConfig(StrictModel):
    """A part of the report."""

    kind: Literal[
        "table", "sweep", "distillation", "by_length", "size_by_length", "training", "routing", "complexity", "latency"
    ]
    title: str
    text: str = ""  # a paragraph before it
    rows: list[str] = Field(default_factory=list)  # a swept row stands for all that it becomes
    labels: dict[str, str] = Field(default_factory=dict)  # what rows are called here, instead of their own label
    points: dict[str, str] = Field(default_factory=dict)  # sweep: swept row: one that has a value of its key already
    against: str | None = None  # differences from this row, with significance; size_by_length: in percent of it
    sentences: list[str] = Field(default_factory=list)  # routing
    values: list[str] = Field(default_factory=list)  # training: names of metrics.jsonl, such as valid.perplexity


class SuiteConfig(StrictModel):
    """A suite file."""

    title: str
    output: str
    kept: str | None = None  # where records and report are written, to outlive the models; in `output` by default
    name: str = ""  # of the report; the file's own by default
    seeds: list[int] = Field(default=[1], min_length=1)
    set: Settings = Field(default_factory=dict)
    rows: dict[str, RowConfig] = Field(min_length=1)
    report: list[SectionConfig] = Field(default_factory=list)

    @property
    def report_folder(self) -> Path:
        """Beside the runs, which several suites may share, or where everything is that lasts."""
        return Path(self.output) / f"report-{self.name}" if self.kept is None else Path(self.kept) / self.name

    @property
    def records_folder(self) -> Path:
        """Suites that share their runs share their records, too."""
        return Path(self.output) if self.kept is None else Path(self.kept) / "records" / Path(self.output).name


@dataclass(frozen=True)
class Run:
    """One training of a suite."""

    row: str
    seed: int
    recipe: Path
    overrides: tuple[str, ...]
    folder: Path
    records: Path  # where its record is written
    teacher: Run | None = None  # whose translations are its corpus
    outside: tuple[str, str] | None = None  # a file of translations and its origin: nothing to train

    @property
    def name(self) -> str:
        """Row and seed."""
        return self.folder.name

    @property
    def record(self) -> Path:
        """Its settings, scores and counts, JSON."""
        return self.records / f"{self.name}.json"

    @property
    def translations(self) -> Path:
        """What it made of the test set."""
        return self.folder.with_name(f"{self.name}.out")

    @property
    def is_done(self) -> bool:
        """Trained and evaluated, here or elsewhere."""
        return self.record.exists()

    @property
    def distilled(self) -> Path | None:
        """Where the teacher's corpus lies; all its students share it."""
        return None if self.teacher is None else self.teacher.folder.with_name(f"distilled-by-{self.teacher.name}")

    def config(self, data: str | None = None) -> RunConfig:
        """The recipe with the run's changes."""
        return load_recipe(self.recipe, [*self.overrides, *_root(data)])

    def training_settings(self, data: str | None = None) -> list[str]:
        """What `train` is told; a student's text is its teacher's, in subwords of its recipe's own store."""
        if self.distilled is None:
            return list(self.overrides)
        config = self.config(data)
        languages = config.languages
        files = {
            side: str((self.distilled / f"train.{code}").resolve()) for side, code in languages.model_dump().items()
        }
        changes = {
            "data.train": {**files, "tsv": None},
            "data.store": str(self.distilled / "store"),
            "data.subwords_from": config.data.store,
        }
        return [*self.overrides, *(f"{key}={json.dumps(value)}" for key, value in changes.items())]

    def commands(self, data: str | None = None) -> list[list[str]]:
        """What makes its result, in order, each without the `capsnmt` before it."""
        config = self.config(data)
        files = [] if config.data.test is None else files_of(config.data.test, config.data.root)
        if len(files) != 2:
            raise CapsNMTError(f"{self.recipe} names no source and target file in data.test to evaluate on")
        test_set = ["--source", str(files[0]), "--reference", str(files[1])]
        evaluate = ["evaluate", *test_set, "--name", self.row, "--save", str(self.translations)]
        evaluate += ["--json", str(self.report)]
        if self.outside is not None:
            pair = f"{config.languages.source}-{config.languages.target}"
            return [[*evaluate, "--hypotheses", self.outside[0], "--origin", self.outside[1], "--languages", pair]]
        changes = [part for override in self.training_settings(data) for part in ("--set", override)]
        train = ["train", str(self.recipe), *changes, *(["--data", data] if data else [])]
        greedy = ["evaluate", *test_set, "--beam", "1", "--bootstrap", "0", "--json", str(self.greedy)]
        return [train, [*evaluate, str(self.folder)], [*greedy, str(self.folder)]]

    def teaching(self, data: str | None = None) -> list[list[str]]:
        """What makes its teacher's corpus of the original training text, in the fast runtime."""
        if self.teacher is None:
            return []
        config = self.config(data)
        files = files_of(config.data.train, config.data.root)
        teacher = str(self.teacher.folder)
        distill = ["distill", teacher, "--source", str(files[0]), "--reference", str(files[1])]
        return [
            ["export", teacher, "--precision", "fp32"],
            [*distill, "--output", str(self.distilled), "--quiet"],
        ]

    @property
    def taught_by(self) -> str | None:
        """Its teacher, and which settings made that."""
        if self.teacher is None:
            return None
        return f"{self.teacher.name} of {fingerprint(settings_of(self.teacher.config()))}"

    @property
    def report(self) -> Path:
        """Of `evaluate`, until it is part of the result."""
        return self.folder.with_name(f".{self.name}.report.json")

    @property
    def greedy(self) -> Path:
        """The same with beam 1."""
        return self.folder.with_name(f".{self.name}.greedy.json")

    def check(self) -> None:
        """An error if what is finished was made with other settings than the suite has now."""
        if self.outside is not None or not self.is_done:
            return
        record = read_record(self.record)
        check_settings(self.record, record, self.config())
        if record["taught_by"] != self.taught_by:
            raise CapsNMTError(
                f"{self.record} was taught by {record['taught_by']}, the suite wants {self.taught_by}; "
                "delete the file, its model folder and its teacher's corpus to train again"
            )


def _root(data: str | None) -> list[str]:
    return [f"data.root={json.dumps(data)}"] if data else []


def read_suite(path: str | Path) -> SuiteConfig:
    """Reads and checks a suite file."""
    suite = parse(SuiteConfig, load_yaml(path), str(path))
    suite = suite.model_copy(update={"name": suite.name or Path(path).stem})
    for name, row in suite.rows.items():
        if row.distilled_from is not None and row.distilled_from not in suite.rows:
            raise CapsNMTError(f"{path}: {name} is distilled_from {row.distilled_from}, which is no row of the suite")
    known = expanded(suite)
    for section in suite.report:
        against = [section.against] if section.against else []
        for name in [*section.rows, *section.points, *section.points.values(), *against]:
            if name not in known and name not in suite.rows:
                raise CapsNMTError(f"{path}: the report's {section.title!r} names {name}, which is no row of the suite")
        for swept, name in section.points.items():
            if not _is_point_of(suite.rows.get(swept), suite.rows.get(name)):
                raise CapsNMTError(
                    f"{path}: the report's {section.title!r} puts {name} on the line of {swept}, which must be swept "
                    "over one key and differ in nothing else"
                )
    return suite


def _is_point_of(swept: RowConfig | None, row: RowConfig | None) -> bool:
    """Whether a row is the swept one at another value of its only key."""
    if swept is None or row is None or len(swept.over) != 1 or row.over:
        return False
    elsewhere = [
        (each.recipe, each.distilled_from, {key: value for key, value in each.set.items() if key not in swept.over})
        for each in (swept, row)
    ]
    return elsewhere[0] == elsewhere[1]


def expanded(suite: SuiteConfig) -> dict[str, RowConfig]:
    """The rows with every sweep written out: `grid` over T and M becomes grid-1-2, grid-1-4 and so on."""
    rows = {}
    for name, row in suite.rows.items():
        for swept, values in zip(sweep_names(name, row), itertools.product(*row.over.values()), strict=True):
            changes = dict(zip(row.over, values, strict=True))
            rows[swept] = row.model_copy(update={"set": {**row.set, **changes}})
    return rows


def chosen_rows(suite: SuiteConfig, names: Collection[str]) -> set[str]:
    """Rows by their names; a swept one stands for all that it becomes."""
    known = {**{name: [name] for name in expanded(suite)}, **{n: sweep_names(n, row) for n, row in suite.rows.items()}}
    if unknown := set(names) - known.keys():
        raise CapsNMTError(f"--rows {','.join(sorted(unknown))}: no row of the suite; {', '.join(known)}")
    return {row for name in names for row in known[name]}


def sweep_names(name: str, row: RowConfig) -> list[str]:
    """What a row becomes, the last key's values changing fastest; a row without a sweep is itself."""
    return ["-".join([name, *map(_short, values)]) for values in itertools.product(*row.over.values())]


def _short(value: Any) -> str:
    """A value as a part of a folder's name."""
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def runs_of(suite: SuiteConfig) -> list[Run]:
    """All runs, the first seed of every row before the second: a suite that is stopped early still compares rows."""
    rows = expanded(suite)
    seeds_of = {  # of an outside system, more seeds would be the same translations
        name: row.seeds or (suite.seeds if row.hypotheses is None else suite.seeds[:1]) for name, row in rows.items()
    }

    def run_of(name: str, seed: int) -> Run:
        row, folder = rows[name], Path(suite.output) / f"{name}-s{seed}"
        values = {**suite.set, **row.set, "training.seed": seed, "output": str(folder)}
        overrides = tuple(f"{key}={json.dumps(value)}" for key, value in values.items())
        teacher = row.distilled_from and run_of(row.distilled_from, seeds_of[row.distilled_from][0])
        outside = None if row.hypotheses is None or row.origin is None else (row.hypotheses, row.origin)
        return Run(name, seed, Path(row.recipe), overrides, folder, suite.records_folder, teacher or None, outside)

    ranks = range(max(len(seeds) for seeds in seeds_of.values()))
    runs = [run_of(name, seeds_of[name][rank]) for rank in ranks for name in rows if rank < len(seeds_of[name])]
    return sorted(runs, key=lambda run: run.teacher is not None)  # students wait for their teachers


def run_suite(
    suite: SuiteConfig,
    *,
    data: str | None = None,
    jobs: int = 1,
    only: Collection[str] = (),
    say: Callable[[str], None] = print,
) -> list[str]:
    """Trains and evaluates what is missing, or of it `only` some rows, `jobs` at a time, each with its share of cores.

    Returns the names of those that failed; their logs say why.
    """
    runs = runs_of(suite)
    for run in runs:  # a typo in the last row must not wait for the first training
        run.commands(data)
        settings_of(run.config(data))
    missing = [run for run in runs if not run.is_done and (not only or run.row in only)]
    say(f"{suite.title}: {len(runs)} runs, {sum(run.is_done for run in runs)} of them done, {len(missing)} to do")
    Path(suite.output).mkdir(parents=True, exist_ok=True)
    students = [run for run in missing if run.teacher is not None]
    teachers = [run.teacher for run in students if not _has_taught(run)]
    # A teacher whose record came from elsewhere is trained again: its students need the model itself.
    plain = [run for run in runs if run.teacher is None and (run in missing or run in teachers)]
    failed = _complete_all(plain, data, jobs, say)
    for taught in {run.distilled: run for run in students}.values():  # once for all students of a teacher
        assert taught.distilled is not None
        teaching = taught.teaching(data) if _must_teach(taught, data) else []
        fault = _logged(taught.distilled, teaching, usable_cores())
        say(f"{taught.distilled.name}: {fault or 'done'}")
        if fault or not (taught.distilled / MANIFEST).exists():
            failed += [run.name for run in students if run.distilled == taught.distilled]
            students = [run for run in students if run.distilled != taught.distilled]
    return failed + _complete_all(students, data, jobs, say)


def _has_taught(student: Run) -> bool:
    """Whether its teacher's model, or the corpus that it wrote, is here."""
    assert student.teacher is not None
    assert student.distilled is not None
    return (student.teacher.folder / WEIGHTS).exists() or (student.distilled / MANIFEST).exists()


def _must_teach(student: Run, data: str | None) -> bool:
    """Whether its teacher's model is here, and not yet what that makes of the training text."""
    assert student.teacher is not None
    assert student.distilled is not None
    config, teacher = student.config(data).data, student.teacher.folder
    source = files_of(config.train, config.root)[0]
    return (teacher / WEIGHTS).exists() and not is_distilled_by(teacher, source, student.distilled)


def _complete_all(runs: list[Run], data: str | None, jobs: int, say: Callable[[str], None]) -> list[str]:
    threads, failed = max(1, usable_cores() // jobs), []
    with ThreadPoolExecutor(jobs) as pool:
        for run, fault in pool.map(lambda run: (run, _complete(run, data, threads)), runs):
            say(f"{run.name}: {fault or 'done'}")
            failed += [run.name] if fault else []
    return failed


def _complete(run: Run, data: str | None, threads: int) -> str | None:
    """Trains and evaluates one run in processes of their own. Returns what went wrong, if anything."""
    config = run.config(data)
    if fault := _other_length(run.folder, config.training.steps):
        return fault
    if run.is_done:  # a teacher whose record came from elsewhere, or another `reproduce` was faster
        return _logged(run.folder, run.commands(data)[:1], threads)
    if fault := _logged(run.folder, run.commands(data), threads):
        return fault
    evaluation = json.loads(run.report.read_text(encoding="utf-8"))
    assert config.data.test is not None
    source, reference = files_of(config.data.test, config.data.root)
    record: dict[str, Any] = {"row": run.row, "seed": run.seed}
    if run.outside is None:
        record |= {"taught_by": run.taught_by, "settings": settings_of(run.config())}
        record |= {**counts_of_training(run.folder), "threads": threads, "processor": processor()}
        record["greedy"] = json.loads(run.greedy.read_text(encoding="utf-8"))["scores"]
    else:
        record["finished"] = time.strftime("%Y-%m-%d")
    record |= {"evaluation": evaluation, "sentences": counts_of_sentences(source, run.translations, reference)}
    for report in (run.report, run.greedy):  # before the record, behind which nobody would remove them
        report.unlink(missing_ok=True)
    write_record(run.record, record)
    return None


def _other_length(folder: Path, steps: int) -> str | None:
    """What is wrong with a folder whose training was planned for another number of updates: its rates were others."""
    if not (folder / CONFIG).exists() or (planned := read_folder_config(folder).training.steps) == steps:
        return None
    return f"{folder} is a training of {planned:,} updates, the suite wants {steps:,}; delete it to train again"


def _logged(folder: Path, commands: list[list[str]], threads: int) -> str | None:
    """Runs commands one after the other; their words go into a log beside the folder. Returns what went wrong."""
    log = folder.with_name(f"{folder.name}.log")
    with log.open("a", encoding="utf-8") as out:
        for command in commands:
            if code := run_command(command, out, threads=threads):
                return f"`capsnmt {command[0]}` ended with {code}; see {log}"
    return None
