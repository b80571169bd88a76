"""The queue before the models: company, turns, deadlines, limits, and clients that go away."""

from __future__ import annotations

import asyncio
import time

import pytest

from capsnmt.server.batching import Ask, Batcher
from capsnmt.server.errors import Overloaded, TooLate
from capsnmt.server.metrics import Metrics
from capsnmt.server.settings import Batching, Limits

LINES = ["Eins.", "Zwei drei vier fünf sechs.", "", "Sieben acht neun.", "Null 42 eins.", "Neun?"]


@pytest.fixture(scope="module")
def ask(models):
    (model,) = models.path("de", "en")
    return Ask(model)


def in_loop(work, *, batching=Batching(), limits=Limits(), start=True):  # noqa: B008
    """Runs work(batcher) in an event loop; returns its result and the metrics."""

    async def run():
        metrics = Metrics()
        batcher = Batcher(batching, limits, metrics)
        if start:
            batcher.start()
        try:
            return await asyncio.wait_for(work(batcher), 60), metrics
        finally:
            await batcher.close()

    return asyncio.run(run())


def soon() -> float:
    return time.monotonic() + 60


def batches(metrics) -> tuple[int, int]:
    """How many batches, and how many lines in them."""
    found = {sample.name: sample.value for family in metrics.registry.collect() for sample in family.samples}
    return int(found["capsnmt_batch_lines_count"]), int(found["capsnmt_batch_lines_sum"])


def test_results_do_not_depend_on_company(ask):
    alone = [ask.model.translator.translate_batch([line])[0] for line in LINES]

    async def work(batcher):
        return await asyncio.gather(*(batcher.translate(ask, [line], deadline=soon()) for line in LINES * 3))

    answers, metrics = in_loop(work)
    for (answer,), own in zip(answers, alone * 3, strict=True):
        assert answer.translation.text == own.text
        assert answer.translation.status == own.status
        assert answer.translation.score == (None if own.score is None else pytest.approx(own.score, abs=1e-4))
    count, lines = batches(metrics)
    assert lines == len(LINES) * 3
    assert count < 4  # and yet they went together


def test_batches_have_a_largest_size(ask):
    async def work(batcher):
        await batcher.translate(ask, ["Eins."] * 10, deadline=soon())

    assert batches(in_loop(work, batching=Batching(lines=4))[1]) == (3, 10)
    assert batches(in_loop(work, batching=Batching(lines=1))[1]) == (10, 10)
    assert batches(in_loop(work, batching=Batching(characters=10))[1]) == (5, 10)


def test_different_wishes_do_not_mix(ask):
    async def work(batcher):
        plain = batcher.translate(ask, ["Eins."] * 3, deadline=soon())
        rich = batcher.translate(Ask(ask.model, num_best=3, routing=True), ["Zwei."] * 3, deadline=soon())
        return await asyncio.gather(plain, rich)

    (plain, rich), metrics = in_loop(work)
    assert [len(answer.translation.hypotheses) for answer in plain] == [1] * 3
    assert [len(answer.translation.hypotheses) for answer in rich] == [3] * 3
    assert all(answer.routing is None for answer in plain)
    assert all(answer.routing for answer in rich)
    assert batches(metrics) == (2, 6)


def test_a_long_text_does_not_hold_up_a_short_one(ask):
    async def work(batcher):
        order = []

        async def one(name, lines):
            await batcher.translate(ask, lines, deadline=soon())
            order.append(name)

        await asyncio.gather(one("long", ["Eins zwei drei."] * 40), one("short", ["Vier."]))
        return order

    assert in_loop(work, batching=Batching(lines=4))[0] == ["short", "long"]


def test_a_full_queue_refuses_with_a_time_to_come_back(ask):
    async def work(batcher):
        batcher.submit(ask, ["Eins."])
        batcher.submit(ask, ["Zwei."])
        with pytest.raises(Overloaded) as refused:
            batcher.submit(ask, ["Drei."])
        return refused.value

    error, _ = in_loop(work, limits=Limits(waiting_requests=2), start=False)
    assert error.status_code == 503
    assert int(error.headers["Retry-After"]) >= 1
    assert in_loop(work, limits=Limits(waiting_characters=12), start=False)[0].status_code == 503


def test_a_deadline_ends_the_waiting_and_the_work(ask):
    async def work(batcher):
        with pytest.raises(TooLate) as late:
            await batcher.translate(ask, LINES, deadline=time.monotonic() + 0.05)
        batcher.start()  # what nobody waits for is not translated
        await batcher.translate(ask, ["Eins."], deadline=soon())
        return late.value

    error, metrics = in_loop(work, start=False)
    assert error.status_code == 503
    assert int(error.headers["Retry-After"]) >= 1
    assert batches(metrics) == (1, 1)


def test_who_goes_away_is_not_translated(ask):
    async def work(batcher):
        task = asyncio.ensure_future(batcher.translate(ask, LINES, deadline=soon()))
        await asyncio.sleep(0)
        task.cancel()
        batcher.start()
        await batcher.translate(ask, ["Eins."], deadline=soon())

    assert batches(in_loop(work, start=False)[1]) == (1, 1)


def test_a_model_that_fails_fails_only_its_batch(ask, models):
    class Broken:
        translator = property(lambda self: 1 / 0)

    async def work(batcher):
        with pytest.raises(ZeroDivisionError):
            await batcher.translate(Ask(Broken()), ["Eins."], deadline=soon())
        return await batcher.translate(ask, ["Eins."], deadline=soon())

    assert in_loop(work)[0][0].translation.status in ("ok", "low_confidence", "repaired")


def test_closing_tells_those_who_wait(ask):
    async def work(batcher):
        futures = batcher.submit(ask, ["Eins."])
        await batcher.close()
        with pytest.raises(Overloaded):
            await futures[0]

    in_loop(work, start=False)
