"""HTML whose text is translated and whose tags stay where they are.

A scanner, not a tree: a tree would mend what it finds (close tags, drop a lone <td>), and every tag is to come back as
it was written. It reads as HTML's own tokeniser does and never looks at a character twice, whatever it is given.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from capsnmt.server.errors import Refused

# Tags inside a sentence. All others end one: a model must not move words from one paragraph or cell to another.
INLINE = frozenset(
    {"a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "img"}
    | {"ins", "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt"}
    | {"u", "var"}
)
VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"}
)
RAW = frozenset({"script", "style", "textarea", "xmp", "iframe", "noembed", "noframes"})  # what is in them is no markup
KEPT = RAW | {"code", "kbd", "samp", "var", "tt", "math", "svg"}  # not translated

_NAME = re.compile(r"[A-Za-z][^\s/>]*")
_BEFORE_ATTRIBUTE = re.compile(r"[\s/]*")
_ATTRIBUTE = re.compile(r"=?[^\s/>=]*")
_VALUE = re.compile(r"\s*=\s*(?:(?P<quote>[\"'])|[^\s>]*)")
_NOT_TRANSLATED = re.compile(
    r"\stranslate\s*=\s*[\"']?no\b|\sclass\s*=\s*(?:\"[^\"]*\bnotranslate\b|'[^']*\bnotranslate\b)", re.I
)
_SPACE = " \t\n\r\f"  # HTML's own: a no-break space is text
_SPACES = re.compile(f"[{_SPACE}]+")
_SYMBOL = re.compile("⦅([0-9]{1,9})⦆")
_MOST_TAGS = 1000  # of one run of text: numbers of symbols have nine digits

Kind = Literal["text", "open", "close", "other"]


class Token(NamedTuple):
    """A piece of markup or text; all of them together are the source."""

    kind: Kind
    raw: str
    name: str = ""


def tokens(source: str) -> Iterator[Token]:
    """Cuts HTML at its tags."""
    place = 0
    while place < len(source):
        at = source.find("<", place)
        if at != place:
            yield Token("text", source[place : at if at > 0 else len(source)])
        if at < 0:
            return
        token = _markup(source, at)
        yield token
        place = at + len(token.raw)
        if token.kind == "open" and token.name in RAW:
            end = re.compile(f"</{token.name}(?=[\\s/>])", re.I).search(source, place)
            stop = end.start() if end else len(source)
            if stop > place:
                yield Token("other", source[place:stop])
            place = stop


def _markup(source: str, at: int) -> Token:
    """What begins with the < at this place."""
    if source.startswith("<!--", at):
        end = source.find("-->", at + 2)
        return Token("other", source[at : end + 3 if end >= 0 else len(source)])
    closes = source.startswith("/", at + 1)
    name = _NAME.match(source, at + 1 + closes)
    if name is None:
        if not closes and source[at + 1 : at + 2] not in ("!", "?"):
            return Token("text", "<")
        end = source.find(">", at)
        return Token("other", source[at : end + 1 if end >= 0 else len(source)])
    stop = _tag_end(source, name.end())
    if stop is None:  # the text ends in the middle of it, so it is none
        return Token("text", source[at:])
    return Token("close" if closes else "open", source[at:stop], name.group().lower())


def _tag_end(source: str, place: int) -> int | None:
    while True:
        place = _end(_BEFORE_ATTRIBUTE, source, place)
        if place >= len(source):
            return None
        if source[place] == ">":
            return place + 1
        place = _end(_ATTRIBUTE, source, place)
        value = _VALUE.match(source, place)
        if value is None:
            continue
        place = value.end()
        if value["quote"]:
            close = source.find(value["quote"], place)
            if close < 0:
                return None
            place = close + 1


def _end(pattern: re.Pattern[str], source: str, place: int) -> int:
    match = pattern.match(source, place)
    return place if match is None else match.end()


@dataclass
class Run:
    """Text of one sentence or more, with the tags inside of it."""

    lead: str
    text: str  # for the translator; a symbol stands for the tags at its place
    tags: list[str]
    trail: str
    first: int  # number of its first symbol


@dataclass
class Markup:
    """One HTML text on its way. `lines` go to the translator; what it changed too much goes there again in pieces."""

    source: str
    entities: bool = True  # &amp; and the like are decoded, and text is escaped; subtitles have none
    max_depth: int = 256
    parts: list[str | Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Symbols that the source does not have itself. The translator brings them back as it brings back any span.
        roles = list(_roles(self.source, self.max_depth))
        text = "".join(self._decoded(raw) for raw, role in roles if role == "text")
        taken = set(re.findall("⦅([0-9]{6})", text))
        self._first = 1000 * next(number for number in range(900_000, 100_000, -1) if str(number) not in taken)
        gathered: list[tuple[str, bool]] = []  # raw, is it a tag
        for raw, role in roles:
            if role == "boundary":
                self._close(gathered)
                gathered = []
                self.parts.append(raw)
            else:
                gathered.append((raw, role == "tag"))
                if len(gathered) >= _MOST_TAGS:
                    self._close(gathered)
                    gathered = []
        self._close(gathered)

    @property
    def runs(self) -> list[Run]:
        """The parts that are translated."""
        return [part for part in self.parts if isinstance(part, Run)]

    @property
    def lines(self) -> list[str]:
        """What to translate, one line each."""
        return [run.text for run in self.runs]

    def pieces(self, translations: Sequence[str]) -> list[str]:
        """What to translate once more, piece by piece: runs whose tags did not come back in their order."""
        return [
            piece
            for run, translation in zip(self.runs, translations, strict=True)
            if not self._in_order(run, translation)
            for piece in _SYMBOL.split(run.text)[::2]
            if piece.strip()
        ]

    def finish(self, translations: Sequence[str], pieces: Sequence[str]) -> str:
        """The translated HTML, with what `pieces` asked for."""
        translated, spare = iter(translations), iter(pieces)
        found: list[str] = []
        for part in self.parts:
            if isinstance(part, str):
                found.append(part)
                continue
            text = next(translated)
            if not self._in_order(part, text):
                text = "".join(_filled(piece, spare) + symbol for piece, symbol in _cut(part.text))
            found += [part.lead, self._restored(part, text), part.trail]
        return "".join(found)

    def _close(self, gathered: list[tuple[str, bool]]) -> None:
        """Makes a run of what stands between two boundaries, or leaves it if there is nothing to translate."""
        start, end = 0, len(gathered)
        while start < end and _is_edge(*gathered[start]):
            start += 1
        while end > start and _is_edge(*gathered[end - 1]):
            end -= 1
        core = gathered[start:end]
        if not any(character.isalnum() for raw, is_tag in core if not is_tag for character in self._decoded(raw)):
            self.parts += [raw for raw, _ in gathered]
            return
        texts: list[str] = []
        tags: list[str] = []
        for raw, is_tag in core:
            if not is_tag:
                texts.append(_SPACES.sub(" ", self._decoded(raw)))
            elif tags and texts[-1].startswith("⦅") and texts[-1] == self._symbol(len(tags) - 1):
                tags[-1] += raw  # neighbours are one
            else:
                texts.append(self._symbol(len(tags)))
                tags.append(raw)
        lead, trail = ("".join(raw for raw, _ in edge) for edge in (gathered[:start], gathered[end:]))
        first, last = core[0][0], core[-1][0]  # texts, for tags at the edges are left out
        lead += first[: len(first) - len(first.lstrip(_SPACE))]
        trail = last[len(last.rstrip(_SPACE)) :] + trail
        self.parts.append(Run(lead, "".join(texts).strip(_SPACE), tags, trail, self._first))

    def _symbol(self, index: int) -> str:
        return f"⦅{self._first + index}⦆"

    def _decoded(self, raw: str) -> str:
        try:
            return html.unescape(raw) if self.entities else raw
        except ValueError:  # a number of more digits than Python reads
            return raw

    def _in_order(self, run: Run, translation: str) -> bool:
        numbers = [int(number) - run.first for number in _SYMBOL.findall(translation)]
        return [number for number in numbers if 0 <= number < _MOST_TAGS] == list(range(len(run.tags)))

    def _restored(self, run: Run, text: str) -> str:
        found = []
        for piece, symbol in _cut(text):
            number = int(symbol[1:-1]) - run.first if symbol else -1
            found.append(html.escape(piece, quote=False) if self.entities else piece)
            found.append(run.tags[number] if 0 <= number < len(run.tags) else html.escape(symbol, quote=False))
        return "".join(found)


def _is_edge(raw: str, is_tag: bool) -> bool:
    return is_tag or not raw.strip()


def _cut(text: str) -> Iterator[tuple[str, str]]:
    """Texts and the symbols after them; the last has none."""
    place = 0
    for match in _SYMBOL.finditer(text):
        yield text[place : match.start()], match.group()
        place = match.end()
    yield text[place:], ""


def _filled(piece: str, translations: Iterator[str]) -> str:
    body = piece.strip()
    if not body:
        return piece
    at = piece.find(body)
    return piece[:at] + next(translations).strip() + piece[at + len(body) :]


Role = Literal["text", "tag", "boundary"]


def _roles(source: str, max_depth: int) -> Iterator[tuple[str, Role]]:
    """Text, tags inside of sentences, and what ends a sentence. An element that is not translated is one tag."""
    stack: list[str] = []
    kept: list[str] = []  # raw tokens of an element that is not translated
    kept_depth = 0  # of the stack, outside of that element
    for token in tokens(source):
        if token.kind == "open" and token.name not in VOID and not token.raw.endswith("/>"):
            stack.append(token.name)
            if len(stack) > max_depth:
                raise Refused(400, f"Invalid request: more than {max_depth} HTML elements within each other")
            if not kept and (token.name in KEPT or _NOT_TRANSLATED.search(token.raw)):
                kept, kept_depth = [token.raw], len(stack) - 1
                continue
        elif token.kind == "close" and token.name in stack:
            while stack.pop() != token.name:
                pass
        if kept:
            kept.append(token.raw)
            if len(stack) <= kept_depth:
                yield "".join(kept), "tag"
                kept = []
        elif token.kind == "text":
            if "pre" in stack:
                yield from _lines(token.raw)
            else:
                yield token.raw, "text"
        else:
            yield token.raw, "tag" if token.name in INLINE or token.kind == "other" else "boundary"
    if kept:
        yield "".join(kept), "tag"


def _lines(raw: str) -> Iterator[tuple[str, Role]]:
    """In preformatted text a line ends where it ends."""
    for line in raw.splitlines(keepends=True):
        body = line.rstrip("\r\n")
        if body:
            yield body, "text"
        if len(line) > len(body):
            yield line[len(body) :], "boundary"
