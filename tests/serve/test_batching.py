"""The queue before the models: company, turns, deadlines, limits, and clients that go away."""

from __future__ import annotations

import asyncio
import gc
import logging
import time

import pytest

from capsnmt.decoding.translation import TranslateOptions
from capsnmt.server.batching import Ask, Batcher
from capsnmt.server.errors import Overloaded, Refused, TooLate
from capsnmt.server.metrics import Metrics
from capsnmt.server.routing import routing_of
from capsnmt.server.settings import Batching, Limits
from capsnmt.server.translating import Way
from capsnmt.server.waiting import within

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
    assert lines == len([line for line in LINES if line]) * 3  # an empty one needs no model
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


def test_a_line_costs_more_than_its_characters(ask):
    async def work(batcher):
        batcher.submit(ask, ["a"] * 6)
        with pytest.raises(Overloaded):
            batcher.submit(ask, ["a"])

    in_loop(work, limits=Limits(waiting_characters=12), start=False)


def test_lines_with_nothing_to_translate_need_no_model(ask):
    lines = ["", "   ", " - ?! \ufffd…", "🙂\u2028🙂", "⦅ ⦆ <>\r\n"]
    rich = Ask(ask.model, routing=True)

    async def work(batcher):
        return [await batcher.translate(each, lines, deadline=soon()) for each in (ask, rich)]

    (plain, routed), metrics = in_loop(work, limits=Limits(waiting_characters=1), start=False)
    assert [answer.translation for answer in plain] == ask.model.translator.translate_batch(lines)
    assert all(answer.routing is None for answer in plain)
    assert [answer.routing for answer in routed] == [routing_of(ask.model, line) for line in lines]
    assert batches(metrics) == (0, 0)


def test_a_request_has_a_largest_number_of_lines(ask):
    async def work(batcher):
        with pytest.raises(Refused) as refused:
            await batcher.translate(ask, ["", "", "", ""], deadline=soon())
        with pytest.raises(Refused):
            await Way(batcher, [], soon()).texts(["\n\n", "a\n\n"])
        return refused.value

    error, _ = in_loop(work, limits=Limits(lines=3))
    assert error.status_code == 400


LONG = {
    "many sentences": "Eins zwei drei vier. Fünf sechs 42? SIEBEN ACHT NEUN!  Null {x} eins. " * 12,
    "one sentence": "eins zwei drei vier fünf " * 60,
    "one word": "eins" * 400,
    "lost spans": "Eins {a} zwei 1.5 drei http://a.b/c vier. " * 15,
    "more spans than symbols": "eins 1 zwei 2 drei 3 vier 4 fünf 5 sechs 6 " * 16,
    "spans alone": "42 {x} " * 100,
}


@pytest.mark.parametrize("line", LONG.values(), ids=LONG.keys())
@pytest.mark.parametrize("num_best", [1, 3])
def test_a_long_line_gives_what_the_translator_says_of_it(ask, line, num_best):
    (own,) = ask.model.translator.translate_batch([line], TranslateOptions(num_best=num_best))

    async def work(batcher):
        return await batcher.translate(Ask(ask.model, num_best), ["Eins.", line, "Zwei."], deadline=soon())

    (_, answer, _), _ = in_loop(work)
    found = answer.translation
    assert (found.text, found.status, found.notes, found.source) == (own.text, own.status, own.notes, line)
    assert [text for text, _ in found.hypotheses] == [text for text, _ in own.hypotheses]
    for (_, score), (_, other) in zip(found.hypotheses, own.hypotheses, strict=True):
        assert score == pytest.approx(other, abs=1e-4)


def test_a_long_line_does_not_hold_up_a_short_one(ask):
    async def work(batcher):
        order = []

        async def one(name, line):
            await batcher.translate(ask, [line], deadline=soon())
            order.append(name)

        await asyncio.gather(one("long", LONG["one sentence"]), one("short", "Vier."))
        return order

    assert in_loop(work)[0] == ["short", "long"]


def test_the_rest_of_a_long_line_is_not_translated_for_who_has_gone(ask):
    async def work(batcher):
        task = asyncio.ensure_future(batcher.translate(ask, [LONG["many sentences"] * 3], deadline=soon()))
        while batches(batcher._metrics)[0] < 1:
            await asyncio.sleep(0.001)
        task.cancel()
        await batcher.translate(ask, ["Eins."], deadline=soon())

    count, _ = batches(in_loop(work, batching=Batching(lines=1))[1])
    assert count <= 3  # its first piece, the one that was under way, and the other's line


def test_who_goes_away_makes_room_at_once(ask):
    async def work(batcher):
        for _ in range(3):
            task = asyncio.ensure_future(batcher.translate(ask, LINES, deadline=soon()))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return batcher._metrics.waiting_characters._value.get(), batcher._metrics.waiting_requests._value.get()

    assert in_loop(work, limits=Limits(waiting_requests=1), start=False)[0] == (0, 0)


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
        job = batcher.submit(ask, ["Eins."])
        await batcher.close()
        with pytest.raises(Overloaded):
            await job.one(0)
        with pytest.raises(Overloaded):
            batcher.submit(ask, ["Zwei."])

    in_loop(work, start=False)


def test_waiting_that_is_given_up_leaves_nothing_in_the_log(caplog):
    async def work():
        async def fails_when_cancelled():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ValueError from None

        for waited_for in (fails_when_cancelled(), asyncio.gather(asyncio.sleep(60))):
            with pytest.raises(asyncio.TimeoutError):
                await within(0.01, waited_for)
            del waited_for
            await asyncio.sleep(0.01)
            gc.collect()

    with caplog.at_level(logging.ERROR):
        asyncio.run(work())
    assert "never retrieved" not in caplog.text
