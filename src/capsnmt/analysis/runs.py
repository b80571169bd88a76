"""The runs that a suite becomes: what makes each of them, and where its parts lie."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from capsnmt.analysis.processes import Command
from capsnmt.analysis.records import check_settings, fingerprint, read_record, settings_of
from capsnmt.analysis.suite import SuiteConfig, TeachingConfig, expanded
from capsnmt.config import RunConfig, load_recipe
from capsnmt.data.corpus import files_of, holds_tokens
from capsnmt.errors import CapsNMTError
from capsnmt.runtime.manifest import sha256_of_file


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
    manner: TeachingConfig = field(default_factory=TeachingConfig)  # how that teaches
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

    @cached_property
    def distilled(self) -> Path | None:
        """Where the teacher's corpus lies; all whom it teaches alike share it.

        A teacher of other settings has another one: what an earlier one wrote, and what a student learnt of that, must
        never be taken for its own.
        """
        if self.teacher is None:
            return None
        of = fingerprint(settings_of(self.teacher.config()))[:8]
        manner = "".join(f"-{option.removeprefix('--')}" for option in self.manner.options)
        return self.teacher.folder.with_name(f"distilled-by-{self.teacher.name}-{of}{manner}")

    def config(self, data: str | None = None) -> RunConfig:
        """The recipe with the run's changes."""
        return load_recipe(self.recipe, [*self.overrides, *_root(data)])

    def training_settings(self, data: str | None = None) -> list[str]:
        """What `train` is told; a student's text is its teacher's, in subwords of its recipe's own store."""
        if self.distilled is None:
            return list(self.overrides)
        config = self.config(data)
        languages = config.languages
        # Absolute, for other names start at data.root; not resolved: where a link leads is nothing for a report.
        folder = self.distilled.absolute()
        files = {side: str(folder / f"train.{code}") for side, code in languages.model_dump().items()}
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
        if len(files) != 2:
            raise CapsNMTError(f"{self.recipe} names no source and target file in data.train for a teacher to rewrite")
        teacher = str(self.teacher.folder)
        texts = ("--source", str(files[0]), "--reference", str(files[1]), "--output", str(self.distilled))
        distill = ("distill", teacher, *texts, *self.manner.options, "--quiet")
        if self.processes == 1:
            return [Command(("export", teacher, "--precision", "fp32")), Command(distill)]
        by_torch = (*distill, "--engine", "torch")
        return [Command(by_torch, self.processes), Command(by_torch)]

    @property
    def taught_by(self) -> str | None:
        """Its teacher, and how it taught where it did not just translate."""
        return None if self.teacher is None else " ".join([self.teacher.name, *self.manner.options])

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
        if not self.is_done:
            return
        record = read_record(self.record)
        if self.outside is not None:
            self._check_outside(record)
            return
        check_settings(self.record, "is of a run", record["settings"], self.config())
        if record["taught_by"] != self.taught_by:
            raise CapsNMTError(
                f"{self.record} was taught by {record['taught_by']}, the suite wants {self.taught_by}; "
                "delete the file and its model folder to train again"
            )
        if self.teacher is not None:
            check_settings(self.record, "was taught by a run", record["teacher_settings"], self.teacher.config())

    def about_outside(self) -> dict[str, Any]:
        """What a record of an outside system is of: its file, by its content if that is here, and the test set."""
        assert self.outside is not None
        file, origin = Path(self.outside[0]), self.outside[1]
        test = self.config().data.test
        return {
            "sha256": sha256_of_file(file) if file.exists() else None,
            "origin": origin,
            "test": None if test is None else test.model_dump(mode="json"),
        }

    def _check_outside(self, record: dict[str, Any]) -> None:
        for name, wanted in self.about_outside().items():
            if wanted is not None and record["outside"][name] != wanted:
                raise CapsNMTError(
                    f"{self.record} is of other translations: {name} is {record['outside'][name]}, the suite has "
                    f"{wanted}; delete the file to score these"
                )


def _root(data: str | None) -> list[str]:
    return [f"data.root={json.dumps(data)}"] if data else []


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
            manner=row.teaching,
            outside=outside,
        )

    ranks = range(max((len(seeds) for seeds in seeds_of.values()), default=0))
    runs = [run_of(name, seeds_of[name][rank]) for rank in ranks for name in rows if rank < len(seeds_of[name])]
    return sorted(runs, key=lambda run: run.teacher is not None)  # students wait for their teachers
