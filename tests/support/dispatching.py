"""A dispatcher with models that take virtual time: real lanes and codecs, no processes, no sockets.

A model is a function over JSON items. It may raise, answer anything, `die` or `hang`; time passes
only on the event loop, so a test of a timeout takes none.
"""

import asyncio
import contextvars
import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import looptime
import orjson

from batchedapi_core.batching import Client, Strategy
from batchedapi_serving.codecs import Answer, RequestHead, Wire
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.dispatch.engine import RequestHandle
from batchedapi_serving.dispatch.lane_connection import LaneConnection
from batchedapi_serving.ipc import Frame, FrameReader, Payload, encode_frame
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.model.streams import Outlet
from batchedapi_serving.oom import OomKills
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import BatchingSettings, MethodSettings, ReplicaSettings
from batchedapi_serving.tracing.spans import Span, Tracer
from plain_settings import plain_settings

FIXED: Final = 0.010
PER_ROW: Final = 0.0002
ITEMS: Final = MethodSpec("predict", batched=True, max_batch_size=32)
_HEAD: Final = RequestHead(b"application/json", b"", ())


_ENDINGS: Final = contextvars.ContextVar[list[BaseException]]("endings")
"""Of the batch or call that runs: what its model raised that is no answer of a real process."""


class EndingError(BaseException):
    """An exception by which a model ends its process here; one of user code would be an answer."""

    def __init__(self) -> None:
        super().__init__()
        _ENDINGS.get().append(self)


class DiedError(EndingError):
    """The model process ends here, without an answer."""


class KilledForMemoryError(DiedError):
    """The kernel ends the process here, because memory ran out."""


class HangsError(EndingError):
    """The model never answers this batch."""


def echo(items: list[Any]) -> list[Any]:
    """Answers each item with itself."""
    return items


class Asked:
    """One request, as its client sees it."""

    def __init__(self, world: "World", value: Any) -> None:
        self.span: Span | None = None
        """See Caller."""
        self._world = world
        self.value = value
        self.answers: list[Answer] = []
        self.at = math.nan
        """Virtual seconds of the last answer."""
        self.answered = asyncio.Event()
        self.handle: RequestHandle | None = None
        self.items: list[tuple[str, bytes]] = []
        """Of a stream."""
        self.lazy = False

    def request_id(self) -> str | None:
        """See Caller."""
        return "id"

    def item(self, kind: str, body: bytes) -> None:
        """See Reader; it reads as fast as it can, unless it is `lazy`."""
        self.items.append((kind, body))
        if not self.lazy and self.handle is not None:
            self._world.dispatcher.taken(self.handle, 1)

    def deliver(self, answer: Answer) -> None:
        """See Caller."""
        self.answers.append(answer)
        self.at = self._world.loop.time()
        self.answered.set()

    @property
    def status(self) -> int:
        """The status of its only answer."""
        (answer,) = self.answers
        return answer.status

    @property
    def body(self) -> Any:
        """The body of its only answer, as JSON."""
        (answer,) = self.answers
        return orjson.loads(answer.body)

    @property
    def receipt(self) -> dict[str, str]:
        """Headers of its only answer that say how it was batched, without their prefix."""
        (answer,) = self.answers
        prefix = b"x-batchedapi-"
        return {
            name.removeprefix(prefix).decode(): value.decode()
            for name, value in answer.headers
            if name.startswith(prefix)
        }


class ModelLane:
    """A lane of one model process; also the transport that the dispatcher writes to."""

    def __init__(self, world: "World", process: "ModelProcess") -> None:
        self._world = world
        self._process = process
        self._reader = FrameReader()
        self.sent: deque[Frame] = deque()
        """The first of them runs."""
        self._lane = LaneConnection(world.dispatcher)
        self._lane.connection_made(self)
        self.pid = process.pid
        self._say({"hello": process.hello})

    def write(self, data: bytes) -> None:
        """A batch from the dispatcher."""
        for frame in self._reader.feed(data):
            self.sent.append(frame)
            if len(self.sent) == 1:
                self._begin()

    def _begin(self) -> None:
        world, (meta, payload) = self._world, self.sent[0]
        world.began(meta, payload)
        world.loop.call_later(world.seconds(meta["rows"]), self._finish, meta, payload)

    def abort(self) -> None:
        """The dispatcher gives the connection up."""
        self.die()

    def die(self) -> None:
        """The process is gone."""
        self._process.die()

    def lose_connection(self) -> None:
        """As the dispatcher sees the end of the process."""
        self._world.cut_off(bool(self.sent))
        self._lane.connection_lost(None)

    def _finish(self, meta: dict[str, Any], payload: bytes) -> None:
        if not self._process.alive:
            return
        endings: list[BaseException] = []
        _ENDINGS.set(endings)
        result, parts = self._process.runner.run(meta, payload)
        match endings:
            case [DiedError() as error, *_]:
                self._world.oom_kills += isinstance(error, KilledForMemoryError)
                self.die()
            case [_, *_]:
                return
            case _ if "unfit" in result:
                self.die()
            case _:
                self._world.running -= 1
                self.sent.popleft()
                if self.sent:
                    self._begin()
                self._say(result, parts)

    def _say(self, meta: Any, parts: Sequence[Payload] = ()) -> None:
        self._lane.data_received(encode_frame(meta, parts))


class ModelEndOfChannel:
    """The channel of one model process; also the transport that the dispatcher writes to."""

    def __init__(self, world: "World", process: "ModelProcess") -> None:
        self._world = world
        self._process = process
        self._reader = FrameReader()
        self._lane = LaneConnection(world.dispatcher)
        self._lane.connection_made(self)
        self.calls: dict[int, asyncio.Task[None]] = {}
        self.outlets: dict[int, Outlet] = {}
        self.most_at_once = 0
        self.deaf = False
        """Set by a test: its event loop no longer runs."""
        self._say({"hello": {**process.hello, "channel": True}})

    def write(self, data: bytes) -> None:
        """Calls from the dispatcher."""
        for meta, payload in () if self.deaf else self._reader.feed(data):
            if "call" in meta:
                self._world.began(meta, payload)
                self.calls[meta["call"]] = asyncio.create_task(self._call(meta, payload))
                self.most_at_once = max(self.most_at_once, len(self.calls))
            elif "taken" in meta:
                self.outlets[meta["taken"]].taken(meta["items"])
            elif "cancel" in meta:
                self.calls[meta["cancel"]].cancel()

    def is_closing(self) -> bool:
        """As a transport's."""
        return not self._process.alive

    def abort(self) -> None:
        """The dispatcher gives the connection up."""
        self._process.die()

    def lose_connection(self) -> None:
        """As the dispatcher sees the end of the process."""
        self._world.cut_off(len(self.calls))
        for call in self.calls.values():
            call.cancel()
        self._lane.connection_lost(None)

    async def _run(self, meta: dict[str, Any], payload: bytes) -> tuple[Any, Sequence[Payload]]:
        runner = self._process.runner
        if not runner.streams(meta["method"]):
            return await runner.run_async(meta, payload)
        outlet = self.outlets[meta["call"]] = Outlet(
            lambda item: self._say({"item": meta["call"], "kind": item.kind}, (item.body,))
        )
        return await runner.run_stream(meta, payload, outlet)

    async def _call(self, meta: dict[str, Any], payload: bytes) -> None:
        endings: list[BaseException] = []
        _ENDINGS.set(endings)
        try:
            result, parts = await self._run(meta, payload)
        except asyncio.CancelledError:
            result, parts = {"kind": "error", "error": "was cancelled"}, ()
        if endings:
            self._process.die()
            return
        if "unfit" in result:
            self._process.die()
        if self._process.alive:
            del self.calls[meta["call"]]
            self._world.running -= 1
            self._say({**result, "result": meta["call"]}, parts)

    def _say(self, meta: Any, parts: Sequence[Payload] = ()) -> None:
        self._lane.data_received(encode_frame(meta, parts))


class ModelProcess:
    """A model process: its lanes, and a channel if there is an async method."""

    def __init__(self, world: "World", pid: int, index: int) -> None:
        self._world = world
        self.pid = pid
        self.index = index
        self.alive = True
        self.runner = BatchRunner(world.predictor, world.methods)
        methods = [method.to_json() for method in world.methods]
        self.hello = {"worker_index": index, "pid": pid, "methods": methods}
        self.hello["warm_up"] = world.warm_up
        self.lanes = [ModelLane(world, self) for _ in range(world.threads)]
        self.channel: ModelEndOfChannel | None = None
        if any(method.is_async for method in world.methods):
            self.channel = ModelEndOfChannel(world, self)

    def die(self) -> None:
        """It is gone; another takes its place after a while."""
        if not self.alive:
            return
        self.alive = False
        world = self._world
        world.processes.remove(self)
        world.loop.call_later(world.restart, world.start_process, self.index)
        for lane in self.lanes:
            lane.lose_connection()
        if self.channel is not None:
            self.channel.lose_connection()


class World:
    """One replica inside the running event loop; `lanes` is lanes of a process each."""

    def __init__(
        self,
        predict: Callable[[list[Any]], Any] = echo,
        *,
        lanes: int = 1,
        threads: int = 1,
        seconds: Callable[[int], float] = lambda rows: FIXED + PER_ROW * rows,
        restart: float = 0.5,
        methods: Sequence[tuple[MethodSpec, Callable[..., Any]]] = (),
        warm_up: Mapping[str, Sequence[Sequence[float]]] | None = None,
        tracer: Tracer | None = None,
        **settings: Any,
    ) -> None:
        self.warm_up = warm_up or {}
        """Of each process: rows, size and seconds of the batches of a method."""
        self.loop = asyncio.get_running_loop()
        self.seconds = seconds
        self.restart = restart
        self.threads = threads
        sizes = {name: own.max_batch_size for name, own in settings.get("of_methods", {}).items()}
        served = dict(_named(methods, predict, settings.get("max_batch_size"), sizes))
        self.methods = [spec for spec, _ in served.values()]
        self.predictor = SimpleNamespace(**{name: call for name, (_, call) in served.items()})
        self.batches: list[list[Any]] = []
        """Items of every batch that was begun, in order."""
        self.methods_run: list[str] = []
        """Methods of the same."""
        self.running = self.most_running = 0
        self.lost = 0
        """Batches that ran when their process ended."""
        self.replaced: list[int] = []
        self.announced: list[list[str]] = []
        self.oom_kills = 0
        self.memory = memoryview(bytearray(slots.BYTES)).cast("d")
        self._pids = itertools.count(1)
        self.processes: list[ModelProcess] = []
        self.dispatcher = Dispatcher(
            replica_settings(**{"processes": max(1, lanes), "threads": threads, **settings}),
            Recorder(self.memory),
            self.loop,
            self,
            self.loop.time,
            OomKills(lambda: self.oom_kills),
            tracer,
        )
        for index in range(lanes):
            self.start_process(index)

    # ------------------------------------------------------------ Supervision

    def replace(self, pid: int) -> None:
        """See Supervision."""
        self.replaced.append(pid)
        for process in [process for process in self.processes if process.pid == pid]:
            process.die()

    def ready(self, methods: Sequence[MethodSpec], default: str | None) -> None:
        """See Supervision."""
        self.announced.append([*(method.name for method in methods), str(default)])

    # ------------------------------------------------------------ what a test does

    def start_process(self, index: int = 0) -> ModelProcess:
        """A model process more."""
        process = ModelProcess(self, next(self._pids), index)
        self.processes.append(process)
        return process

    @property
    def lanes(self) -> list[ModelLane]:
        """The lanes of all processes that are alive."""
        return [lane for process in self.processes for lane in process.lanes]

    def began(self, meta: dict[str, Any], payload: bytes) -> None:
        """A batch reached the model."""
        self.methods_run.append(meta["method"])
        self.batches.append(orjson.loads(payload) if payload[:1] == b"[" else [payload])
        self.running += 1
        self.most_running = max(self.most_running, self.running)

    def cut_off(self, batches: int) -> None:
        """So many ran when their process ended."""
        self.running -= batches
        self.lost += batches

    def ask(
        self,
        value: Any,
        client: Client | None = None,
        *,
        method: str | None = None,
        timeout: float | None = None,
        shape: Hashable = None,
        span: Span | None = None,
    ) -> Asked:
        """Send one item; what is refused raises."""
        shapes = None if shape is None else [shape]
        return self._submit(value, value, client, method, timeout, None, shapes, span)

    def ask_rows(
        self,
        rows: list[Any],
        client: Client | None = None,
        *,
        method: str | None = None,
        timeout: float | None = None,
        sizes: Sequence[int] | None = None,
        shapes: Sequence[Hashable] | None = None,
        span: Span | None = None,
    ) -> Asked:
        """Send many items in one request."""
        body = {"instances": rows}
        return self._submit(rows, body, client, method, timeout, sizes, shapes, span)

    def _submit(  # noqa: PLR0917 - from the two above
        self,
        value: Any,
        body: Any,
        client: Client | None,
        method: str | None,
        timeout: float | None,
        sizes: Sequence[int] | None,
        shapes: Sequence[Hashable] | None,
        span: Span | None,
    ) -> Asked:
        served = self.dispatcher.served(method)
        decoded = served.codec.decode(Wire.PLAIN, _HEAD, orjson.dumps(body))
        decoded = decoded._replace(sizes=sizes, shapes=shapes)
        asked = Asked(self, value)
        asked.span = span
        asked.handle = self.dispatcher.submit(served, decoded, client or Client(), asked, timeout)
        return asked

    def cancel(self, asked: Asked, status: int = 499) -> None:
        """Its client leaves, or was answered elsewhere."""
        assert asked.handle is not None
        self.dispatcher.cancel(asked.handle, status)

    def counted(self, slot: int, method: int = 0) -> float:
        """One slot of a method's part of the metrics memory."""
        return float(slots.method_block(self.memory, method)[slot])

    def reasons(self, method: int = 0) -> dict[str, int]:
        """Batches by reason of release, those that occurred."""
        counts = {
            reason: int(self.counted(slot, method)) for reason, slot in slots.REASON_SLOT.items()
        }
        return {reason: count for reason, count in counts.items() if count}


def _named(
    methods: Sequence[tuple[MethodSpec, Callable[..., Any]]],
    predict: Callable[[list[Any]], Any],
    common: int | None,
    sizes: Mapping[str, int | None],
) -> dict[str, tuple[MethodSpec, Callable[..., Any]]]:
    """By name; a manifest's `max_batch_size` beats what the methods declare, as at a real start."""
    served = {}
    for spec, call in methods or [(ITEMS, predict)]:
        size = sizes.get(spec.name) or common
        own = dataclasses.replace(spec, max_batch_size=size) if size and spec.batched else spec
        served[spec.name] = own, call
    return served


def replica_settings(**changes: Any) -> ReplicaSettings:
    """Settings of a replica that waits 20 ms at most, for batches of up to 32.

    Those of BatchingSettings may be given by their own names, and `of_methods` as name -> such.
    """
    fields = {field.name for field in dataclasses.fields(BatchingSettings)}
    batching = {name: changes.pop(name) for name in fields & set(changes)}
    if batching.get("strategy") is Strategy.ADAPTIVE and not batching.get("max_latency"):
        batching["max_latency"] = 10.0  # without a target there is no such strategy
    of_methods: Mapping[str, BatchingSettings] = changes.pop("of_methods", {})
    return plain_settings(
        **{
            "batching": BatchingSettings(
                **{
                    "max_batch_size": 32,
                    "batch_interval": 0.020,
                    "strategy": Strategy.FIXED,
                    **batching,
                }
            ),
            "methods": tuple(
                MethodSettings(name, None, None, one) for name, one in of_methods.items()
            ),
            **changes,
        }
    )


def run_virtually(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a loop whose time passes only when nothing is left to do.

    What it leaves behind is cancelled.
    """
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(main)
