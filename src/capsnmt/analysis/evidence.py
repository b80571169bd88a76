"""What a report is made from, the results of a suite, and what it consists of: paragraphs, tables and figures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from capsnmt.analysis.processes import Command
from capsnmt.analysis.results import RowResult, collect
from capsnmt.analysis.routing_map import RoutingMap
from capsnmt.analysis.runs import Run
from capsnmt.analysis.suite import RowConfig, SectionConfig, SuiteConfig, expanded, sweep_names
from capsnmt.config import RunConfig, flatten
from capsnmt.data.corpus import files_of
from capsnmt.errors import CapsNMTError

Route = Callable[[Path, Sequence[str]], list[RoutingMap]]


@dataclass(frozen=True)
class Table:
    """Cells as they are shown."""

    headings: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Figure:
    """A picture and what it shows."""

    name: str  # of its file, without ending
    caption: str
    png: bytes


@dataclass
class Section:
    """A title and what stands below it, in order: paragraphs, tables, figures."""

    title: str
    blocks: list[str | Table | Figure] = field(default_factory=list)
    fault: str | None = None  # why it could not be made


@dataclass(frozen=True)
class Evidence:
    """All that sections are made of."""

    suite: SuiteConfig
    runs: Sequence[Run]
    data: str | None
    route: Route  # a model folder and sentences → their routing
    measures: bool = True  # whether sections may run benchmarks, which want a quiet machine

    @cached_property
    def results(self) -> dict[str, RowResult]:
        """The finished rows."""
        return collect(self.runs)

    def rows(self, section: SectionConfig) -> dict[str, RowResult]:
        """The finished rows that a section names, in its order; a swept one stands for all of its own."""
        return {name: self.results[name] for name in self.names(section) if name in self.results}

    def names(self, section: SectionConfig) -> list[str]:
        """All rows that a section names, finished or not, in its order."""
        wanted = []
        for name in section.rows or self.suite.rows:
            row = self.suite.rows.get(name)
            wanted += [name] if row is None else sweep_names(name, row)
        return wanted

    def published(self, section: SectionConfig) -> dict[str, RowConfig]:
        """The rows of a section that have a published figure only."""
        rows = self.suite.rows
        return {name: rows[name] for name in self.names(section) if name in rows and rows[name].is_published}

    def label(self, row: str, section: SectionConfig) -> str:
        """How a row is called in a section of the report."""
        return section.labels.get(row) or {**self.suite.rows, **expanded(self.suite)}[row].label or row

    def first_run(self, row: str) -> Run:
        """Of its finished ones."""
        return next(run for run in self.runs if run.row == row and run.is_done)

    def trained(self, section: SectionConfig) -> dict[str, RunConfig]:
        """The settings of every finished row that was trained here, in the section's order."""
        rows = [row for row, result in self.rows(section).items() if result.origin is None]
        return {row: self.first_run(row).config(self.data) for row in rows}

    def setting(self, row: str, key: str) -> Any:
        """A row's value of a dotted key, finished or not."""
        config = next(run for run in self.runs if run.row == row).config(self.data)
        return flatten(config.model_dump())[key]

    def test_source(self, row: str) -> Path:
        """The source side of the test set that a finished row was evaluated on."""
        data = self.first_run(row).config(self.data).data
        if data.test is None:
            raise CapsNMTError(f"the recipe of {row} names no test set")
        return files_of(data.test, data.root)[0]

    def without_folders(self, text: str) -> str:
        """A text for the reader, whose folders lie elsewhere."""
        if self.data is not None:
            text = text.replace(f"{Path(self.data).resolve()}/", "DATA/")
        return text.replace(f"{Path.cwd()}/", "")

    def told(self, command: Sequence[str]) -> str:
        """A command for the reader, whose folders lie elsewhere; it is typed where this one was."""
        here = f"{Path.cwd()}/"
        words = [shlex.quote(self._elsewhere(word).removeprefix(here)) for word in command]
        # Inside of a word, such as of a setting, a path may have to be absolute; such words are in single quotes.
        return " ".join(words).replace(here, "'\"$PWD\"'/")

    def commands(self, commands: Sequence[Command]) -> list[str]:
        """Commands for the reader."""
        return [self.told(command.told) for command in commands]

    def _elsewhere(self, word: str) -> str:
        """A path of the corpora begins with DATA."""
        for root in () if self.data is None else (str(Path(self.data).resolve()), self.data.rstrip("/")):
            if word == root or word.startswith(f"{root}/"):
                return f"DATA{word.removeprefix(root)}"
        return word
