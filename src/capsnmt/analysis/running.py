"""Trains and evaluates the runs of a suite that are missing, students after their teachers; writes their records."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from capsnmt.analysis.processes import Command, run_command
from capsnmt.analysis.records import (
    check_folder,
    counts_of_sentences,
    counts_of_training,
    settings_of,
    write_record,
)
from capsnmt.analysis.runs import Run, runs_of
from capsnmt.analysis.suite import SuiteConfig
from capsnmt.data.corpus import files_of
from capsnmt.data.prepare import STORE_INFO
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
    check_runs(runs, data)
    due = due_runs(runs, only)
    check_teachers(due, data)
    if absent := absent_files(due, data):
        raise CapsNMTError(absent)
    done, missing = sum(run.is_done for run in runs), sum(not run.is_done for run in due)
    say(f"{suite.title}: {len(runs)} runs, {done} of them done, {missing} to do")
    Path(suite.output).mkdir(parents=True, exist_ok=True)
    failed = _complete_all([run for run in due if run.teacher is None], data, jobs, say)
    students = _taught([run for run in due if run.teacher is not None], failed, data, say)
    return failed + _complete_all(students, data, jobs, say)


def check_runs(runs: Sequence[Run], data: str | None) -> None:
    """Refuses what any run could not do: a typo in the last row must not wait for the first training."""
    for run in runs:
        run.check()  # nothing that was made with other settings is trained beside, or reported
        run.commands(data)
        run.teaching(data)
        settings_of(run.config(data))
        _check_processes(run, data)


def due_runs(runs: Sequence[Run], only: Collection[str] = ()) -> list[Run]:
    """What is to be trained: runs without a record, or of those `only` some rows, and teachers that they need.

    A teacher whose record came from elsewhere is trained again: its students need the model itself.
    """
    missing = [run for run in runs if not run.is_done and (not only or run.row in only)]
    teachers = [run.teacher for run in missing if run.teacher is not None and not _has_taught(run)]
    return [run for run in runs if run in missing or run in teachers]


def check_teachers(due: Sequence[Run], data: str | None) -> None:
    """Refuses a teacher's folder of other settings: a student's record names the settings that taught it."""
    for student in due:
        if student.teacher is not None and (student.teacher.folder / CONFIG).exists():
            check_folder(student.teacher.folder, student.teacher.config(data))


def absent_files(due: Sequence[Run], data: str | None) -> str | None:
    """What is wrong if files of the corpora are not here, which would end one training after the other."""
    files = dict.fromkeys(file for run in due for file in _files_before(run, data))
    absent = [str(file) for file in files if not file.exists()]
    if not absent:
        return None
    more = len(absent[4:])
    return (
        f"files of the corpora do not exist: {', '.join(absent[:4])}{f' and {more} more' if more else ''}; "
        "relative names start at the folder of --data, or at data.root of the recipes without it: check both"
    )


def _files_before(run: Run, data: str | None) -> list[Path]:
    """The files that must be there before a run begins: none that it makes or fetches, no text in a finished store."""
    config = run.config(data).data
    test = [] if config.test is None else [config.test]
    if run.outside is not None:
        return [Path(run.outside[0]), *(file for text in test for file in files_of(text, config.root))]
    if config.generate is not None or config.fetch is not None:
        return []
    store = Path(config.store) if run.distilled is None else run.distilled / "store"
    texts = test if (store / STORE_INFO).exists() else [*config.train.corpora, config.valid, *test]
    return [file for text in texts for file in files_of(text, config.root)]


def _taught(students: list[Run], failed: list[str], data: str | None, say: Callable[[str], None]) -> list[Run]:
    """Those whose teacher's corpus is there now; the others are added to what failed."""
    faults: dict[Path, str | None] = {}
    for student in students:
        assert student.distilled is not None
        if student.distilled not in faults:  # once for all students of a teacher
            faults[student.distilled] = _teach(student, failed, data)
            say(f"{student.distilled.name}: {faults[student.distilled] or 'done'}")
    failed += [run.name for run in students if run.distilled is None or faults[run.distilled]]
    return [run for run in students if run.name not in failed]


def _teach(student: Run, failed: Collection[str], data: str | None) -> str | None:
    """Has its teacher write the student's corpus, unless it is there. Returns what went wrong, if anything."""
    assert student.teacher is not None
    assert student.distilled is not None
    if student.teacher.name in failed:  # what lies in its folder is not the model that the suite wants
        return f"not taught, for its teacher {student.teacher.name} failed"
    teaching = student.teaching(data) if _must_teach(student, data) else []
    if fault := _logged(student.distilled, teaching, usable_cores()):
        return fault
    return None if (student.distilled / MANIFEST).exists() else f"not taught, for {student.teacher.name} has no model"


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
    """Whether its teacher's model is here, or the corpus that it wrote and its record, which says what it was."""
    assert student.teacher is not None
    assert student.distilled is not None
    has_written = student.teacher.is_done and (student.distilled / MANIFEST).exists()
    return has_written or (student.teacher.folder / WEIGHTS).exists()


def _must_teach(student: Run, data: str | None) -> bool:
    """Whether its teacher's model is here, and not yet what that makes of the training text."""
    assert student.teacher is not None
    assert student.distilled is not None
    config, teacher = student.config(data).data, student.teacher.folder
    if not (teacher / WEIGHTS).exists():
        return False
    source, reference = files_of(config.train, config.root)
    manner = student.manner
    return not is_distilled_by(
        teacher, source, reference, student.distilled, best_of=manner.best_of, with_original=manner.with_original
    )


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
        record |= {} if run.teacher is None else {"teacher_settings": settings_of(run.teacher.config())}
        record |= {**counts_of_training(run.folder), "processes": run.processes}
        record |= {"threads": max(1, threads // run.processes), "processor": processor()}
        record["greedy"] = json.loads(run.greedy.read_text(encoding="utf-8"))["scores"]
    else:
        record |= {"outside": run.about_outside(), "finished": time.strftime("%Y-%m-%d")}
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
