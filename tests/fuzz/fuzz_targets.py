"""What is fuzzed: everything that reads what others wrote. A target fails by raising.

Each is a Hypothesis test, so that pytest runs it for a moment (test_fuzz.py) and run.py for as long as you like, by
Hypothesis itself or guided by coverage (Atheris).
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
import tempfile
from functools import cache
from pathlib import Path

import yaml
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from capsnmt import Translator
from capsnmt.config import DecodingConfig, NormaliseConfig, RunConfig, dump_yaml, load_recipe, load_yaml
from capsnmt.data.corpus import read_lines
from capsnmt.data.prepare import load_store
from capsnmt.decoding.streams import batches_from_stream
from capsnmt.errors import CapsNMTError
from capsnmt.models import parse_model_config
from capsnmt.text.normalise import normalise
from capsnmt.text.spans import PATTERNS, mask, mask_pair, pieces_around, restore

ROOT = Path(__file__).parents[2]
RELEASED = ROOT / "tests" / "released" / "format-1"
RECIPES = [*sorted((ROOT / "recipes").glob("*/*.yaml")), RELEASED / "recipe.yaml"]


@cache
def workshop() -> Path:
    """A folder for this process, which leaves with it."""
    holder = tempfile.TemporaryDirectory(prefix="capsnmt-fuzz-")
    _KEPT.append(holder)
    return Path(holder.name)


def is_clear(error: CapsNMTError, words: str = "") -> None:
    """What a target may end in, besides success."""
    assert str(error).strip()
    assert words in str(error)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []

# ---------------------------------------------------------------- what to put in

PAIRS_OF_BYTES = st.binary(max_size=12) | st.sampled_from(
    [b"\n", b"\r\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", "\u2028".encode(), "\u0085".encode(), b"\xf0\x9f", b"a"]
)
TEXTS = st.text(st.characters(exclude_categories=()), max_size=40)  # surrogates too
TRICKY = st.text(
    st.sampled_from("e\u0301 `´\u1fef¨▁\u200b\u00ad\ufeff\n\r\t\u0085\u2028„’«１\ufb01⦅0⦆9{}<a>%s@.:/w"), max_size=40
)
NASTY_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 70)
    | st.sampled_from([2**31, 2**63, 2**64, 10**30, -(10**30)])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "1e999", "null", "0x10", "1:30", "../..", "2024-01-01", "\x1b[2J", "en", "capsnmt"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
BYTES_IN = st.binary(min_size=1, max_size=8) | st.sampled_from(
    [
        b"\0" * 8,
        b"\xff" * 8,
        b"\x7f",
        b"&a ",
        b"*a",
        b"!!",
        b"[" * 40,
        b"{",
        b'"',
        b": ",
        b"- ",
        b"#",
        b"999",
        b"-",
        b".inf",
    ]
)

YAML_VALUES = st.sampled_from(
    """!!int ''|!!float x|!!timestamp x|!!python/name:os.system|2024-99-99|1:59:59|&a [*a]|*a|{a: 1, a: 2}|=|<<|? [a]
    .nan|1e400|+.inf|0b|0o7|1_000|-|'|"\\ud800"|"\\e[2J"|~|yes|%|@|`""".replace("\n    ", "|").split("|")
) | st.sampled_from(["|", ">\n  x", "[" * 500, "9" * 5000, "0x" + "f" * 5000])


@st.composite
def mutations(draw, source: Path | bytes) -> bytes:
    """A file's content, or these bytes, with some of it flipped, cut out, put in, or copied from elsewhere in it."""
    content = source if isinstance(source, bytes) else source.read_bytes()
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from(["flip", "delete", "insert", "copy", "cut"]))
        if kind == "flip" and at < len(content):
            flipped = bytes([content[at] ^ draw(st.integers(1, 255))])
            content = content[:at] + flipped + content[at + 1 :]
        elif kind == "delete":
            content = content[:at] + content[at + draw(st.integers(1, 40)) :]
        elif kind == "insert":
            content = content[:at] + draw(BYTES_IN) + content[at:]
        elif kind == "copy":
            start = draw(st.integers(0, len(content)))
            content = content[:at] + content[start : start + draw(st.integers(1, 40))] + content[at:]
        elif kind == "cut":
            content = content[:at]
    return content


def with_other_values(draw, values: dict) -> dict:
    """Other values under some of its keys, some keys gone and some new ones."""
    for _ in range(draw(st.integers(1, 3))):
        parent, key = values, draw(st.sampled_from(sorted(values)))
        while isinstance(parent[key], dict) and parent[key] and draw(st.integers(0, 9)):
            parent, key = parent[key], draw(st.sampled_from(sorted(parent[key])))
        change = draw(st.sampled_from(["set", "set", "set", "remove", "add"]))
        if change == "remove" and len(values) > 1:
            del parent[key]
        else:
            parent[key if change == "set" else draw(st.text(max_size=6))] = draw(NASTY_VALUES)
    return values


@cache
def as_json(path: Path) -> str:
    return json.dumps(yaml.safe_load(path.read_bytes()))


@st.composite
def config_bytes(draw, path: Path) -> bytes:
    """A config file, changed in its bytes, in its values, or in what stands after a colon."""
    way = draw(st.sampled_from(["bytes", "values", "lines"]))
    if way == "bytes":
        return draw(mutations(path))
    if way == "values":
        values = with_other_values(draw, json.loads(as_json(path)))
        return yaml.safe_dump(values, allow_unicode=True).encode("utf-8", "replace")
    lines = path.read_text(encoding="utf-8").split("\n")
    for _ in range(draw(st.integers(1, 3))):
        number = draw(st.integers(0, len(lines) - 1))
        lines[number] = lines[number].partition(": ")[0] + ": " + draw(YAML_VALUES | st.text(max_size=8))
    return "\n".join(lines).encode("utf-8", "replace")


@st.composite
def safetensors_bytes(draw, path: Path) -> bytes:
    """A weights file, changed in its bytes or in what its header says."""
    if draw(st.booleans()):
        return draw(mutations(path))
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    text = json.dumps(with_other_values(draw, header)).encode("utf-8", "replace")
    return len(text).to_bytes(8, "little") + text + data


# ---------------------------------------------------------------- lines


class Pieces:
    """A stream that gives what it has in pieces of its own choice, and now and then nothing yet."""

    def __init__(self, pieces: list[bytes | None]) -> None:
        self.pieces = pieces

    def read1(self, _size: int) -> bytes | None:
        while self.pieces:
            piece = self.pieces.pop(0)
            if piece != b"":  # which would be the end
                return piece
        return b""

    read = read1


def lines_by_the_rule(content: bytes) -> list[bytes]:
    """Only LF ends a line, one CR before it goes, and so does a byte-order mark at the very beginning."""
    *lines, rest = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if rest or (not lines and content):
        lines.append(rest)
    return [line.removesuffix(b"\r") for line in lines]


@given(
    pieces=st.lists(PAIRS_OF_BYTES, max_size=20), pauses=st.sets(st.integers(0, 20), max_size=2), most=st.integers(1, 5)
)
def lines_of_a_stream(pieces: list[bytes], pauses: set[int], most: int) -> None:
    """As many lines as the rule says, however the bytes arrive; bad ones keep their place."""
    expected = [line.decode("utf-8", errors="replace") for line in lines_by_the_rule(b"".join(pieces))]
    arriving = [
        part for number, piece in enumerate(pieces) for part in ([None, piece] if number in pauses else [piece])
    ]
    batches = list(batches_from_stream(Pieces(arriving), most))  # type: ignore[arg-type]
    assert [line for batch in batches for line in batch] == expected
    assert all(1 <= len(batch) <= most for batch in batches)


@given(content=st.lists(PAIRS_OF_BYTES, max_size=20).map(b"".join), kind=st.sampled_from(["txt", "gz", "zst"]))
def lines_of_a_file(content: bytes, kind: str) -> None:
    """The same lines, plain or compressed; the first that is no UTF-8 is named by its number."""
    path = workshop() / f"lines.{kind}"
    path.write_bytes({"txt": bytes, "gz": gzip.compress, "zst": zstandard.compress}[kind](content))
    found = []
    try:
        for line in read_lines(path):
            found.append(line.encode("utf-8"))
        assert found == lines_by_the_rule(content)
    except CapsNMTError as error:
        is_clear(error, f"line {len(found) + 1}: not valid UTF-8")
        assert found == lines_by_the_rule(content)[: len(found)]


@given(data=st.data(), kind=st.sampled_from(["gz", "zst"]))
def damaged_archives(data: st.DataObject, kind: str) -> None:
    """Lines, or an error that names the file."""
    text = b"one\ntwo\nthree\n" * 5
    path = workshop() / f"damaged.{kind}"
    path.write_bytes(data.draw(mutations({"gz": gzip.compress, "zst": zstandard.compress}[kind](text))))
    try:
        for line in read_lines(path):
            assert "\n" not in line
    except CapsNMTError as error:
        is_clear(error, path.name)


# ---------------------------------------------------------------- text


@given(
    text=TEXTS | TRICKY,
    config=st.builds(NormaliseConfig, unicode=st.sampled_from(["NFC", "NFKC", "none"]), quotes=..., spaces=...),
)
def normaliser(text: str, config: NormaliseConfig) -> None:
    """Twice is as once, and never a new line."""
    once = normalise(text, config)
    assert normalise(once, config) == once
    assert "\n" not in once
    once.encode("utf-8")


@given(
    text=TEXTS | TRICKY,
    kinds=st.sets(st.sampled_from(sorted(PATTERNS))),
    terms=st.sets(TRICKY, max_size=3),
    other=TRICKY,
)
def spans(text: str, kinds: set[str], terms: set[str], other: str) -> None:
    """What is masked comes back, in one piece and in its place."""
    masked = mask(text, sorted(kinds), {term: term for term in terms})
    assert restore(masked.text, masked.spans) == (text, True)
    assert "".join(piece if isinstance(piece, str) else piece.source for piece in pieces_around(masked)) == text
    translated = mask(text, sorted(kinds), dict.fromkeys(terms, "#"))
    assert [span.source for span in translated.spans] == [span.source for span in masked.spans]
    assert restore(translated.text, translated.spans).intact
    source, target = mask_pair(text, other, sorted(kinds), 3)
    assert (source.count("\n"), target.count("\n")) <= (text.count("\n"), other.count("\n"))


# ---------------------------------------------------------------- config


@given(data=st.data(), recipe=st.sampled_from(RECIPES))
def config(data: st.DataObject, recipe: Path) -> None:
    """A config or an error; a config is written and read back as it is."""
    path = workshop() / "recipe.yaml"
    path.write_bytes(data.draw(config_bytes(recipe)))
    values = st.sampled_from(["training.steps", "model.width", "output", "data", "x.y", ""])
    override = st.builds("{}={}".format, values, st.text(max_size=8) | NASTY_VALUES.map(str))
    try:
        read = load_recipe(path, data.draw(st.lists(override, max_size=1)))
        parse_model_config(read.model)
    except CapsNMTError as error:
        is_clear(error)
        return
    assert isinstance(read, RunConfig)
    dump_yaml(read, workshop() / "copy.yaml")
    assert load_recipe(workshop() / "copy.yaml") == read


# ---------------------------------------------------------------- folders

QUICK = DecodingConfig(beam=2, max_length_ratio=1.0, max_length_extra=4)


def altered(folder: Path, name: str, content: bytes) -> Path:
    """A copy of a folder with one file changed; the next call begins with a whole one again."""
    copy = workshop() / folder.name
    shutil.copytree(folder, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("checkpoints"))
    (copy / name).write_bytes(content)
    return copy


def too_large_to_try(config: Path) -> bool:
    try:
        sizes = load_yaml(config)["model"].values()
    except (CapsNMTError, KeyError, TypeError, AttributeError):
        return False
    return any(isinstance(size, (int, float)) and (math.isnan(size) or size > 300) for size in sizes)


@given(data=st.data(), system=st.sampled_from(["capsnmt", "simple", "transformer"]))
def model_folder(data: st.DataObject, system: str) -> None:
    """It is loaded and translates, or an error says what is wrong."""
    whole = RELEASED / system
    file = data.draw(
        st.sampled_from(sorted(path for path in whole.iterdir() if path.suffix in {".yaml", ".model", ".safetensors"}))
    )
    change = {".yaml": config_bytes, ".model": mutations, ".safetensors": safetensors_bytes}[file.suffix]
    folder = altered(whole, file.name, data.draw(change(file)))
    if too_large_to_try(folder / "config.yaml"):
        return
    try:
        translator = Translator(folder, device="cpu", decoding=QUICK)
    except CapsNMTError as error:
        is_clear(error)
        return
    assert "\n" not in translator.translate("Sieben 17 Ω.")


@given(data=st.data(), name=st.sampled_from(["train.arrow", "valid.arrow", "store.json"]))
def store(data: st.DataObject, name: str) -> None:
    """Every row can be read, or an error says what is wrong."""
    whole = RELEASED / "store"
    folder = altered(whole, name, data.draw(mutations(whole / name)))
    try:
        corpus = load_store(folder)
        for side in (corpus.train, corpus.valid):
            for row in range(len(side)):
                assert len(side.source_ids(row)) == side.source_lengths[row]
                assert len(side.target_ids(row)) == side.target_lengths[row]
                assert isinstance(side.source_text(row) + side.target_text(row), str)
    except CapsNMTError as error:
        is_clear(error)


TARGETS = {
    target.__name__: target
    for target in (lines_of_a_stream, lines_of_a_file, damaged_archives, normaliser, spans, config, model_folder, store)
}
