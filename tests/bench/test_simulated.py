"""Which rounds of the simulator's comparison count, and what is a slow batch."""

import pytest
from simulated import CASES, LATE, SLOW, calm, counting, off


def test_a_slow_batch_is_one_that_no_line_explains() -> None:
    """At an edge of the histogram, above the longest that the model sleeps by a quarter or more."""
    assert [0.025, 0.05, 0.05] == [case.slow for case in CASES]


@pytest.mark.parametrize(
    ("lateness", "slow", "expected"),
    [(LATE, SLOW, True), (LATE + 0.001, 0.0, False), (0.0, SLOW + 0.001, False)],
)
def test_a_round_is_judged_by_what_went_in(lateness: float, slow: float, expected: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    """Judged by its outcome, the bench could not fail."""
    assert expected is calm({"lateness": lateness, "slow": slow, "p99": 9.0, "p99_predicted": 1.0})


def test_without_an_undisturbed_round_all_of_them_count() -> None:
    """A machine that is never quiet must not make the bench pass with nothing."""
    disturbed = {"lateness": 1.0, "slow": 0.0}
    undisturbed = {"lateness": 0.0, "slow": 0.0}

    assert [undisturbed] == counting([disturbed, undisturbed, disturbed])
    assert [disturbed, disturbed] == counting([disturbed, disturbed])


def test_a_prediction_is_off_by_a_share_of_what_was_measured() -> None:
    """Negative: it promises less than there was."""
    assert pytest.approx(-0.2) == off([{"p99": 0.05, "p99_predicted": 0.04}], "p99").median
