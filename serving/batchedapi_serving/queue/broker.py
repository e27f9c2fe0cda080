"""The commands to Redis, or Valkey, and nothing about why.

Keys, all with the prefix and the name of the API:

    rows:SIGNATURE:METHOD   stream, one entry a request, with the run of Redis in which it came; its
                            group `workers` has one consumer each
    answers:WEB             list, one element for all answers that a batch has for a web process
    workers                 set of workers that were ever seen and not yet forgotten
    alive:PROCESS           what a worker or a web process says of itself; expires by itself
    methods                 hash: what each revision serves, for web processes while no worker runs

Three connections: one waits, one carries rows or answers, one looks who lives; a command behind a
large batch must not make somebody look dead.
"""

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ExecAbortError,
    NoPermissionError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from batchedapi_core.redaction import without_secrets
from batchedapi_core.shared_queue import ALIVE_SECONDS
from batchedapi_serving.settings import QueueSettings

log = logging.getLogger(__name__)

OLDEST_SERVER: Final = (7, 0)
"""BLMPOP came with it; every Valkey has it."""
_GROUP: Final = "workers"
_FIELD: Final = b"r"
_RUN: Final = b"s"
_COMMAND_SECONDS: Final = 5.0
"""Redis may take so long to answer; after it the connection is made anew."""
_ANSWERS_KEPT: Final = 120
"""Seconds that answers stay which nobody fetches: their web process is dead."""
_ROWS_KEPT: Final = 7 * 24 * 3600
"""Seconds that the stream of a signature stays after its last worker was there, empty or not."""
_ANSWERS_AT_ONCE: Final = 8
"""Packs of answers in one reply, each of at most 16 MiB."""
_CLAIMED_AT_ONCE: Final = 1024
_RIGHTS: Final = "grant REDIS__USERNAME the commands and keys that docs/guides/one-queue.md lists"
_FORGET_IDLE: Final = 60_000
"""Milliseconds after which a dead worker's name is forgotten, if it has nothing any more."""
_CLAIM_IDLE: Final = 500
"""Milliseconds that a row lies with a dead worker before it is claimed. Claiming starts it anew:
of two workers that claim the same row one gets it."""


class BrokerDownError(Exception):
    """Redis does not answer, or not to us; try again in a moment."""

    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(message))


class QueueGoneError(BrokerDownError):
    """It answers, and the streams are not there: Redis was emptied, or started anew."""


class QueueSpoiltError(QueueGoneError):
    """A key of ours was of another type, or full of what is none of ours; it is deleted."""


class BrokerFullError(BrokerDownError):
    """It has no memory left for what must be written."""


class BrokerUnfitError(Exception):
    """This Redis must not be used as it is; the message says why, and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(without_secrets(message))


class HandedIn(NamedTuple):
    """The fate of requests that were handed in."""

    places: Sequence[str | None]
    """One for each; None: Redis has no memory for it."""
    lengths: Mapping[str, int]
    """Requests in each of the streams, those that run too."""


class TakenEntry(NamedTuple):
    """A request out of the queue; nobody else has it as long as its worker lives."""

    stream: str
    place: str
    entry: bytes
    """Empty: there is none in it."""
    deaths: int = 0
    """Deaths of workers that had it before."""
    restored: bool = False
    """It was handed in to another run of Redis, which may have seen more of it than this one."""


class Left(NamedTuple):
    """A request that a dead worker had."""

    stream: str
    place: str
    deaths: int
    """Deaths of workers that had it, this one's too."""


class Depth(NamedTuple):
    """The state of one stream."""

    requests: int
    """Not yet taken by any worker."""
    oldest: float | None
    """When the first of them came, in seconds of Redis' clock."""
    length: int
    """Requests in it, those that run too."""
    exists: bool


class BrokerLook(NamedTuple):
    """Everybody at one moment."""

    time: float
    """Seconds since 1970 on Redis' clock."""
    workers: Mapping[str, bytes | None]
    """The words of each; None: no sign of life."""
    alive: frozenset[str]
    """Web processes that live, among those that were asked for."""
    depths: Mapping[str, Depth]


_PREFIX: Final = re.compile(r"[^\s{}]*")
_API: Final = re.compile(r"[^\s{}]+")


class Keys:
    """Names in Redis; the braces keep all of an API on one node of a cluster.

    All begin with the prefix, whatever the name of the API, of a process or of a method.

    Raises:
        ValueError: prefix or name have braces or white space.
    """

    def __init__(self, prefix: str, api: str) -> None:
        for what, value, allowed in (("prefix", prefix, _PREFIX), ("name of an API", api, _API)):
            if allowed.fullmatch(value) is None:
                raise ValueError(
                    f"queue: expected a {what} without braces and white space, got {value!r}"
                )
        self._base = f"{prefix}batchedapi:{{{api}}}:"
        self.workers = f"{self._base}workers"
        self.methods = f"{self._base}methods"

    def alive(self, process: str) -> str:
        """The key of a process's sign of life."""
        return f"{self._base}alive:{process}"

    def answers(self, web: str) -> str:
        """The key of a web process's answers."""
        return f"{self._base}answers:{web}"

    def rows(self, stream: str) -> str:
        """The key of requests of one signature and method."""
        return f"{self._base}rows:{stream}"


class Broker:
    """The queue, as both sides use it; tests have one without Redis.

    Every method raises BrokerDownError when it cannot be reached, and connect is to be called then.
    """

    def __init__(self, settings: QueueSettings, api: str) -> None:
        self._settings = settings
        self._keys = Keys(settings.prefix, api)
        self._carries, self._waits, self._looks = (self._client() for _ in range(3))
        self._run = b""
        """The one that is connected to: another after a restart, or at a replica that took over."""

    def _client(self) -> "redis.Redis":
        settings = self._settings
        # Without tries of its own: a request that was sent twice would be run twice.
        return redis.Redis(
            host=settings.host,
            port=settings.port,
            db=settings.db,
            username=settings.username,
            password=settings.password,
            ssl=settings.tls,
            protocol=2,
            single_connection_client=True,
            socket_timeout=None,
            socket_connect_timeout=_COMMAND_SECONDS,
            retry=Retry(NoBackoff(), 0),
            encoding_errors="surrogateescape",  # names by others are names: of the dead
            driver_info=None,
        )

    # ------------------------------------------------------------ connecting

    async def connect(self) -> None:
        """Connect anew; data may be lost, and what Redis gave to the connection before.

        Raises:
            BrokerUnfitError: it must not be used.
        """
        await self.close()
        self._carries, self._waits, self._looks = (self._client() for _ in range(3))
        async with self._asking():
            info: dict[str, Any] = await self._looks.info()
            await asyncio.gather(self._carries.ping(), self._waits.ping())
        problem = unfit(info)
        if problem is not None:
            raise BrokerUnfitError(f"{self._settings.host}:{self._settings.port}: {problem}")
        # A service that hides its id is one run for ever.
        self._run = str(info.get("run_id", "")).encode()

    async def close(self) -> None:
        """Give the connections up."""
        for client in (self._carries, self._waits, self._looks):
            try:
                await client.aclose()
            except (RedisError, OSError) as error:
                log.debug("connection to the queue ended", extra={"error": str(error)})

    @asynccontextmanager
    async def _asking(self, *keys: str, waits: float = 0.0) -> AsyncIterator[None]:
        """As `_answering`; one of `keys` is deleted if it is not what we made.

        Raises:
            QueueSpoiltError: it was. All that others need is written again, and handed in again.
        """
        async with _answering(waits):
            try:
                yield
            except ResponseError as error:
                if not _spoilt(error):
                    raise
                if len(keys) > 1:  # streams, one of them
                    pipe = self._looks.pipeline(transaction=False)
                    for key in keys:
                        pipe.xlen(key)
                    await self._execute(pipe)
                else:
                    await self._delete(keys)
                raise

    async def _execute(
        self, pipe: Any, expected: Callable[[Any], bool] = lambda _: False
    ) -> list[Any]:
        """Send several commands, each with its key as the first argument, and return the answers.

        Raises:
            RedisError: one failed in another way than is `expected`.
            QueueSpoiltError: see `_asking`.
        """
        keys = [words[1] if words[1:] else "" for words, _ in pipe.command_stack]
        said = await pipe.execute(raise_on_error=False)
        spoilt = [key for key, one in zip(keys, said, strict=True) if _spoilt(one)]
        if spoilt:
            await self._delete(spoilt)
        for one in said:
            if isinstance(one, RedisError) and not expected(one):
                raise one
        return list(said)

    async def _delete(self, keys: Sequence[str]) -> None:
        await self._looks.delete(*keys)
        raise QueueSpoiltError("a key of the queue was of another type or full, and is deleted")

    # ------------------------------------------------------------ who lives

    async def sign(self, process: str, says: bytes) -> bool:
        """A sign of life; whether the one before still counted."""
        key, milliseconds = self._keys.alive(process), int(1000 * ALIVE_SECONDS)
        async with self._asking(key):
            try:
                before: Any = await self._looks.set(key, says, px=milliseconds, get=True)
            except OutOfMemoryError:  # what it said last stands, and needs none
                if not await self._looks.expire(key, math.ceil(ALIVE_SECONDS)):
                    raise
                return True
        return before is not None

    async def gone(self, process: str) -> None:
        """It ends in order: it is not waited for, and nothing is kept for it."""
        async with self._asking():
            pipe = self._looks.pipeline(transaction=False)
            pipe.delete(self._keys.alive(process), self._keys.answers(process))
            pipe.srem(self._keys.workers, process)
            await self._execute(pipe)

    async def look(self, streams: Iterable[str], web: Iterable[str] = ()) -> BrokerLook:
        """Look who lives, and how much waits."""
        streams, keys, web = list(streams), self._keys, list(web)
        async with self._asking():
            pipe = self._looks.pipeline(transaction=False)
            pipe.time()
            pipe.smembers(keys.workers)
            for stream in streams:
                pipe.xinfo_groups(keys.rows(stream))
                pipe.xlen(keys.rows(stream))
            said = await self._execute(pipe, _not_there)
            (seconds, micros), members, *found = said
            workers = sorted(map(_name, members))
            waiting = [
                _waiting(groups, length)
                for groups, length in zip(found[::2], found[1::2], strict=True)
            ]
            pipe = self._looks.pipeline(transaction=False)
            asked = [keys.alive(one) for one in (*workers, *web)]
            if asked:
                pipe.mget(asked)
            for stream, (requests, after) in zip(streams, waiting, strict=True):
                if requests > 0:
                    pipe.xrange(keys.rows(stream), min=f"({after}", max="+", count=1)
            said = await self._execute(pipe)
        lives = said.pop(0) if asked else []
        depths = {}
        for stream, (requests, after), length in zip(streams, waiting, found[1::2], strict=True):
            first = said.pop(0) if requests > 0 else []
            oldest = int(first[0][0].split(b"-")[0]) / 1000 if first else None
            depths[stream] = Depth(requests if first else 0, oldest, length, after is not None)
        web_lives = zip(web, lives[len(workers) :], strict=True)
        return BrokerLook(
            seconds + micros / 1e6,
            dict(zip(workers, lives, strict=False)),
            frozenset(one for one, says in web_lives if says is not None),
            depths,
        )

    async def published(self) -> Mapping[str, bytes]:
        """By revision, what it serves."""
        async with self._asking(self._keys.methods):
            found: Any = await self._looks.hgetall(self._keys.methods)
        return {_name(revision): says for revision, says in found.items()}

    async def publish(self, revision: str, says: bytes, forget: Sequence[str] = ()) -> None:
        """Tell what a revision serves, and forget others."""
        async with self._asking(self._keys.methods):
            try:
                await self._looks.hset(self._keys.methods, revision, says)
            except OutOfMemoryError:  # said also where it is there already
                if revision.encode() not in await self._looks.hgetall(self._keys.methods):
                    raise
            if forget:
                await self._looks.hdel(self._keys.methods, *forget)

    # ------------------------------------------------------------ web processes

    async def hand_in(self, rows: Sequence[tuple[str, bytes]]) -> HandedIn:
        """Put requests into their streams, in order."""
        streams = list(dict.fromkeys(stream for stream, _ in rows))
        async with self._asking():
            pipe = self._carries.pipeline(transaction=False)
            for stream, entry in rows:
                key = self._keys.rows(stream)
                pipe.execute_command("XADD", key, "*", _FIELD, entry, _RUN, self._run)
            for stream in streams:
                pipe.xlen(self._keys.rows(stream))
            said = await self._execute(pipe, _no_memory)
        places = [None if _no_memory(one) else one.decode() for one in said[: len(rows)]]
        return HandedIn(places, dict(zip(streams, said[len(rows) :], strict=True)))

    async def withdraw(self, rows: Iterable[tuple[str, str]]) -> None:
        """Nobody waits for them: (stream, place) each."""
        async with self._asking():
            pipe = self._carries.pipeline(transaction=False)
            for stream, places in _grouped(rows).items():
                pipe.xdel(self._keys.rows(stream), *places)
            await self._execute(pipe)

    async def there(self, rows: Sequence[tuple[str, str]]) -> frozenset[str]:
        """The places among (stream, place) that are taken still."""
        if not rows:
            return frozenset()
        async with self._asking():
            pipe = self._carries.pipeline(transaction=False)
            for stream, place in rows:
                pipe.xrange(self._keys.rows(stream), min=place, max=place, count=1)
            found = await self._execute(pipe)
        return frozenset(place for (_, place), entry in zip(rows, found, strict=True) if entry)

    async def answers(self, web: str, seconds: float) -> Sequence[bytes]:
        """Fetch the answers for a web process; waits so long for the first."""
        key = self._keys.answers(web)
        async with self._asking(key, waits=seconds):
            if seconds > 0:
                found: Any = await self._waits.blmpop(
                    seconds, 1, key, direction="LEFT", count=_ANSWERS_AT_ONCE
                )
            else:
                found = await self._waits.lmpop(1, key, direction="LEFT", count=_ANSWERS_AT_ONCE)
        return [] if found is None else list(found[1])

    # ------------------------------------------------------------ workers

    async def open(self, streams: Iterable[str]) -> None:
        """Make streams that workers are to take from."""
        for key in map(self._keys.rows, streams):
            async with self._asking(key):
                try:
                    await self._looks.xgroup_create(key, _GROUP, id="0", mkstream=True)
                except OutOfMemoryError:  # said also where it is there already
                    if not await self._has_group(key):
                        raise
                except ResponseError as error:
                    if "BUSYGROUP" not in str(error):
                        raise

    async def _has_group(self, key: str) -> bool:
        try:
            await self._looks.xpending(key, _GROUP)
        except ResponseError as error:
            if not _not_there(error):
                raise
            return False
        return True

    async def register(self, worker: str, streams: Iterable[str]) -> None:
        """A worker of these streams, whose signs of life are to be looked for; to be said again.

        Streams of which nobody says it for a week are gone.
        """
        async with self._asking(self._keys.workers):
            try:
                await self._looks.sadd(self._keys.workers, worker)
            except OutOfMemoryError:  # said also where it is there already
                if worker.encode() not in await self._looks.smembers(self._keys.workers):
                    raise
            pipe = self._looks.pipeline(transaction=False)
            for stream in streams:
                pipe.expire(self._keys.rows(stream), _ROWS_KEPT)
            await self._execute(pipe)

    async def forget(self, workers: Iterable[str]) -> None:
        """The dead, whose signs of life are not looked for any more."""
        async with self._asking(self._keys.workers):
            await self._looks.srem(self._keys.workers, *workers)

    async def take(
        self, worker: str, wanted: Mapping[str, int], seconds: float
    ) -> Sequence[TakenEntry]:
        """At most so many requests of each stream; waits so long for the first."""
        names = {self._keys.rows(stream): stream for stream in wanted}
        count = max(1, min(wanted.values()))
        async with self._asking(*names, waits=seconds):
            found: Any = await self._waits.xreadgroup(
                _GROUP, worker, dict.fromkeys(names, ">"), count=count, block=int(1000 * seconds)
            )
        return [
            self._taken(names[_name(key)], place, fields)
            for key, entries in found or ()
            for place, fields in entries
        ]

    def _taken(
        self, stream: str, place: bytes, fields: Mapping[bytes, bytes], deaths: int = 0
    ) -> TakenEntry:
        # Without it where a web process of an older build handed it in.
        restored = fields.get(_RUN, self._run) != self._run
        return TakenEntry(stream, place.decode(), fields.get(_FIELD, b""), deaths, restored)

    async def mine(self, worker: str, streams: Iterable[str]) -> Sequence[TakenEntry]:
        """Requests that a worker took, or claimed, and has not answered.

        Reading them by XREADGROUP again would count as a delivery more: a death.
        """
        mine: list[TakenEntry] = []
        for stream in streams:
            after = "-"
            while some := await self._pending(worker, stream, after):
                after = f"({some[-1].place}"
                async with self._asking():
                    pipe = self._looks.pipeline(transaction=False)
                    for one in some:
                        pipe.xrange(self._keys.rows(stream), min=one.place, max=one.place, count=1)
                    found: Any = await self._execute(pipe)
                mine += [
                    self._taken(stream, place, fields, one.deaths - 1)
                    for one, entries in zip(some, found, strict=True)
                    for place, fields in entries  # none: its client left
                ]
        return mine

    async def answer(
        self, packs: Sequence[tuple[str, bytes]], done: Mapping[str, Sequence[str]]
    ) -> bool:
        """Answers for web processes, and requests that are over; False: no memory for answers."""
        async with self._asking():
            pipe = self._carries.pipeline(transaction=True)
            for web, pack in packs:
                key = self._keys.answers(web)
                pipe.rpush(key, pack)
                pipe.expire(key, _ANSWERS_KEPT)
            self._over(pipe, done)
            try:
                await self._execute(pipe)
            except (OutOfMemoryError, ExecAbortError) as error:
                if not _no_memory(error):
                    raise
                # What is over frees memory, and is allowed without any, though not in MULTI.
                pipe = self._carries.pipeline(transaction=False)
                self._over(pipe, done)
                await self._execute(pipe)
                return not packs
        return True

    def _over(self, pipe: Any, done: Mapping[str, Sequence[str]]) -> None:
        for stream, places in done.items():
            pipe.xack(self._keys.rows(stream), _GROUP, *places)
            pipe.xdel(self._keys.rows(stream), *places)

    async def owners(self, streams: Iterable[str]) -> frozenset[str]:
        """Workers that ever took something, by name."""
        async with self._asking():
            pipe = self._looks.pipeline(transaction=False)
            for stream in streams:
                pipe.xinfo_consumers(self._keys.rows(stream), _GROUP)
            found = await self._execute(pipe)
        return frozenset(_name(one["name"]) for consumers in found for one in consumers)

    async def left(self, dead: str, streams: Iterable[str]) -> Sequence[Left]:
        """Requests that a dead worker has; one that has had nothing for long is forgotten."""
        streams = list(streams)
        left = [one for stream in streams for one in await self._pending(dead, stream)]
        if left:
            return left
        for stream in streams:
            key = self._keys.rows(stream)
            async with self._asking(key):
                for one in await self._looks.xinfo_consumers(key, _GROUP):
                    if _name(one["name"]) == dead and one["idle"] > _FORGET_IDLE:
                        await self._looks.xgroup_delconsumer(key, _GROUP, dead)
        return ()

    async def _pending(self, worker: str, stream: str, after: str = "-") -> Sequence[Left]:
        """The first of what a worker has of a stream; `after` is as XPENDING takes a start."""
        key = self._keys.rows(stream)
        async with self._asking(key):
            pending: Any = await self._looks.xpending_range(
                key, _GROUP, after, "+", _CLAIMED_AT_ONCE, worker
            )
        return [Left(stream, one["message_id"].decode(), one["times_delivered"]) for one in pending]

    async def claim(self, worker: str, rows: Sequence[Left]) -> Sequence[TakenEntry]:
        """Requests of dead workers are this one's, but for those that another has claimed."""
        claimed = []
        deaths = {(row.stream, row.place): row.deaths for row in rows}
        for stream, places in _grouped(deaths).items():
            key = self._keys.rows(stream)
            async with self._asking(key):
                found: Any = await self._looks.xclaim(
                    key, _GROUP, worker, _CLAIM_IDLE, list(places)
                )
                claimed += [
                    self._taken(stream, place, fields, deaths[stream, place.decode()])
                    for place, fields in found
                    if fields  # else its client left, and it is there no more
                ]
        return claimed


def unfit(info: Mapping[str, Any]) -> str | None:
    """Why this Redis must not be used, and the remedy; `info` is what INFO says."""
    version = str(info.get("valkey_version") or info.get("redis_version", ""))
    numbers = re.match(r"(\d+)\.(\d+)", version)  # a service may hide it
    if numbers is not None and tuple(map(int, numbers.groups())) < OLDEST_SERVER:
        return f"Redis {version} is too old; expected at least 7.0, or any Valkey"
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return (
            f"maxmemory-policy is {policy}, and rows could be thrown away that were accepted; set"
            " it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf)"
        )
    return None


def _no_memory(said: Any) -> bool:
    return isinstance(said, OutOfMemoryError) or _aborted_for(said, "OOM")


def _aborted_for(said: Any, words: str) -> bool:
    """Whether it is EXEC, which is answered with its own error and has the cause as its text."""
    return isinstance(said, ExecAbortError) and words in str(said)


def _spoilt(said: Any) -> bool:
    """Whether it is what Redis says of a key of another type, or where no entry fits any more."""
    return isinstance(said, ResponseError) and any(
        words in str(said) for words in ("WRONGTYPE", "exhausted the last possible ID")
    )


def _name(raw: bytes) -> str:
    """Whatever somebody called a key, a field or a worker; it is written back as it came."""
    return raw.decode(errors="surrogateescape")


def _not_there(said: Any) -> bool:
    """Whether it is what Redis says of a stream that is not there."""
    return isinstance(said, ResponseError) and any(
        words in str(said) for words in ("NOGROUP", "no such key")
    )


def _waiting(groups: Any, length: int) -> tuple[int, str | None]:
    """Requests that nobody has taken, and the place of the last that was; None: no stream."""
    if isinstance(groups, Exception):
        return 0, None
    for group in groups:
        if group["name"] == _GROUP.encode():
            after = group["last-delivered-id"].decode()
            return max(0, length - group["pending"]), after
    return length, "0-0"


def _grouped(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for stream, place in rows:
        grouped.setdefault(stream, []).append(place)
    return grouped


@asynccontextmanager
async def _answering(waits: float = 0.0) -> AsyncIterator[None]:
    """Translate whatever goes wrong; `waits`: seconds that Redis was asked to wait."""
    try:
        async with asyncio.timeout(waits + _COMMAND_SECONDS):
            yield
    except TimeoutError as error:
        raise BrokerDownError(f"no answer within {_COMMAND_SECONDS:g} s") from error
    except AuthenticationError as error:
        raise BrokerDownError(f"{error}; see REDIS__USERNAME and REDIS__PASSWORD") from error
    except OutOfMemoryError as error:
        raise BrokerFullError(f"Redis has no memory left: {error}; raise its maxmemory") from error
    except BusyLoadingError as error:
        raise BrokerDownError("Redis is loading its data") from error
    except ResponseError as error:
        if isinstance(error, NoPermissionError) or _aborted_for(error, "permissions"):
            raise BrokerDownError(f"{error}; {_RIGHTS}") from error
        if "without MULTI" in str(error):  # what MULTI itself was answered, redis-py keeps
            raise BrokerDownError(f"no permission to run 'multi'; {_RIGHTS}") from error
        if _not_there(error):
            raise QueueGoneError(str(error)) from error
        raise BrokerDownError(str(error)) from error
    except (RedisError, OSError) as error:
        raise BrokerDownError(f"{type(error).__name__}: {error}") from error
