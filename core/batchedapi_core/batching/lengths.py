"""Which rows share a batch where rows of different lengths may: by what t(n, L) says of them.

A batch takes the time of its longest row, so neighbours in length ride together. A free lane gets
the group that

- has the request whose turn it is, so that nobody starves;
- is contiguous in length and fits a batch;
- serves most work a second: (sum of its rows' values) / t(n, L) is the largest.

    value = alone / usual * (1 + age / (2 * backlog))
    alone = fixed / m + per_row + (per_padded + per_own) * length

`alone` is the time of a row in a batch without padding, with m = as many as a batch can hold of
those queued. `usual` is the share of the lane's time that such times take where rows of about this
length ride. So alone / usual is the time that a row usually costs, and the rate of a group says how
much less it costs than usual: an odd row is not hidden in a large batch that is cheap without it.
The last factor is for the tail: it prefers rows that have waited, by their age over the seconds
that all queued rows take. docs/decisions/0078 has the evidence.
"""

from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import Final, NamedTuple, TypeAlias, cast

from batchedapi_core.batching.request import Request
from batchedapi_core.service_surface import ServiceSurface

Entry: TypeAlias = tuple[int, int, int, Request]
"""(length, id, first row, request): ascends as lengths do, and among equals as arrivals."""
AGE_WEIGHT: Final = 0.5
FINEST: Final = 64
"""Ends of a group that are tried on either side of the head: of more rows, every second or so."""
RIDES_GAIN: Final = 1 / 64  # smoothing of `usual`, a row
LEAST_USED: Final = 0.3
"""`usual` is no less, so that no row counts for more than three times its time."""


class Group(NamedTuple):
    """Requests that are the next batch for their lengths, while others are left."""

    requests: Sequence[Request]
    used: float
    """Share of its time that their times alone take; see the module."""


class Rides:
    """`usual`, as the module says, by bit length of a row's length."""

    __slots__ = ("usual",)

    def __init__(self) -> None:
        self.usual: dict[int, float] = {}

    def learn(self, group: Group) -> None:
        """It rides."""
        for request in group.requests:
            key = request.length.bit_length()
            usual = self.usual.get(key, 1.0)
            self.usual[key] = max(LEAST_USED, usual + (group.used - usual) * RIDES_GAIN)


class Sums:
    """Sums over the first requests of a list; `size[3] - size[1]` is that of the second and third.

    Attributes:
        size: In the policy's unit.
        own: Of the lengths of all rows.
        value: Seconds; see the module.
    """

    __slots__ = ("length", "own", "rows", "size", "value")

    def __init__(self) -> None:
        self.length: list[int] = []  # of each request, not summed
        self.size = [0]
        self.rows = [0]
        self.own = [0]
        self.value = [0.0]

    def add(self, request: Request, value: float) -> None:
        """One more, which is `value` worth."""
        self.length.append(request.length)
        self.size.append(self.size[-1] + request.size)
        self.rows.append(self.rows[-1] + request.rows)
        self.own.append(self.own[-1] + request.length * request.rows)
        self.value.append(self.value[-1] + value)


class Load(NamedTuple):
    """The queue that a group is chosen from; times in seconds."""

    head: int
    """Place of the request whose turn it is."""
    most: int
    """Size of a full batch; a head that is larger rides alone."""
    shared: float
    """Of the fixed cost, a row's share if it rides with as many as can."""
    backlog: float
    """That everything queued takes; > 0."""
    now: float


def best_group(
    order: Sequence[Entry], load: Load, surface: ServiceSurface, usual: Mapping[int, float]
) -> Group:
    """The group with the largest rate; see the module. O(most), however long the queue is.

    Args:
        order: All that is queued, by length.
        load: The rest of the queue.
        surface: t(n, L) of a lane.
        usual: See Rides.
    """
    head, most, shared, backlog, now = load
    first, stop = _window(order, head, most)
    sums = Sums()
    per_row, per_length = shared + surface.per_row, surface.per_padded + surface.per_own
    age_weight = AGE_WEIGHT / backlog
    for place in range(first, stop):
        request = order[place][3]
        alone = (per_row + per_length * request.length) * request.rows
        usually = alone / usual.get(request.length.bit_length(), 1.0)
        sums.add(request, usually * (1.0 + age_weight * (now - request.arrived)))
    best, low, high = -1.0, head - first, head - first + 1
    step, end = 1 + (stop - head) // FINEST, high
    while True:
        rate, start = _best_start(sums, head - first, end, surface, most)
        if rate >= best:
            best, low, high = rate, start, end
        if end == stop - first:
            break
        end = min(end + step, stop - first)
    rows, own = sums.rows[high] - sums.rows[low], sums.own[high] - sums.own[low]
    used = (per_row * rows + per_length * own) / surface.seconds(rows, sums.length[high - 1], own)
    return Group([entry[3] for entry in order[first + low : first + high]], used)


def _window(order: Sequence[Entry], head: int, most: int) -> tuple[int, int]:
    """First and stop of the requests that could be in one batch with the head."""
    first, room = head, most - order[head][3].size
    while first > 0 and order[first - 1][3].size <= room:
        first -= 1
        room -= order[first][3].size
    stop, room = head + 1, most - order[head][3].size
    while stop < len(order) and order[stop][3].size <= room:
        room -= order[stop][3].size
        stop += 1
    return first, stop


def _best_start(
    sums: Sums, head: int, end: int, surface: ServiceSurface, most: int
) -> tuple[float, int]:
    """The best rate of the groups that end before `end`, and where that group starts."""
    size, rows, own, value = sums.size, sums.rows, sums.own, sums.value
    per_row = surface.per_row + surface.per_padded * sums.length[end - 1]
    fixed, per_own = surface.fixed, surface.per_own
    best, at = -1.0, head
    step = 1 + head // FINEST
    start = head
    while start >= 0:
        if start < head and size[end] - size[start] > most:
            break
        seconds = fixed + per_row * (rows[end] - rows[start]) + per_own * (own[end] - own[start])
        rate = (value[end] - value[start]) / seconds
        if rate >= best:
            best, at = rate, start
        start -= step
    return best, at


def lengths_of(requests: Sequence[Request]) -> tuple[int, int, int]:
    """Rows, the longest of them, and the sum of their lengths."""
    rows = longest = own = 0
    for request in requests:
        rows += request.rows
        longest = max(longest, request.length)
        own += request.length * request.rows
    return rows, longest, own


def lengths_in(sizes: Sequence[int] | None, shapes: Sequence[Hashable] | None) -> Sequence[int]:
    """Lengths of rows of these costs or shapes; of neither none.

    A shape's is the number of its places. Without shapes the cost is it: the method itself pads.
    """
    if shapes is None:
        return sizes or ()
    return [prod(cast("Sequence[int]", shape)) for shape in shapes]


def padding_class(shape: Hashable, free: int) -> Hashable:
    """Rows of one class may share a batch; None is the class of those that are padded freely.

    In any other, the lengths of each dimension lie between a power of two and the one before. So a
    batch takes less than 2 ** dimensions times the memory that its rows take. `free` is that of a
    `BatchPolicy.pads_to`; if it is 0, rows of different lengths share no batch.
    """
    lengths = cast("Sequence[int]", shape)
    if not free:
        return shape
    if max(lengths) <= free:
        return None
    return tuple([(length - 1).bit_length() for length in lengths])
