"""Streams at the dispatcher: items, their end, and everything that can come between, in no time."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from batchedapi_serving.metrics import slots
from batchedapi_serving.model.streams import MOST_BYTES, MOST_ITEMS
from batchedapi_serving.predictor import ItemError, MethodSpec, Response
from dispatching import DiedError, World

pytestmark = pytest.mark.looptime

STREAM = MethodSpec("predict", batched=False, is_async=True, streams=True)


class Counting:
    """Yields a number each `seconds`; knows how far it came, and whether it was closed."""

    def __init__(self, number: int, seconds: float = 0.0, value: Any = None) -> None:
        self.number = number
        self.seconds = seconds
        self.value = value
        self.made = 0
        self.closed = 0

    async def predict(self, payload: Any, *_: Any) -> AsyncIterator[Any]:
        """In parts."""
        try:
            for i in range(self.number):
                if self.seconds:
                    await asyncio.sleep(self.seconds)
                self.made = i + 1
                yield [payload, i] if self.value is None else self.value
        finally:
            self.closed += 1


def world_of(method: Any, **settings: Any) -> World:
    """A replica with one method, which streams."""
    return World(methods=[(STREAM, method)], **settings)


async def test_items_come_as_they_are_made_and_then_the_end() -> None:
    """Side by side, in order, each to its own client; an end without an error is a 200."""
    counting = Counting(3, 1.0)
    world = world_of(counting.predict)

    asked = [world.ask(n) for n in range(2)]
    await asyncio.sleep(1.5)
    early = [len(one.items) for one in asked]
    await asyncio.sleep(2)

    assert [1, 1] == early
    assert [[("json", b"[%d,%d]" % (n, i)) for i in range(3)] for n in range(2)] == [
        one.items for one in asked
    ]
    assert [200, 200] == [one.status for one in asked]
    assert world.counted(slots.CODE_SLOT[200]) == 2


@pytest.mark.parametrize(
    ("value", "most"), [(None, MOST_ITEMS), ("x" * 100_000, -(-MOST_BYTES // 100_000))]
)
async def test_a_generator_waits_for_its_reader(value: Any, most: int) -> None:
    """It is one item ahead of what is on the way, by number or by bytes; then it goes on."""
    counting = Counting(100, value=value)
    world = world_of(counting.predict)
    asked = world.ask(1)
    asked.lazy = True
    await asyncio.sleep(1)
    stuck = len(asked.items)

    assert asked.handle is not None
    world.dispatcher.taken(asked.handle, 1)
    await asyncio.sleep(1)
    one_more = len(asked.items)
    for _ in range(100):
        world.dispatcher.taken(asked.handle, 1)
        await asyncio.sleep(0.01)

    assert (most, most + 1) == (stuck, one_more)
    assert (100, 200) == (len(asked.items), asked.status)


async def test_who_leaves_closes_the_generator() -> None:
    """Its `finally` runs at once, and not at the next item."""
    counting = Counting(1000, 100.0)
    world = world_of(counting.predict, timeout=None)
    asked = world.ask(1)
    await asyncio.sleep(150)

    assert asked.handle is not None
    world.dispatcher.cancel(asked.handle)
    await asyncio.sleep(0.5)

    assert (1, 1) == (len(asked.items), counting.closed)
    assert world.counted(slots.CODE_SLOT[499]) == 1


async def test_a_stream_ends_at_the_timeout_and_its_process_lives() -> None:
    """The time is that of the whole; what was given stays given."""
    counting = Counting(100, 1.0)
    world = world_of(counting.predict, timeout=5.5)
    asked = world.ask(1)
    await asyncio.sleep(30)

    assert (5, 504, 1) == (len(asked.items), asked.status, counting.closed)
    assert [] == world.replaced


async def test_nothing_is_learned_of_how_long_streams_take() -> None:
    """Else a request with less time than most streams take would be refused its first items."""
    counting = Counting(8, 1.0)
    world = world_of(counting.predict, timeout=30.0)
    for n in range(20):
        world.ask(n)
    await asyncio.sleep(10)

    hurried = world.ask(1, timeout=2.5)
    await asyncio.sleep(5)

    assert (2, 504) == (len(hurried.items), hurried.status)


async def test_what_began_is_not_run_again_when_its_process_dies() -> None:
    """Its client would get the beginning twice; who has nothing yet does not notice."""
    begun: list[int] = []

    async def dies(payload: Any, *_: Any) -> AsyncIterator[int]:
        begun.append(payload)
        if payload == 1:
            yield 1
            await asyncio.sleep(1)
            raise DiedError
        if begun.count(2) == 1:
            await asyncio.sleep(60)
        yield 2

    world = world_of(dies)
    first, second = world.ask(1), world.ask(2)
    await asyncio.sleep(5)

    assert [1, 2, 2] == begun
    assert (500, [("json", b"1")]) == (first.status, first.items)
    assert b"died while it streamed" in first.answers[0].body
    assert (200, [("json", b"2")]) == (second.status, second.items)


async def test_a_process_that_does_not_close_its_streams_is_replaced() -> None:
    """It has ten seconds beyond the timeout: others stream from it."""
    counting = Counting(1, 3600)
    world = world_of(counting.predict, timeout=5.0)
    asked = world.ask(1)
    assert world.processes[0].channel is not None
    await asyncio.sleep(1)
    world.processes[0].channel.deaf = True

    await asyncio.sleep(13)
    patient = list(world.replaced)
    await asyncio.sleep(3)

    assert ([], [1], 504) == (patient, world.replaced, asked.status)


def yields(*values: Any) -> Any:
    """A generator that is not async."""

    def predict(*_: Any) -> Iterator[Any]:
        for value in values:
            if isinstance(value, Exception):
                raise value
            yield value

    return predict


@pytest.mark.parametrize(
    ("last", "status", "message"),
    [
        (ValueError("secret"), 500, b"the predictor raised ValueError"),
        (MemoryError(), 500, b"ran out of memory on this input alone"),
        (ItemError(409, "enough"), 409, b"enough"),
        (b"\xff", 500, b"bytes that are no UTF-8"),
        (float("nan"), 500, b"NaN or Infinity"),
        (object(), 500, b"something that is not JSON"),
        (Response(1), 500, b"yield its content"),
    ],
    ids=[
        "raised",
        "no memory",
        "an item error",
        "no UTF-8",
        "no JSON number",
        "no JSON",
        "a response",
    ],
)
async def test_what_goes_wrong_is_how_it_ends(last: Any, status: int, message: bytes) -> None:
    """Async or not, raised or yielded; nothing is run a second time."""

    async def later(*arguments: Any) -> AsyncIterator[Any]:
        for value in yields("a", last)(*arguments):
            yield value

    world = world_of(later)
    asked = world.ask(1)
    await asyncio.sleep(1)

    assert ([("text", b"a")], status) == (asked.items, asked.status)
    assert message in asked.answers[0].body
    assert b"secret" not in asked.answers[0].body


async def test_a_yielded_item_error_is_the_end() -> None:
    """As if it were raised: what follows it would be of no use."""
    closed = []

    async def refuses(*_: Any) -> AsyncIterator[Any]:
        try:
            yield ItemError(422, "no")
            yield 1
        finally:
            closed.append(True)

    world = world_of(refuses)
    asked = world.ask(1)
    await asyncio.sleep(1)

    assert ([], 422, [True]) == (asked.items, asked.status, closed)


async def test_streams_count_until_their_end() -> None:
    """A stream counts for `maxReplicaConcurrency` and for the gauge."""
    counting = Counting(10, 1.0)
    world = world_of(counting.predict, max_concurrency=2)
    for n in range(2):
        world.ask(n)
    await asyncio.sleep(5)
    world.dispatcher.update_gauges()

    assert world.counted(slots.IN_FLIGHT) == 2
    with pytest.raises(Exception, match="2 requests are in this replica"):
        world.ask(3)
    await asyncio.sleep(10)


async def test_a_stop_that_is_over_ends_streams_with_the_reason() -> None:
    """They went on until then."""
    counting = Counting(100, 1.0)
    world = world_of(counting.predict, timeout=None)
    asked = world.ask(1)
    world.dispatcher.drain()
    await asyncio.sleep(5.5)

    world.dispatcher.abandon()
    await asyncio.sleep(0.5)

    assert (5, 503, 1) == (len(asked.items), asked.status, counting.closed)
    assert b"the replica stopped" in asked.answers[0].body
