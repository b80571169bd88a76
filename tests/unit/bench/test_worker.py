"""A process of its own: it answers, it fails with words, and its memory is its own."""

from __future__ import annotations

import time

import pytest

from capsnmt.bench.runners import Clock
from capsnmt.bench.start import BARE, one_start
from capsnmt.bench.worker import WARM_LENGTH, Served, Worker
from capsnmt.errors import CapsNMTError


def test_a_worker_answers_and_names_what_went_wrong(tmp_path):
    with Worker("nobody", threads=1) as worker:
        before_mb = worker.peak_mb()
        assert 5 < before_mb < 200  # Python alone, whatever the parent holds
        assert worker.ask("bandwidth", num_bytes=40_000_000, threads=2) > 1e8
        assert worker.peak_mb() > before_mb + 30  # the buffer was written
        with pytest.raises(CapsNMTError, match=r"nobody.*manifest"):
            worker.ask("open", kind="ours", folder=str(tmp_path), threads=1, selection=False)
        with pytest.raises(CapsNMTError, match="nobody"):
            worker.ask("dance")
        assert worker.peak_mb() > 5  # it lives on


def test_a_visit_warms_up_before_its_clock_and_times_whole_translations_alone():
    class Runner:
        def __init__(self):
            self.clock, self.lengths = Clock(), []

        def prepare(self, sources):
            return sources

        def run(self, prepared, *, target_length, beam):
            time.sleep(0.001)
            self.lengths.append(target_length)

    served = Served()
    served._runner = runner = Runner()
    (call,) = served.time(sources=[[1] * 20], beam=1, warm=1, warm_s=0.05, calls=1)
    assert call["total_s"] > 0.0
    whole, *begun, timed = runner.lengths
    assert (whole, timed) == (20, 20)
    assert set(begun) == {WARM_LENGTH}, "and there are some"


def test_a_start_has_a_time_to_the_answer_and_one_to_the_end():
    found = one_start(["-c", BARE], "hi")
    assert 0.0 < found.answer_s < found.end_s
    assert 1.0 < found.peak_mb < 100.0


def test_a_process_that_says_nothing_is_an_error_with_its_own_words():
    with pytest.raises(CapsNMTError, match="no such thing"):
        one_start(["-c", "raise SystemExit('no such thing')"], "hi")
