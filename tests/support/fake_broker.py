"""A queue for tests of both its ends: a Broker in memory, whose Redis can be emptied and stopped.

Rooms share one `FakeRedis`; each process has a `FakeBroker` of it. Time is the caller's.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from batchedapi_core.shared_queue import ALIVE_SECONDS
from batchedapi_serving.queue.broker import (
    Broker,
    BrokerDownError,
    BrokerFullError,
    BrokerLook,
    Depth,
    HandedIn,
    Left,
    QueueGoneError,
    TakenEntry,
)


@dataclass
class Pending:
    """A request that a worker has."""

    worker: str
    deliveries: int


@dataclass
class Stream:
    """Requests by place, in order, and who has them."""

    entries: dict[str, bytes] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    """In which each came."""
    pending: dict[str, Pending] = field(default_factory=dict)
    delivered: set[str] = field(default_factory=set)
    owners: set[str] = field(default_factory=set)


class FakeRedis:
    """The one Redis that all processes share."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.down = False
        self.full = False
        self.writing_seconds = self.handing_seconds = self.looking_seconds = 0.0
        """That answers are on their way, and what it says of requests and of a look."""
        self.handed_in: list[int] = []
        """Requests of each command."""
        self.written: list[int] = []
        """Bytes of the answers of each command."""
        self.forbidden: set[str] = set()
        """Names of methods for which a right is missing."""
        self.run = 1
        self.losses = 0
        """Times more that answers are given to a connection which breaks under them."""
        self.taking_losses = 0
        """The same of requests that are given to a worker."""
        self.news = asyncio.Event()
        self.empty()

    def empty(self) -> None:
        """All data are lost."""
        self.streams: dict[str, Stream] = {}
        self.alive: dict[str, tuple[float, bytes]] = {}
        self.workers: set[str] = set()
        self.methods: dict[str, bytes] = {}
        self.lists: dict[str, list[bytes]] = {}
        self._last = 0

    def restart(self, *, keeps: bool) -> None:
        """Another run; with or without its data."""
        self.run += 1
        if not keeps:
            self.empty()

    def place(self) -> str:
        """The ID of the next request: its time in milliseconds, as Redis has it."""
        self._last += 1
        return f"{int(1000 * self.now())}-{self._last}"

    def lives(self, process: str) -> bytes | None:
        """Its sign of life, if it counts."""
        until, says = self.alive.get(process, (0.0, b""))
        return says if until > self.now() else None

    def room(self, *, there: bool) -> None:
        """For something; without memory there is none but for what is there already."""
        if self.full and not there:
            raise BrokerFullError("full")

    def tell(self) -> None:
        """Whoever waits looks again."""
        self.news.set()
        self.news = asyncio.Event()


class FakeBroker(Broker):
    """A broker whose Redis is in memory."""

    def __init__(self, redis: FakeRedis) -> None:
        self._redis = redis
        self._run_of_redis = 0
        self.connected = False

    def _up(self, method: str = "") -> FakeRedis:
        if self._redis.down or not self.connected:
            raise BrokerDownError("stopped")
        if method in self._redis.forbidden:
            raise BrokerDownError(f"no permissions to {method}")
        return self._redis

    async def connect(self) -> None:
        """See Broker."""
        if self._redis.down:
            raise BrokerDownError("stopped")
        self.connected = True
        self._run_of_redis = self._redis.run

    async def close(self) -> None:
        """See Broker."""
        self.connected = False

    async def sign(self, process: str, says: bytes) -> bool:
        """See Broker."""
        redis = self._up()
        lived = redis.lives(process) is not None
        redis.room(there=lived)
        redis.alive[process] = (redis.now() + ALIVE_SECONDS, says)
        return lived

    async def gone(self, process: str) -> None:
        """See Broker."""
        redis = self._up()
        redis.alive.pop(process, None)
        redis.lists.pop(process, None)
        redis.workers.discard(process)

    async def look(self, streams: Iterable[str], web: Iterable[str] = ()) -> BrokerLook:
        """See Broker."""
        redis = self._up()
        depths = {}
        for name in streams:
            stream = redis.streams.get(name, Stream())
            waiting = [place for place in stream.entries if place not in stream.delivered]
            oldest = int(waiting[0].split("-")[0]) / 1000 if waiting else None
            exists = name in redis.streams
            depths[name] = Depth(len(waiting), oldest, len(stream.entries), exists)
        look = BrokerLook(
            redis.now(),
            {worker: redis.lives(worker) for worker in sorted(redis.workers)},
            frozenset(one for one in web if redis.lives(one) is not None),
            depths,
        )
        await asyncio.sleep(redis.looking_seconds)
        return look

    async def published(self) -> Mapping[str, bytes]:
        """See Broker."""
        return dict(self._up().methods)

    async def publish(self, revision: str, says: bytes, forget: Sequence[str] = ()) -> None:
        """See Broker."""
        redis = self._up()
        methods = redis.methods
        redis.room(there=revision in methods)
        methods[revision] = says
        for one in forget:
            methods.pop(one, None)

    async def hand_in(self, rows: Sequence[tuple[str, bytes]]) -> HandedIn:
        """See Broker."""
        redis = self._up("hand_in")
        redis.handed_in.append(len(rows))
        places: list[str | None] = []
        for name, entry in rows:
            if redis.full:
                places.append(None)
                continue
            place = redis.place()
            stream = redis.streams.setdefault(name, Stream())
            stream.entries[place], stream.runs[place] = entry, self._run_of_redis
            places.append(place)
        redis.tell()
        names = {name for name, _ in rows}
        lengths = {name: len(redis.streams.get(name, Stream()).entries) for name in names}
        await asyncio.sleep(redis.handing_seconds)
        return HandedIn(places, lengths)

    async def withdraw(self, rows: Iterable[tuple[str, str]]) -> None:
        """See Broker."""
        redis = self._up()
        for name, place in rows:
            redis.streams.get(name, Stream()).entries.pop(place, None)

    async def there(self, rows: Sequence[tuple[str, str]]) -> frozenset[str]:
        """See Broker."""
        redis = self._up()
        return frozenset(
            place for name, place in rows if place in redis.streams.get(name, Stream()).entries
        )

    async def answers(self, web: str, seconds: float) -> Sequence[bytes]:
        """See Broker."""
        await self._wait(lambda: bool(self._up().lists.get(web)), seconds)
        redis = self._up()
        packs = redis.lists.pop(web, [])
        if packs and redis.losses:
            redis.losses -= 1
            raise BrokerDownError("broken")
        return packs

    async def open(self, streams: Iterable[str]) -> None:
        """See Broker."""
        redis = self._up()
        for name in streams:
            redis.room(there=name in redis.streams)
            redis.streams.setdefault(name, Stream())

    async def register(self, worker: str, streams: Iterable[str]) -> None:  # noqa: ARG002 - they stay
        """See Broker."""
        redis = self._up()
        redis.room(there=worker in redis.workers)
        redis.workers.add(worker)

    async def forget(self, workers: Iterable[str]) -> None:
        """See Broker."""
        self._up().workers -= set(workers)

    async def take(
        self, worker: str, wanted: Mapping[str, int], seconds: float
    ) -> Sequence[TakenEntry]:
        """See Broker."""
        self._up("take")
        await self._wait(lambda: bool(self._new(wanted)), seconds)
        taken = []
        for name in self._new(wanted):
            stream = self._stream(name)
            new = [place for place in stream.entries if place not in stream.delivered]
            for place in new[: wanted[name]]:
                stream.delivered.add(place)
                stream.owners.add(worker)
                stream.pending[place] = Pending(worker, 1)
                taken.append(self._found(name, place))
        if taken and self._redis.taking_losses:
            self._redis.taking_losses -= 1
            raise BrokerDownError("broken")
        return taken

    def _found(self, name: str, place: str, deaths: int = 0) -> TakenEntry:
        stream = self._stream(name)
        return TakenEntry(
            name, place, stream.entries[place], deaths, stream.runs[place] != self._run_of_redis
        )

    def _new(self, wanted: Iterable[str]) -> list[str]:
        return [
            name
            for name in wanted
            if self._stream(name).entries.keys() - self._stream(name).delivered
        ]

    def _stream(self, name: str) -> Stream:
        streams = self._up().streams
        if name not in streams:
            raise QueueGoneError(name)
        return streams[name]

    async def mine(self, worker: str, streams: Iterable[str]) -> Sequence[TakenEntry]:
        """See Broker."""
        return [
            self._found(name, place, pending.deliveries - 1)
            for name in streams
            for place, pending in self._stream(name).pending.items()
            if pending.worker == worker and place in self._stream(name).entries
        ]

    async def answer(
        self, packs: Sequence[tuple[str, bytes]], done: Mapping[str, Sequence[str]]
    ) -> bool:
        """See Broker."""
        if self._redis.writing_seconds:
            await asyncio.sleep(self._redis.writing_seconds)
        redis = self._up()
        for name, places in done.items():
            stream = redis.streams.get(name, Stream())
            for place in places:
                stream.pending.pop(place, None)
                stream.entries.pop(place, None)
        if redis.full and packs:
            return False
        redis.written.append(sum(len(pack) for _, pack in packs))
        for web, pack in packs:
            redis.lists.setdefault(web, []).append(pack)
        redis.tell()
        return True

    async def owners(self, streams: Iterable[str]) -> frozenset[str]:
        """See Broker."""
        return frozenset(owner for name in streams for owner in self._stream(name).owners)

    async def left(self, dead: str, streams: Iterable[str]) -> Sequence[Left]:
        """See Broker."""
        return [
            Left(name, place, pending.deliveries)
            for name in streams
            for place, pending in self._stream(name).pending.items()
            if pending.worker == dead
        ]

    async def claim(self, worker: str, rows: Sequence[Left]) -> Sequence[TakenEntry]:
        """See Broker."""
        claimed = []
        for row in rows:
            stream = self._stream(row.stream)
            pending = stream.pending.get(row.place)
            if pending is None or self._up().lives(pending.worker) is not None:
                continue
            stream.owners.add(worker)
            stream.pending[row.place] = Pending(worker, pending.deliveries + 1)
            claimed.append(self._found(row.stream, row.place, row.deaths))
        return claimed

    async def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        """Until `condition()`, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._redis.news.wait()
        except TimeoutError:
            pass
