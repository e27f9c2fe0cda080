"""A request inside the dispatcher, the parts of it that ride in batches, and a batch."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from batchedapi_core.batching import Client, Entry, split_rows
from batchedapi_serving.codecs import Answer, Codec, Decoded, Results
from batchedapi_serving.errors import PredictorError


class AnswerTo(Protocol):
    """Who asked: told the answer exactly once, unless it left before."""

    def deliver(self, answer: Answer) -> None:
        """Take the answer to the current request."""

    def request_id(self) -> str | None:
        """What the client calls the current request, if it says."""


class Job:
    """One request from admission to answer."""

    __slots__ = (
        "arrived", "asker", "client", "deadline", "done", "entries", "form", "missing", "rows",
        "slices",
    )  # fmt: skip

    def __init__(
        self, decoded: Decoded, client: Client, asker: AnswerTo, arrived: float, deadline: float
    ) -> None:
        self.form = decoded.form
        self.rows = decoded.rows
        self.client = client
        self.asker = asker
        self.arrived = arrived
        self.deadline = deadline
        self.done = False
        self.entries: Sequence[PartEntry] = ()
        self.missing = 0
        """Parts of an oversize request that are not yet answered; 0 for a request in one piece."""
        self.slices: list[tuple[Results, int, int] | None] = []

    def part_answered(self, index: int, results: Results, start: int, stop: int) -> Answer | None:
        """Take the rows of one part; the whole answer once none is missing.

        Raises:
            PredictorError: the parts do not fit together.
        """
        self.slices[index] = (results, start, stop)
        self.missing -= 1
        if self.missing:
            return None
        present = [part for part in self.slices if part is not None]
        (first, begin, end), *others = present
        return first.joined(begin, end, others).answer(self.form, 0, self.rows)


class Part:
    """What one queue entry holds: a job, or a piece of an oversize one."""

    __slots__ = ("index", "job", "payload")

    def __init__(self, job: Job, payload: Any, index: int = 0) -> None:
        self.job = job
        self.payload = payload
        self.index = index


PartEntry: TypeAlias = Entry[Part]


def split_job(job: Job, payload: Any, codec: Codec, max_size: int) -> None:
    """Make a request of more rows than a batch holds into parts that fit; see `part_answered`."""
    spans = split_rows(job.rows, max_size)
    job.missing = len(spans)
    job.slices = [None] * len(spans)
    job.entries = [
        Entry(
            Part(job, codec.part(payload, start, stop), index),
            stop - start,
            stop - start,
            job.client,
            job.arrived,
            job.deadline,
        )
        for index, (start, stop) in enumerate(spans)
    ]


class Batch:
    """Entries that run together."""

    __slots__ = ("deaths", "entries", "reason", "requests", "rows", "size")

    def __init__(self, entries: Sequence[PartEntry], reason: str, deaths: int = 0) -> None:
        self.entries = entries
        self.reason = reason
        self.deaths = deaths
        """Model processes that died while they ran these entries."""
        self.rows = self.size = 0
        for entry in entries:
            self.rows += entry.rows
            self.size += entry.size
        self.requests = len(entries)

    def after_failure(self) -> list["Batch"]:
        """The halves to run next, so that only the culprit fails; none if it is alone."""
        live = self._live()
        if len(live) <= 1:
            return [Batch(live, "retry", self.deaths)] if live and len(self.entries) > 1 else []
        middle = len(live) // 2
        return [Batch(half, "retry", self.deaths) for half in (live[:middle], live[middle:])]

    def after_death(self) -> list["Batch"]:
        """What to run again: all of it once, then each alone, then nothing."""
        live, deaths = self._live(), self.deaths + 1
        if deaths == 1 and live:
            return [Batch(live, "retry", deaths)]
        if len(self.entries) > 1:
            return [Batch([entry], "retry", 1) for entry in live]
        return []

    def _live(self) -> list[PartEntry]:
        return [entry for entry in self.entries if not entry.cancelled]


def predictor_failed(what: str) -> PredictorError:
    """The error of a request whose own row made the predictor fail."""
    return PredictorError(f"the predictor {what}; the server's log has the details")
