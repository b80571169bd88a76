"""Which block goes to which worker, with a Ray that is played here; the real one is in tests/integration."""

import sys
from collections import Counter
from types import ModuleType, SimpleNamespace
from typing import get_type_hints

import pytest

from capsnmt import cluster
from capsnmt.cli.research import distill
from capsnmt.cluster import Block, _Crew
from capsnmt.errors import CapsNMTError


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__()
        self.cause = cause


class Reference:
    def __init__(self, value=None, error=None, ready=True):
        self.value, self.error, self.ready = value, error, ready


class PlayedWorker:
    """Answers at once. It dies of the lines in `fatal`, so many times, and waits for ever if it is not `placed`."""

    def __init__(self, fatal, placed=True, load_error=None):
        self.fatal, self.placed, self.load_error = fatal, placed, load_error
        self.dead = False
        self.blocks = []
        self.ready = SimpleNamespace(remote=self._ready)
        self.translate = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._translate))

    def _ready(self):
        self.dead = False
        return Reference(error=self.load_error, ready=self.placed)

    def _translate(self, block):
        self.blocks.append(block.first_line)
        if not self.dead and self.fatal[block.first_line]:
            self.fatal[block.first_line] -= 1
            self.dead = True
        return Reference(error=RayError("died")) if self.dead else Reference([line.upper() for line in block.lines])


@pytest.fixture(autouse=True)
def played_ray(monkeypatch):
    def wait(references, num_returns=1, timeout=None):
        ready = [reference for reference in references if reference.ready]
        assert ready or timeout == 0, "nothing will ever come"
        return ready[:num_returns], [reference for reference in references if reference not in ready[:num_returns]]

    def get(reference):
        if reference.error is not None:
            raise reference.error
        return reference.value

    ray = ModuleType("ray")
    ray.wait, ray.get = wait, get
    ray.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    monkeypatch.setitem(sys.modules, "ray", ray)


def some_blocks(count):
    return [Block(2 * number, [f"a{number}", f"b{number}"]) for number in range(count)]


def expected(blocks):
    return [[line.upper() for line in block.lines] for block in blocks]


def test_blocks_of_a_lost_worker_go_to_others_and_none_to_one_that_has_no_cpu():
    fatal = Counter({6: 1})
    crew = [PlayedWorker(fatal), PlayedWorker(fatal), PlayedWorker(fatal, placed=False)]
    blocks = some_blocks(20)
    assert list(_Crew(crew).answers(blocks)) == expected(blocks)
    assert not crew[2].blocks
    assert sum(len(worker.blocks) for worker in crew) > len(blocks)  # some were sent again


def test_only_the_block_that_a_worker_was_at_counts_as_its_death():
    blocks = some_blocks(6)
    fatal = Counter({0: 3, 2: 3, 4: 3})  # blocks behind the first are lost with it, more than four times in all
    assert list(_Crew([PlayedWorker(fatal)]).answers(blocks)) == expected(blocks)
    with pytest.raises(CapsNMTError, match="lines 5 to 6: 4 workers died"):
        list(_Crew([PlayedWorker(Counter({4: 4}))]).answers(blocks))


def test_a_kill_loses_no_more_blocks_than_the_help_of_distill_says():
    class Stuck(PlayedWorker):
        def _translate(self, block):
            return Reference(ready=False)

    taken = []
    blocks = (taken.append(block) or block for block in some_blocks(30))
    with pytest.raises(AssertionError, match="nothing will ever come"):  # the first block holds up all others
        list(_Crew([Stuck(Counter()), PlayedWorker(Counter())]).answers(blocks))
    assert len(taken) == 2 * cluster.BLOCKS_PER_WORKER
    option, *_ = get_type_hints(distill, include_extras=True)["batch_lines"].__metadata__
    assert f"with --engine ray {cluster.BLOCKS_PER_WORKER} x as many a worker" in option.help


def test_answers_come_while_lines_are_waited_for():
    given = []

    def slow_input():
        yield Block(0, ["first"])
        yield Block(1, [])
        assert given == [["FIRST"], []]
        yield Block(1, ["second"])

    for answer in _Crew([PlayedWorker(Counter()) for _ in range(3)]).answers(slow_input()):
        given.append(answer)
    assert given == [["FIRST"], [], ["SECOND"]]


def test_a_worker_that_cannot_load_is_done_without_unless_it_is_the_last():
    blocks = some_blocks(3)
    broken = PlayedWorker(Counter(), load_error=RayError("killed"))
    assert list(_Crew([broken, PlayedWorker(Counter())]).answers(blocks)) == expected(blocks)
    with pytest.raises(CapsNMTError, match="no worker could be started"):
        list(_Crew([broken]).answers(blocks))


@pytest.mark.parametrize(("address", "expected"), [(None, "local"), ("head:6379", None)])
def test_a_cluster_is_joined_only_where_one_is_named(monkeypatch, address, expected):
    """Without an address Ray would join what /tmp/ray/ray_current_cluster names, which may be long dead."""
    asked = []
    ray = sys.modules["ray"]
    ray.init, ray.shutdown = lambda **settings: asked.append(settings.get("address")), lambda: asked.append("shutdown")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(cluster, "_OBJECT_STORE_BYTES", 0)
    with cluster._connected(None):
        assert asked == [expected]
    assert asked == [expected, "shutdown"]


def test_too_little_shared_memory_is_told(monkeypatch):
    monkeypatch.setattr(cluster, "_OBJECT_STORE_BYTES", 1 << 60)
    monkeypatch.setattr(cluster.os, "statvfs", lambda _: SimpleNamespace(f_bavail=16 << 10, f_frsize=4096))
    monkeypatch.setattr(cluster, "_SHARED_MEMORY", cluster.Path("/"))
    with pytest.raises(CapsNMTError, match=r"has 64 MB free.*--shm-size"):
        cluster._check_shared_memory()
