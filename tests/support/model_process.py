"""A model process as a program, in front of a dispatcher of the test's over real sockets.

process = ModelProcess(code)
async with web(process) as front:           # again and again: each is a web process more
    await front.ask("method", 1).value()
"""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from batchedapi_core.batching import Client, Strategy
from batchedapi_serving.codecs import Answer, RequestHead, Wire
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.dispatch.engine import RequestHandle
from batchedapi_serving.dispatch.lane_connection import LaneConnection
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import BatchingSettings, ReplicaSettings
from plain_settings import plain_settings

HEAD = RequestHead(b"application/json", b"", ())


def settings_in(runtime: str, **changes: Any) -> ReplicaSettings:
    """The settings of a replica whose predictor is `composed.py` in `runtime`."""
    values: dict[str, Any] = {
        "name": "composed", "endpoint": "/composed", "predictor_path": "composed.py:Composed",
        "search": (runtime,), "config": {"folder": runtime}, "threads": 2, "timeout": 60.0,
        "batching": BatchingSettings(batch_interval=0.1, strategy=Strategy.FIXED),
        "max_body_bytes": 1 << 24, "max_concurrency": 100, "runtime": runtime,
    }  # fmt: skip
    return plain_settings(**{**values, **changes})


class ModelProcess:
    """The program, in a folder of its own; `log` has what it writes, if that is given."""

    def __init__(self, code: str, log: Path | None = None, **changes: Any) -> None:
        self._log = log
        self._folder = tempfile.TemporaryDirectory()
        self.settings = settings_in(self._folder.name, **changes)
        (self.folder / "composed.py").write_text(textwrap.dedent(code))
        self.settings.write()
        slots.create_memory(self.settings.metrics_path)
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "batchedapi_serving.model", self._folder.name, "0"]
        if self._log is None:
            return subprocess.Popen(command, start_new_session=True)
        with self._log.open("ab") as log:
            return subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)

    @property
    def folder(self) -> Path:
        """The folder of its settings, its sockets and the predictor's files."""
        return Path(self._folder.name)

    def restart(self) -> None:
        """Start it anew once it has ended, as the supervisor does."""
        self.process.wait()
        self.process = self._start()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()


class Asked:
    """A request, as its client sees it."""

    span = None

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.handle: RequestHandle | None = None
        self._answered = asyncio.Event()

    def deliver(self, answer: Answer) -> None:
        """See Caller."""
        self.answers.append(answer)
        self._answered.set()

    def request_id(self) -> str | None:
        """See Caller."""
        return None

    async def answer(self) -> Answer:
        """Its only answer, when it is there."""
        await asyncio.wait_for(self._answered.wait(), 60)
        (answer,) = self.answers
        return answer

    async def value(self) -> Any:
        """The answer as JSON; it must be 200."""
        answer = await self.answer()
        assert 200 == answer.status, answer.body
        return orjson.loads(answer.body)


class Web:
    """A web process's dispatcher in front of the model process."""

    def __init__(self, settings: ReplicaSettings) -> None:
        memory = slots.map_memory(settings.metrics_path)
        self.dispatcher = Dispatcher(settings, Recorder(memory), asyncio.get_running_loop(), self)
        self.hello = asyncio.Event()
        self.replaced: list[int] = []

    def replace(self, pid: int) -> None:
        """See Supervision."""
        self.replaced.append(pid)

    def ready(self, methods: Sequence[MethodSpec], default: str | None) -> None:
        """See Supervision."""
        del methods, default
        self.hello.set()

    def ask(self, method: str | None, body: Any) -> Asked:
        """One request."""
        asked, served = Asked(), self.dispatcher.served(method)
        decoded = served.codec.decode(Wire.PLAIN, HEAD, orjson.dumps(body))
        asked.handle = self.dispatcher.submit(served, decoded, Client(), asked)
        return asked


@contextlib.asynccontextmanager
async def web(model: ModelProcess) -> AsyncIterator[Web]:
    """A web process that the model process has connected to."""
    path = model.settings.lanes_path
    path.unlink(missing_ok=True)
    found, lanes = Web(model.settings), list[LaneConnection]()

    def lane() -> LaneConnection:
        lanes.append(LaneConnection(found.dispatcher))
        return lanes[-1]

    server = await asyncio.get_running_loop().create_unix_server(lane, str(path))
    try:
        await asyncio.wait_for(found.hello.wait(), 60)
        # Every lane and, if there are async methods, the channel.
        await until(lambda: sum(lane.pid > 0 for lane in lanes) >= model.settings.threads + 1)
        yield found
    finally:
        server.close()
        for each in lanes:
            each.close()
            if each._channel is not None and each._transport is not None:
                each._transport.abort()
        await asyncio.sleep(0.01)


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that comes soon."""
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - of processes that set no event
            await asyncio.sleep(0.005)
