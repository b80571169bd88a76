"""Which code it is: what other code has built or measured is not the same."""

from __future__ import annotations

import hashlib
from pathlib import Path

import capsnmt
from capsnmt.runtime.manifest import sha256_of_file


def code_hash(*rooms: str) -> str:
    """Of the Python files in these rooms of the package."""
    package = Path(capsnmt.__file__).parent
    return hash_of_files([file for room in rooms for file in sorted((package / room).glob("*.py"))])


def hash_of_files(files: list[Path]) -> str:
    """Of what they hold, in this order."""
    return hashlib.sha256("".join(sha256_of_file(file) for file in files).encode()).hexdigest()
