"""Does a training survive kill -9? Counts kills, compares files bit for bit, and ends with 1 if anything was lost.

    python benchmarks/kills.py [--kills 20] [--save-kills 50] [--updates 600] [--seed N] [--json FILE]

1. Training. A small CapsNMT (dropout, many epochs, checkpoints and validations in the middle of them)
   is trained on the demo corpus by the real command, once without a break. Then the same command runs in another
   folder, with its own store, and is killed with SIGKILL (its whole process group) and started again, over and over:

   start-up   at a random moment between the start of the process and the first updates
   prepare    while the store is being written; counted if its unfinished folder is left and no store is there
   training   a random fraction of a second after a random update
   save       as soon as a folder `checkpoints/.writing-step-*` is seen; counted if that folder is left by the kill
   finish     as soon as the final weights are being written or have just got their name

   A save that was missed counts as a kill of training and is tried again. In the end both folders must hold the
   same files with the same tensors (final weights, checkpoints, Adam's moments, random numbers), no leftovers, and
   the same records in metrics.jsonl, except for what depends on the clock.

2. Save loop. A process does nothing but save: `save_best` and `save_checkpoint` of 4 MB of weights and 8 MB of
   moments, whose values are a function of the step. After every kill the newest whole checkpoint must be at least the
   last one that the process reported as saved, and hold exactly the values of its step, and so must its best weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from capsnmt.data.demo import write_demo
from capsnmt.errors import CapsNMTError
from capsnmt.models.weights import read_weights
from capsnmt.training.checkpoint import (
    Progress,
    clear_remains,
    load_checkpoint,
    newest_whole_checkpoint,
    save_best,
    save_checkpoint,
)
from capsnmt.training.distributed import ALONE

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "demo" / "capsnmt.yaml"
SMALL = {
    "model.width": 32,
    "model.decoder_layers": 1,
    "model.dropout": 0.2,
    "training.batch_tokens": 256,
    "training.device": "cpu",
    "training.log_every": 5,
    "training.checkpoint_every": 12,  # no multiple of log_every: a record may cover updates of two processes
    "training.validate_every": 30,
    "training.validate_sentences": 10,
    "training.keep_last": 3,
}
CLOCKED = ("tokens_per_s", "loader_wait_share")
POLL_S = 0.0003
PATIENCE_S = 300.0  # a run that does not reach its moment by then has failed


say = partial(print, flush=True)


class LostError(Exception):
    """What must not happen."""


@dataclass
class Run:
    """A training of the demo in a folder of its own, and the process that is at it."""

    folder: Path
    corpus: Path
    updates: int
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    before: dict[str, Any] = field(default_factory=dict)  # what was there when the process started

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def start(self) -> None:
        settings = {**SMALL, "training.steps": self.updates, "data.store": self.folder / "store"}
        changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = [sys.executable, "-m", "capsnmt", "train", RECIPE, "--data", self.corpus, "-o", self.model, *changes]
        self.folder.mkdir(exist_ok=True)
        self.before = {"final": self.final_times(), "records": self.records_time(), "writing": self.unfinished()}
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, start_new_session=True)
        self.started_s = time.monotonic()

    def end(self) -> None:
        """Waits for the process to finish by itself."""
        assert self.process is not None
        if self.process.wait(PATIENCE_S) != 0:
            raise LostError(f"the command failed:\n{(self.folder / 'log.txt').read_text(encoding='utf-8')[-3000:]}")

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.wait() != -signal.SIGKILL:
            raise LostError("the process ended before it was killed; choose more --updates")

    def final_times(self) -> list[int | None]:
        return [stat_of(self.model / f"{prefix}weights.safetensors", "st_mtime_ns") for prefix in ("", ".writing-")]

    def records_time(self) -> int | None:
        return stat_of(self.model / "metrics.jsonl", "st_mtime_ns")

    def unfinished(self) -> set[tuple[str, int | None]]:
        """Checkpoints that are being written, or were when a process was killed; inodes tell new ones from old ones."""
        return {(path.name, stat_of(path, "st_ino")) for path in (self.model / "checkpoints").glob(".writing-*")}

    def at_update(self) -> int:
        """The last recorded update of this process; 0 before its first record."""
        if self.records_time() in (None, self.before["records"]):
            return 0
        lines = (self.model / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
        return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)

    def is_preparing(self) -> bool:
        return not (self.folder / "store").exists() and any(self.folder.glob(".store.*"))

    def is_saving(self) -> bool:
        new = self.unfinished() - self.before["writing"]
        return any(name.startswith(".writing-step-") for name, _ in new)

    def is_finishing(self) -> bool:
        return bool(self.final_times() != self.before["final"])


def stat_of(path: Path, field: str) -> int | None:
    try:
        return int(getattr(path.stat(), field))
    except FileNotFoundError:
        return None


def wait_until(run: Run, reached: Callable[[], Any]) -> None:
    assert run.process is not None
    while not reached():
        if run.process.poll() is not None:
            run.end()
            raise LostError("the run ended before the moment of its kill; choose more --updates")
        if time.monotonic() - run.started_s > PATIENCE_S:
            raise LostError(f"nothing happened for {PATIENCE_S:.0f} s")
        time.sleep(POLL_S)


def plan(kills: int, updates: int, rng: random.Random) -> list[tuple[str, int]]:
    """(kind, update) of every kill: preparing comes first and finishing last; in between the updates grow."""
    rare = kills // 10
    saves = max(min(kills, 2), kills // 5) if kills >= 10 else min(kills, 1)
    middle = ["start-up"] * rare + ["save"] * saves + ["training"] * (kills - 3 * rare - saves)
    rng.shuffle(middle)
    at = sorted(rng.randrange(1, max(2, updates * 8 // 10)) for _ in middle)
    return [("prepare", 0)] * rare + list(zip(middle, at, strict=True)) + [("finish", updates)] * rare


def kill_once(run: Run, kind: str, update: int, start_up_s: float, rng: random.Random) -> str:
    """Starts the run, kills it at its moment, and returns what kind of kill it was in truth."""
    run.start()
    if kind == "start-up":
        delay_s = rng.uniform(0.0, 1.5 * start_up_s)
        wait_until(run, lambda: time.monotonic() - run.started_s >= delay_s or run.at_update())
    elif kind == "prepare":
        wait_until(run, lambda: run.is_preparing() or run.at_update())
        time.sleep(rng.uniform(0.0, 0.3))
    elif kind == "finish":
        wait_until(run, run.is_finishing)
    else:
        wait_until(run, lambda: run.at_update() >= update)
        if kind == "save":
            wait_until(run, run.is_saving)
        else:
            time.sleep(rng.uniform(0.0, 0.1))
    run.kill()
    if kind == "prepare" and not run.is_preparing():
        return "start-up"
    return "training" if kind == "save" and not run.is_saving() else kind


def kill_training(folder: Path, kills: int, updates: int, rng: random.Random) -> dict[str, Any]:
    corpus = folder / "corpus"
    write_demo(corpus, train_pairs=2000, valid_pairs=50, test_pairs=50)
    calm, rough = Run(folder / "calm", corpus, updates), Run(folder / "rough", corpus, updates)
    calm.start()
    wait_until(calm, (calm.model / ".lock").exists)
    start_up_s = time.monotonic() - calm.started_s
    calm.end()
    calm_s = time.monotonic() - calm.started_s
    say(f"uninterrupted: {updates} updates, {calm_s:.1f} s, of which {start_up_s:.1f} s to start")
    began_s = time.monotonic()
    try:
        done = kill_again_and_again(rough, plan(kills, updates, rng), start_up_s, rng)
        rough.start()
        rough.end()
    finally:
        if rough.process is not None and rough.process.poll() is None:
            rough.kill()
    rough_s = time.monotonic() - began_s
    result = {"updates": updates, "kills": done.total(), "by_kind": dict(done)}
    return result | {"uninterrupted_s": round(calm_s, 1), "killed_s": round(rough_s, 1), **compare(calm, rough)}


def kill_again_and_again(
    run: Run, moments: list[tuple[str, int]], start_up_s: float, rng: random.Random
) -> Counter[str]:
    """The number of kills of each kind."""
    done: Counter[str] = Counter()
    while moments:
        kind, update = moments.pop(0)
        truly = kill_once(run, kind, update, start_up_s, rng)
        done[truly] += 1
        if kind == "save" != truly:
            moments.insert(0, (kind, update))
        newest = max((path.name for path in (run.model / "checkpoints").glob("step-*")), default="none")
        left = ", ".join(name for name, _ in run.unfinished())
        say(f"kill {done.total()}: {truly}, recorded update {run.at_update()}, newest {newest}, left: {left or '-'}")
    return done


def compare(calm: Run, rough: Run) -> dict[str, Any]:
    """What must be equal, and whether it is."""
    ours, theirs = (read_weights(run.model / "weights.safetensors") for run in (calm, rough))
    hashes, other = tensor_files(calm.model), tensor_files(rough.model)
    return {
        "sha256": [found["weights.safetensors"] for found in (hashes, other)],
        "tensors": len(ours),
        "same_final_weights": ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours),
        "same_tensor_files": hashes == other,
        "same_records": records(calm.model) == records(rough.model),
        "records": len(records(rough.model)),
        "no_leftovers": listing(calm.folder) == listing(rough.folder),
        "leftovers": sorted(listing(rough.folder) ^ listing(calm.folder)),
    }


def tensor_files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.safetensors"))
    }


def records(model: Path) -> list[dict[str, Any]]:
    lines = (model / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in CLOCKED} for line in lines]


def listing(folder: Path) -> set[str]:
    """Every file and folder; TensorBoard has one file per process."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.parent.name != "tensorboard"}


def make_values(step: int) -> tuple[nn.Module, torch.optim.Optimizer, Progress]:
    """Weights, moments, random numbers and progress, all decided by the step."""
    generator = torch.Generator().manual_seed(step)
    model = nn.Linear(1024, 1024, bias=False)
    optimiser = torch.optim.AdamW(model.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
            moments = {key: torch.rand(parameter.shape, generator=generator) for key in ("exp_avg", "exp_avg_sq")}
            optimiser.state[parameter] = {"step": torch.tensor(float(step)), **moments}
    torch.manual_seed(step)
    # Every third validation is a new best.
    return model, optimiser, Progress(step=step, target_tokens=7 * step, best_step=step - step % 3)


def save_for_ever(folder: Path, reported: Path) -> None:
    """What the killed process does: goes on from the newest checkpoint as the training loop does."""
    torch.set_num_threads(1)
    model, optimiser, _ = make_values(0)
    newest = newest_whole_checkpoint(folder)
    progress = load_checkpoint(newest, model, optimiser) if newest else Progress()
    clear_remains(folder, progress, keep_last=2)
    step = progress.step
    with reported.open("a", encoding="utf-8") as file:
        while True:
            step += 1
            model, optimiser, progress = make_values(step)
            if progress.best_step == step:
                save_best(folder, progress, model)
            save_checkpoint(folder, progress, model, optimiser, ALONE, keep_last=2)
            file.write(f"{step}\n")
            file.flush()


def check_saved(folder: Path, reported_step: int) -> int:
    """The step that a killed process would go on from, after comparing all of it; raises if anything is lost."""
    model, optimiser, _ = make_values(0)
    newest = newest_whole_checkpoint(folder)
    progress = load_checkpoint(newest, model, optimiser) if newest else Progress()
    random_state = torch.get_rng_state()
    if progress.step < reported_step:
        raise LostError(f"step {reported_step} was reported as saved, but the newest whole one is {progress.step}")
    if newest is None:
        return 0
    wanted, wanted_optimiser, wanted_progress = make_values(progress.step)
    if progress != wanted_progress or not torch.equal(random_state, torch.get_rng_state()):
        raise LostError(f"{newest}: progress or random numbers are not those of its step")
    for found, right in zip(model.parameters(), wanted.parameters(), strict=True):
        ours, theirs = optimiser.state[found], wanted_optimiser.state[right]
        if not torch.equal(found, right) or any(not torch.equal(ours[key], theirs[key]) for key in theirs):
            raise LostError(f"{newest}: weights or moments are not those of its step")
    if progress.best_step:
        best = folder / f"best-{progress.best_step:08d}" / "weights.safetensors"
        right = next(make_values(progress.best_step)[0].parameters())
        if not best.exists() or not torch.equal(read_weights(best)["weight"], right):
            raise LostError(f"{best} is not what {newest} calls the best")
    return progress.step


def kill_saves(folder: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    """Kills the save loop at random times, every other time soon after it has begun to write."""
    checkpoints, reported = folder / "checkpoints", folder / "reported.txt"
    checkpoints.mkdir(parents=True)
    reported.touch()
    # A server that has imported torch starts each process as its fork, so 50 of them need no 50 imports.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["capsnmt.training.checkpoint"])
    during: Counter[str] = Counter()
    step = 0
    for kill in range(1, kills + 1):
        process = context.Process(target=save_for_ever, args=(checkpoints, reported), daemon=True)
        process.start()
        # First a new step must be saved, so that the loop is at work, whatever the moment is.
        while process.is_alive() and last_reported(reported) <= step:
            time.sleep(POLL_S)
        while process.is_alive() and kill % 2 == 0 and not any(checkpoints.glob(".*")):
            time.sleep(POLL_S)
        time.sleep(rng.uniform(0.0, 0.5 if kill % 2 else 0.05))
        process.kill()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            raise LostError(f"the save loop ended by itself with {process.exitcode}")
        left = ", ".join(sorted(path.name for path in checkpoints.glob(".*")))
        during["save" if left else "between saves"] += 1
        step = check_saved(checkpoints, last_reported(reported))
        say(f"save kill {kill}: reported {last_reported(reported)}, newest whole {step}, left: {left or '-'}")
    return {"kills": kills, "by_moment": dict(during), "saved_checkpoints": step}


def last_reported(file: Path) -> int:
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]  # the last one may be cut off
    return int(lines[-1]) if lines else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of the training")
    parser.add_argument("--save-kills", type=int, default=50, help="of the save loop")
    parser.add_argument("--updates", type=int, default=600, help="length of the training")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the moments; default: random")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    # One thread each, if nothing else is said: equal sums need equal threads in every start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    rng = random.Random(args.seed)
    say(f"seed {args.seed}")
    result: dict[str, Any] = {"seed": args.seed}
    with tempfile.TemporaryDirectory() as folder:
        try:
            if args.kills:
                result["training"] = kill_training(Path(folder) / "training", args.kills, args.updates, rng)
            if args.save_kills:
                result["save_loop"] = kill_saves(Path(folder) / "saves", args.save_kills, rng)
        except (LostError, CapsNMTError) as error:
            result["lost"] = str(error)
    same = [value for key, value in result.get("training", {}).items() if key.startswith(("same_", "no_"))]
    result["passed"] = "lost" not in result and all(same)
    text = json.dumps(result, indent=1)
    say(text)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
