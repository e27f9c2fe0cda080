"""Recent batches and their answers, in the memory of the first model process and nowhere else.

A pod of the next revision asks for them (`model.compared`). Where they are not asked for, nothing
here exists: a lane runs its batches without a look at it.

    batch   a few a second are copied whole, rows and answers, as one frame of `ipc`
    ring    of each method, bounded in bytes and in batches: the oldest goes
    socket  a Unix socket; who connects is sent a frame about the methods, then the batches
"""

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from batchedapi_serving.ipc import Meta, Payload, encode_frame
from batchedapi_serving.model.worker import RECONNECT_SECONDS, FrameRunner, OwnSocket
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.processes import kept_from_forks

log = logging.getLogger(__name__)
FORMAT: Final = 1
"""Number of this way to write batches; another is not read."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of all methods together."""
MOST_BATCHES: Final = 1024
"""Batches of one method."""
PAUSE: Final = 0.05
"""Seconds at least between two batches that are kept."""
BYTES_A_SECOND: Final = 20e6
"""Bytes of kept batches at most, on average: copying them takes less than 1 % of the time."""
_OF_THE_WAY: Final = ("call", "memory", "shared", "trace")
"""Fields of a batch that say how it came, and nothing of it."""
_SEND_SECONDS: Final = 5.0


class RecentBatches:
    """The ring. Lanes write into it, and whoever hands it out reads it."""

    def __init__(
        self,
        methods: Sequence[MethodSpec],
        revision: str,
        served: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Only methods that get many rows at once are kept: others may act on each request.

        Args:
            methods: All of the predictor.
            revision: The revision that it is.
            served: Other revisions that have served.
            clock: Seconds.
        """
        kept = [method for method in methods if method.batched]
        self._head = {
            "format": FORMAT,
            "revision": revision,
            "served": served,
            "methods": [method.to_json() for method in kept],
        }
        self._frames: dict[str, deque[bytes]] = {method.name: deque() for method in kept}
        self._most = MOST_BYTES // max(1, len(kept))
        self._too_large: set[str] = set()
        self._due = dict.fromkeys(self._frames, 0.0)
        self._clock = clock
        self._lock = threading.Lock()

    def is_due(self, method: str, length: int) -> bool:
        """Whether this batch of it is to be kept; then the next is not for a while.

        Args:
            method: Its name.
            length: Bytes of the rows.
        """
        due, now = self._due.get(method), self._clock()
        if due is None or now < due:
            return False
        self._due[method] = now + PAUSE
        return self._fits(method, length)

    def _fits(self, method: str, length: int) -> bool:
        """Whether others stay beside so many bytes; askers are told if not."""
        if 2 * length < self._most:
            return True
        with self._lock:
            self._too_large.add(method)
        return False

    def keep(
        self,
        meta: Meta,
        rows: bytes,
        answer: Meta,
        answers: Sequence[Payload],
        seconds: float,
    ) -> None:
        """Keep a batch and its answer; one that would push all others out is not kept."""
        batch = {name: value for name, value in meta.items() if name not in _OF_THE_WAY}
        batch.setdefault("size", meta["rows"])
        head = {"batch": batch, "rows": len(rows), "answer": answer, "seconds": seconds}
        method, length = meta["method"], len(rows) + sum(map(len, answers))
        self._due[method] = self._clock() + max(PAUSE, length / BYTES_A_SECOND)
        if not self._fits(method, length):
            return
        frame, frames = encode_frame(head, (rows, *answers), length), self._frames[method]
        with self._lock:
            frames.append(frame)
            while len(frames) > MOST_BATCHES or sum(map(len, frames)) > self._most:
                frames.popleft()

    def to_frames(self) -> list[bytes]:
        """All of it, behind a frame about the methods."""
        with self._lock:
            kept = [frame for frames in self._frames.values() for frame in frames]
            head = {**self._head, "too_large": list(self._too_large)}
        return [encode_frame(head), *kept]

    def serve(self, path: Path) -> None:
        """Hand it out to whoever connects, in a thread of its own, for as long as the process.

        Raises:
            OSError: the socket cannot be made.
        """
        path.unlink(missing_ok=True)
        listener = OwnSocket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=self._serve, args=(listener,), name="recent", daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        with kept_from_forks(listener.fileno()):
            while True:
                try:
                    with OwnSocket(fileno=listener.accept()[0].detach()) as connection:
                        connection.settimeout(_SEND_SECONDS)
                        for frame in self.to_frames():
                            connection.sendall(frame)
                except OSError as error:  # who asked has left, or no descriptor is
                    log.warning("recent rows were not handed out", extra={"error": str(error)})
                    time.sleep(RECONNECT_SECONDS)


class RecordedRunner:
    """A FrameRunner of whose batches some are kept."""

    def __init__(
        self,
        runner: FrameRunner,
        recent: RecentBatches,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._runner = runner
        self._recent = recent
        self._clock = clock
        self.streams = runner.streams
        self.run_stream = runner.run_stream

    def run(self, meta: Meta, payload: Payload) -> tuple[Meta, Sequence[Payload]]:
        """See FrameRunner. The rows are copied first: the method may write into its arrays."""
        if not self._recent.is_due(meta["method"], len(payload)):
            return self._runner.run(meta, payload)
        rows, began = bytes(payload), self._clock()
        answer, buffers = self._runner.run(meta, payload)
        self._keep(meta, rows, answer, buffers, began)
        return answer, buffers

    async def run_async(self, meta: Meta, payload: Payload) -> tuple[Meta, Sequence[Payload]]:
        """See FrameRunner."""
        if not self._recent.is_due(meta["method"], len(payload)):
            return await self._runner.run_async(meta, payload)
        rows, began = bytes(payload), self._clock()
        answer, buffers = await self._runner.run_async(meta, payload)
        self._keep(meta, rows, answer, buffers, began)
        return answer, buffers

    def _keep(
        self, meta: Meta, rows: bytes, answer: Meta, buffers: Sequence[Payload], began: float
    ) -> None:
        if "unfit" not in answer:  # nobody is told such an answer
            self._recent.keep(meta, rows, answer, buffers, self._clock() - began)
