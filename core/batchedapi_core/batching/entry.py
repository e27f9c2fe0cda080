"""What waits in the queue, and whose it is."""

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from batchedapi_core.batching.returning import AnsweredGroup

P = TypeVar("P")


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


class Entry(Generic[P]):
    """A request, or a part of an oversize one, from arrival to answer.

    Attributes:
        payload: The caller's; never looked at.
        rows: Rows in it, >= 1.
        size: Its share of `max_batch_size`, >= 1, in the policy's unit.
        arrived: Seconds on the caller's monotonic clock.
        deadline: Seconds on the same clock after which nobody wants the answer; inf: none.
        shape: Entries of different shapes never share a batch; None where all are alike.
        cancelled: Nobody waits for the answer any more; set by `Batcher.cancel`.
        queued: Still in the queue; set by the batcher.
        returning: Size the client is expected to bring again after this answer; set by the batcher
            (0 for the leading parts of an oversize request).
    """

    __slots__ = (
        "arrived",
        "cancelled",
        "client",
        "deadline",
        "payload",
        "queued",
        "returning",
        "rows",
        "shape",
        "size",
    )

    def __init__(  # noqa: PLR0917 - one for each request: positional arguments are cheaper
        self, payload: P, rows: int, size: int, client: Client, arrived: float, deadline: float,
        shape: Hashable = None,
    ) -> None:  # fmt: skip
        self.payload = payload
        self.rows = rows
        self.size = self.returning = size
        self.client = client
        self.arrived = arrived
        self.deadline = deadline
        self.shape = shape
        self.cancelled = self.queued = False


class Taken(NamedTuple, Generic[P]):
    """What left the queue: to be run, and to be answered as too late."""

    entries: list[Entry[P]]
    expired: list[Entry[P]]
