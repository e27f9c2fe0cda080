"""Decisions of the status and of the operator, put together."""

import pytest

from batchedapi_operator.plugin.why import history_table, joined


def decision(since: int, until: int, desired: int = 3) -> dict[str, object]:
    """From and to that second."""
    return {
        "since": f"2026-01-02T03:04:{since:02}Z",
        "time": f"2026-01-02T03:04:{until:02}Z",
        "count": 1 + (until - since) // 5,
        "desired": desired,
        "reason": "Demand",
        "text": "3 replicas (Demand)",
        "record": {
            "bound": "MaxReplicas",
            "terms": {
                "current": 1,
                "arrival_now": 1200.0,
                "base": 1234.5,
                "capacity": 500.0,
                "need": 2.469,
            },
        },
    }


@pytest.mark.parametrize(
    ("status", "operator", "expected"),
    [
        pytest.param(20, [(15, 25), (0, 10)], [25, 10], id="the operator's covers it"),
        pytest.param(30, [(15, 25)], [30, 25], id="the status is newer"),
        pytest.param(5, [(20, 25)], [25, 5], id="from before a restart"),
        pytest.param(5, [], [5], id="the operator knows nothing"),
        pytest.param(12, [(15, 25), (0, 10)], [25, 12, 10], id="between two"),
    ],
)
def test_no_decision_is_lost_or_told_twice(
    status: int, operator: list[tuple[int, int]], expected: list[int]
) -> None:
    """The status is written every ten seconds and outlives the operator, which knows more."""
    of_operator = [decision(since, until) for since, until in operator]

    told = joined(decision(status, status), of_operator)

    assert [f"2026-01-02T03:04:{second:02}Z" for second in expected] == [
        one["time"] for one in told
    ]


def test_a_line_says_what_was_decided_and_from_what() -> None:
    """Time, replicas, reason, rows/s, capacity, need, bound."""
    head, line, still = history_table([decision(0, 10), decision(0, 0, desired=1)])

    assert ["TIME", "TIMES", "REPLICAS", "REASON", "ROWS/S", "CAPACITY", "NEED", "BOUND"] == (
        head.split()
    )
    assert (
        "2026-01-02T03:04:10Z  3      1 -> 3    Demand  1234    500       2.469  MaxReplicas"
        == line
    )
    assert "  1         Demand" in still


def test_what_was_not_measured_is_not_shown_as_zero() -> None:
    """A line of a hold must not read as an API without load."""
    blind = {
        **decision(0, 0),
        "record": {
            "bound": "NoMetrics",
            "terms": {"arrival_now": None, "base": 0.0, "capacity": 0.0, "need": 0.0},
        },
    }

    _, line = history_table([blind])

    assert ["2026-01-02T03:04:00Z", "1", "3", "Demand", "-", "-", "-", "NoMetrics"] == line.split()
