"""Checkpoints: everything that the next update depends on, as safetensors and JSON; no pickle.

    checkpoints/step-00001500/{weights.safetensors, optimiser.safetensors, state.json}
    checkpoints/best/{weights.safetensors, state.json}

A checkpoint is written under a temporary name and renamed, so a folder that bears its final name is whole.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from capsnmt.models.weights import load_weights, read_weights, save_weights, weights_of

_WEIGHTS, _OPTIMISER, _STATE = "weights.safetensors", "optimiser.safetensors", "state.json"


@dataclass
class Progress:
    """Where a run stands, apart from its tensors."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # index of the next batch in the epoch
    target_tokens: int = 0
    elapsed_s: float = 0.0
    best_step: int = 0
    best_value: float | None = None  # of the stop metric; lower is better (BLEU is kept negated)
    bad_validations: int = 0


def save_checkpoint(
    folder: Path, progress: Progress, model: nn.Module, optimiser: torch.optim.Optimizer, *, keep_last: int
) -> Path:
    """Writes a checkpoint and removes those beyond the newest `keep_last`."""
    final = folder / f"step-{progress.step:08d}"
    with _written_aside(final) as aside:
        save_weights(weights_of(model), aside / _WEIGHTS)
        save_weights({**_optimiser_tensors(model, optimiser), **_rng_tensors()}, aside / _OPTIMISER)
        _write_state(aside, progress)
    for old in checkpoints_in(folder)[:-keep_last]:
        shutil.rmtree(old)
    return final


def save_best(folder: Path, progress: Progress, model: nn.Module) -> None:
    """Keeps the weights of the best validation beside the newest checkpoints."""
    with _written_aside(folder / "best") as aside:
        save_weights(weights_of(model), aside / _WEIGHTS)
        _write_state(aside, progress)


def checkpoints_in(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    return sorted(folder.glob("step-????????"))


def best_weights(folder: Path) -> Path | None:
    """The weights file of the best validation, if there was one."""
    path = folder / "best" / _WEIGHTS
    return path if path.exists() else None


def checkpoint_weights(checkpoint: Path) -> Path:
    """The weights file of a checkpoint."""
    return checkpoint / _WEIGHTS


def load_checkpoint(checkpoint: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> Progress:
    """Puts model, optimiser and random number generators back to where the checkpoint was written."""
    load_weights(model, read_weights(checkpoint / _WEIGHTS), str(checkpoint))
    tensors = read_weights(checkpoint / _OPTIMISER)
    _load_optimiser(model, optimiser, tensors)
    torch.set_rng_state(tensors["rng.cpu"])
    if torch.cuda.is_available() and "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"])
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
                # The fused Adam keeps its step beside the parameter, also on a GPU.
                optimiser.state[parameter][key] = tensors[f"{key}.{name}"].to(parameter.device)


def _rng_tensors() -> dict[str, Tensor]:
    tensors = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    return tensors


def _write_state(folder: Path, progress: Progress) -> None:
    (folder / _STATE).write_text(json.dumps(asdict(progress), indent=1), encoding="utf-8")


class _written_aside:  # noqa: N801 - used as a function, like contextlib's own
    """A folder under a temporary name that takes its final name only when all of it was written."""

    def __init__(self, final: Path) -> None:
        self.final = final
        self.aside = final.with_name(f".writing-{final.name}")

    def __enter__(self) -> Path:
        shutil.rmtree(self.aside, ignore_errors=True)
        self.aside.mkdir(parents=True)
        return self.aside

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            if self.final.exists():
                shutil.rmtree(self.final)
            self.aside.rename(self.final)
        else:
            shutil.rmtree(self.aside, ignore_errors=True)
