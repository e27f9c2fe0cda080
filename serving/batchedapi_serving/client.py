"""A client of the queue for an ASGI app of one's own, in as many processes as it runs in.

    from batchedapi_serving.client import QueueClient

    client = QueueClient()                      # REDIS__HOST and the others say where Redis is

    @app.post("/items")
    async def items(item: Item):
        return await client.predict("items", item.model_dump())

Workers (`batchedapi worker`) run what it asks for, in batches with the rows of everybody else.
Connections are made when the first row is asked for, in the process and on the loop that asks; anew
in a process that was forked from it, and on another loop.
"""

import asyncio
import contextlib
import functools
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import orjson

from batchedapi_core import contract
from batchedapi_core.batching import Client, ItemErrorPolicy, LaneChoice, Receipts
from batchedapi_core.redaction import without_secrets
from batchedapi_serving.dispatch.outcomes import Awaited, Outcome
from batchedapi_serving.errors import NotReadyError, ServingError
from batchedapi_serving.metrics.recorder import Recorder, WebRecorder
from batchedapi_serving.metrics.slots import BYTES
from batchedapi_serving.processes import first_of
from batchedapi_serving.queue.broker import Broker, Keys
from batchedapi_serving.queue.engine import QueueEngine
from batchedapi_serving.settings import BatchingSettings, QueueSettings, ReplicaSettings, Role

log = logging.getLogger(__name__)

_ANY: Final = "any"
_IDLE_SECONDS: Final = 300.0
"""After which a line is closed that nobody uses; each has several connections."""
_OK: Final = 200
_NOBODY: Final = "no worker of {} has said what it serves; start one: batchedapi worker ..."
_UNREACHABLE: Final = "the queue on Redis cannot be used: {why}"
_SILENT: Final = "the queue on Redis cannot be used: {}:{} has not answered"


class RowFailedError(ServingError):
    """The predictor refused this row, or failed on it.

    Attributes:
        row_status: The HTTP status of the row, 400 to 599: that of an `ItemError`, else 500.
            `status` is 500 for all rows.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.row_status = status


class QueueClient:
    """Asks for rows of any API whose workers take from the same Redis.

    Connects when the first row is asked for, on the loop that asks, and to each API that is asked;
    for one that nobody has asked for in five minutes, or that has no workers, it connects again.
    What breaks a connection is waited out, as by a web process. One loop at a time can use it.
    What is not said comes from REDIS__HOST, _PORT, _DB, _USERNAME and _PASSWORD. `async with`
    closes it at the end.

    Args:
        host: Name or address of Redis; localhost where nobody says it.
        port: Of Redis; 6379 where nobody says it.
        db: Number of the database; 0 where nobody says it.
        tls: Connect by TLS.
        username: Of the default user where nobody says it.
        password: None where nobody says it.
        prefix: Of the keys, as the manifest of the workers has it; "NAMESPACE:" where that has none
            and they are in a cluster.
        max_length: Requests that may wait in the queue, and those of this process that may be under
            way; each call of `predict` or `predict_many` is one. Beyond it they raise.
        timeout: Seconds that a request is waited for, and as many for the first worker to say what
            it serves; `math.inf` for no limit. Where Redis cannot be used at all, at most 10, and 5
            where it answers or refuses.
        runs_again: Whether a row may be run twice; False for workers with `onItemError: FailBatch`.
        environment: Where the variables above are looked up.

    Raises:
        ValueError: port or database of the environment are no numbers, or there are braces or
            white space in the prefix.
    """

    def __init__(
        self,
        *,
        host: str | None = None,
        port: int | None = None,
        db: int | None = None,
        tls: bool = False,
        username: str | None = None,
        password: str | None = None,
        prefix: str = "",
        max_length: int = 65536,
        timeout: float = 60.0,
        runs_again: bool = True,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._queue = QueueSettings(
            host=host or environment.get(contract.ENV_REDIS_HOST) or contract.DEFAULT_REDIS_HOST,
            port=port
            or int(environment.get(contract.ENV_REDIS_PORT) or contract.DEFAULT_REDIS_PORT),
            db=int(environment.get(contract.ENV_REDIS_DB) or 0) if db is None else db,
            tls=tls,
            username=username or environment.get(contract.ENV_REDIS_USERNAME) or None,
            password=password or environment.get(contract.ENV_REDIS_PASSWORD) or None,
            prefix=prefix,
            max_length=max_length,
        )
        Keys(prefix, _ANY)
        self._timeout = timeout
        self._runs_again = runs_again
        self._lines: dict[str, _Line] = {}
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None
        """The process and the loop that the lines are of."""
        self._parents: list[dict[str, _Line]] = []
        """Lines of processes that this one was forked from: not a byte may go over them."""
        self._closing: set[asyncio.Task[None]] = set()

    async def predict(self, name: str, row: Any, method: str | None = None) -> Any:
        """Ask for one row, and wait for its answer.

        Args:
            name: `metadata.name` of the manifest; of a class without one, its name in lower case.
            row: What the method takes, without a batch dimension: a JSON value, or an array of the
                shape of its `Tensor`; an object of such, by name, if it takes several.
            method: Of the class; None is its default method.

        Returns:
            What the method answered for this row: a JSON value, in which arrays are lists, or the
            `str` or `bytes` of its own.

        Raises:
            RowFailedError: the predictor refused the row, or failed on it.
            NotReadyError: no worker of that API has said what it serves, or Redis is away.
            NoSuchRouteError: there is no such method.
            InvalidInputError: the row is not what the method takes.
            QueueFullError: `max_length` requests wait already.
            DeadlineExceededError: no answer within `timeout`.
            ServingError: any other of batchedapi_serving.errors, as over HTTP.
            ValueError: there are braces or white space in the name.
        """
        return (await self.predict_many(name, [row], method))[0]

    async def predict_many(
        self, name: str, rows: Sequence[Any], method: str | None = None
    ) -> list[Any]:
        """Ask for several rows in one request, and wait for all of their answers.

        Args:
            name: See `predict`.
            rows: At least one, each as `predict` takes it; an array has its rows first.
            method: See `predict`.

        Returns:
            One answer for each row, in the order of rows.

        Raises:
            RowFailedError: of the first row that failed; the answers of the others are lost.
            ServingError: see `predict`; it is of all rows.
        """
        line = self._line(name)
        with line.used():
            await line.known(name, self._timeout)
            served = line.engine.served(method)
            plain = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
            answered: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
            asked = Awaited(functools.partial(_settle, answered))
            decoded = served.codec.from_rows(plain, "rows").decoded(asked)
            handle = line.engine.submit(served, decoded, line.client, asked)
            try:
                return await answered
            finally:
                line.engine.cancel(handle)

    def _line(self, name: str) -> "_Line":
        """To the queue of one API, as long as anybody asks for it."""
        owner = os.getpid(), asyncio.get_running_loop()
        if self._owner != owner:
            if self._owner is not None and self._owner[0] != owner[0]:
                self._parents.append(self._lines)
            self._owner, self._lines, self._closing = owner, {}, set()
        line = self._lines.get(name)
        if line is not None and line.ended:
            self._unused(line)
            line = None
        if line is None:
            line = self._lines[name] = _Line(self._settings(name), self._queue, self._unused)
        return line

    def _unused(self, line: "_Line") -> None:
        """Nobody asks for it any more."""
        self._lines = {name: one for name, one in self._lines.items() if one is not line}
        closing = asyncio.create_task(line.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Give the connections up; whoever waits gets a `DrainingError`."""
        lines, self._lines = self._lines, {}
        if self._owner == (os.getpid(), asyncio.get_running_loop()):
            await asyncio.gather(*(line.close() for line in lines.values()), *self._closing)

    async def __aenter__(self) -> Self:
        """Nothing is connected yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """See close."""
        await self.close()

    def _settings(self, name: str) -> ReplicaSettings:
        """Settings of a web process of that API: fields that only others need are empty."""
        policy = ItemErrorPolicy.ISOLATE if self._runs_again else ItemErrorPolicy.FAIL_BATCH
        return ReplicaSettings(
            name=name, endpoint="", revision="", predictor_path="", search=(), config={},
            processes=0, threads=0, web_processes=1, gpus=(), gpu_assignment="", cpu_threads=None,
            log_level="Info", warm_up_sizes=(), batching=BatchingSettings(), methods=(),
            lane_choice=next(iter(LaneChoice)), item_errors=policy, receipts=Receipts.OFF,
            timeout=None if self._timeout == math.inf else self._timeout, max_body_bytes=0,
            max_concurrency=self._queue.max_length, drain_delay=0.0, max_connection_age=None,
            keep_alive=0.0, grpc_port=None, host="", runtime="", role=Role.WEB, queue=self._queue,
        )  # fmt: skip


class _Line:
    """To the queue of one API."""

    def __init__(
        self, settings: ReplicaSettings, queue: QueueSettings, unused: "Callable[[_Line], None]"
    ) -> None:
        """`unused` is told when nobody has used it for long, or it leads to nobody."""
        self._known = asyncio.Event()
        self._unused = unused
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None
        self._redis = (queue.host, queue.port)
        memory = memoryview(bytearray(BYTES)).cast("d")
        self.engine = QueueEngine(
            settings,
            Broker(queue, settings.name),
            Recorder(memory, WebRecorder),
            asyncio.get_running_loop(),
            lambda _methods, _default: self._known.set(),
            unreachable=_UNREACHABLE,
        )
        self.client = Client()
        self._running = asyncio.create_task(self.engine.run())
        self._running.add_done_callback(self._over)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """It is not closed within, but a while after the last; at once if there are no workers."""
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
        try:
            yield
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._users -= 1
        if not self._users and not self.ended:
            known = self._known.is_set() or self.engine.line.why or not self.engine.line.connected
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(_IDLE_SECONDS if known else 0.0, self._unused, self)

    @property
    def ended(self) -> bool:
        """It is of no use any more."""
        return self._running.done()

    def _over(self, running: "asyncio.Task[None]") -> None:
        """Whoever waits is told, and whoever asks next has another."""
        if not running.cancelled():
            log.error("the line to the queue ended", exc_info=running.exception())
            self.engine.abandon()

    async def known(self, name: str, within: float) -> None:
        """Wait until workers have said what they serve.

        Raises:
            NotReadyError: none has, or Redis cannot be used; the message has the reason.
            QueueFullError: Redis has no memory.
        """
        if self._known.is_set():
            return
        engine = self.engine
        limit = None if within == math.inf else within
        await first_of(self._known.wait(), engine.hold.given_up.wait(), within=limit)
        if self._known.is_set():
            return
        if engine.line.why:  # also where the time was over before it was given up
            raise engine.refusal()
        if not engine.line.connected:
            raise NotReadyError(without_secrets(_SILENT.format(*self._redis)))
        raise NotReadyError(_NOBODY.format(name))

    async def close(self) -> None:
        """Nobody asks any more."""
        if self._idle is not None:
            self._idle.cancel()
        self.engine.abandon()
        self._running.cancel()
        await asyncio.wait((self._running,))
        await self.engine.close()


def _settle(answered: "asyncio.Future[list[Any]]", outcome: Outcome) -> None:
    """Take what the rows of one request were answered."""
    if answered.done():  # whoever asked was cancelled
        return
    if isinstance(outcome, ServingError):
        answered.set_exception(outcome)
        return
    items = outcome.results.items(outcome.start, outcome.stop)
    failed = next((item for item in items if item.status != _OK), None)
    if failed is None:
        answered.set_result([item.value() for item in items])
    else:
        message = str(orjson.loads(failed.body)["message"])
        answered.set_exception(RowFailedError(failed.status, message))
