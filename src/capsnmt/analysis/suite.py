"""A suite: many trainings that belong together, trained where missing, evaluated, and kept as one table of results.

    title: Routing study
    output: runs/routing
    seeds: [1, 2, 3]
    processes: 2                         # of one training, such as one on each GPU
    set: {training.steps: 4000}          # for every row
    rows:
      simple:  {recipe: recipes/multi30k-en-de/simple.yaml, set: {model.encoder_layers: 4}}
      capsule: {recipe: recipes/multi30k-en-de/capsnmt.yaml, seeds: [1]}
      buck:    {recipe: recipes/multi30k-en-de/simple.yaml, hypotheses: buck.de, origin: their submission to WMT14}
      smt:     {label: Phrase-based, paper_bleu: 20.7, origin: "WMT14, Table 1 of the paper"}  # a figure, no system
      student: {recipe: recipes/multi30k-en-de/capsnmt.yaml, distilled_from: teacher}     # of a row's first seed
      grid: {recipe: recipes/multi30k-en-de/capsnmt.yaml, over: {model.num_iterations: [1, 2, 3]}}  # a row for each
    report:                              # what `capsnmt reproduce` writes of them
      - {kind: table, title: Systems, rows: [simple, capsule], against: simple}

A run is a row with a seed; its model folder is `output/row-s1`, beside it its log, its translations of the recipe's
test set and its record. Whatever exists is kept: a suite that was killed goes on where it stopped. A row with
`hypotheses` is an outside system: its recipe says languages and test set, and nothing is trained. A row without a
recipe is a published figure, which stands in tables and is compared with nothing. With `kept: docs/x` records and
report are written there, to be committed: what has a record there is not trained again, on any machine.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from capsnmt.analysis.processes import Command
from capsnmt.analysis.records import check_settings, fingerprint, read_record, settings_of
from capsnmt.config import RunConfig, StrictModel, load_recipe, load_yaml, parse
from capsnmt.data.corpus import files_of, holds_tokens
from capsnmt.errors import CapsNMTError

Settings = dict[str, Any]


class RowConfig(StrictModel):
    """One row of the table: a recipe and what it changes."""

    recipe: str | None = None  # without one, `label`, `paper_bleu` and `origin` are a figure that others published
    set: Settings = Field(default_factory=dict)  # dotted key: value
    seeds: list[int] | None = None  # instead of the suite's
    over: dict[str, list[Any]] = Field(default_factory=dict)  # dotted key: values; a row for every combination
    distilled_from: str | None = None  # the row that teaches: it rewrites the target side of the training text
    label: str | None = None  # for the report
    paper_bleu: float | None = None  # what the paper reports on its own data; shown as theirs
    hypotheses: str | None = None  # an outside system's translations of the recipe's test set
    origin: str | None = None  # where they come from, or a published figure does

    @property
    def is_published(self) -> bool:
        """Whether there is nothing but a published figure: no run, and nothing that could be compared."""
        return self.recipe is None

    @model_validator(mode="after")
    def _what_is_not_ours_has_an_origin(self) -> RowConfig:
        if self.is_published:
            if self.model_fields_set - {"recipe"} != {"label", "paper_bleu", "origin"}:
                raise ValueError(
                    "a row without a recipe is a published figure: give it label, paper_bleu and origin and nothing "
                    "else, or a recipe"
                )
        elif (self.hypotheses is None) != (self.origin is None):
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
    processes: int = Field(default=1, ge=1)  # of one training or distillation, on this machine; results do not change
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
    processes: int = 1  # that train it together
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

    def commands(self, data: str | None = None) -> list[Command]:
        """What makes its result, in order."""
        return [*self.training(data), *self.evaluating(data)]

    def training(self, data: str | None = None) -> list[Command]:
        """What makes its model; of an outside system, nothing."""
        if self.outside is not None:
            return []
        changes = [part for override in self.training_settings(data) for part in ("--set", override)]
        settings = (str(self.recipe), *changes, *(["--data", data] if data else []))
        train = Command(("train", *settings), self.processes)
        # Many processes would wait for one of them, and not for ever, while it prepares a large corpus.
        return [train] if self.processes == 1 else [Command(("prepare", *settings)), train]

    def evaluating(self, data: str | None = None) -> list[Command]:
        """What makes its scores, in one process."""
        config = self.config(data)
        files = [] if config.data.test is None else files_of(config.data.test, config.data.root)
        if len(files) != 2:
            raise CapsNMTError(f"{self.recipe} names no source and target file in data.test to evaluate on")
        test_set = ("evaluate", "--source", str(files[0]), "--reference", str(files[1]))
        evaluate = (*test_set, "--name", self.row, "--save", str(self.translations), "--json", str(self.report))
        if self.outside is not None:
            pair = f"{config.languages.source}-{config.languages.target}"
            told = ("--hypotheses", self.outside[0], "--origin", self.outside[1], "--languages", pair)
            return [Command((*evaluate, *told))]
        greedy = (*test_set, "--beam", "1", "--bootstrap", "0", "--json", str(self.greedy))
        # Trained on tokens and tested on plain text, as all rows are: else their scores could not be compared.
        on_words = any(map(holds_tokens, files_of(config.data.train, config.data.root))) and not holds_tokens(files[0])
        model = ("--moses", str(self.folder)) if on_words else (str(self.folder),)
        return [Command((*evaluate, *model)), Command((*greedy, *model))]

    def teaching(self, data: str | None = None) -> list[Command]:
        """What makes its teacher's corpus of the original training text.

        One process takes the fast runtime; of several each has its device and its part, and another joins the parts.
        """
        if self.teacher is None:
            return []
        config = self.config(data)
        files = files_of(config.data.train, config.data.root)
        teacher = str(self.teacher.folder)
        texts = ("--source", str(files[0]), "--reference", str(files[1]), "--output", str(self.distilled))
        distill = ("distill", teacher, *texts, "--quiet")
        if self.processes == 1:
            return [Command(("export", teacher, "--precision", "fp32")), Command(distill)]
        by_torch = (*distill, "--engine", "torch")
        return [Command(by_torch, self.processes), Command(by_torch)]

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


def read_suite(path: str | Path, processes: int | None = None) -> SuiteConfig:
    """Reads and checks a suite file; `processes` replaces its own number."""
    suite = parse(SuiteConfig, load_yaml(path), str(path))
    suite = suite.model_copy(update={"name": suite.name or Path(path).stem, "processes": processes or suite.processes})
    teachers = {name for name, row in suite.rows.items() if not row.is_published}
    for name, row in suite.rows.items():
        if row.distilled_from is not None and row.distilled_from not in teachers:
            raise CapsNMTError(f"{path}: {name} is distilled_from {row.distilled_from}, which is no row with a recipe")
    _check_report(suite, path)
    return suite


def _check_report(suite: SuiteConfig, path: str | Path) -> None:
    """Sections name rows that exist, and that have what the section shows."""
    known = expanded(suite)
    for section in suite.report:
        against = [section.against] if section.against else []
        for name in [*section.rows, *section.points, *section.points.values(), *against]:
            if name not in known and name not in suite.rows:
                raise CapsNMTError(f"{path}: the report's {section.title!r} names {name}, which is no row of the suite")
            if name not in known and suite.rows[name].is_published and (section.kind != "table" or name in against):
                raise CapsNMTError(
                    f"{path}: the report's {section.title!r} names {name}, of which there is only a published figure; "
                    "it can stand among the rows of a table, and not in `against`"
                )
        for swept, name in section.points.items():
            if not _is_point_of(suite.rows.get(swept), suite.rows.get(name)):
                raise CapsNMTError(
                    f"{path}: the report's {section.title!r} puts {name} on the line of {swept}, which must be swept "
                    "over one key and differ in nothing else"
                )


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
    """The rows that have runs, every sweep written out: `grid` over T and M becomes grid-1-2, grid-1-4 and so on."""
    rows = {}
    for name, row in suite.rows.items():
        if row.is_published:
            continue
        for swept, values in zip(sweep_names(name, row), itertools.product(*row.over.values()), strict=True):
            changes = dict(zip(row.over, values, strict=True))
            rows[swept] = row.model_copy(update={"set": {**row.set, **changes}})
    return rows


def chosen_rows(suite: SuiteConfig, names: Collection[str]) -> set[str]:
    """Rows by their names; a swept one stands for all that it becomes."""
    swept = {name: sweep_names(name, row) for name, row in suite.rows.items() if not row.is_published}
    known = {**{name: [name] for name in expanded(suite)}, **swept}
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
        assert row.recipe is not None
        values = {**suite.set, **row.set, "training.seed": seed, "output": str(folder)}
        overrides = tuple(f"{key}={json.dumps(value)}" for key, value in values.items())
        teacher = row.distilled_from and run_of(row.distilled_from, seeds_of[row.distilled_from][0])
        outside = None if row.hypotheses is None or row.origin is None else (row.hypotheses, row.origin)
        return Run(
            name,
            seed,
            Path(row.recipe),
            overrides,
            folder,
            suite.records_folder,
            processes=suite.processes,
            teacher=teacher or None,
            outside=outside,
        )

    ranks = range(max((len(seeds) for seeds in seeds_of.values()), default=0))
    runs = [run_of(name, seeds_of[name][rank]) for rank in ranks for name in rows if rank < len(seeds_of[name])]
    return sorted(runs, key=lambda run: run.teacher is not None)  # students wait for their teachers
