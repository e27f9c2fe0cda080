"""The model process's lanes: threads that run one batch of a sync method at a time."""

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from batchedapi_serving.dispatch.arena import Arena
from batchedapi_serving.dispatch.frames import Meta, Payload, encode_frame, read_frames
from batchedapi_serving.processes import EXIT_UNFIT

log = logging.getLogger(__name__)

RECONNECT_SECONDS: Final = 0.05
_BUFFER_BYTES: Final = 1 << 20


class UnfitError(Exception):
    """No batch can succeed in this process any more: it ends, and is replaced."""


class Runner(Protocol):
    """Runs batches; `model.batch.BatchRunner`."""

    def run(self, meta: Meta, payload: Payload) -> tuple[Meta, Sequence[Payload]]:
        """Answer one batch frame; never raises, and keeps nothing of the payload."""


def run_lanes(path: Path, runner: Runner, hello: Mapping[str, Any], lanes: int) -> None:
    """Serve on so many threads until the process ends.

    A lane never ends by itself; if user code ends its thread, the process goes with it: the
    supervisor replaces a process, and nobody would replace a thread.
    """
    threads = [
        threading.Thread(target=_run_lane, args=(path, runner, hello), name=f"lane-{i}")
        for i in range(lanes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _run_lane(path: Path, runner: Runner, hello: Mapping[str, Any]) -> None:
    try:
        serve_lane(path, runner, hello)
    except UnfitError:
        log.exception("lane ended; the process ends with it")
        os._exit(EXIT_UNFIT)
    except BaseException:
        log.exception("lane ended; the process ends with it")
        raise
    finally:
        os._exit(1)


def serve_lane(path: Path, runner: Runner, hello: Mapping[str, Any]) -> None:
    """Run what the dispatcher sends, one batch after another; never returns.

    Raises:
        UnfitError: the process has to end; the batch is not answered, and run again elsewhere.
    """
    supervisor = os.getppid()
    arena = Arena.create()
    while True:
        try:
            with _connected(path, supervisor) as connection:
                connection.sendall(encode_frame({"hello": {**hello, **arena.hello()}}))
                for meta, payload in read_frames(connection):
                    result, buffers = runner.run(meta, arena.view(meta, payload))
                    if "unfit" in result:
                        raise UnfitError(result["error"])
                    connection.sendall(arena.encode(result, buffers))
        except ConnectionError as error:
            log.debug("lane reconnects", extra={"error": repr(error)})
            time.sleep(RECONNECT_SECONDS)


def end_without(supervisor: int) -> None:
    """End this process if its parent is no longer `supervisor`."""
    if os.getppid() != supervisor:
        os._exit(1)


def _connected(path: Path, supervisor: int) -> socket.socket:
    """A connection to the dispatcher, waiting for it as long as there is a supervisor."""
    while True:
        end_without(supervisor)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            connection.close()
            time.sleep(RECONNECT_SECONDS)
        else:
            return connection
