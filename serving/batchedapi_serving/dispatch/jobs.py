"""A request inside the dispatcher, and the parts of it that ride in batches."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from batchedapi_core.batching import Batcher, Client, Entry, Parts, Search
from batchedapi_serving.codecs import Answer, Codec, Decoded, Receipt, Results
from batchedapi_serving.dispatch.desk import AnswerTo
from batchedapi_serving.metrics.recorder import MethodRecorder


class JobLine(Protocol):
    """What a request needs of the line it stands in."""

    batcher: "Batcher[Part]"
    codec: Codec
    recorder: MethodRecorder


class Job:
    """One request from admission to answer."""

    __slots__ = (
        "arrived", "asker", "client", "deadline", "done", "entries", "hurried", "line", "missing",
        "pieces", "reply", "rows",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917 - one for each request: positional arguments are cheaper
        self,
        line: JobLine,
        decoded: Decoded,
        client: Client,
        asker: AnswerTo,
        arrived: float,
        deadline: float,
    ) -> None:
        self.line = line
        self.reply = decoded.reply
        self.rows = decoded.rows
        self.client = client
        self.asker = asker
        self.arrived = arrived
        self.deadline = deadline
        self.hurried = False
        """Its deadline is its own, and not the replica's."""
        self.done = False
        self.entries: Sequence[PartEntry] = ()
        self.missing = 0
        """Rows not yet answered of a request in parts; 0 for a request in one piece."""
        self.pieces: Pieces | None = None
        """What is known of a request in parts; None until there is anything."""

    def part_answered(
        self, first: int, results: Results, start: int, stop: int, receipt: Receipt | None
    ) -> Answer | None:
        """Take rows [start, stop) of `results` for the part that begins at row `first`.

        Returns:
            The whole answer once no row is missing.

        Raises:
            ServingError: the parts do not fit together, or the answer cannot be written.
        """
        pieces = self.pieces = self.pieces or Pieces(self.rows)
        slices = pieces.slices
        slices[first] = (results, start, stop)
        self.missing -= stop - start
        if self.missing:
            return None
        (results, start, stop), *others = (slices[key] for key in sorted(slices))
        return self.reply.answer(results.joined(start, stop, others), 0, self.rows, receipt)

    def search(self) -> Search:
        """For culprits among its rows; one for all its parts."""
        pieces = self.pieces = self.pieces or Pieces(self.rows)
        return pieces.search


class Pieces:
    """Of a request in parts: what was answered, and how much longer a culprit is looked for."""

    __slots__ = ("search", "slices")

    def __init__(self, rows: int) -> None:
        self.slices: dict[int, tuple[Results, int, int]] = {}
        """Answered parts by their first row."""
        self.search = Search(rows)


class Part:
    """What one queue entry holds: a job, or a piece of one."""

    __slots__ = ("first", "job", "payload")

    def __init__(self, job: Job, payload: Any, first: int = 0) -> None:
        self.job = job
        self.payload = payload
        self.first = first
        """Of its rows, in the request."""


PartEntry: TypeAlias = Entry[Part]


def cut(entry: PartEntry, parts: Parts) -> list[PartEntry]:
    """The same rows as several entries, for a batch too large although it is one request.

    None is queued; the sizes are shared out by rows, as rows of one request are mostly alike.
    """
    part = entry.payload
    job = part.job
    entries = [
        Entry(
            Part(job, job.line.codec.part(part.payload, start, stop), part.first + start),
            stop - start,
            max(1, entry.size * stop // entry.rows - entry.size * start // entry.rows),
            job.client,
            entry.arrived,
            entry.deadline,
            entry.shape,
        )
        for start, stop in parts
    ]
    for leading in entries[:-1]:
        leading.returning = 0
    entries[-1].returning = entry.returning
    if not job.missing:
        job.missing = job.rows
    job.entries = [*(other for other in job.entries if other is not entry), *entries]
    return entries
