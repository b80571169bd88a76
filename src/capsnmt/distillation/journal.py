"""What a teacher has translated so far: a file that is only ever appended to, one line of the corpus after another.

The first record says who translates what. A killed run loses the blocks that were under way: one, or over Ray some for
each worker. The next one cuts off a torn end and goes on behind the last whole record, so every line is there once and
in order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsnmt.config import changed_settings
from capsnmt.distillation.identity import NAMES
from capsnmt.distillation.teachers import Candidate
from capsnmt.errors import CapsNMTError

JOURNALS = "translations-*-of-*.jsonl"  # of all shards of a folder


@dataclass(frozen=True)
class Shard:
    """Every n-th line of a corpus, beginning with the `number`-th (from 1): shards are equally hard."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From 2/8."""
        number, _, count = text.partition("/")
        if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
            return cls(int(number), int(count))
        raise CapsNMTError(f"--shard {text}: write i/n, such as 1/8 for the first of eight")

    @classmethod
    def of_this_process(cls) -> Shard | None:
        """Its own among those that torchrun started together; None of a process that is alone."""
        count = int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1
        return cls(int(os.environ["RANK"]) + 1, count) if count > 1 else None

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def holds(self, line: int) -> bool:
        """Whether a line (from 0) is of this shard."""
        return line % self.count == self.number - 1

    def file(self, folder: Path) -> Path:
        """Where its translations lie."""
        return folder / f"translations-{self.number}-of-{self.count}.jsonl"


class TranslationJournal:
    """The translations of one shard."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, about: dict[str, Any]) -> int:
        """Starts the file, or goes on with it if it is about the same. Returns how many lines it holds.

        Of whom it is about does not matter as long as it holds none: a teacher that failed at once may be mended.
        """
        if not self.path.exists() or not self._cut_torn_end() or next(self.records(), None) is None:
            self.append_raw([about], "wb")
            return 0
        if changed := changed_settings(self.about(), about, free=NAMES):
            raise CapsNMTError(
                f"{self.path} was begun otherwise:\n" + "\n".join(changed) + "\n"
                "choose another --output, or remove the folder to begin again"
            )
        return sum(1 for _ in self.records())

    def about(self) -> dict[str, Any]:
        """Its first record."""
        with self.path.open(encoding="utf-8") as file:
            found: dict[str, Any] = json.loads(file.readline())
        return found

    def append(self, block: Sequence[list[Candidate]]) -> None:
        """Adds a block; it is on the disk when this returns."""
        self.append_raw([[candidate.record() for candidate in line] for line in block], "ab")

    def append_raw(self, records: Sequence[Any], mode: str) -> None:
        """One line of JSON each."""
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        with self.path.open(mode) as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())

    def records(self) -> Iterator[list[Candidate]]:
        """The candidates of each line."""
        with self.path.open("rb") as file:
            next(file)
            for line in file:
                yield [Candidate(*values) for values in json.loads(line)]

    def _cut_torn_end(self) -> bool:
        """Removes what a killed write left behind the last line end. Returns whether anything whole is there."""
        with self.path.open("rb+") as file:
            end = file.seek(0, os.SEEK_END)
            step = 1 << 16
            while end > 0:
                start = max(0, end - step)
                file.seek(start)
                place = file.read(end - start).rfind(b"\n")
                if place >= 0:
                    file.truncate(start + place + 1)
                    return True
                end = start
            return False


def journals_in(folder: Path) -> list[Path]:
    """The files of all shards that were begun there."""
    return sorted(folder.glob(JOURNALS)) if os.path.isdir(folder) else []  # Path.glob raises on impossible names


def joined(journals: Sequence[TranslationJournal]) -> Iterator[list[Candidate]]:
    """All lines of a corpus in their order, from its shards in theirs."""
    readers = [journal.records() for journal in journals]
    while True:
        for reader in readers:
            record = next(reader, None)
            if record is None:
                return
            yield record
