"""Trains and evaluates the runs of a suite that are missing, students after their teachers; writes their records."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from capsnmt.analysis.processes import Command, run_command
from capsnmt.analysis.records import counts_of_sentences, counts_of_training, settings_of, write_record
from capsnmt.analysis.suite import Run, SuiteConfig, runs_of
from capsnmt.data.corpus import files_of
from capsnmt.distillation import MANIFEST
from capsnmt.distillation.identity import is_distilled_by
from capsnmt.errors import CapsNMTError
from capsnmt.folder import CONFIG, WEIGHTS, read_folder_config
from capsnmt.machine import processor, usable_cores


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
        _check_processes(run, data)
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


def _check_processes(run: Run, data: str | None) -> None:
    """Results must not depend on how many processes trained them."""
    batches = run.config(data).training.accumulate
    if run.processes > batches and run.outside is None:
        raise CapsNMTError(
            f"{run.name}: {run.processes} processes would make larger updates than the {batches} batches of its "
            f"training.accumulate; give --processes {batches}, or for the same updates a larger accumulate and "
            "smaller batch_tokens"
        )


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
        return _logged(run.folder, run.training(data), threads)
    if fault := _logged(run.folder, run.commands(data), threads):
        return fault
    evaluation = json.loads(run.report.read_text(encoding="utf-8"))
    assert config.data.test is not None
    source, reference = files_of(config.data.test, config.data.root)
    record: dict[str, Any] = {"row": run.row, "seed": run.seed}
    if run.outside is None:
        record |= {"taught_by": run.taught_by, "settings": settings_of(run.config())}
        record |= {**counts_of_training(run.folder), "processes": run.processes}
        record |= {"threads": max(1, threads // run.processes), "processor": processor()}
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


def _logged(folder: Path, commands: list[Command], threads: int) -> str | None:
    """Runs commands one after the other; their words go into a log beside the folder. Returns what went wrong."""
    log = folder.with_name(f"{folder.name}.log")
    with log.open("a", encoding="utf-8") as out:
        for command in commands:
            if code := run_command(command, out, threads=threads):
                return f"`capsnmt {command.words[0]}` ended with {code}; see {log}"
    return None
