import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from capsnmt.data.workers import default_workers, in_order
from capsnmt.errors import CapsNMTError

UPPER = partial(operator.methodcaller, "upper")


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
def test_answers_come_in_the_order_of_the_blocks(workers: int, count: int) -> None:
    blocks = [f"block {number} " * (number % 3) for number in range(count)]
    assert list(in_order(UPPER, blocks, workers=workers)) == [block.upper() for block in blocks]


def test_blocks_and_answers_larger_than_a_pipe_do_not_block() -> None:
    blocks = [chr(97 + number) * 3_000_000 for number in range(6)]
    assert list(in_order(UPPER, blocks, workers=2)) == [block.upper() for block in blocks]


def test_no_more_than_a_block_per_worker_is_under_way() -> None:
    taken = 0

    def blocks() -> Iterator[str]:
        nonlocal taken
        for number in range(20):
            taken = number + 1
            yield str(number)

    for done, _ in enumerate(in_order(UPPER, blocks(), workers=3), start=1):
        assert taken <= done + 3
    assert taken == 20


def test_it_is_other_processes_that_answer() -> None:
    ids = list(in_order(partial(operator.methodcaller, "__call__"), [os.getpid] * 4, workers=2))
    assert ids[:2] == ids[2:]
    assert len({*ids, os.getpid()}) == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_come_back_as_they_are(workers: int) -> None:
    answers = in_order(partial(operator.itemgetter, 2), ["abc", "ab"], workers=workers)
    assert next(answers) == "c"
    with pytest.raises(IndexError):
        next(answers)
    with pytest.raises(FileNotFoundError, match="no-such-file"):  # the function itself cannot be made
        list(in_order(partial(open, "no-such-file"), ["a"] * 5, workers=workers))  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [3, -signal.SIGKILL])
def test_the_death_of_a_worker_is_told(status: int) -> None:
    end = partial(os._exit, status) if status > 0 else partial(signal.raise_signal, -status)
    with pytest.raises(CapsNMTError, match=rf"exit code {status};"):
        list(in_order(partial(operator.methodcaller, "__call__"), [end] * 4, workers=2))


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(process: int) -> None:
    deadline_s = time.monotonic() + 60
    while is_running(process):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_workers_end_with_the_iteration() -> None:
    answers = in_order(partial(operator.methodcaller, "__call__"), [os.getpid] * 4, workers=2)
    process = next(answers)
    assert is_running(process)
    answers.close()
    assert not is_running(process)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_workers_end_with_a_parent_that_is_killed() -> None:
    code = (
        "import operator, os, time\n"
        "from functools import partial\n"
        "from capsnmt.data.workers import in_order\n"
        "answers = in_order(partial(operator.methodcaller, '__call__'), [os.getpid] * 4, workers=2)\n"
        "print(next(answers), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert is_running(worker)
        parent.kill()
    wait_for_end(worker)


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import operator\n"
        "from functools import partial\n"
        "from capsnmt.data.workers import in_order\n"
        "print(list(in_order(partial(operator.methodcaller, 'upper'), ['a', 'b'], workers=2)))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "['A', 'B']\n"


def test_default_number() -> None:
    assert 1 <= default_workers() <= (os.cpu_count() or 1)
