"""Program flow of a model process: load, warm up, then one thread a lane.

Each lane is a connection to the dispatcher's Unix socket. When the web process is replaced the
connections end and are made again; the model stays loaded.
"""

import json
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any, Final

from batchedapi_serving.dispatch.frames import encode_frame, read_frames
from batchedapi_serving.errors import LoadError
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.predictor.api import Context, MethodSpec
from batchedapi_serving.predictor.loading import load_class, served_method, start_predictor
from batchedapi_serving.predictor.warmup import warm_up
from batchedapi_serving.processes import freeze_heap
from batchedapi_serving.settings import ReplicaSettings

log = logging.getLogger(__name__)

_RECONNECT_SECONDS: Final = 0.05
_BUFFER_BYTES: Final = 1 << 20


def run_model(settings: ReplicaSettings, worker_index: int) -> int:
    """Serve batches until the supervisor ends this process.

    Returns:
        1: the predictor could not be started; the reason is in the failure file.
    """
    started = time.monotonic()
    try:
        runner, method = _load(settings, worker_index)
    except LoadError as error:
        failure = {"reason": error.reason, "message": str(error)}
        settings.failure_path(worker_index).write_text(json.dumps(failure))
        return 1
    log.info("model loaded", extra={"seconds": round(time.monotonic() - started, 3)})
    freeze_heap()
    hello = {"worker_index": worker_index, "pid": os.getpid(), "method": method.to_json()}
    lanes = [
        threading.Thread(target=_run_lane, args=(settings, runner, hello), name=f"lane-{i}")
        for i in range(settings.threads)
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    return 0


def _load(settings: ReplicaSettings, worker_index: int) -> tuple[BatchRunner, MethodSpec]:
    predictor_class = load_class(settings.predictor_path, [Path(p) for p in settings.search])
    method = served_method(predictor_class, settings.max_batch_size)
    context = Context(
        name=settings.name,
        worker_index=worker_index,
        processes=settings.processes,
        threads=settings.threads,
        device="cuda:0" if _sees_gpu() else "cpu",
    )
    predictor = start_predictor(predictor_class, settings.config, context)
    runner = BatchRunner(predictor, method)
    warm_up(runner, method, settings.max_batch_size or method.max_batch_size)
    return runner, method


def _sees_gpu() -> bool:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return bool(visible) if visible is not None else Path("/dev/nvidia0").exists()


def _run_lane(settings: ReplicaSettings, runner: BatchRunner, hello: dict[str, Any]) -> None:
    """A lane never ends by itself; if user code ends its thread, the process goes with it.

    The supervisor replaces a process, and nobody would replace a thread.
    """
    try:
        _serve_lane(settings, runner, hello)
    except BaseException:
        log.exception("lane ended; the process ends with it")
        raise
    finally:
        os._exit(1)


def _serve_lane(settings: ReplicaSettings, runner: BatchRunner, hello: dict[str, Any]) -> None:
    while True:
        try:
            with _connected(settings.lanes_path) as connection:
                connection.sendall(encode_frame({"hello": hello}))
                for meta, payload in read_frames(connection):
                    connection.sendall(encode_frame(*runner.run(meta["rows"], payload)))
        except ConnectionError as error:
            log.debug("lane reconnects", extra={"error": repr(error)})
            time.sleep(_RECONNECT_SECONDS)


def _connected(path: Path) -> socket.socket:
    """A connection to the dispatcher, waiting for it as long as there is a supervisor."""
    supervisor = os.getppid()
    while True:
        if os.getppid() != supervisor:
            os._exit(1)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            connection.close()
            time.sleep(_RECONNECT_SECONDS)
        else:
            return connection
