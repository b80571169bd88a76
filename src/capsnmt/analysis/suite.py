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
      other: {recipe: recipes/multi30k-en-de/capsnmt.yaml, distilled_from: teacher, teaching: {best_of: 8}}
      grid: {recipe: recipes/multi30k-en-de/capsnmt.yaml, over: {model.num_iterations: [1, 2, 3]}}  # a row for each
    report:                              # what `capsnmt reproduce` writes of them
      - {kind: table, title: Systems, rows: [simple, capsule], against: simple}

A run is a row with a seed; its model folder is `output/row-s1`, beside it its log, its translations of the recipe's
test set and its record. Whatever exists is kept: a suite that was killed goes on where it stopped. A row with
`hypotheses` is an outside system: its recipe says languages and test set, and nothing is trained. A row without a
recipe is a published figure, which stands in tables and is compared with nothing. With `kept: docs/x` records and
report are written there, to be committed: what has a record there is not trained again, on any machine. Every key is
explained in docs/SUITES.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from capsnmt.config import StrictModel, load_yaml, parse
from capsnmt.errors import CapsNMTError

Settings = dict[str, Any]


class TeachingConfig(StrictModel):
    """How a teacher writes its students' corpus, where it does more than translate it."""

    best_of: int = Field(default=1, ge=1)  # candidates, of which the nearest to the reference is taken
    with_original: bool = False  # the original pairs, too

    @property
    def options(self) -> tuple[str, ...]:
        """What `distill` is told beside its files; nothing for the defaults."""
        nearest = ("--n-best", str(self.best_of), "--choose", "bleu") if self.best_of > 1 else ()
        return (*nearest, *(("--with-original",) if self.with_original else ()))


class RowConfig(StrictModel):
    """One row of the table: a recipe and what it changes."""

    recipe: str | None = None  # without one, `label`, `paper_bleu` and `origin` are a figure that others published
    set: Settings = Field(default_factory=dict)  # dotted key: value
    seeds: list[int] | None = None  # instead of the suite's
    over: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)  # a row for each of these
    distilled_from: str | None = None  # the row that teaches: it rewrites the target side of the training text
    teaching: TeachingConfig = Field(default_factory=TeachingConfig)  # how that row teaches
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
        if self.teaching.options and self.distilled_from is None:
            raise ValueError("teaching needs distilled_from: who teaches?")
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
    paper_bleu: dict[str, float] = Field(default_factory=dict)  # table: what the paper reports of rows, likewise
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
    file: str = ""  # `read_suite` notes where this was read from, for the report's command
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


def read_suite(path: str | Path, processes: int | None = None) -> SuiteConfig:
    """Reads and checks a suite file; `processes` replaces its own number."""
    suite = parse(SuiteConfig, load_yaml(path), str(path))
    changes = {"name": suite.name or Path(path).stem, "file": str(path), "processes": processes or suite.processes}
    suite = suite.model_copy(update=changes)
    names = [swept for name, row in suite.rows.items() for swept in sweep_names(name, row)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise CapsNMTError(f"{path}: two rows are called {twice[0]}, one of them by its values in `over`; rename one")
    for name, row in suite.rows.items():
        if row.distilled_from is not None and (fault := _fault_of_teacher(row.distilled_from, suite)):
            raise CapsNMTError(f"{path}: {name} is distilled_from {row.distilled_from}, which {fault}")
    for section in suite.report:
        for fault in _faults_of_section(section, suite):
            raise CapsNMTError(f"{path}: the report's {section.title!r} {fault}")
    return suite


def _fault_of_teacher(name: str, suite: SuiteConfig) -> str | None:
    """Why a row cannot teach, if it cannot: a student is trained after one teacher, and that is one model."""
    row = expanded(suite).get(name)
    if row is None:
        swept = suite.rows.get(name)
        names = sweep_names(name, swept) if swept is not None and swept.over else []
        return f"is swept; name one of its rows: {', '.join(names)}" if names else "is no row with a recipe"
    if row.hypotheses is not None:
        return "is an outside system: its translations are here, but no model that could teach"
    if row.distilled_from is not None:
        return "is distilled itself; a teacher must be a row without distilled_from"
    return None


def _faults_of_section(section: SectionConfig, suite: SuiteConfig) -> Iterator[str]:
    """Sections name rows that exist, and that have what the section shows."""
    known = expanded(suite)
    against = [section.against] if section.against else []
    points = [*section.points, *section.points.values()]
    for name in [*section.rows, *points, *section.labels, *section.paper_bleu, *against]:
        if name not in known and name not in suite.rows:
            yield f"names {name}, which is no row of the suite"
        elif name not in known and suite.rows[name].is_published and (section.kind != "table" or name in against):
            yield (
                f"names {name}, of which there is only a published figure; it can stand among the rows of a table, and "
                "not in `against`"
            )
    for name in against:
        if name not in known:
            names = sweep_names(name, suite.rows[name])
            yield f"is against {name}, which is swept; name one of its rows: {', '.join(names)}"
    for swept, name in section.points.items():
        if not _is_point_of(suite.rows.get(swept), suite.rows.get(name)):
            yield (f"puts {name} on the line of {swept}, which must be swept over one key and differ in nothing else")
    keys = {name: list(suite.rows[name].over) if name in suite.rows else [] for name in section.rows}
    if section.kind == "sweep":
        yield from _faults_of_sweep(keys)
    if section.kind == "size_by_length" and [len(own) for own in keys.values()] != [1]:
        yield "must have one row in `rows`, which is swept (`over`) over one key"
    if section.kind == "training" and not section.values:
        yield "has nothing to show: name it in `values`, as in [valid.perplexity, train.loss]"


def _faults_of_sweep(keys: dict[str, list[str]]) -> Iterator[str]:
    """A sweep has one axis, and a line for each value of a second key at most."""
    if not keys:
        yield "must name swept rows in `rows`"
    for name, own in keys.items():
        if len(own) not in (1, 2):
            yield f"names {name}, which is swept over {len(own)} keys; a sweep shows rows with one or two in `over`"
    if len(axes := {own[0] for own in keys.values() if own}) > 1:
        yield f"has rows swept over {' and '.join(sorted(axes))}; the first key is the axis and must be the same"


def _is_point_of(swept: RowConfig | None, row: RowConfig | None) -> bool:
    """Whether a row is the swept one at another value of its only key."""
    if swept is None or row is None or len(swept.over) != 1 or row.over:
        return False
    rests = [{key: value for key, value in each.set.items() if key not in swept.over} for each in (swept, row)]
    others = [(each.recipe, each.distilled_from, each.teaching) for each in (swept, row)]
    return rests[0] == rests[1] and others[0] == others[1]


def expanded(suite: SuiteConfig) -> dict[str, RowConfig]:
    """The rows that have runs, every sweep written out: `grid` over T and M becomes grid-1-2, grid-1-4 and so on."""
    rows = {}
    for name, row in suite.rows.items():
        if row.is_published:
            continue
        for swept, values in zip(sweep_names(name, row), itertools.product(*row.over.values()), strict=True):
            changes = dict(zip(row.over, values, strict=True))
            told = [f"{last_part(key)} = {_short(value)}" for key, value in changes.items()]
            label = row.label and ", ".join([row.label, *told])
            rows[swept] = row.model_copy(update={"set": {**row.set, **changes}, "label": label})
    return rows


def last_part(key: str) -> str:
    """Of a dotted key: model.num_capsules is num_capsules to the reader."""
    return key.rpartition(".")[2]


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
