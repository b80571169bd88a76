"""API keys: only their hashes are stored, and they are compared in constant time.

The file has one key a line, tab-separated: SHA-256 of the key, its name, requests per minute and characters per
request (0: the server's own limits). A key is 32 random bytes, so a plain hash of it cannot be turned back.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from capsnmt.errors import CapsNMTError

_HEADER = "# SHA-256 of the key, name, requests per minute, characters per request (0: the server's limits)\n"


@dataclass(frozen=True)
class Key:
    """What is known of a key."""

    sha256: str
    name: str
    requests_per_minute: int = 0
    characters: int = 0


def hash_of(key: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


class Keys:
    """The keys of one file."""

    def __init__(self, keys: list[Key]) -> None:
        self._keys = keys

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Reads a file of keys."""
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise CapsNMTError(f"cannot read the keys in {path}: {error}") from None
        rows = [(number, line) for number, line in enumerate(lines, start=1) if line.strip() and line[0] != "#"]
        return cls([_parse(path, number, line) for number, line in rows])

    def find(self, given: str) -> Key | None:
        """The key's record. Looks at all of them, so that the time tells nothing."""
        wanted = hash_of(given)
        found: Key | None = None
        for key in self._keys:
            if hmac.compare_digest(key.sha256, wanted):
                found = key
        return found


def _parse(path: Path, number: int, line: str) -> Key:
    columns = line.rstrip("\r").split("\t")
    numbers = columns[2:4]
    if not re.fullmatch("[0-9a-f]{64}", columns[0]) or not all(re.fullmatch("[0-9]{1,9}", each) for each in numbers):
        raise CapsNMTError(f"{path}, line {number}: not a key's line; make one with `capsnmt serve --new-key NAME`")
    return Key(columns[0], columns[1] if len(columns) > 1 else "", *map(int, numbers))


def new_key(path: Path, name: str) -> str:
    """Makes a key, appends its hash to the file, and returns it: it cannot be shown a second time."""
    if not re.fullmatch(r"[\w .@+-]{1,64}", name):
        raise CapsNMTError(f"key name {name!r}: use up to 64 letters, digits, spaces and . @ + - _")
    key = secrets.token_urlsafe(32)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(("" if file.tell() else _HEADER) + f"{hash_of(key)}\t{name}\t0\t0\n")
    except OSError as error:
        raise CapsNMTError(f"cannot write the keys to {path}: {error.strerror}") from None
    return key
