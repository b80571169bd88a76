"""bf16 where it helps: chosen parts of a model run under autocast, the rest stays in fp32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from capsnmt.errors import CapsNMTError


def use_bf16(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Makes the named sub-modules, or `all`, compute in bf16 autocast; what they return is fp32 again.

    Returns those that stay in fp32, because this processor has no bf16 LSTM: a recipe must run on any machine. With
    `all` every part does so then: on such processors bf16 products are slow, too.
    """
    children = [child for child, _ in model.named_children()]
    if "all" in names and not _lstm_runs_in_bf16(next(model.parameters()).device):
        return children
    kept = []
    for name in children if "all" in names else names:
        try:
            module = model.get_submodule(name)
        except AttributeError:
            known = ", ".join(child for child, _ in model.named_children())
            raise CapsNMTError(f"training.bf16_modules: the model has no part {name!r}; parts: all, {known}") from None
        if _has_lstm(module) and not _lstm_runs_in_bf16(next(module.parameters()).device):
            kept.append(name)
            continue
        for part in _called(module):
            part.forward = _autocast(part.forward)
    return kept


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """What only holds its layers, such as a ModuleList, has no `forward` and is never called itself: they are."""
    if type(module).forward is not nn.Module.forward:
        yield module
        return
    for child in module.children():
        yield from _called(child)


def _has_lstm(module: nn.Module) -> bool:
    return any(isinstance(part, nn.LSTM) for part in module.modules())


def _lstm_runs_in_bf16(device: torch.device) -> bool:
    """Tried, not asked: oneDNN has one for some processors only, and without it the first batch would fail."""
    try:
        with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
            nn.LSTM(8, 8, device=device)(torch.zeros(1, 1, 8, device=device))
    except RuntimeError:
        return False
    return True


def _autocast(forward: Any) -> Any:
    def in_bf16(*args: Any) -> Any:
        device = next(arg for arg in args if isinstance(arg, Tensor)).device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            return _to_fp32(forward(*args))

    return in_bf16


def _to_fp32(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype is torch.bfloat16 else value
    if isinstance(value, dict):
        return {key: _to_fp32(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a NamedTuple
        return type(value)(*(_to_fp32(item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_to_fp32(item) for item in value)
    return value
