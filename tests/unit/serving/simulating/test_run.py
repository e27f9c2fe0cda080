"""`--assert`: what can be compared, in which units, and what a failure says."""

from math import inf, nan

import pytest

from batchedapi_serving.simulating.run import (
    AssertionFormError,
    parse_assertion,
    shown,
)


@pytest.mark.parametrize(
    ("text", "true_of", "false_of"),
    [
        ("p99<80ms", 0.079, 0.080),
        ("p50 <= 1.5s", 1.5, 1.51),
        ("p90>1ms", 0.0011, 0.001),
        ("miss_fraction<=5%", 0.05, 0.051),
        ("miss_fraction<0.05", 0.049, 0.05),
        ("cost_ratio<1.69", 1.68, 1.69),
        ("mean_rows>=8", 8.0, 7.9),
        ("replicas<=12", 12.0, 13.0),
        ("p99<80ms", 0.0, nan),
    ],
)
def test_a_quantity_is_compared_in_its_own_unit(text: str, true_of: float, false_of: float) -> None:
    """Durations, shares and numbers; nothing is true of what is not known."""
    assertion = parse_assertion(text)

    assert assertion.holds(true_of)
    assert not assertion.holds(false_of)
    assert text in assertion.failure(false_of)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p99", "such as p99<80ms, got 'p99'"),
        ("p99=80ms", "one of < <= > >="),
        ("p95<80ms", "expected one of p50, p90, p99, .*got 'p95'"),
        ("p99<80", "p99: expected a duration such as 5ms"),
        ("miss_fraction<x", "a share such as 0.05 or 5%, got 'x'"),
        ("replicas<5%", "replicas: expected a number, got '5%'"),
        ("cost_ratio<nan", "cost_ratio: expected a number"),
        (f"cost_ratio<{inf}", "cost_ratio: expected a number"),
    ],
)
def test_what_compares_nothing_is_refused(text: str, message: str) -> None:
    """An assertion that can never fail would be worse than none."""
    with pytest.raises(AssertionFormError, match=message):
        parse_assertion(text)


def test_a_failure_says_what_it_is_instead() -> None:
    """In the unit that it was asked in."""
    assert "p99<80ms does not hold: p99 is 95.25ms" == parse_assertion("p99<80ms").failure(0.09525)
    assert "no request was answered" in parse_assertion("p99<80ms").failure(nan)
    assert ["5%", "1.234", "-"] == [
        shown("miss_fraction", 0.05),
        shown("cost_ratio", 1.2341),
        shown("p99", nan),
    ]
