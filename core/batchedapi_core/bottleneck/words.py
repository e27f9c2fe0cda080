"""Numbers as advice says them."""

SMALL_RATE = 10.0  # rows/s; below, one decimal is kept, so that little is not shown as nothing


def ms(seconds: float) -> str:
    """Three figures: 0.25 ms, 20 ms, 1280 ms."""
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"  # noqa: PLR2004 - three figures


def percent(share: float) -> str:
    """Of a share 0..1."""
    return f"{100 * share:.0f} %"


def rate(rows_per_second: float) -> str:
    """Rows per second."""
    digits = 0 if rows_per_second >= SMALL_RATE else 1
    return f"{rows_per_second:.{digits}f} rows/s"


def size(number: float) -> str:
    """Of a batch, on average."""
    return f"{number:.1f}"
