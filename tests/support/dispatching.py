"""A dispatcher with models that take virtual time: real lanes and codecs, no processes, no sockets.

A model is a function over JSON items. It may raise, answer anything, `die` or `hang`; time passes
only on the event loop, so a test of a timeout takes none.
"""

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from batchedapi_core.batching import Client, SizeUnit, Strategy
from batchedapi_serving.codecs import Answer, Form, RequestHead
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.dispatch.frames import FrameReader, encode_frame
from batchedapi_serving.dispatch.jobs import Job
from batchedapi_serving.dispatch.lanes import Lane
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.predictor.api import MethodSpec
from batchedapi_serving.settings import ReplicaSettings

FIXED: Final = 0.010
PER_ROW: Final = 0.0002
ITEMS: Final = MethodSpec("predict", batched=True, inputs=None, outputs=None, max_batch_size=32)


class DiedError(BaseException):
    """The model process ends here, without an answer."""


class HangsError(BaseException):
    """The model never answers this batch."""


def echo(items: list[Any]) -> list[Any]:
    """Answers each item with itself."""
    return items


class Asked:
    """One request, as its client sees it."""

    def __init__(self, world: "World", value: Any) -> None:
        self._world = world
        self.value = value
        self.answers: list[Answer] = []
        self.at = math.nan
        """Virtual seconds of the last answer."""
        self.job: Job | None = None

    def request_id(self) -> str | None:
        """See AnswerTo."""
        return "id"

    def deliver(self, answer: Answer) -> None:
        """See AnswerTo."""
        self.answers.append(answer)
        self.at = self._world.loop.time()

    @property
    def status(self) -> int:
        """Of its only answer."""
        (answer,) = self.answers
        return answer.status

    @property
    def body(self) -> Any:
        """Of its only answer, as JSON."""
        (answer,) = self.answers
        return orjson.loads(answer.body)


class ModelLane:
    """A lane of one model process; also the transport that the dispatcher writes to."""

    def __init__(self, world: "World", pid: int) -> None:
        self._world = world
        self._reader = FrameReader()
        self._runner = BatchRunner(self, world.method)
        self._lane = Lane(world.dispatcher)
        self._lane.connection_made(self)
        self.pid = pid
        self.alive = True
        self._say({"hello": {"worker_index": 0, "pid": pid, "method": world.method.to_json()}})

    def predict(self, items: list[Any]) -> Any:
        """What BatchRunner calls."""
        return self._world.predict(items)

    def write(self, data: bytes) -> None:
        """A batch from the dispatcher."""
        for meta, payload in self._reader.feed(data):
            self._world.batches.append(orjson.loads(payload))
            self._world.running += 1
            self._world.most_running = max(self._world.most_running, self._world.running)
            seconds = self._world.seconds(meta["rows"])
            self._world.loop.call_later(seconds, self._finish, meta["rows"], payload)

    def abort(self) -> None:
        """The dispatcher gives the connection up."""
        self.die()

    def die(self) -> None:
        """The process is gone; another takes its place after a while."""
        if self.alive:
            self.alive = False
            if self._lane.batch is not None:
                self._world.running -= 1
            self._world.lanes.remove(self)
            self._world.loop.call_later(self._world.restart, self._world.start_lane)
            self._lane.connection_lost(None)

    def _finish(self, rows: int, payload: bytes) -> None:
        if not self.alive:
            return
        try:
            meta, parts = self._runner.run(rows, payload)
        except DiedError:
            self.die()
        except HangsError:
            return
        else:
            self._world.running -= 1
            self._say(meta, parts)

    def _say(self, meta: Any, parts: Sequence[bytes] = ()) -> None:
        self._lane.data_received(encode_frame(meta, parts))


class World:
    """One replica inside the running event loop."""

    def __init__(
        self,
        predict: Callable[[list[Any]], Any] = echo,
        *,
        lanes: int = 1,
        seconds: Callable[[int], float] = lambda rows: FIXED + PER_ROW * rows,
        restart: float = 0.5,
        **settings: Any,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.predict = predict
        self.seconds = seconds
        self.restart = restart
        self.method = ITEMS
        self.batches: list[list[Any]] = []
        """Items of every batch that was begun, in order."""
        self.running = self.most_running = 0
        self.replaced: list[int] = []
        self.announced: list[MethodSpec] = []
        self.memory = memoryview(bytearray(slots.BYTES)).cast("d")
        self._pids = itertools.count(1)
        self.lanes: list[ModelLane] = []
        self.dispatcher = Dispatcher(
            replica_settings(**settings), Recorder(self.memory), self.loop, self, self.loop.time
        )
        for _ in range(lanes):
            self.start_lane()

    # ------------------------------------------------------------ Supervision

    def replace(self, pid: int) -> None:
        """See Supervision."""
        self.replaced.append(pid)
        for lane in [lane for lane in self.lanes if lane.pid == pid]:
            lane.die()

    def ready(self, method: MethodSpec) -> None:
        """See Supervision."""
        self.announced.append(method)

    # ------------------------------------------------------------ what a test does

    def start_lane(self) -> ModelLane:
        """A model process more."""
        lane = ModelLane(self, next(self._pids))
        self.lanes.append(lane)
        return lane

    def ask(self, value: Any, client: Client | None = None) -> Asked:
        """Send one item; what is refused at the door raises."""
        return self._submit(value, value, client)

    def ask_rows(self, rows: list[Any], client: Client | None = None) -> Asked:
        """Send many items in one request."""
        return self._submit(rows, {"instances": rows}, client)

    def _submit(self, value: Any, body: Any, client: Client | None) -> Asked:
        codec = self.dispatcher.ready_codec()
        decoded = codec.decode(RequestHead(b"", b"", ()), orjson.dumps(body))
        assert decoded.form in {Form.ITEM, Form.INSTANCES}
        asked = Asked(self, value)
        asked.job = self.dispatcher.submit(decoded, client or Client(), asked)
        return asked

    def cancel(self, asked: Asked) -> None:
        """Its client leaves."""
        assert asked.job is not None
        self.dispatcher.cancel(asked.job)

    def counted(self, slot: int) -> float:
        """One slot of the metrics memory."""
        return float(self.memory[slot])

    def reasons(self) -> dict[str, int]:
        """Batches by reason of release, those that occurred."""
        counts = {reason: int(self.memory[slot]) for reason, slot in slots.REASON_SLOT.items()}
        return {reason: count for reason, count in counts.items() if count}


def replica_settings(**changes: Any) -> ReplicaSettings:
    """Settings of a replica that waits 20 ms at most, for batches of up to 32."""
    values: dict[str, Any] = {
        "name": "api",
        "endpoint": "/api",
        "predictor_path": "model:Model",
        "search": (),
        "config": {},
        "processes": 1,
        "threads": 1,
        "log_level": "error",
        "max_batch_size": 32,
        "batch_interval": 0.020,
        "strategy": Strategy.FIXED,
        "size_unit": SizeUnit.ROWS,
        "max_latency": None,
        "timeout": 30.0,
        "max_body_bytes": 1 << 20,
        "max_concurrency": 1024,
        "drain_delay": 0.0,
        "fast_lane": True,
        "runtime": "",
    }
    return ReplicaSettings(**{**values, **changes})
