import gzip
import re
from pathlib import Path

import pytest
import zstandard

from capsnmt.config import ParallelText
from capsnmt.data.corpus import read_lines, read_pairs
from capsnmt.errors import CapsNMTError

RAW = b"\xef\xbb\xbffirst\r\n" + "zwei\u2028drei\x0b\x0c\u0085vier\rfünf\n".encode() + b"\n\xef\xbb\xbfno start\nlast"
LINES = ["first", "zwei\u2028drei\x0b\x0c\u0085vier\rfünf", "", "\ufeffno start", "last"]


@pytest.mark.parametrize("suffix", ["txt", "gz", "zst"])
def test_only_line_feeds_end_a_line(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text.{suffix}"
    compress = {"txt": bytes, "gz": gzip.compress, "zst": zstandard.compress}[suffix]
    path.write_bytes(compress(RAW))
    assert list(read_lines(path)) == LINES


def test_several_zstandard_frames_are_one_text(tmp_path: Path) -> None:
    path = tmp_path / "text.zst"
    path.write_bytes(zstandard.compress(b"one\ntw") + zstandard.compress(b"o\n"))
    assert list(read_lines(path)) == ["one", "two"]


def test_empty_file_has_no_lines_and_a_final_newline_adds_none(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "one").write_bytes(b"\n")
    assert list(read_lines(tmp_path / "empty")) == []
    assert list(read_lines(tmp_path / "one")) == [""]


def test_bad_utf8_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"good\nalso good\nGr\xfc\xdfe\n")
    with pytest.raises(CapsNMTError, match=r"latin1\.txt, line 3: not valid UTF-8 \(byte 3 of the line is 0xfc\)"):
        list(read_lines(path))


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    missing = rf"{re.escape(str(tmp_path))}/nowhere\.en does not exist"
    with pytest.raises(CapsNMTError, match=f"{missing}$"):
        list(read_lines(tmp_path / "nowhere.en"))
    with pytest.raises(CapsNMTError, match=rf"{missing}.*`data\.root`"):
        list(read_pairs(ParallelText(source="nowhere.en", target="nowhere.de"), str(tmp_path)))
    for name, content in (("cut.gz", gzip.compress(b"x" * 1000)[:-12]), ("odd.zst", b"no zstandard")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CapsNMTError, match=name):
            list(read_lines(tmp_path / name))


def test_two_files_under_the_root(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\ntwo\n")
    (tmp_path / "a.de").write_text("eins\nzwei")
    text = ParallelText(source="a.en", target="a.de")
    assert list(read_pairs(text, str(tmp_path))) == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(("source_lines", "target_lines"), [(2, 5), (5, 2), (0, 1)])
def test_differing_line_counts_are_both_named(tmp_path: Path, source_lines: int, target_lines: int) -> None:
    (tmp_path / "a.en").write_text("x\n" * source_lines)
    (tmp_path / "a.de").write_text("y\n" * target_lines)
    with pytest.raises(CapsNMTError, match=rf"a\.en has {source_lines} lines.*a\.de has {target_lines}"):
        list(read_pairs(ParallelText(source="a.en", target="a.de"), str(tmp_path)))


def test_tsv(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\teins\t0.9\ntwo\tzwei\n")
    assert list(read_pairs(ParallelText(tsv="a.tsv"), str(tmp_path))) == [("one", "eins"), ("two", "zwei")]
    (tmp_path / "b.tsv").write_text("one\teins\nno tab\n")
    with pytest.raises(CapsNMTError, match=r"b\.tsv, line 2: no tab"):
        list(read_pairs(ParallelText(tsv="b.tsv"), str(tmp_path)))
