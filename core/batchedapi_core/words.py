"""Numbers as the sentences of status, log and command line say them."""

from typing import Final

SMALL_RATE: Final = 10.0
"""Rows per second; below, one decimal is kept, so that little is not shown as nothing."""


def ms(seconds: float) -> str:
    """Three figures: 0.25 ms, 20 ms, 1280 ms."""
    milliseconds = 1e3 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"  # noqa: PLR2004 - three figures


def percent(share: float) -> str:
    """Of a share 0..1."""
    return f"{100 * share:.0f} %"


def per_second(rows: float) -> str:
    """The bare number of a rate: the unit is left to the sentence."""
    return f"{rows:.{0 if rows >= SMALL_RATE else 1}f}"


def rate(rows_per_second: float) -> str:
    """With its unit."""
    return f"{per_second(rows_per_second)} rows/s"


def size(number: float) -> str:
    """Of a batch, on average."""
    return f"{number:.1f}"
