"""What of a store is done: kept in its folder while that is being filled, so that a killed `prepare` can go on."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from capsnmt.data.store import sha256_of

_LOG = logging.getLogger(__name__)

LEDGER_FILE = "unfinished.json"


@dataclass
class ShardRecord:
    """A whole file of the folder. Of waiting text also what was read for it: pairs, and those left out by reason."""

    file: str
    rows: int
    bytes: int
    sha256: str
    counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, rows: int, counts: dict[str, int] | None = None) -> ShardRecord:
        """The record of a file that was just written."""
        return cls(path.name, rows, path.stat().st_size, sha256_of(path), counts or {})

    def damage(self, folder: Path) -> str | None:
        """What is wrong with the file, if anything."""
        path = folder / self.file
        if not os.path.isfile(path):
            return "is missing"
        if path.stat().st_size != self.bytes:
            return f"has {path.stat().st_size} bytes instead of {self.bytes}"
        return None if sha256_of(path) == self.sha256 else "does not match its checksum"


@dataclass
class Ledger:
    """The files that are whole, stage by stage. `origin` is what decides their content: settings and file sizes."""

    folder: Path
    origin: dict[str, Any]
    texts: list[ShardRecord] = field(default_factory=list)  # normalised and filtered, waiting to be encoded
    is_read: bool = False  # all of the corpus is in `texts`
    has_subwords: bool = False
    shards: list[ShardRecord] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        """Pairs read, and left out by reason."""
        return sum((Counter(record.counts) for record in self.texts), Counter())

    @property
    def num_texts(self) -> int:
        """Pairs that wait to be encoded."""
        return sum(record.rows for record in self.texts)

    def paths(self) -> list[Path]:
        """The files of waiting text."""
        return [self.folder / record.file for record in self.texts]

    def save(self) -> None:
        """Whole or not at all."""
        values = asdict(self)
        del values["folder"]
        temporary = self.folder / f"{LEDGER_FILE}.tmp"
        temporary.write_text(json.dumps(values), encoding="utf-8")
        temporary.replace(self.folder / LEDGER_FILE)

    @classmethod
    def load(cls, folder: Path) -> Ledger | None:
        """The ledger of a folder with the files that are still whole; what comes after a damaged one is made again."""
        try:
            values = json.loads((folder / LEDGER_FILE).read_text(encoding="utf-8"))
            texts, shards = ([ShardRecord(**record) for record in values.pop(key)] for key in ("texts", "shards"))
            ledger = cls(folder=folder, **values)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        ledger.texts, ledger.shards = (_whole(records, folder) for records in (texts, shards))
        ledger.is_read = ledger.is_read and len(ledger.texts) == len(texts)
        return ledger


def _whole(records: list[ShardRecord], folder: Path) -> list[ShardRecord]:
    """The records up to the first whose file is damaged."""
    for number, record in enumerate(records):
        if fault := record.damage(folder):
            _LOG.warning("%s %s: it and what follows is made again", folder / record.file, fault)
            return records[:number]
    return records
