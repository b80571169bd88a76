"""What is wrong with a corpus: read once, to the end, whatever its bytes are, in bounded memory.

Memory: 8 MB per million training pairs (a hash of each, for duplicates; 24 MB for a moment while they are merged), 8 MB
per million sentences of valid and test, and some thousand lines at a time, of each at most the first megabyte. Telling
languages apart adds about 100 MB for the detector's model.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from capsnmt.config import FilterConfig, LanguagesConfig, NormaliseConfig, ParallelText, RunConfig
from capsnmt.data.corpus import BOM, READ_ERRORS, files_of, open_binary
from capsnmt.data.filters import HashSet, NamedCheck, Pair, all_checks, hashes_of, is_empty, overlap_key
from capsnmt.text.normalise import normalise

Severity = Literal["stops prepare", "stops evaluate", "filtered by config", "information"]

_EXAMPLES = 5
_SHOWN_CHARACTERS = 50
_LINE_BYTES = 1 << 20  # of a longer line only this much is kept and judged; its encoding is checked to the end
_CHUNK_PAIRS = 4096
_CHUNK_CHARACTERS = 1 << 22  # ends a chunk early, so that a chunk of huge lines is no huge chunk
# Telling languages apart takes several times as long as all the rest, so after these pairs every 20th must do.
_SAMPLE_FROM = 50_000
_SAMPLE_EVERY = 20

# What is looked for in the text before it is normalised.
_CHARACTERS = {
    "U+FFFD (lost character)": re.compile("\ufffd"),
    "control character": re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]"),
    "TAB": re.compile(r"\t"),
}
_ANY_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffd]")
# Nothing of these may reach a terminal as it is: controls, line separators, marks of text direction.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class RawLine(NamedTuple):
    """A line as the file has it, without its end. Bad bytes are shown as \\xNN, and then `is_valid` is False."""

    text: str
    is_valid: bool


@dataclass
class Finding:
    """One row of the report: `count` of `total` pairs or lines, and the first few with number and shortened text."""

    part: str  # train, valid or test; corpus for two plain files
    what: str
    severity: Severity
    count: int = 0
    total: int = 0
    examples: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, *texts: str) -> None:
        """Counts a hit and keeps it if it is one of the first."""
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append((line, " ||| ".join(map(_shown, texts))))

    @property
    def share(self) -> float:
        """Of all that were judged."""
        return self.count / max(1, self.total)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        examples = [{"line": line, "text": text} for line, text in self.examples]
        return {**vars(self), "share": self.share, "examples": examples}


@dataclass
class DoctorReport:
    """What was found in train, valid and test. A pair may be in several rows; `prepare` counts its first reason."""

    lines: dict[str, dict[str, int]] = field(default_factory=dict)  # part → file → number of lines
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kept: int = 0  # training pairs that are neither empty nor filtered; data.max_tokens may leave out more

    @property
    def would_stop(self) -> bool:
        """Whether `prepare` would stop at this corpus."""
        return any(finding.severity == "stops prepare" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, ready for json.dumps."""
        return {
            "prepare_would_run": not self.would_stop,
            "lines": self.lines,
            "training_pairs_kept": self.kept,
            "findings": [finding.to_dict() for finding in self.findings],
            "notes": self.notes,
        }


def examine_recipe(config: RunConfig) -> DoctorReport:
    """Examines train, valid and test with the settings that `prepare` would use."""
    data, settings = config.data, config.text.normalise
    if data.generate == "demo":
        from capsnmt.data.prepare import write_missing_demo  # brings pyarrow, which no other recipe needs here

        write_missing_demo(config)
    corpora = data.train.corpora
    names = ["train"] if len(corpora) == 1 else [f"train {number + 1}" for number in range(len(corpora))]
    report = DoctorReport(lines={name: {} for name in names})  # shown first, although they are read last
    held_out: dict[str, HashSet] = {}
    findings: list[Finding] = []
    for name, text in (("valid", data.valid), ("test", data.test)):
        if text is None:
            continue
        # Preparing reads test only to keep its sentences out of train; evaluating does anyway.
        stops: Severity = "stops prepare" if name == "valid" or data.filters.drop_overlap else "stops evaluate"
        held_out[name] = HashSet()
        checks = all_checks(
            FilterConfig(), languages=config.languages, notes=report.notes
        )  # filters are for train alone
        part = _Part(name=name, stops=stops, settings=settings, checks=checks, keys=held_out[name])
        findings += part.examine(text, data.root, report)
    checks = all_checks(data.filters, languages=config.languages, notes=report.notes, held_out=held_out)
    for name, text in zip(names, corpora, strict=True):  # the checks are shared: a duplicate may be in another corpus
        part = _Part(name=name, stops="stops prepare", settings=settings, checks=checks)
        report.findings += part.examine(text, data.root, report)
    report.findings += findings
    return report


def examine_files(source: str | Path, target: str | Path, *, languages: LanguagesConfig | None = None) -> DoctorReport:
    """Examines two aligned files; without `languages` nothing is said of the languages they are in."""
    report = DoctorReport()
    checks = all_checks(FilterConfig(), languages=languages, notes=report.notes)
    part = _Part(name="corpus", stops="stops prepare", settings=NormaliseConfig(), checks=checks)
    report.findings = part.examine(ParallelText(source=str(source), target=str(target)), ".", report)
    return report


class _Part:
    """Examines one parallel text: every line once, chunk by chunk."""

    def __init__(
        self,
        *,
        name: str,
        stops: Severity,
        settings: NormaliseConfig,
        checks: Sequence[NamedCheck],
        keys: HashSet | None = None,
    ) -> None:
        self._name = name
        self._stops = stops
        self._settings = settings
        self._checks = checks
        self._keys = keys  # filled with the sources of a held-out set; None for train
        self._pairs = 0
        self._kept = 0
        self._no_tab = self._finding("no TAB between source and target", stops)
        self._bad = [self._finding(f"bad UTF-8 in {side}", stops) for side in ("source", "target")]
        # `prepare` leaves out empty pairs of train, whatever the recipe says.
        self._empty = self._finding("empty side", "information" if keys is not None else "filtered by config")
        self._characters = {what: self._finding(what, "information") for what in _CHARACTERS}
        self._hits = [
            self._finding(check.what, "filtered by config" if check.is_filter else "information") for check in checks
        ]

    def _finding(self, what: str, severity: Severity) -> Finding:
        return Finding(self._name, what, severity)

    def examine(self, text: ParallelText, root: str, report: DoctorReport) -> list[Finding]:
        """Reads the whole text, adds to the report's numbers and notes, and returns what was found."""
        readers = [LineReader(file) for file in files_of(text, root)]
        if text.tsv is not None:
            self._bad[0].what = "bad UTF-8"  # a bad line of a TSV has no sides
        chunk: list[tuple[int, str, str]] = []
        size = 0
        for number, pair in enumerate(self._raw_pairs(readers), start=1):
            if pair is None:
                continue
            chunk.append((number, *pair))
            size += len(pair[0]) + len(pair[1])
            if len(chunk) == _CHUNK_PAIRS or size > _CHUNK_CHARACTERS:
                self._judge(chunk)
                chunk, size = [], 0
        self._judge(chunk)
        report.lines[self._name] = {str(reader.path): reader.count for reader in readers}
        return self._conclude(readers, report)

    def _raw_pairs(self, readers: list[LineReader]) -> Iterator[tuple[str, str] | None]:
        """For each line number a pair, or None where there is none to judge (and the reason has been counted)."""
        sides = self._columns(readers[0]) if len(readers) == 1 else zip_longest(*readers)
        for number, lines in enumerate(sides, start=1):
            self._pairs += None not in lines
            for line, finding in zip(lines, self._bad, strict=True):
                if line is not None and not line.is_valid:
                    finding.add(number, line.text)
            source, target = lines
            if source is not None and target is not None and source.is_valid and target.is_valid:
                yield source.text, target.text
            else:
                yield None

    def _columns(self, reader: LineReader) -> Iterator[tuple[RawLine | None, RawLine | None]]:
        for number, line in enumerate(reader, start=1):
            columns = line.text.split("\t")
            if not line.is_valid:
                yield line, None
            elif len(columns) < 2:
                self._no_tab.add(number, line.text)
                yield None, None
            else:
                yield RawLine(columns[0], True), RawLine(columns[1], True)

    def _judge(self, chunk: list[tuple[int, str, str]]) -> None:
        numbers: list[int] = []
        pairs: list[Pair] = []
        keys: list[str] = []
        for number, *raw in chunk:
            if any(map(_ANY_CHARACTER.search, raw)):
                for what, pattern in _CHARACTERS.items():
                    if any(map(pattern.search, raw)):
                        self._characters[what].add(number, *raw)
            pair = normalise(raw[0], self._settings), normalise(raw[1], self._settings)
            if self._keys is not None:
                keys.append(overlap_key(pair[0]))
            if is_empty(pair):
                self._empty.add(number, *raw)
            else:
                numbers.append(number)
                pairs.append(pair)
        if self._keys is not None:
            self._keys.add(hashes_of(keys))
        is_dropped = np.zeros(len(pairs), np.bool_)
        for named, finding in zip(self._checks, self._hits, strict=True):
            every = _every(named)
            judged = [row for row, number in enumerate(numbers) if number <= _SAMPLE_FROM or number % every == 0]
            finding.total += len(judged)
            for place in np.flatnonzero(named.check.hits([pairs[row] for row in judged])):
                row = judged[place]
                finding.add(numbers[row], *pairs[row])
                is_dropped[row] |= named.is_filter
        self._kept += int(np.count_nonzero(~is_dropped))

    def _conclude(self, readers: list[LineReader], report: DoctorReport) -> list[Finding]:
        """Fills in the totals, which are known only now, and adds what concerns the text as a whole."""
        counts = [reader.count for reader in readers]
        self._no_tab.total = counts[0]
        for finding, count in zip(self._bad, counts, strict=False):  # a TSV has one count, and its first row serves it
            finding.total = count
        for finding in (self._empty, *self._characters.values()):
            finding.total = self._pairs
        for named, finding in zip(self._checks, self._hits, strict=True):
            if _every(named) > 1 and self._pairs > _SAMPLE_FROM:
                report.notes.append(
                    f"{self._name}, {named.what}: {finding.total} pairs were judged, the first {_SAMPLE_FROM} and "
                    f"every {_every(named)}th of the others"
                )
        whole = [
            self._whole("cannot be read", 1, 1, reader.count + 1, reader.fault) for reader in readers if reader.fault
        ]
        if not whole and len(set(counts)) > 1:
            text = ", ".join(f"{reader.path} has {reader.count} lines" for reader in readers)
            whole.append(
                self._whole("line counts differ", max(counts) - min(counts), max(counts), min(counts) + 1, text)
            )
        if self._keys is None:
            report.kept += self._kept
            if report.kept == 0:
                whole.append(self._whole("no training pair is left", 1, 1, 1, f"of {self._pairs} pairs"))
        findings = [*whole, *self._bad, self._no_tab, self._empty, *self._hits, *self._characters.values()]
        return [finding for finding in findings if finding.count]

    def _whole(self, what: str, count: int, total: int, line: int, text: str) -> Finding:
        return Finding(self._name, what, self._stops, count, total, [(line, _printable(text))])


def _every(named: NamedCheck) -> int:
    # What prepare will filter is counted exactly.
    return _SAMPLE_EVERY if named.is_slow and not named.is_filter else 1


class LineReader:
    """The lines of a file; what cannot be read ends it and is told by `fault`. `count` is the number of lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.fault: str | None = None

    def __iter__(self) -> Iterator[RawLine]:
        try:
            with open_binary(self.path) as stream:
                for line in raw_lines(stream):
                    self.count += 1
                    yield line
        except READ_ERRORS as error:
            self.fault = f"{self.path}: {getattr(error, 'strerror', None) or error}"


def raw_lines(stream: IO[bytes], *, limit: int = _LINE_BYTES) -> Iterator[RawLine]:
    """Lines as `corpus.read_lines` sees them, but bad UTF-8 is no end, and of a long line `limit` bytes are kept."""
    is_first = True
    while piece := stream.readline(limit):
        rest_is_valid = True
        if len(piece) == limit and not piece.endswith(b"\n"):
            piece, rest_is_valid = _skip_rest(stream, piece, limit)
        line = piece.removesuffix(b"\n").removesuffix(b"\r")
        if is_first:
            line = line.removeprefix(BOM)
            is_first = False
        try:
            yield RawLine(line.decode("utf-8"), rest_is_valid)
        except UnicodeDecodeError:
            yield RawLine(line.decode("utf-8", errors="backslashreplace"), False)


def _skip_rest(stream: IO[bytes], piece: bytes, limit: int) -> tuple[bytes, bool]:
    """Reads on to the end of the line; returns its beginning up to a whole character, and whether all is UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    kept = piece
    is_valid = True
    while True:
        is_end = not piece or piece.endswith(b"\n")
        try:
            if is_valid:
                decoder.decode(piece, final=is_end)
        except UnicodeDecodeError:
            is_valid = False
        if is_end:
            return kept, is_valid
        if is_valid and piece is kept:
            kept = kept[: len(kept) - len(decoder.getstate()[0])]  # a character that the cut has divided
        piece = stream.readline(limit)


def print_report(report: DoctorReport, console: Console) -> None:
    """A table of what was found, then the notes and what `prepare` would do."""
    if report.findings:
        table = Table()
        for heading in ("part", "what", "count", "share", "severity", "first lines"):
            table.add_column(heading, justify="right" if heading in ("count", "share") else "left", overflow="fold")
        for finding in report.findings:
            lines = "\n".join(f"{line}: {text}" for line, text in finding.examples[:3])
            share = f"{100 * finding.share:.2f} %"
            # As Text, because the corpus may contain what rich takes for markup.
            cells = (finding.part, finding.what, str(finding.count), share, finding.severity, lines)
            table.add_row(*map(Text, cells))
        console.print(table)
    for part, files in report.lines.items():
        listed = ", ".join(f"{file} {count} lines" for file, count in files.items())
        console.print(Text(f"{part}: {listed}"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    verdict = "prepare would stop" if report.would_stop else f"prepare would run; {report.kept} training pairs stay"
    console.print(Text(verdict if report.findings else f"nothing found; {verdict}"), soft_wrap=True)


def _shown(text: str) -> str:
    return _printable(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
