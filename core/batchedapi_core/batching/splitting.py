"""Oversize requests: more rows than one batch may have."""


def split_rows(rows: int, max_rows: int) -> list[tuple[int, int]]:
    """Cut a request into parts that fit a batch: [start, stop) row ranges in order.

    Full parts first, then the remainder, so that only the last one leaves room for other requests.

    Raises:
        ValueError: `rows` or `max_rows` is less than 1.
    """
    if rows < 1 or max_rows < 1:
        raise ValueError(f"expected rows >= 1 and max_rows >= 1, got {rows} and {max_rows}")
    return [(start, min(start + max_rows, rows)) for start in range(0, rows, max_rows)]
