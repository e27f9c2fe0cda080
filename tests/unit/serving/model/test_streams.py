"""Generators in the model process: their threads, and how much they may be ahead of a reader."""

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from batchedapi_serving.codecs import codec_of
from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.submits import submitted_rows
from batchedapi_serving.errors import InvalidInputError
from batchedapi_serving.model.streams import MOST_ITEMS, Outlet, Streams
from batchedapi_serving.predictor import MethodSpec

SECONDS = 30.0


def outlet_to(items: list[bytes]) -> Outlet:
    """One whose reader takes nothing by itself."""
    return Outlet(lambda item: items.append(item.body))


async def until(condition: Any) -> None:
    """A thread works meanwhile."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(0.001)


async def test_a_generator_stays_in_one_thread_which_waits_for_room() -> None:
    """A context entered by the generator holds to its end, so no other thread continues it."""
    threads: set[int] = set()

    def counting() -> Iterator[int]:
        for i in range(MOST_ITEMS + 10):
            threads.add(threading.get_ident())
            yield i

    items: list[bytes] = []
    outlet = outlet_to(items)
    running = asyncio.create_task(Streams().run(counting(), outlet))
    await until(lambda: len(items) == MOST_ITEMS)
    outlet.taken(4)
    await until(lambda: len(items) == MOST_ITEMS + 4)
    outlet.taken(1000)

    assert Item(200, "text", b"") == await asyncio.wait_for(running, SECONDS)
    assert [b"%d" % i for i in range(MOST_ITEMS + 10)] == items
    assert len(threads - {threading.get_ident()}) == 1


async def test_a_cancelled_stream_that_waits_for_room_is_closed_in_its_thread() -> None:
    """Its client left while it did not read; the call ends after its `finally`."""
    closed: list[int] = []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(threading.get_ident())

    items: list[bytes] = []
    running = asyncio.create_task(Streams().run(endless(), outlet_to(items)))
    await until(lambda: len(items) == MOST_ITEMS)
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, SECONDS)
    assert (1, True) == (len(closed), closed != [threading.get_ident()])


async def test_a_generator_in_a_thread_knows_what_its_call_knows() -> None:
    """`context.trace_headers` among it; another call's is not its own."""
    called = contextvars.ContextVar[int]("called")
    streams, items = Streams(), list[bytes]()

    def tells() -> Iterator[int]:
        yield called.get()

    async def call(number: int) -> None:
        called.set(number)
        await streams.run(tells(), outlet_to(items))

    await asyncio.wait_for(asyncio.gather(*map(call, range(10))), SECONDS)

    assert [b"%d" % i for i in range(10)] == sorted(items)


async def test_one_item_is_always_let_through() -> None:
    """However large it is; the next waits."""
    items: list[bytes] = []
    outlet = outlet_to(items)
    large = Item(200, "text", b"x" * (1 << 20))

    await asyncio.wait_for(outlet.put(large), SECONDS)
    second = asyncio.create_task(outlet.put(large))
    await asyncio.sleep(0)
    before = len(items)
    outlet.taken(1)
    await asyncio.wait_for(second, SECONDS)

    assert (1, 2) == (before, len(items))


def test_rows_are_not_submitted_to_a_stream() -> None:
    """A generator is an ordinary method to its own class."""
    spec = MethodSpec("tokens", batched=False, is_async=True, streams=True)
    codec = codec_of(spec)

    with pytest.raises(InvalidInputError, match=r"iterate over self\.tokens"):
        submitted_rows(codec, {"method": "tokens"}, b"[1]")
