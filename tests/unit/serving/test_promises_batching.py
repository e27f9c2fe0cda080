"""The gain of batching, and its limits: throughput, the same answers, no time of its own."""

import asyncio
from typing import Any

import pytest

from batchedapi_core.batching import Client, Strategy
from batchedapi_serving import ItemError
from dispatching import World

pytestmark = pytest.mark.looptime


def slow(rows: int) -> float:
    """Seconds of a batch: 10 ms a row, but never below the 50 ms that one row takes."""
    return max(0.050, 0.010 * rows)


async def seconds_until_answered(max_batch_size: int) -> list[float]:
    """The times of 128 requests that arrive together, in their order; every batch is full."""
    world = World(max_batch_size=max_batch_size, seconds=slow)
    began = world.loop.time()
    asked = [world.ask(n) for n in range(128)]
    await asyncio.sleep(10)
    assert list(range(128)) == [one.body for one in asked]
    assert [max_batch_size] * (128 // max_batch_size) == [len(batch) for batch in world.batches]
    return [one.at - began for one in asked]


async def test_a_batch_of_128_is_five_times_the_throughput_and_takes_1280_ms() -> None:
    """B01, C13, C31: 128 * 50 ms one by one; together 1280 ms for all, the first included."""
    alone, together = await seconds_until_answered(1), await seconds_until_answered(128)

    assert pytest.approx([0.050 * (n + 1) for n in range(128)]) == alone
    assert pytest.approx([1.280] * 128) == together
    throughput_alone, throughput_together = 128 / max(alone), 128 / max(together)
    assert 5.0 == pytest.approx(throughput_together / throughput_alone)


def of_every_kind(items: list[Any]) -> list[Any]:
    """A value, or an error of one item."""
    return [ItemError(404, "no such thing") if item is None else {"is": item} for item in items]


async def test_an_answer_is_the_same_with_batching_on_and_off() -> None:
    """C12: a client cannot tell whether its request travelled with others."""
    values: list[Any] = [1, None, "text", {"nested": [1, {"deep": True}]}, [], 2.5, None, False]
    answers = []
    for size in (1, 32):
        world = World(of_every_kind, max_batch_size=size)
        asked = [*(world.ask(value) for value in values), world.ask_rows(values)]
        await asyncio.sleep(2)
        answers.append([(one.status, one.body) for one in asked])
        assert size == 1 or max(map(len, world.batches)) > len(values)

    off, on = answers
    assert off == on
    assert {200, 404} == {status for status, _ in on}


@pytest.mark.parametrize("strategy", Strategy)
async def test_between_an_answer_and_the_next_batch_no_time_passes(strategy: Strategy) -> None:
    """D16: everything happens on events; a step of polling would bound requests per second."""
    world = World(strategy=strategy, max_batch_size=1, seconds=lambda _: 0.0)
    client, began = Client(), world.loop.time()

    for n in range(500):
        asked = world.ask(n, client)
        for _ in range(10):
            await asyncio.sleep(0)
        assert asked.status == 200

    assert began == world.loop.time()
