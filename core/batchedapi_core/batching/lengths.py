"""Which rows share a batch where rows of different lengths may: by what t(n, L) says of them.

A batch takes the time of its longest row, so neighbours in length ride together. All that is queued
is cut, in order of length, into the groups that are served in the least time:

    sum of  SAVED * fixed * (batches of a group) + per_padded * (its longest) * (its rows)

What t(n, L) has beside these two terms is the same however it is cut. The group that has the
request whose turn it is rides, so nobody starves. Of one too large for a batch ride that request,
those above it in length, then those below. A batch that has room takes shorter rows too, if their
padding costs less than their share of a full batch's fixed cost: a row that stays costs that later.
docs/decisions/0078 has the evidence.
"""

from collections.abc import Hashable, Sequence
from math import inf, prod
from typing import Final, TypeAlias, cast

from batchedapi_core.batching.request import Request

Entry: TypeAlias = tuple[int, int, int, Request]
"""(length, id, first row, request): ascends as lengths do, and among equals as arrivals."""
SAVED: Final = 0.5
"""Share of a batch's fixed cost that one group less saves: rows that come until then would have
shared that batch. Of all of it long rows wait for company, and the closed loops of
tests/bench/lengths.py serve 3 % less; 0.35 and 0.7 are nearly as good."""
SPAN_BITS: Final = 4
"""Leading bits that lengths of one span share: they differ by less than an eighth."""


class Span:
    """What is queued of nearly one length, which is not cut."""

    __slots__ = ("requests", "rows", "size")

    def __init__(self) -> None:
        self.requests = self.rows = self.size = 0


def span_of(length: int) -> int:
    """Number of the span that rows of a length are in; ascends as lengths do."""
    less = max(0, length.bit_length() - SPAN_BITS)
    return (length >> less) + (less << SPAN_BITS - 1)


def cheapest_group(
    spans: Sequence[Span], longest: Sequence[int], head: int, most: int, worth: float
) -> tuple[int, int]:
    """First and stop of the spans that ride with one, as the module says; O(len(spans)^2).

    Args:
        spans: All that is queued, by length.
        longest: Of each span, its longest length.
        head: Place of the span with the request whose turn it is.
        most: Size of a full batch.
        worth: Padded length that takes as long as the fixed cost of a batch.
    """
    least, firsts = [0.0], [0]  # cost of the spans before, and where the last group of them begins
    for stop in range(1, len(spans) + 1):
        length, rows, size, best, at = longest[stop - 1], 0, 0, inf, 0
        for first in range(stop - 1, -1, -1):
            rows += spans[first].rows
            size += spans[first].size
            cost = float(length * rows) + worth * float((size + most - 1) // most)
            if cost > best:
                break  # of longer groups too
            if cost + least[first] < best:
                best, at = cost + least[first], first
        least.append(best)
        firsts.append(at)
    stop = len(spans)
    while firsts[stop] > head:
        stop = firsts[stop]
    return firsts[stop], stop


def filled(order: Sequence[Entry], head: int, first: int, stop: int, most: int) -> tuple[int, int]:
    """Of the entries from `first` to `stop` those that ride with the head; see the module."""
    low, high, room = head, head + 1, most - order[head][3].size
    while high < stop and order[high][3].size <= room:
        room -= order[high][3].size
        high += 1
    while low > first and order[low - 1][3].size <= room:
        low -= 1
        room -= order[low][3].size
    return low, high


def lengths_of(requests: Sequence[Request]) -> tuple[int, int, int]:
    """Rows, the length to which all are padded, and the sum of their own.

    Of several dimensions each is padded to its longest: rows of 2 x 8 and 8 x 2 to 8 x 8.
    """
    rows = longest = own = 0
    for request in requests:
        rows += request.rows
        longest = max(longest, request.length)
        own += request.length * request.rows
    if requests and len(requests[0].sides) > 1:
        longest = prod(map(max, zip(*[request.sides for request in requests], strict=True)))
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
    if max(lengths, default=0) <= free:
        return None
    return tuple([(length - 1).bit_length() for length in lengths])
