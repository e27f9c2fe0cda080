"""What waits in the queue, and whose it is."""

from collections import deque
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from batchedapi_core.batching.isolation import Parts, Search

if TYPE_CHECKING:
    from batchedapi_core.batching.returning import AnsweredGroup


class Client:
    """One connection as the batcher remembers it; the caller creates it and passes it around.

    One HTTP/1.1 or HTTP/2 connection. Connections that close after one answer can share a Client
    per peer address: an arrival is then taken for the return of whoever was answered longest ago.
    It refers to nothing but the groups it was answered with, so dropping it frees it.
    """

    __slots__ = ("answers", "gap")

    def __init__(self) -> None:
        # (answered at, size, group awaited with) of answers not yet followed by a request; never
        # longer than the number of requests this client had in flight at once.
        self.answers: deque[tuple[float, int, AnsweredGroup | None]] = deque()
        self.gap = 0.0  # seconds from answer to next request, smoothed; 0: not known to come back


class Request:
    """A request from arrival to answer: its description; its rows lie with the caller.

    A request that does not fit one batch is split. Each of its parts is a Request with the same
    `id`, and rows `first` to `first + rows` of it.

    Attributes:
        id: The caller's, unique among the requests of one Scheduler.
        method: Whose queue it stands in.
        rows: Rows in it, >= 1.
        size: Its share of `max_batch_size`, >= 1, in the policy's unit.
        arrived: Seconds on the caller's monotonic clock.
        deadline: Seconds on the same clock after which nobody wants the answer; inf: none.
        shape: Requests of different shapes never share a batch; None where all are alike.
        first: Of its rows, in the whole request.
        split: Of a request in parts; None: it is in one piece.
        cancelled: Nobody waits for the answer any more; set by `Batcher.cancel`.
        queued: Still in the queue; set by the batcher.
        returning: Size the client is expected to bring again after this answer; set by the batcher
            (0 for the leading parts of a request that was split).
    """

    __slots__ = (
        "arrived",
        "cancelled",
        "client",
        "deadline",
        "first",
        "id",
        "method",
        "queued",
        "returning",
        "rows",
        "shape",
        "size",
        "split",
    )

    def __init__(  # noqa: PLR0917 - one for each request: positional arguments are cheaper
        self, id: int, method: str, rows: int, size: int, client: Client, arrived: float,  # noqa: A002 - what it is
        deadline: float, shape: Hashable = None,
    ) -> None:  # fmt: skip
        self.id = id
        self.method = method
        self.rows = rows
        self.size = self.returning = size
        self.client = client
        self.arrived = arrived
        self.deadline = deadline
        self.shape = shape
        self.first = 0
        self.split: Split | None = None
        self.cancelled = self.queued = False

    @property
    def parts(self) -> "Sequence[Request]":
        """It, or what it was split into."""
        return (self,) if self.split is None else self.split.parts

    def divide(self, spans: Parts) -> "list[Request]":
        """The same rows in parts: [start, stop) of them each, with sizes shared out by rows.

        It counts no more itself. Of a part that is divided again the parts take its place.
        """
        whole = self.splitting()
        parts = []
        for start, stop in spans:
            size = max(1, self.size * stop // self.rows - self.size * start // self.rows)
            part = self.part(start, stop, size, self.shape)
            part.returning = 0
            parts.append(part)
        parts[-1].returning = self.returning
        whole.parts = [*(other for other in whole.parts if other is not self), *parts]
        return parts

    def part(self, start: int, stop: int, size: int, shape: Hashable) -> "Request":
        """Rows [start, stop) of it, which is split already."""
        part = Request(
            self.id,
            self.method,
            stop - start,
            size,
            self.client,
            self.arrived,
            self.deadline,
            shape,
        )
        part.first = self.first + start
        part.split = self.split
        return part

    def splitting(self) -> "Split":
        """What its parts share; made when it is first asked for."""
        if self.split is None:
            self.split = Split(self)
        return self.split


class Split:
    """A request in parts, and the search for culprits among its rows, which the parts share."""

    __slots__ = ("parts", "search")

    def __init__(self, whole: Request) -> None:
        self.parts: Sequence[Request] = (whole,)
        self.search = Search(whole.rows)


class Taken(NamedTuple):
    """What left the queue: to be run, and to be answered as too late."""

    requests: list[Request]
    expired: list[Request]
