"""What the small installation leaves out, asked for by name when it is needed."""

from __future__ import annotations

from importlib.util import find_spec

from capsnmt.errors import CapsNMTError


def need_torch() -> None:
    """Raises if there is no torch."""
    need("torch", "this verb")


def need(module: str, purpose: str, extra: str = "train") -> None:
    """Raises with the command that installs the module, if it is not there."""
    if find_spec(module) is None:
        raise CapsNMTError(f"{purpose} needs {module}: pip install 'capsnmt[{extra}]'")
