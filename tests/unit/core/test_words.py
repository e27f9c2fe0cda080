"""Figures in sentences."""

import pytest

from batchedapi_core.words import ms, per_second, percent, rate, size


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ("0.25 ms", ms(0.00025)),
        ("20 ms", ms(0.02)),
        ("1280 ms", ms(1.28)),
        ("93 %", percent(0.93)),
        ("0.0", per_second(0.0)),
        ("9.9", per_second(9.94)),
        ("10", per_second(10.0)),
        ("3.6 rows/s", rate(3.6)),
        ("1333 rows/s", rate(1333.3)),
        ("21.4", size(21.43)),
    ],
)
def test_a_figure_has_as_many_digits_as_are_read(expected: str, said: str) -> None:
    """Little is not shown as nothing, and much not to the thousandth."""
    assert expected == said
