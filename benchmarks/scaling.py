"""What docs/SCALING.md stands on: strong scaling from one process to two, a killed worker, and the plan against a run.

    python benchmarks/scaling.py train [--updates 60] [--width 512]     # torchrun, one thread a process
    python benchmarks/scaling.py decode MODEL LINES [--lines 2000]      # Ray, one thread a worker, batches of 64 lines
    python benchmarks/scaling.py kill MODEL LINES [--lines 5000]        # a worker is killed half-way: the same strings?
    python benchmarks/scaling.py plan --updates 2700 --width 128        # `capsnmt plan` against the run that it plans

Run each alone on a quiet machine: two processes need two cores. --json FILE keeps the record. `prepare` for millions of
pairs, killed and resumed, is benchmarks/prepare.py --kill-after. A model that has learnt too little translates without
an end, so `plan` needs the updates of the demo recipe to compare decoding.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import yaml

from capsnmt import verbs
from capsnmt.cluster import Job
from capsnmt.config import load_recipe
from capsnmt.data.corpus import read_lines
from capsnmt.data.demo import write_demo
from capsnmt.decoding.translation import TranslateOptions
from capsnmt.distillation import TEACHER_BEAM
from capsnmt.translator import Translator

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "demo" / "capsnmt.yaml"
BATCH_LINES = 64
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def write_recipe(folder: Path, name: str, **training: Any) -> Path:
    """The demo recipe with its folders inside `folder`, no validation on the way and no checkpoints but the last."""
    values = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    width = training.pop("width", values["model"]["width"])
    values["data"] |= {"root": str(folder / "corpus"), "store": str(folder / "store")}
    values["model"]["width"] = width
    quiet = {"validate_every": 10**6, "validate_sentences": 0, "checkpoint_every": 10**6, "stop_metric": "loss"}
    values["training"] |= {**quiet, "log_every": 10, "patience": None, "average_last": 1, "keep_last": 1, **training}
    values["output"] = str(folder / name)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def train(recipe: Path, processes: int = 1) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    launcher = launcher if processes > 1 else [sys.executable, "-m"]
    subprocess.run([*launcher, "capsnmt", "train", str(recipe), "--quiet"], check=True, env=ONE_THREAD)


def tokens_per_s(model: Path) -> float:
    """The median of a run's own records, without the first."""
    records = [json.loads(line) for line in (model / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return statistics.median([one["tokens_per_s"] for one in records if one["kind"] == "train"][1:])


def measure_training(args: argparse.Namespace) -> dict[str, Any]:
    """The same updates of two batches, on one process and on two."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_demo(folder / "corpus")
        found = {}
        for processes in (1, 2):
            settings = {"steps": args.updates, "accumulate": 2, "batch_tokens": args.batch_tokens, "width": args.width}
            train(write_recipe(folder, f"on-{processes}", **settings), processes)
            found[processes] = tokens_per_s(folder / f"on-{processes}")
    return {"target_tokens_per_s": found, "speed_up": found[2] / found[1], "width": args.width}


def blocks_of(lines: list[str]) -> Iterator[list[str]]:
    remaining = iter(lines)
    return iter(lambda: list(islice(remaining, BATCH_LINES)), [])


def measure_decoding(args: argparse.Namespace) -> dict[str, Any]:
    """Lines per second after the first blocks of each worker, so that starting and loading do not count."""
    os.environ["OMP_NUM_THREADS"] = "1"
    lines = list(islice(read_lines(args.text), args.lines))
    found: dict[int, float] = {}
    for workers in (1, 2):
        job = Job((str(args.model),), TranslateOptions(), engine="ray")
        answers = verbs.translate_blocks(job, blocks_of(lines), workers=workers)
        skipped = sum(len(next(answers)) for _ in range(2 * workers))
        start_s = time.perf_counter()
        counted = sum(map(len, answers))
        found[workers] = counted / (time.perf_counter() - start_s)
        assert counted + skipped == len(lines)
    return {"lines_per_s": found, "speed_up": found[2] / found[1], "batch_lines": BATCH_LINES}


def measure_kill(args: argparse.Namespace) -> dict[str, Any]:
    """Compares with the local run, line by line."""
    lines = list(islice(read_lines(args.text), args.lines))
    options = TranslateOptions()
    job = Job((str(args.model),), options)
    local = [one.text for block in verbs.translate_blocks(job, blocks_of(lines)) for one in block]
    found: list[str] = []
    killed = 0
    for block in verbs.translate_blocks(job._replace(engine="ray"), blocks_of(lines), workers=2):
        found += [one.text for one in block]
        if not killed and len(found) >= len(lines) // 2:
            killed = kill_a_worker()
    assert killed, "no worker was found to be killed"
    return {
        "lines": len(lines),
        "killed": killed,
        "other_strings": sum(a != b for a, b in zip(local, found, strict=True)),
    }


def kill_a_worker() -> int:
    """Kills one of Ray's processes that translate; of this machine, so run no other cluster beside."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if command.read_bytes().startswith(b"ray::BlockTranslator"):
                os.kill(int(command.parent.name), signal.SIGKILL)
                return 1
        except OSError:
            continue
    return 0


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def children() -> tuple[float, int]:
    """CPU seconds and largest resident bytes of the children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def run_prepare(recipe: Path) -> float:
    """Its CPU seconds."""
    before_s, _ = children()
    command = [sys.executable, "-m", "capsnmt", "prepare", str(recipe), "--quiet"]
    subprocess.run(command, check=True, env=ONE_THREAD, stdout=subprocess.DEVNULL)
    return children()[0] - before_s


def measure_plan(args: argparse.Namespace) -> dict[str, Any]:
    """Each of the plan's answers for one core, and what the run took."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_demo(folder / "corpus")
        recipe = write_recipe(folder, "run", steps=args.updates, width=args.width, batch_tokens=args.batch_tokens)
        # Less what the command takes once the store is there: its start-up, which the plan leaves out.
        prepare_cpu_s = run_prepare(recipe) - run_prepare(recipe)
        planned = verbs.plan(load_recipe(recipe), devices="1xcpu")
        train(recipe)
        _, resident_bytes = children()
        state = json.loads(max((folder / "run" / "checkpoints").glob("step-*/state.json")).read_text(encoding="utf-8"))
        lines = list(islice(read_lines(folder / "corpus" / "test.en"), args.lines))
        torch.set_num_threads(1)  # the plan is for one core
        translator, options = Translator(folder / "run", engine="torch"), TranslateOptions(beam=TEACHER_BEAM)
        translator.translate_batch(lines[:BATCH_LINES], options)
        start_s = time.perf_counter()
        for block in blocks_of(lines):
            translator.translate_batch(block, options)
        sentence_s = (time.perf_counter() - start_s) / len(lines)
        measured = {
            "prepare_cpu_s": prepare_cpu_s,
            "training_s": state["elapsed_s"],
            "training_bytes": resident_bytes,
            "store_bytes": sum(file.stat().st_size for file in (folder / "store").glob("train-*")),
            "model_bytes": size_of(folder / "run") - size_of(folder / "run" / "tensorboard"),
            "distilling_s": sentence_s * planned.pairs,
        }
    ratios = {key: getattr(planned, key) / value for key, value in measured.items()}
    return {"measured": measured, "planned_over_measured": ratios, "lines": planned.lines}


MEASURES = {"train": measure_training, "decode": measure_decoding, "kill": measure_kill, "plan": measure_plan}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=MEASURES)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what in ("decode", "kill") and args.text is None:
        parser.error(f"{args.what} needs a model folder and a file of lines")
    record = {"what": args.what, **MEASURES[args.what](args)}
    print(json.dumps(record, indent=1))
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
