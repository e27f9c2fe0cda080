"""Methods that yield: each request is answered item by item, as fast as its reader takes them.

A stream is a call on the channel (see dispatch.channel). What is sent and not yet taken is bounded;
beyond it the generator is not asked for more: an async one waits on the event loop, another one in
a thread of its own. From its first to its last line a generator stays in one thread, so that what
it enters there (`torch.inference_mode`, a CUDA stream) holds as it would in any program.
"""

import asyncio
import contextvars
import functools
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.results import OK
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.model.marshalling import call_item, error_item
from batchedapi_serving.predictor import ItemError, Response
from batchedapi_serving.processes import nothing

T = TypeVar("T")
MOST_ITEMS: Final = 64
MOST_BYTES: Final = 256 * 1024
"""Bytes that a stream may send before its reader takes any; one item at least."""
THREADS: Final = 1024
"""Threads for generators that are not async; further streams wait for one of them."""
_ENDED: Final = Item(OK, "text", b"")
"""How a stream ends that was yielded to its last item."""


class Outlet:
    """The outlet of one stream: takes items, and holds up the generator once they are too many.

    `put` belongs to the event loop, `put_from_thread` to the generator's thread.
    """

    def __init__(self, send: Callable[[Item], None]) -> None:
        """`send` is called on the running loop, in the order of the items."""
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._changed = threading.Condition()
        self._sizes: deque[int] = deque()  # of the items that were sent and not taken
        self._bytes = 0
        self._closed = False
        self._waiting: asyncio.Future[None] | None = None

    def taken(self, items: int) -> None:
        """The reader took so many more; called on the loop."""
        with self._changed:
            for _ in range(min(items, len(self._sizes))):
                self._bytes -= self._sizes.popleft()
            self._changed.notify()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def close(self) -> None:
        """Nobody takes anything any more; a thread that waits is told."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    async def put(self, item: Item) -> None:
        """Send it, once there is room."""
        while self._is_full():
            self._waiting = self._loop.create_future()
            await self._waiting
        self._count(item)
        self._send(item)

    def put_from_thread(self, item: Item) -> bool:
        """The same; False: nobody wants it."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._is_full())
            if self._closed:
                return False
            self._count(item)
        self._loop.call_soon_threadsafe(self._send, item)
        return True

    def _is_full(self) -> bool:
        return len(self._sizes) >= MOST_ITEMS or self._bytes >= MOST_BYTES

    def _count(self, item: Item) -> None:
        self._sizes.append(len(item.body))
        self._bytes += len(item.body)


class Streams:
    """Runs generators; owner of the threads of those that are not async."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="stream")

    async def run(
        self, generator: AsyncGenerator[Any, Any] | Generator[Any, Any, Any], outlet: Outlet
    ) -> Item:
        """Pass on all that it yields.

        Returns:
            How it ended, once the generator is closed: its own error, or none.

        Raises:
            Exception: what the generator raised, or PredictorError for what cannot be sent.
        """
        if isinstance(generator, AsyncGenerator):
            try:
                async for value in generator:
                    item = _item(value)
                    if item.status != OK:
                        return item
                    await outlet.put(item)
            finally:
                await generator.aclose()
            return _ENDED
        passed_on = functools.partial(_passed_on_in_thread, generator, outlet)
        return await in_thread(self._pool, passed_on, outlet.close)


async def in_thread(
    pool: ThreadPoolExecutor, function: Callable[[], T], give_up: Callable[[], None] = nothing
) -> T:
    """Call it in a thread that has the context of the call, such as its trace.

    A thread cannot be cancelled: `give_up` tells it. The call ends with it, so that one that hangs
    is seen to hang, and its process replaced like one whose batch does.
    """
    run = contextvars.copy_context().run
    running = asyncio.get_running_loop().run_in_executor(pool, run, _answered, function)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        give_up()
        await asyncio.wait([running])
        raise


def _answered(function: Callable[[], T]) -> T:
    try:
        return function()
    except (StopIteration, GeneratorExit) as error:
        # No future takes the one, and a coroutine that is thrown the other is closed. Of the one,
        # generators and coroutines make the same.
        raise RuntimeError(f"raised {type(error).__name__}") from error


def _passed_on_in_thread(generator: Generator[Any, Any, Any], outlet: Outlet) -> Item:
    try:
        for value in generator:
            item = _item(value)
            if item.status != OK:
                return item
            if not outlet.put_from_thread(item):
                break
    finally:
        generator.close()
    return _ENDED


def _item(value: Any) -> Item:
    """One item; with an error as its status it is the last.

    Raises:
        PredictorError: it has no place in a stream.
    """
    if isinstance(value, ItemError):
        return error_item(value)
    if isinstance(value, Response):
        raise PredictorError(
            "it yielded a Response, whose status and headers would come too late; yield its content"
        )
    item = call_item(value)
    if item.kind == "bytes":
        try:
            item.body.decode()
        except UnicodeDecodeError as error:
            raise PredictorError(
                "it yielded bytes that are no UTF-8, and a stream is text; yield"
                " base64.b64encode(...).decode()"
            ) from error
        return item._replace(kind="text")
    return item
