"""reproduce is killed in each of its stages; what it started ends with it, and its results are those of a calm run."""

from __future__ import annotations

import fnmatch
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from forks import FORKS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans end on Linux only")

PATIENCE_S = 900.0
ORPHANS_END_S = 60.0
CLOCKED = {"tokens_per_s", "loader_wait_share", "minutes", "finished", "tables"}  # tables have such columns, too
PLACES = {"open": 0, "os.mkdir": 0, "os.rename": 1}  # which argument of the event is the path that is to be there

# Stage: what it is about to write when it is killed, what must be there by then, and what must not.
STAGES = {
    "preparing": ("*/runs/store", [], ["store", "teacher-s1/config.yaml"]),
    "training the teacher": ("*/teacher-s1/checkpoints/step-00000006", ["store"], ["teacher-s1/weights.safetensors"]),
    "evaluating": ("*/.teacher-s1.report.json", ["teacher-s1.out"], ["teacher-s1.json"]),
    "writing a record": ("*/plain-s1.json", ["teacher-s1.json", "plain-s1.writing"], ["plain-s1.json"]),
    "exporting": ("*/teacher-s1/runtime", ["plain-s1.json"], ["teacher-s1/runtime"]),
    "distilling": ("*/.train.en.writing", ["teacher-s1/runtime"], ["distilled-by-teacher-s1-*/manifest.json"]),
    "training the student": (
        "*/student-s1/checkpoints/step-00000006",
        ["distilled-by-teacher-s1-*/manifest.json"],
        ["student-s1/weights.safetensors"],
    ),
    "writing the report": (
        "*/report.html",
        ["student-s1.json", "report-study/report.md"],
        ["report-study/report.html"],
    ),
}


def run_capsnmt(argv, log, hold_at, sign):
    """The command in a process of a session of its own; what it starts are forks, which need not import torch again."""
    from capsnmt.cli import main

    os.setsid()
    redirect(log)
    if hold_at is not None:
        sys.addaudithook(lambda event, details: hold_before(event, details, hold_at, sign))
    subprocess.run = run_fork
    main(argv)


def redirect(log):
    for descriptor in (1, 2):
        os.dup2(log if isinstance(log, int) else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)


def run_fork(argv, *, stdout, stderr, env, cwd, check):
    """What `run_command` asks of subprocess.run."""
    from capsnmt.cli import main

    assert (argv[:3], stdout, cwd, check) == ([sys.executable, "-m", "capsnmt"], stderr, None, False)
    child = os.fork()
    if child:
        return subprocess.CompletedProcess(argv, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    code = 1
    try:
        redirect(stdout.fileno())
        os.environ.update(env)
        main(argv[3:])
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        os._exit(code)  # nothing of the parent's may be done twice


def hold_before(event, details, pattern, sign):
    """An audit hook, which Python calls before the event: whoever is about to write such a path waits to be killed."""
    writes = event in PLACES and (event != "open" or bool((details[2] or 0) & (os.O_WRONLY | os.O_RDWR)))
    if writes and fnmatch.fnmatch(str(details[PLACES[event]]), pattern):
        sign.mkdir()
        while True:
            time.sleep(PATIENCE_S)


def living(session):
    """The processes of a session that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, own = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(own) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(reached, patience_s=PATIENCE_S):
    deadline_s = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


class Study:
    """A suite in a folder, and the command that makes it."""

    def __init__(self, folder):
        self.folder, self.runs = folder, folder / "runs"

    def start(self, hold_at=None):
        argv = ["reproduce", str(self.folder / "study.yaml")]
        process = FORKS.Process(target=run_capsnmt, args=(argv, self.folder / "said", hold_at, self.folder / "held"))
        process.start()
        return process

    def finish(self):
        process = self.start()
        process.join(PATIENCE_S)
        assert process.exitcode == 0, self.said()

    def kill_before(self, pattern):
        """Kills the command alone when it, or what it has started, is about to write a path of the pattern."""
        process, sign = self.start(pattern), self.folder / "held"
        wait_until(lambda: sign.exists() or not process.is_alive())
        assert sign.exists(), f"it did not come to {pattern}:\n{self.said()}"
        assert process.pid in living(process.pid)
        process.kill()
        process.join()
        try:
            wait_until(lambda: not living(process.pid), ORPHANS_END_S)
        finally:
            for orphan in living(process.pid):  # they would wait for ever
                os.kill(orphan, signal.SIGKILL)
        sign.rmdir()

    def said(self):
        logs = [self.folder / "said", *self.runs.glob("*.log")]
        return "\n".join(f"{log.name}:\n{log.read_text(encoding='utf-8')[-600:]}" for log in logs)

    def results(self):
        """Records, results, report and the taught corpus, without what depends on the clock."""
        report, corpus = self.runs / "report-study", next(self.runs.glob("distilled-by-teacher-s1-*/train.en"))
        records, texts = [*self.runs.glob("*-s1.json"), report / "results.json"], [*self.runs.glob("*-s1.out"), corpus]
        return {
            **{path.name: without_clock(json.loads(path.read_text(encoding="utf-8"))) for path in records},
            **{path.name: path.read_text(encoding="utf-8").split("\n") for path in texts},
            "report": without_speeds((report / "report.md").read_text(encoding="utf-8")),
        }

    def files(self):
        """Everything that is there; TensorBoard has a file for each process."""
        paths = (path for path in self.runs.rglob("*") if path.parent.name != "tensorboard")
        return sorted(str(path.relative_to(self.runs)) for path in paths)


def without_clock(value):
    if isinstance(value, dict):
        return {key: without_clock(item) for key, item in value.items() if key not in CLOCKED}
    return [without_clock(item) for item in value] if isinstance(value, list) else value


def without_speeds(report):
    """Its lines, tables as cells without the columns that depend on the clock."""
    lines, dropped = [], set()
    for line in report.split("\n"):
        cells = line.split(" | ") if line.startswith("| ") else [line]
        if "train tokens/s" in cells:
            dropped = {cells.index("train tokens/s"), cells.index("minutes")}
        dropped = dropped if len(cells) > 1 else set()
        lines.append([cell for place, cell in enumerate(cells) if place not in dropped])
    return lines


@pytest.fixture
def study(write_recipe, tiny_config, tmp_path):
    teacher = write_recipe(tmp_path / "simple.yaml", tiny_config("simple", dropout=0.2), steps=9)
    plain = write_recipe(tmp_path / "capsnmt.yaml", tiny_config("capsnmt"), steps=3)
    rows = {
        "teacher": {"recipe": str(teacher)},
        "plain": {"recipe": str(plain)},
        "student": {"recipe": str(teacher), "distilled_from": "teacher"},
    }
    report = [
        {"kind": "table", "title": "Systems", "rows": [*rows], "against": "teacher"},
        {"kind": "distillation", "title": "Taught", "rows": ["student"]},
        {"kind": "training", "title": "On the way", "rows": ["plain"], "values": ["valid.perplexity"]},
    ]
    values = {
        "title": "A small study",
        "output": str(tmp_path / "runs"),
        "set": {"data.store": str(tmp_path / "runs" / "store")},
        "rows": rows,
        "report": report,
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return Study(tmp_path)


@pytest.mark.timeout(3600)
def test_killed_in_every_stage_it_ends_with_the_same_results(study):
    study.finish()
    calm, files = study.results(), study.files()
    assert len(calm) == 9, "three records, three test sets, the results, the taught corpus, the report"
    study.runs.rename(study.folder / "calm")  # the second time at the same place: not even a path may differ
    for stage, (pattern, there, missing) in STAGES.items():
        study.kill_before(pattern)
        assert [name for name in there if not any(study.runs.glob(name))] == [], stage
        assert [name for name in missing if any(study.runs.glob(name))] == [], stage
    study.finish()
    assert study.results() == calm
    assert study.files() == files
