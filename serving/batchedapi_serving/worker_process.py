"""A worker: the lanes of this replica's model processes, fed from the queue of all replicas.

A program, started by the supervisor and not by hand. Its arguments: the runtime folder and the
descriptor of the control socket. It listens to nothing but the model processes.
"""

import asyncio
import json
import logging
import signal
import socket
import sys
import time
import warnings
from collections.abc import Sequence

import uvloop

from batchedapi_core import contract
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.dispatch.lane_connection import LaneConnection
from batchedapi_serving.logs import configure_logging
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.recorder import Recorder, WorkerRecorder
from batchedapi_serving.metrics.slots import Memory, map_memory
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.processes import end_with_parent, essential, first_of, freeze_heap
from batchedapi_serving.queue.broker import Broker
from batchedapi_serving.queue.puller import Puller
from batchedapi_serving.settings import QueueSettings, ReplicaSettings
from batchedapi_serving.tracing import started_tracer

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 0.5
"""Between signs of life for the supervisor."""


class WorkerLine:
    """To the supervisor, one JSON object a line; see dispatch's Supervision."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self.known = asyncio.Event()

    def replace(self, pid: int) -> None:
        """See Supervision."""
        self._say({"replace": pid})

    def ready(self, methods: Sequence[MethodSpec], default: str | None) -> None:  # noqa: ARG002 - as Supervision has it
        """See Supervision."""
        self.known.set()
        self._say({"loaded": [[method.name, method.max_batch_size] for method in methods]})

    def _say(self, message: dict[str, object]) -> None:
        self._control.send(json.dumps(message).encode() + b"\n")


async def work(settings: ReplicaSettings, shared: QueueSettings, control: socket.socket) -> None:
    """Take from the queue until SIGTERM, and until what was taken is answered."""
    loop = asyncio.get_running_loop()
    memory = map_memory(settings.metrics_path)
    line = WorkerLine(control)

    def dropped(spans: int) -> None:
        memory[slots.SPANS_DROPPED + contract.MAX_WEB_PROCESSES] += spans

    tracer, end_tracing = started_tracer(settings.tracing, dropped)
    recorder = Recorder(memory, WorkerRecorder)
    dispatcher = Dispatcher(settings, recorder, loop, line, tracer=tracer)

    def connected(now: bool) -> None:  # noqa: FBT001 - it has one meaning
        memory[slots.CONNECTED] = float(now)

    connected(False)
    broker = Broker(shared, settings.name)
    puller = Puller(settings, broker, dispatcher, connected, unreadable=recorder.unreadable)
    settings.lanes_path.unlink(missing_ok=True)
    server = await loop.create_unix_server(
        lambda: LaneConnection(dispatcher), str(settings.lanes_path)
    )
    end_with_parent(control, loop)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    beats = essential("signs of life", _beat(memory, dispatcher))
    freeze_heap()
    await first_of(line.known.wait(), stopping.wait())
    if line.known.is_set():
        pulling = essential("line to the queue", puller.run())
        await stopping.wait()
        log.info("draining")
        puller.drain()
        await puller.drained()
        pulling.cancel()
    server.close()
    beats.cancel()
    await end_tracing()


async def _beat(memory: Memory, dispatcher: Dispatcher) -> None:
    while True:
        memory[slots.WORKER_BEAT] = time.monotonic()
        dispatcher.update_gauges()
        await asyncio.sleep(_SWEEP_SECONDS)


def main(runtime: str, control: str) -> None:
    """Work until told to stop."""
    settings = ReplicaSettings.read(runtime)
    warnings.simplefilter("ignore")  # whoever makes errors of them means code of their own
    configure_logging(settings.log_level, "worker")
    if settings.queue is None:
        raise AssertionError("a worker without a queue")
    line = socket.socket(fileno=int(control))
    line.set_inheritable(False)
    uvloop.run(work(settings, settings.queue, line))


if __name__ == "__main__":
    main(*sys.argv[1:])
