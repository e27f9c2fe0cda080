"""A request: what is known of it, how it is cut into parts, and which of them made a batch fail.

It is cut if it does not fit one batch: larger than one may be, or with rows of several shapes.

Whose fault it is that a batch failed is found by halves within a budget, then one by one. By halves
one culprit among n is found in 2 ceil(log2 n) further runs. That and two runs more are the budget
of one failed batch: several culprits would take up to 2 n - 2. What is not told apart when it is
spent is run one by one, so that in the end nobody fails for a neighbour:

    further runs of a batch of n <= 2 ceil(log2 n) + 2 + n

A budget of which no run succeeded says that everything fails, for a reason behind the rows. Halves
tell nothing then, and failed batches are run one by one at once, until a run succeeds.
"""

from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import NamedTuple

from batchedapi_core.batching.traffic import Client

Parts = Sequence[tuple[int, int]]
"""Units [start, stop), each to be run by itself."""


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
        length: Of each of its rows, where rows of different lengths may share a batch; else 0.
        sides: Of each of its rows, by padded dimension; the length is their product, if any.
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
        "length",
        "method",
        "queued",
        "returning",
        "rows",
        "shape",
        "sides",
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
        self.first = self.length = 0
        self.sides: Sequence[int] = ()
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
        part.length, part.sides = self.length, self.sides
        part.split = self.split
        return part

    def is_late(self, now: float, margin: float) -> bool:
        """Whether it is not worth running if it takes `margin` seconds; see `RequestQueue.take`."""
        left = self.deadline - now
        return left <= margin and 2.0 * left <= self.deadline - self.arrived

    def splitting(self) -> "Split":
        """State that its parts share; made when it is first asked for."""
        if self.split is None:
            self.split = Split(self)
        return self.split


class Split:
    """A request in parts, and the search for culprits among its rows, which the parts share."""

    __slots__ = ("parts", "search")

    def __init__(self, whole: Request) -> None:
        self.parts: Sequence[Request] = (whole,)
        self.search = Search(whole.rows)


class Handout(NamedTuple):
    """Requests that left the queue: to be run, and to be answered as too late."""

    requests: list[Request]
    expired: list[Request]


class RowSpan(NamedTuple):
    """Rows [start, stop) of a request that ride in one batch."""

    start: int
    stop: int
    size: int
    shape: Hashable = None


def split_rows(rows: int, max_rows: int) -> list[tuple[int, int]]:
    """Cut a request into parts that fit a batch: [start, stop) row ranges in order.

    Full parts first, then the remainder, so that only the last one leaves room for other requests.

    Raises:
        ValueError: `rows` or `max_rows` is less than 1.
    """
    if rows < 1 or max_rows < 1:
        raise ValueError(f"expected rows >= 1 and max_rows >= 1, got {rows} and {max_rows}")
    return [(start, min(start + max_rows, rows)) for start in range(0, rows, max_rows)]


def split_parts(
    sizes: int | Sequence[int], shapes: Sequence[Hashable] | None, max_size: int
) -> list[RowSpan]:
    """Cut a request into parts that fit a batch and are of one shape each; in order, one if it can.

    Each part is as large as the next row allows. A row that alone costs more than `max_size` runs
    alone, as a full batch: its size is `max_size`.

    Args:
        sizes: What each row costs, >= 1; a number: of so many rows each costs one.
        shapes: Of each row; None: all have the one shape.
        max_size: Of a batch; where shapes have limits of their own, the least of theirs.

    Raises:
        ValueError: There is no row, or a size or `max_size` is less than 1.
    """
    if isinstance(sizes, int):
        if shapes is None:
            return [RowSpan(a, b, b - a) for a, b in split_rows(sizes, max_size)]
        sizes = [1] * sizes
    if not sizes or min(sizes) < 1 or max_size < 1:
        raise ValueError(
            f"expected rows of a size >= 1 and max_size >= 1, got {len(sizes)} rows of at least"
            f" {min(sizes, default=0)} and {max_size}"
        )
    alike = shapes or repeat(None, len(sizes))
    spans: list[RowSpan] = []
    start, filled, current = 0, 0, None if shapes is None else shapes[0]
    for row, (cost, shape) in enumerate(zip(sizes, alike, strict=True)):
        size = min(cost, max_size)
        if row > start and (filled + size > max_size or shape != current):
            spans.append(RowSpan(start, row, filled, current))
            start, filled = row, 0
        current = shape
        filled += size
    spans.append(RowSpan(start, len(sizes), filled, current))
    return spans


class Search:
    """Runs that are left to find the culprits of one failed batch; all its parts share them."""

    __slots__ = ("halvings", "succeeded")

    def __init__(self, units: int) -> None:
        """`units` are what can be told apart, >= 1: requests, or rows of one request."""
        self.halvings = (units - 1).bit_length() + 1  # of two runs each
        self.succeeded = False
        """Whether any part ran without failure."""

    def halves(self, units: int) -> Parts:
        """Two halves of `units` that failed together; none of a single one, or of what is spent."""
        if units < 2 or not self.halvings:  # noqa: PLR2004 - of one there are no halves
            return ()
        self.halvings -= 1
        return (0, units // 2), (units // 2, units)


class Isolation:
    """How failed batches of one method are taken apart."""

    __slots__ = ("systemic",)

    def __init__(self) -> None:
        self.systemic = False
        """Whether everything fails at present."""

    def apart(self, search: Search, units: int) -> Parts:
        """Runs that follow when `units` failed together; none for a single one."""
        if not self.systemic:
            halves = search.halves(units)
            if halves:
                return halves
        if units <= 1:
            return ()
        self.systemic = self.systemic or not search.succeeded
        return [(n, n + 1) for n in range(units)]

    def succeeded(self, search: Search | None) -> None:
        """A batch ran without failure; `search` is that of which it was a part, if of any."""
        self.systemic = False
        if search is not None:
            search.succeeded = True
