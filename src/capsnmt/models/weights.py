"""Weights to and from safetensors: every parameter once under its own name, tied ones under their first."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from capsnmt.errors import CapsNMTError

_MOST_HEADER_BYTES = 10_000_000  # the names, types and shapes of some 100,000 tensors
_MOST_DIMENSIONS = 8
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Name → parameter, tied parameters once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def save_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Writes contiguous copies on the CPU, under a temporary name first: `path` is whole or as it was."""
    temporary = path.with_name(f".writing-{path.name}")
    temporary.unlink(missing_ok=True)  # a link of that name would lead the writing out of the folder
    save_file({name: tensor.contiguous().cpu() for name, tensor in weights.items()}, temporary)
    temporary.chmod(0o644)  # safetensors makes files that colleagues cannot read
    temporary.replace(path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Reads a safetensors file; no code in it can run, and its numbers are numbers."""
    if not os.path.lexists(path):
        raise CapsNMTError(f"{path} does not exist: is the training finished, or is this not a model folder?")
    if not os.path.isfile(path):  # reading a pipe would wait for ever
        raise CapsNMTError(f"{path} is not a file: copy the model folder anew")
    try:
        _check_header(path)
        weights = load_file(path)
        for name, tensor in weights.items():
            if tensor.ndim > _MOST_DIMENSIONS:
                raise ValueError(f"{name} has {tensor.ndim} dimensions")
            if tensor.dtype in _TYPES and not tensor.isfinite().all():
                raise CapsNMTError(f"{path} is damaged or from a run that diverged: {name} holds NaN or infinity")
    # The last two are torch's, when a header is well formed but absurd.
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError) as error:
        raise CapsNMTError(f"{path} is damaged ({error})") from None
    return weights


def _check_header(path: Path) -> None:
    """What safetensors itself lets pass: a header that takes long to read, and one name for two tensors."""

    def pairs_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            raise ValueError("a name stands twice in its header")
        return values

    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header = file.read(length)
    json.loads(header.decode("utf-8"), object_pairs_hook=pairs_once)  # too deep a nesting is a RuntimeError


def check_weights(model: nn.Module, weights: dict[str, Tensor], origin: str) -> None:
    """Any difference in names, shapes or kind is an error that names them. The model may be one without memory."""
    parameters = dict(model.named_parameters())
    missing, unknown = sorted(parameters.keys() - weights.keys()), sorted(weights.keys() - parameters.keys())
    if missing or unknown:
        raise CapsNMTError(f"{origin} does not fit the model: missing {missing or 'none'}, unknown {unknown or 'none'}")
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)} instead of {tuple(parameter.shape)}"
            raise CapsNMTError(f"{origin} does not fit the model: {name} is {shapes}")
        if weights[name].dtype not in _TYPES:
            raise CapsNMTError(f"{origin} does not fit the model: {name} is of type {weights[name].dtype}")


def load_weights(model: nn.Module, weights: dict[str, Tensor], origin: str) -> None:
    """Copies weights into the model, which they must fit."""
    check_weights(model, weights, origin)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
