"""A request inside the dispatcher: its payload, who asked, and what of it is answered."""

from typing import Any, Protocol

from batchedapi_core.batching import Request, Scheduler
from batchedapi_serving.codecs import Answer, Codec, Decoded, Receipt, Results
from batchedapi_serving.dispatch.desk import AnswerTo
from batchedapi_serving.metrics.recorder import MethodRecorder


class JobLine(Protocol):
    """What a request needs of the line it stands in."""

    scheduler: Scheduler
    codec: Codec
    recorder: MethodRecorder


class Job:
    """One request from admission to answer; `request` is what the scheduler knows of it."""

    __slots__ = ("asker", "done", "hurried", "line", "payload", "pieces", "reply", "request")

    def __init__(
        self, line: JobLine, request: Request, decoded: Decoded, asker: AnswerTo, *, hurried: bool
    ) -> None:
        self.line = line
        self.request = request
        self.reply = decoded.reply
        self.payload: Any = decoded.payload
        """Of all its rows; None once it is answered."""
        self.asker = asker
        self.hurried = hurried
        """Its deadline is its own, and not the replica's."""
        self.done = False
        self.pieces: Pieces | None = None
        """What was answered of a request in parts; None until anything was."""

    def part_answered(
        self, part: Request, results: Results, start: int, stop: int, receipt: Receipt | None
    ) -> Answer | None:
        """Take rows [start, stop) of `results` for a part of it.

        Returns:
            The whole answer once no row is missing.

        Raises:
            ServingError: the parts do not fit together, or the answer cannot be written.
        """
        rows = self.request.rows
        pieces = self.pieces = self.pieces or Pieces(rows)
        slices = pieces.slices
        slices[part.first] = (results, start, stop)
        pieces.missing -= stop - start
        if pieces.missing:
            return None
        (results, start, stop), *others = (slices[key] for key in sorted(slices))
        return self.reply.answer(results.joined(start, stop, others), 0, rows, receipt)


class Pieces:
    """The answered parts of a request."""

    __slots__ = ("missing", "slices")

    def __init__(self, rows: int) -> None:
        self.missing = rows
        """Rows not yet answered."""
        self.slices: dict[int, tuple[Results, int, int]] = {}
        """By their first row."""
