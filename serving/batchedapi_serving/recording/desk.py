"""The desk of a replica that records: the dispatcher's, and a note of everybody who comes to it."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Decoded
from batchedapi_serving.dispatch.desk import AnswerTo, Desk, Line, Ticket
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.recording.arrivals import ArrivalLog
from batchedapi_serving.recording.file import RecordFile
from batchedapi_serving.settings import RecordingSettings

log = logging.getLogger(__name__)


class RecordingDesk:
    """See Desk. Notes requests before they are let in or refused: a load is both."""

    def __init__(
        self, desk: Desk, arrivals: ArrivalLog, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._desk = desk
        self._arrivals = arrivals
        self._now = now
        self.line = desk.line
        self.cancel = desk.cancel
        self.disconnected = desk.disconnected

    @property
    def methods(self) -> Mapping[str, MethodSpec]:
        """See Desk."""
        return self._desk.methods

    @property
    def default(self) -> str | None:
        """See Desk."""
        return self._desk.default

    def submit(
        self,
        line: Line,
        decoded: Decoded,
        client: Client,
        asker: AnswerTo,
        timeout: float | None = None,
    ) -> Ticket:
        """See Desk."""
        self._arrivals.arrived(self._now(), decoded.rows, decoded.shapes, line.spec.name)
        return self._desk.submit(line, decoded, client, asker, timeout)

    def close(self) -> None:
        """Nobody comes any more."""
        self._arrivals.close()


def recording_desk(desk: Desk, recording: RecordingSettings) -> RecordingDesk | None:
    """A desk that records from now on; the process of the one before may have been killed.

    None where the file cannot be opened any more: a recording is not worth a replica.
    """
    try:
        file = RecordFile(Path(recording.path))
    except OSError as error:
        log.warning("nothing is recorded", extra={"file": recording.path, "error": str(error)})
        return None
    arrivals = ArrivalLog(file, recording.started)
    arrivals.start()
    return RecordingDesk(desk, arrivals)
