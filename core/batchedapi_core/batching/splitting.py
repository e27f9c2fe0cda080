"""Requests that do not fit one batch: larger than one may be, or with rows of several shapes."""

from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import NamedTuple


class Span(NamedTuple):
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
) -> list[Span]:
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
            return [Span(a, b, b - a) for a, b in split_rows(sizes, max_size)]
        sizes = [1] * sizes
    if not sizes or min(sizes) < 1 or max_size < 1:
        raise ValueError(
            f"expected rows of a size >= 1 and max_size >= 1, got {len(sizes)} rows of at least"
            f" {min(sizes, default=0)} and {max_size}"
        )
    alike = shapes or repeat(None, len(sizes))
    spans: list[Span] = []
    start, filled, current = 0, 0, None if shapes is None else shapes[0]
    for row, (cost, shape) in enumerate(zip(sizes, alike, strict=True)):
        size = min(cost, max_size)
        if row > start and (filled + size > max_size or shape != current):
            spans.append(Span(start, row, filled, current))
            start, filled = row, 0
        current = shape
        filled += size
    spans.append(Span(start, len(sizes), filled, current))
    return spans
