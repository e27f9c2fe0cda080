"""Records when requests arrive, for `batchedapi simulate`: `batchedapi serve --record FILE`.

    engine.submit -> RecordingEngine -> ArrivalLog (bounded, in memory) -> its thread -> RecordFile

One JSON object a line: {"t": seconds since the recording began, "rows", "lengths", "method"}, of
every request that asked for service, refused or not. Nothing but the lengths of rows that have some
is written of what is in a request. The web process with the queue writes for all of them, as all
requests come to it; without `--record` its engine is the dispatcher itself.
"""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from batchedapi_core.batching import Client, lengths_in
from batchedapi_serving.codecs import DecodedRequest
from batchedapi_serving.dispatch.engine import Caller, Engine, RequestHandle, ServedMethod
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.settings import RecordingSettings

log = logging.getLogger(__name__)

MOST_HELD: Final = 65536
"""Requests in memory, some 10 MB: seconds of the highest load for a disk that hesitates."""
FLUSH_SECONDS: Final = 0.2
STOP_SECONDS: Final = 2.0
"""For a disk that hangs when the replica stops; within what a drained web process gets to end."""
_LINES_AT_ONCE: Final = 256
"""A third of a millisecond of the GIL."""
_LOOK_BACK: Final = 65536
"""Bytes in which the end of the last line is looked for; a line of ours has a tenth at most."""
MOST_LENGTHS: Final = 1024
"""Rows of a request whose lengths are written; those behind them are like them."""


class RecordFile:
    """A file that has whole lines only, whatever happens while they are written; one writer."""

    def __init__(self, path: Path) -> None:
        """Go on behind the last whole line.

        A writer that was killed may have left part of another.

        Raises:
            OSError: the file cannot be opened, nor made.
        """
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._descriptor).st_size
        start = max(0, size - _LOOK_BACK)
        self._end = start + os.pread(self._descriptor, size - start, start).rfind(b"\n") + 1
        os.ftruncate(self._descriptor, self._end)

    def append(self, lines: list[bytes]) -> None:
        """Write lines, each with its newline.

        Raises:
            UnwrittenError: the disk is full, or gone; the lines before are in the file.
        """
        data, done = b"".join(lines), 0
        try:
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], self._end + done)
        except OSError as error:
            whole = data.rfind(b"\n", 0, done) + 1
            self._end += whole
            with contextlib.suppress(OSError):  # a part that stays is written over by the next line
                os.ftruncate(self._descriptor, self._end)
            raise UnwrittenError(len(lines) - data.count(b"\n", 0, whole), error) from error
        self._end += done

    def close(self) -> None:
        """Twice is an error."""
        os.close(self._descriptor)


class UnwrittenError(Exception):
    """Some lines are not in the file."""

    def __init__(self, lines: int, reason: OSError) -> None:
        super().__init__(f"{lines} lines were not written: {reason}")
        self.lines = lines


class _Arrival(NamedTuple):
    time: float
    rows: int
    lengths: Sequence[int]
    method: str


class ArrivalLog:
    """Takes arrivals from the event loop to the file, which may be slow, full or gone.

    The event loop only appends to a bounded queue; what does not fit is counted. A thread writes,
    a few at a time, since it makes text of them while it holds the GIL.
    """

    def __init__(self, file: RecordFile, started: float, most_held: int = MOST_HELD) -> None:
        """`started` is when the recording began, on the clock of `arrived`."""
        self._file = file
        self._started = started
        self._most_held = most_held
        self._held: deque[_Arrival] = deque()
        self._came = 0  # the event loop's
        self._written = 0  # the thread's
        self._failing = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, name="recording", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def arrived(self, time: float, rows: int, lengths: Sequence[int], method: str) -> None:
        """Take note of a request; it costs two microseconds and never waits."""
        self._came += 1
        if len(self._held) < self._most_held:
            self._held.append(_Arrival(time, rows, lengths[:MOST_LENGTHS], method))

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """Write what is held and say what could not be, after at most `seconds`."""
        self._stopping.set()
        self._thread.join(seconds)
        written = self._written
        dropped = self._came - written
        log.log(
            logging.WARNING if dropped else logging.INFO,
            "recording ended",
            extra={"requests": written, "dropped": dropped},
        )

    # ------------------------------------------------------------ the thread

    def _write(self) -> None:
        while not self._stopping.wait(FLUSH_SECONDS):
            self._flush()
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        """Only this thread takes from the queue, so what it counts is there."""
        while count := min(len(self._held), _LINES_AT_ONCE):
            lines = [
                (
                    f'{{"t": {max(0.0, one.time - self._started):.6f}, "rows": {one.rows},'
                    f' "lengths": {[*one.lengths] or "null"}, "method": "{one.method}"}}\n'
                ).encode()
                for one in (self._held.popleft() for _ in range(count))
            ]
            try:
                self._file.append(lines)
            except UnwrittenError as error:
                if not self._failing:  # each time it begins, not for each line
                    log.warning("recording: requests are dropped", extra={"error": str(error)})
                self._failing = True
                self._written += count - error.lines
            else:
                self._failing = False
                self._written += count


class RecordingEngine:
    """See Engine. Notes requests before they are let in or refused: a load is both."""

    def __init__(
        self, engine: Engine, arrivals: ArrivalLog, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._arrivals = arrivals
        self._now = now
        self.served = engine.served
        self.cancel = engine.cancel
        self.taken = engine.taken
        self.disconnected = engine.disconnected

    @property
    def methods(self) -> Mapping[str, MethodSpec]:
        """See Engine."""
        return self._engine.methods

    @property
    def default(self) -> str | None:
        """See Engine."""
        return self._engine.default

    def submit(
        self,
        served: ServedMethod,
        decoded: DecodedRequest,
        client: Client,
        caller: Caller,
        timeout: float | None = None,
    ) -> RequestHandle:
        """See Engine."""
        lengths = lengths_in(decoded.sizes, decoded.shapes)
        self._arrivals.arrived(self._now(), decoded.rows, lengths, served.spec.name)
        return self._engine.submit(served, decoded, client, caller, timeout)

    def close(self) -> None:
        """Nobody comes any more."""
        self._arrivals.close()


def recording_engine(engine: Engine, recording: RecordingSettings) -> RecordingEngine | None:
    """An engine that records from now on; the process of the one before may have been killed.

    None where the file cannot be opened any more: a recording is not worth a replica.
    """
    try:
        file = RecordFile(Path(recording.path))
    except OSError as error:
        log.warning("nothing is recorded", extra={"file": recording.path, "error": str(error)})
        return None
    arrivals = ArrivalLog(file, recording.started)
    arrivals.start()
    return RecordingEngine(engine, arrivals)
