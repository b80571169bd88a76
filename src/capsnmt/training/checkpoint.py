"""Checkpoints: everything that the next update depends on, as safetensors and JSON; no pickle.

    checkpoints/step-00001500/{weights.safetensors, optimiser.safetensors, state.json, checksums.json}
    checkpoints/best-00001000/{weights.safetensors, state.json, checksums.json}

A checkpoint is written under a temporary name, brought to the disk (fsync) and renamed, and renamed again before it is
removed, so a folder that bears its final name is whole; its checksums tell if the disk damaged it later. What a killed
process leaves under other names is removed by the next one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from capsnmt.errors import CapsNMTError
from capsnmt.models.weights import load_weights, read_weights, save_weights, weights_of
from capsnmt.training.distributed import Ranks

_WEIGHTS, _OPTIMISER, _STATE, _CHECKSUMS = (
    "weights.safetensors",
    "optimiser.safetensors",
    "state.json",
    "checksums.json",
)
_DIGITS = "[0-9]" * 8  # of the step

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """Where a run stands, apart from its tensors."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # index of the next batch in the epoch, whatever the number of ranks
    target_tokens: int = 0
    elapsed_s: float = 0.0
    best_step: int = 0
    best_value: float | None = None  # of the stop metric; lower is better (BLEU is kept negated)
    bad_validations: int = 0
    skipped_updates: int = 0  # whose loss or gradient was not finite
    unreported_nll: float = 0.0  # since the last record of training, which may cover a kill
    unreported_tokens: int = 0


def save_checkpoint(
    folder: Path,
    progress: Progress,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    ranks: Ranks,
    *,
    keep_last: int,
) -> Path:
    """Writes a checkpoint and removes those beyond the newest `keep_last`. All ranks call it, the first one writes."""
    final = folder / f"step-{progress.step:08d}"
    random_states = _rng_tensors(ranks)
    if not ranks.is_first:
        return final
    with _written_aside(final) as aside:
        save_weights(weights_of(model), aside / _WEIGHTS)
        save_weights({**_optimiser_tensors(model, optimiser), **random_states}, aside / _OPTIMISER)
        _write_state(aside, progress)
    _remove_superseded(folder, progress, keep_last)
    return final


def save_best(folder: Path, progress: Progress, model: nn.Module) -> None:
    """Keeps the weights of the best validation. The best of the newest checkpoint stays: a kill may lead back to it."""
    final = folder / f"best-{progress.step:08d}"
    with _written_aside(final) as aside:
        save_weights(weights_of(model), aside / _WEIGHTS)
        _write_state(aside, progress)
    newest_step = max(map(_step_of, checkpoints_in(folder)), default=0)
    for old in _bests_in(folder):
        if old != final and _step_of(old) > newest_step:
            _remove(old)


def clear_remains(folder: Path, progress: Progress, *, keep_last: int) -> None:
    """Removes what a killed run left: half of a save or removal, and what is ahead of where the run goes on."""
    for unfinished in (*folder.glob(".writing-*"), *folder.glob(".removing-*")):
        shutil.rmtree(unfinished, ignore_errors=True)
    for ahead in (*checkpoints_in(folder), *_bests_in(folder)):  # checkpoints only if damaged
        if _step_of(ahead) > progress.step:
            _remove(ahead)
    _remove_superseded(folder, progress, keep_last)


def checkpoints_in(folder: Path) -> list[Path]:
    """Checkpoints, oldest first."""
    return sorted(folder.glob(f"step-{_DIGITS}"))


def newest_whole_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose checksums hold; damaged ones are reported. None for a fresh run."""
    found = checkpoints_in(folder)
    for checkpoint in reversed(found):
        fault = _damage(checkpoint)
        if fault is None:
            return checkpoint
        log.warning("%s is damaged (%s): going back to the one before", checkpoint, fault)
    if found:
        raise CapsNMTError(f"every checkpoint in {folder} is damaged; delete the folder to start the run anew")
    return None


def best_weights(folder: Path) -> Path | None:
    """The weights file of the best validation, if there was one."""
    found = _bests_in(folder)
    return found[-1] / _WEIGHTS if found else None


def checkpoint_weights(checkpoint: Path) -> Path:
    """The weights file of a checkpoint."""
    return checkpoint / _WEIGHTS


def load_checkpoint(checkpoint: Path, model: nn.Module, optimiser: torch.optim.Optimizer, *, rank: int = 0) -> Progress:
    """Puts model, optimiser and this rank's random numbers back to where the checkpoint was written.

    A rank that was not there when it was written keeps the random numbers it started with.
    """
    load_weights(model, read_weights(checkpoint / _WEIGHTS), str(checkpoint))
    tensors = read_weights(checkpoint / _OPTIMISER)
    _load_optimiser(model, optimiser, tensors)
    if f"rng.cpu.{rank}" in tensors:
        torch.set_rng_state(tensors[f"rng.cpu.{rank}"])
    if torch.cuda.is_available() and f"rng.cuda.{rank}" in tensors:
        torch.cuda.set_rng_state(tensors[f"rng.cuda.{rank}"])
    return Progress(**json.loads((checkpoint / _STATE).read_text(encoding="utf-8")))


def _optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
    }


def _load_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            if f"{key}.{name}" in tensors:
                # The fused Adam keeps its step beside the parameter, also on a GPU. A copy, because what was read is a
                # map of a file that is removed later, and network file systems keep removed files that are in use.
                optimiser.state[parameter][key] = tensors[f"{key}.{name}"].to(parameter.device, copy=True)


def _rng_tensors(ranks: Ranks) -> dict[str, Tensor]:
    states = {"cpu": ranks.gathered(torch.get_rng_state())}
    if torch.cuda.is_available():
        states["cuda"] = ranks.gathered(torch.cuda.get_rng_state())
    return {f"rng.{kind}.{rank}": state for kind, found in states.items() for rank, state in enumerate(found)}


def _write_state(folder: Path, progress: Progress) -> None:
    (folder / _STATE).write_text(json.dumps(asdict(progress), indent=1), encoding="utf-8")


@contextmanager
def _written_aside(final: Path) -> Iterator[Path]:
    """A folder under a temporary name that takes its final name only when all of it has reached the disk."""
    aside = final.with_name(f".writing-{final.name}")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        yield aside
        checksums = {file.name: _sha256(file) for file in sorted(aside.iterdir())}
        (aside / _CHECKSUMS).write_text(json.dumps(checksums, indent=1), encoding="utf-8")
        for file in aside.iterdir():
            _to_disk(file)
        _to_disk(aside)
        if final.exists():  # only a damaged one, or the same step of a run that went back
            _remove(final)
        aside.rename(final)
        _to_disk(final.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise CapsNMTError(
            f"cannot write the checkpoint {final}: {error}. Earlier checkpoints are untouched: "
            "make room or mend the permissions, and the same command resumes"
        ) from None
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _bests_in(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"best-{_DIGITS}"))


def _step_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _remove_superseded(folder: Path, progress: Progress, keep_last: int) -> None:
    for old in checkpoints_in(folder)[:-keep_last]:
        _remove(old)
    for old in _bests_in(folder):
        if _step_of(old) < progress.best_step:
            _remove(old)


def _remove(path: Path) -> None:
    """Takes the final name away first, so that a kill leaves no half of a checkpoint under it."""
    aside = path.with_name(f".removing-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, if anything."""
    try:
        checksums: dict[str, str] = json.loads((checkpoint / _CHECKSUMS).read_text(encoding="utf-8"))
        for name in (_WEIGHTS, _OPTIMISER, _STATE):
            if checksums[name] != _sha256(checkpoint / name):
                return f"{name} does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _to_disk(path: Path) -> None:
    """fsync of a file or a folder: a rename must not reach the disk before what it renames."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
