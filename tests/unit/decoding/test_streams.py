import io
import os
import queue
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsnmt.decoding.streams import batches_from_stream
from capsnmt.errors import CapsNMTError

WAIT_S = 5.0


class Pipe:
    """A pipe whose batches arrive in a queue, so that a test can wait for one with a limit."""

    def __init__(self, max_lines):
        read_end, self.write_end = os.pipe()
        self.reader = os.fdopen(read_end, "rb")
        self.batches = queue.Queue()
        threading.Thread(target=self._consume, args=(max_lines,), daemon=True).start()

    def _consume(self, max_lines):
        for batch in batches_from_stream(self.reader, max_lines):
            self.batches.put(batch)
        self.batches.put(None)

    def write(self, data):
        os.write(self.write_end, data)

    def close(self):
        os.close(self.write_end)

    def next(self):
        return self.batches.get(timeout=WAIT_S)


def lines_of(data, max_lines=3):
    return [line for batch in batches_from_stream(io.BytesIO(data), max_lines) for line in batch]


def test_one_line_at_a_time_is_answered_at_once():
    pipe = Pipe(max_lines=100)
    for n in range(5):
        pipe.write(f"line {n}\n".encode())
        assert pipe.next() == [f"line {n}"]  # with nothing more written: waiting for a full batch would time out
    pipe.close()
    assert pipe.next() is None


def test_empty_batches_come_while_no_line_does():
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader:
        batches = batches_from_stream(reader, 100, idle_s=0.01)
        assert [next(batches), next(batches)] == [[], []]
        os.write(write_end, b"a line\n")
        assert next(batch for batch in batches if batch) == ["a line"]
        os.close(write_end)
        assert not any(batches)


def test_what_a_full_batch_leaves_over_does_not_wait_for_more():
    pipe = Pipe(max_lines=2)
    pipe.write(b"1\n2\n3\n")
    assert [pipe.next(), pipe.next()] == [["1", "2"], ["3"]]
    pipe.close()


def test_a_line_written_in_pieces_waits_for_its_end():
    pipe = Pipe(max_lines=100)
    for piece in ("ä".encode()[:1], "ä".encode()[1:], b"b"):
        pipe.write(piece)
        time.sleep(0.02)
    assert pipe.batches.empty()
    pipe.write(b"c\nrest")
    assert pipe.next() == ["äbc"]
    pipe.close()
    assert pipe.next() == ["rest"]
    assert pipe.next() is None


def test_many_lines_at_once_come_in_full_batches():
    pipe = Pipe(max_lines=100)
    pipe.write(b"".join(b"line %d\n" % n for n in range(1000)))
    pipe.close()
    batches = list(iter(pipe.next, None))
    assert [line for batch in batches for line in batch] == [f"line {n}" for n in range(1000)]
    assert max(len(batch) for batch in batches) == 100
    assert len(batches) <= 12


def test_a_file_comes_in_full_batches(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"%d\n" % n for n in range(50_000)))
    with path.open("rb") as stream:
        assert stream.readline() == b"0\n"  # a file that was read before goes on where it stands
        batches = list(batches_from_stream(stream, 1000))
    assert [int(line) for batch in batches for line in batch] == list(range(1, 50_000))
    assert len(batches) <= 60


def test_only_line_feed_ends_a_line():
    assert lines_of(b"a\r\nb\rc\n\r\r\n") == ["a", "b\rc", "\r"]
    text = "x\u2028y\u2029z\x85\x0b\x0c\x1cw"
    assert lines_of(f"{text}\nnext\n".encode()) == [text, "next"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\n\n", ["", ""]),
        (b"a", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"a\n\nb\r", ["a", "", "b"]),
    ],
)
def test_ends_of_the_stream(data, expected):
    assert lines_of(data) == expected


def test_bad_utf8_keeps_its_line():
    assert lines_of(b"one\n\xff\xfe two\n\xc3\nfour\n") == ["one", "\ufffd\ufffd two", "\ufffd", "four"]


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_byte_order_mark_is_dropped_at_the_beginning_only(ends):
    assert lines_of(f"\ufeffa{ends}\ufeffb{ends}".encode()) == ["a", "\ufeffb"]
    assert lines_of("\ufeffa".encode()) == ["a"]


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]))), st.integers(1, 7))
def test_every_line_comes_once_and_in_order(lines, max_lines):
    batches = list(batches_from_stream(io.BytesIO("".join(f"{line}\n" for line in lines).encode()), max_lines))
    if lines:
        lines = [lines[0].removeprefix("\ufeff"), *lines[1:]]
    assert [line for batch in batches for line in batch] == lines
    assert all(1 <= len(batch) <= max_lines for batch in batches)


def test_a_line_longer_than_a_chunk():
    assert lines_of(b"x" * 300_000 + b"\nshort") == ["x" * 300_000, "short"]


class Failing(io.RawIOBase):
    def __init__(self):
        self.chunks = [b"one\ntwo\n"]

    def readable(self):
        return True

    def read(self, size=-1):
        if not self.chunks:
            raise OSError("the disk is gone")
        return self.chunks.pop()


def test_errors_come_after_the_lines_before_them():
    batches = batches_from_stream(Failing(), 1)
    assert [next(batches), next(batches)] == [["one"], ["two"]]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)


def test_a_consumer_that_leaves_frees_the_reader():
    before = threading.active_count()
    batches = batches_from_stream(io.BytesIO(b"line\n" * 2_000_000), 1)  # far more than is read ahead
    assert next(batches) == ["line"]
    batches.close()
    deadline_s = time.monotonic() + WAIT_S
    while threading.active_count() > before and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_leaving_while_stdin_waits_does_not_abort_python():
    code = (
        "import sys; from capsnmt.decoding.streams import batches_from_stream as b; print(next(b(sys.stdin.buffer, 9)))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.read() == b"['one']\n"  # stdin is still open
        assert process.wait(timeout=WAIT_S) == 0


def test_max_lines_must_be_positive():
    with pytest.raises(CapsNMTError, match="max_lines 0 must be 1 or more"):
        batches_from_stream(io.BytesIO(b""), 0)
