"""One queue in memory and what takes part in it, in virtual time: web processes and workers.

async with room() as here:
    worker, web = await here.worker(), await here.web()
    answer = await web.ask({"id": 1}).answer()
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer, RequestHead, Wire
from batchedapi_serving.dispatch.engine import RequestHandle
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.recorder import Recorder, WebRecorder
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.queue.engine import QueueEngine
from batchedapi_serving.queue.puller import Puller
from batchedapi_serving.settings import QueueSettings, Role
from dispatching import World, replica_settings
from fake_broker import FakeBroker, FakeRedis

JSON = RequestHead(b"application/json", b"", ())


class Asked:
    """A client of one request."""

    span = None

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.came = asyncio.Event()

    def request_id(self) -> str | None:
        """See Caller."""
        return None

    def deliver(self, answer: Answer) -> None:
        """See Caller."""
        self.answers.append(answer)
        self.came.set()

    async def answer(self) -> Answer:
        """The first."""
        await self.came.wait()
        return self.answers[0]


class Room:
    """One Redis, and what takes part in it."""

    def __init__(self, **settings: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.redis = FakeRedis(self.loop.time)
        self.settings = settings
        self.tasks: list[asyncio.Task[None]] = []

    async def web(self, **queue: Any) -> "Web":
        """A web process that knows the methods, if a worker ever said them."""
        web = Web(self, **queue)
        self.tasks.append(asyncio.create_task(web.engine.run()))
        await asyncio.sleep(1.0)
        return web

    async def worker(self, *, seconds: float | None = None, **world: Any) -> "Worker":
        """A worker with its model processes; `seconds` is what each batch takes."""
        if seconds is not None:
            world["seconds"] = lambda _: seconds
        worker = Worker(self, **world)
        worker.task = asyncio.create_task(worker.puller.run())
        self.tasks.append(worker.task)
        await asyncio.sleep(0.5)
        return worker


class Web:
    """A web process."""

    def __init__(self, room: Room, **queue: Any) -> None:
        self.memory = memoryview(bytearray(slots.BYTES)).cast("d")
        self.told: list[list[str]] = []
        self.engine = QueueEngine(
            replica_settings(**room.settings, role=Role.WEB, queue=QueueSettings(**queue)),
            FakeBroker(room.redis),
            Recorder(self.memory, WebRecorder),
            room.loop,
            self._ready,
            room.loop.time,
        )

    def _ready(self, methods: Sequence[MethodSpec], default: str | None) -> None:
        self.told.append([*(method.name for method in methods), str(default)])

    @property
    def unread(self) -> int:
        """The number of messages that could not be read."""
        return int(self.memory[slots.QUEUE_UNREADABLE + 1])

    def ask(self, value: Any, timeout: float | None = None) -> Asked:
        """Send one item; what is refused raises."""
        return self.submit(value, timeout)[0]

    def submit(self, value: Any, timeout: float | None = None) -> tuple[Asked, RequestHandle]:
        """The same, to be cancelled."""
        served = self.engine.served(None)
        decoded = served.codec.decode(Wire.PLAIN, JSON, orjson.dumps(value))
        asked = Asked()
        return asked, self.engine.submit(served, decoded, Client(), asked, timeout)


class Worker:
    """A worker: what dies with its machine."""

    def __init__(self, room: Room, **world: Any) -> None:
        self.world = World(**{**room.settings, **world})
        self.connected: list[bool] = []
        self.unread = 0
        """What could not be read."""
        self.puller = Puller(
            replica_settings(**room.settings),
            FakeBroker(room.redis),
            self.world.dispatcher,
            self.connected.append,
            room.loop.time,
            room.loop.time,
            unreadable=self._unreadable,
        )
        self.task: asyncio.Task[None] | None = None

    def _unreadable(self, times: int) -> None:
        self.unread += times

    def die(self) -> None:
        """SIGKILL to all of it."""
        assert self.task is not None
        self.task.cancel()


@contextlib.asynccontextmanager
async def room(**settings: Any) -> AsyncIterator[Room]:
    """Ends what was started in it."""
    opened = Room(**{"batch_interval": 0.0, **settings})
    try:
        yield opened
    finally:
        for task in opened.tasks:
            task.cancel()


def left_over(redis: FakeRedis) -> int:
    """Requests in all streams."""
    return sum(len(stream.entries) for stream in redis.streams.values())
