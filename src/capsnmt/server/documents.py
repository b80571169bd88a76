"""Files that can be translated: plain text, HTML and subtitles. What is not text in them comes back byte for byte."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from capsnmt.server.errors import Refused
from capsnmt.server.html import Markup

_TIMES = re.compile(r"\s*\d{1,3}:\d\d:\d\d[,.]\d{1,3}\s*-->")
_POSITION = re.compile(r"(?:\{\\[^{}]*\})*")  # {\an8}: where on the screen
MEDIA_TYPES = {".txt": "text/plain", ".html": "text/html", ".htm": "text/html", ".srt": "application/x-subrip"}


@dataclass
class Passage:
    """Text of a file, and how it goes back."""

    markup: Markup
    put_back: Callable[[str], str] = str


Parts = list["str | Passage"]


def split_lines(text: str) -> list[tuple[str, str]]:
    """Lines and what ends each of them; joined they are the text again."""
    lines = [(line[: len(line) - len(end)], end) for line in text.splitlines(keepends=True) for end in [_end_of(line)]]
    return lines or [("", "")]


def _end_of(line: str) -> str:
    if line.endswith("\r\n"):
        return "\r\n"
    return line[-1:] if line and len(line[-1:].splitlines()[0]) == 0 else ""


def decode_file(data: bytes) -> tuple[str, str]:
    """A file's text and its encoding, which may be UTF-8, or UTF-16 with a byte-order mark. Raises Refused."""
    marks = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    encoding = next((name for mark, name in marks.items() if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        raise Refused(400, "Invalid request: the file is not text in UTF-8") from None


def read_parts(kind: str, text: str, *, max_depth: int) -> Parts:
    """A file's text as passages and what stands between them; `kind` is a suffix of MEDIA_TYPES."""
    if kind in (".html", ".htm"):
        return [Passage(Markup(text, max_depth=max_depth))]
    return _subtitles(text, max_depth)


def join_parts(parts: Parts, translations: Sequence[str]) -> str:
    """The file again, with its passages translated."""
    translated = iter(translations)
    return "".join(part if isinstance(part, str) else part.put_back(next(translated)) for part in parts)


def _subtitles(text: str, max_depth: int) -> Parts:
    """SubRip: a number, a line of times, lines of text, an empty line. Numbers and times stay as they are."""
    parts: Parts = []
    cue: list[tuple[str, str]] = []
    in_cue = False
    for line, end in [*split_lines(text), ("", "")]:
        if in_cue and line.strip():
            cue.append((line, end))
            continue
        if cue:
            parts += _cue(cue, max_depth)
            cue = []
        in_cue = bool(_TIMES.match(line))
        parts.append(line + end)
    return parts


def _cue(lines: list[tuple[str, str]], max_depth: int) -> Parts:
    """The lines of a cue are read as one text and come back in as many lines."""
    if not any(character.isalnum() for line, _ in lines for character in line):
        return ["".join(line + end for line, end in lines)]  # nothing to translate
    ends = [end for _, end in lines]
    text = " ".join(line.strip() for line, _ in lines)
    position = _POSITION.match(text)
    lead = position.group() if position else ""

    def put_back(translation: str) -> str:
        rows = wrap_evenly(translation, len(ends))
        return "".join(row + end for row, end in zip(rows, [*ends[: len(rows) - 1], ends[-1]], strict=True))

    return [lead, Passage(Markup(text[len(lead) :], entities=False, max_depth=max_depth), put_back)]


def wrap_evenly(text: str, rows: int) -> list[str]:
    """A text in at most so many rows of about the same length, broken at spaces; at least one row."""
    starts = [0, *accumulate(len(word) + 1 for word in text.split(" "))]  # of each word, and of one after the last
    words = len(starts) - 1

    def length(first: int, stop: int) -> int:
        return starts[stop] - 1 - starts[first]

    found: list[str] = []
    first = 0
    while first < words and len(found) < rows - 1:
        share = length(first, words) / (rows - len(found))
        stop = first + 1
        while stop < words and length(first, stop + 1) - share < share - length(first, stop):
            stop += 1
        found.append(text[starts[first] : starts[stop] - 1])
        first = stop
    return [*found, text[starts[first] :]] if first < words or not found else found
