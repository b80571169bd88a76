"""Weights to and from safetensors: every parameter once under its own name, tied ones under their first."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from capsnmt.errors import CapsNMTError


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Name → parameter, tied parameters once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def save_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Writes contiguous copies on the CPU, under a temporary name first: `path` is whole or as it was."""
    temporary = path.with_name(f".writing-{path.name}")
    save_file({name: tensor.contiguous().cpu() for name, tensor in weights.items()}, temporary)
    temporary.replace(path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Reads a safetensors file; no code in it can run."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise CapsNMTError(f"{path} does not exist: is the training finished, or is this not a model folder?") from None
    except SafetensorError as error:
        raise CapsNMTError(f"{path} is damaged ({error})") from None


def load_weights(model: nn.Module, weights: dict[str, Tensor], origin: str) -> None:
    """Copies weights into the model; any difference in names or shapes is an error that names them."""
    parameters = dict(model.named_parameters())
    missing, unknown = sorted(parameters.keys() - weights.keys()), sorted(weights.keys() - parameters.keys())
    if missing or unknown:
        raise CapsNMTError(f"{origin} does not fit the model: missing {missing or 'none'}, unknown {unknown or 'none'}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != weights[name].shape:
                shapes = f"{tuple(weights[name].shape)} instead of {tuple(parameter.shape)}"
                raise CapsNMTError(f"{origin} does not fit the model: {name} is {shapes}")
            parameter.copy_(weights[name])
