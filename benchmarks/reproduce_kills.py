"""Does `capsnmt reproduce` survive kill -9 at random moments? Ends with 1 if a score differs or an orphan lives.

    python benchmarks/reproduce_kills.py [--kills 8] [--seed N] [--json FILE]

A suite of three rows (a teacher, a student on its translations, a plain CapsNMT; width 32, the demo corpus) is made by
the real command, once without a break. Then it is made again at the same place, and the command is killed with SIGKILL
at moments that are random over the time of the calm run, the earlier ones first: each is a stage and a time after its
begin, so that all stages have their share on a machine that is busier now. Only the command itself is killed: all that
it has started must end with it. Records, results and the teacher's corpus must in the end be those of the calm run,
what depends on the clock apart, and no file may be left over. tests/integration/test_reproduce_kills.py names its
moments instead.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from capsnmt.data.demo import write_demo

ROOT = Path(__file__).resolve().parent.parent
SMALL = {
    "text.subwords.vocabulary": 400,
    "model.width": 32,
    "model.dropout": 0.2,
    "training.steps": 60,
    "training.warmup_steps": 10,
    "training.batch_tokens": 256,
    "training.device": "cpu",
    "training.log_every": 5,
    "training.checkpoint_every": 12,
    "training.validate_every": 30,
    "training.validate_sentences": 10,
}
CLOCKED = {"tokens_per_s", "loader_wait_share", "minutes", "finished", "tables"}  # tables have such columns, too
POLL_S = 0.02
ORPHANS_END_S = 60.0
# The first file that is missing tells the stage.
STAGES = {
    "store": "preparing",
    "teacher-s1/weights.safetensors": "training the teacher",
    "teacher-s1.json": "evaluating the teacher",
    "plain-s1.json": "training and evaluating the plain row",
    "teacher-s1/runtime/manifest.json": "exporting",
    "distilled-by-teacher-s1-*/manifest.json": "distilling",
    "student-s1/weights.safetensors": "training the student",
    "student-s1.json": "evaluating the student",
    "report-study/results.csv": "writing the report",
}

say = partial(print, flush=True)


def write_suite(folder: Path) -> None:
    """Its recipes are the demo's, made small."""
    write_demo(folder / "corpus", train_pairs=300, valid_pairs=20, test_pairs=20)
    recipes = ROOT / "recipes" / "demo"
    rows = {
        "teacher": {"recipe": str(recipes / "simple.yaml")},
        "plain": {"recipe": str(recipes / "capsnmt.yaml")},
        "student": {"recipe": str(recipes / "simple.yaml"), "distilled_from": "teacher"},
    }
    changes = {**SMALL, "data.root": str(folder / "corpus"), "data.store": str(folder / "runs" / "store")}
    suite = {"title": "A small study", "output": str(folder / "runs"), "set": changes, "rows": rows}
    (folder / "study.yaml").write_text(json.dumps(suite), encoding="utf-8")  # JSON is YAML


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "capsnmt", "reproduce", str(folder / "study.yaml")]
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def stage_of(folder: Path) -> int:
    """How many stages have ended."""
    names = enumerate(STAGES)
    return next((number for number, name in names if not any((folder / "runs").glob(name))), len(STAGES))


def finish(folder: Path) -> list[float]:
    """Runs it to its end. Returns when each of its stages ended, in seconds after the start."""
    began_s, ends_s, command = time.monotonic(), [0.0] * len(STAGES), start(folder)
    while command.poll() is None:
        for number in range(stage_of(folder)):
            ends_s[number] = ends_s[number] or time.monotonic() - began_s
        time.sleep(POLL_S)
    if command.returncode != 0:
        logs = [folder / "log.txt", *(folder / "runs").glob("*.log")]
        raise SystemExit("\n".join(log.read_text(encoding="utf-8")[-1500:] for log in logs))
    return [end_s or time.monotonic() - began_s for end_s in ends_s]


def living(session: int) -> list[str]:
    """The processes of a session that have not ended."""
    listed = subprocess.run(["ps", "-s", str(session), "-o", "stat=,args="], stdout=subprocess.PIPE, check=False)
    return [line for line in listed.stdout.decode().splitlines() if not line.startswith("Z")]


def kill_in(folder: Path, stage: int, delay_s: float) -> str:
    """Kills it so long after a stage has begun, or when that ends. Returns the stage that it was in."""
    command = start(folder)
    while command.poll() is None and stage_of(folder) < stage:
        time.sleep(POLL_S)
    began_s = time.monotonic()
    while command.poll() is None and stage_of(folder) == stage and time.monotonic() - began_s < delay_s:
        time.sleep(POLL_S)
    if command.poll() is not None:
        return "after its end"
    command.kill()
    command.wait()
    deadline_s = time.monotonic() + ORPHANS_END_S
    while orphans := living(command.pid):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"still at work after the kill: {orphans}")
        time.sleep(POLL_S)
    return [*STAGES.values(), "after its end"][stage_of(folder)]


def results(folder: Path) -> dict[str, Any]:
    runs = folder / "runs"
    files = [*runs.glob("*-s1.json"), runs / "report-study" / "results.json"]
    found = {path.name: without_clock(json.loads(path.read_text(encoding="utf-8"))) for path in files}
    return {**found, "corpus": next(runs.glob("distilled-by-teacher-s1-*/train.de")).read_text(encoding="utf-8")}


def without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_clock(item) for key, item in value.items() if key not in CLOCKED}
    return [without_clock(item) for item in value] if isinstance(value, list) else value


def listing(folder: Path) -> set[str]:
    """Every file and folder; TensorBoard has one file per process."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.parent.name != "tensorboard"}


def kill_suite(folder: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    folder.mkdir()
    write_suite(folder)
    ends_s = finish(folder)
    say(f"uninterrupted: {ends_s[-1]:.0f} s")
    calm, files = results(folder), listing(folder / "runs")
    (folder / "runs").rename(folder / "calm")  # the second time at the same place: not even a path may differ
    done: Counter[str] = Counter()
    for moment_s in sorted(rng.uniform(0.0, ends_s[-1]) for _ in range(kills)):
        stage = sum(end_s <= moment_s for end_s in ends_s)
        truly = kill_in(folder, stage, moment_s - max([0.0, *ends_s[:stage]]))
        done[truly] += 1
        say(f"kill {done.total()}: {truly}")
    finish(folder)
    return {
        "kills": kills,
        "by_stage": dict(done),
        "uninterrupted_s": round(ends_s[-1], 1),
        "same_results": results(folder) == calm,
        "leftovers": sorted(listing(folder / "runs") ^ files),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the moments; default: random")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    say(f"seed {args.seed}")
    if hasattr(os, "sched_setaffinity"):  # one thread each: idle ones would spin on a busy machine
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        found = kill_suite(Path(folder) / "study", args.kills, random.Random(args.seed))
    result = {"seed": args.seed, **found, "passed": found["same_results"] and not found["leftovers"]}
    text = json.dumps(result, indent=1)
    say(text)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
