"""The straight line t(n)."""

import pytest

from batchedapi_core.service_model.service_time import ServiceTime


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [(0, 0.010), (1, 0.0102), (64, 0.0228), (0.5, 0.0101)],
    ids=["no rows", "one row", "a batch", "an expected fraction"],
)
def test_seconds_are_fixed_cost_plus_cost_per_row(rows: float, seconds: float) -> None:
    """Everything that predicts latency or throughput multiplies out this one formula."""
    line = ServiceTime(fixed=0.010, per_row=0.0002)

    assert pytest.approx(seconds) == line.seconds(rows)
