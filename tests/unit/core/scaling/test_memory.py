"""Recommendations and counts that bind, and how they get through a status."""

import pytest

from batchedapi_core.scaling.numbers import MOST_SAVED
from batchedapi_core.scaling.state import (
    Recommendation,
    Size,
    at_begin,
    from_pairs,
    most_within,
    sizes_of,
    standing_high,
    standing_low,
    to_pairs,
)


def test_only_what_may_still_bind_is_kept() -> None:
    """Else an hour of looks would be in every status."""
    before = (Recommendation(4, 10.0), Recommendation(9, 20.0), Recommendation(2, 30.0))

    assert (Recommendation(5, 40.0), Recommendation(9, 20.0)) == standing_high(
        before, [Recommendation(5, 40.0)]
    )
    assert (Recommendation(5, 40.0), Recommendation(2, 30.0)) == standing_low(
        before, [Recommendation(5, 40.0)]
    )


def test_counts_are_known_for_a_period() -> None:
    """The begin of the period and the most within it, for the two directions."""
    sizes: tuple[Size, ...] = ()
    for tick, replicas in enumerate([2, 2, 6, 6, 3, 3]):
        sizes = sizes_of(sizes, replicas, 5.0 * tick, longest=22.0)

    assert (Size(5.0, 2), Size(15.0, 6), Size(25.0, 3)) == sizes
    assert [3, 6, 2] == [at_begin(sizes, 25.0, period) for period in (5.0, 15.0, 22.0)]
    assert [3, 6, 6] == [most_within(sizes, 25.0, period) for period in (5.0, 15.0, 22.0)]
    assert (Size(40.0, 3),) == sizes_of(sizes, 3, 40.0, longest=20.0)
    assert (3, 3) == (at_begin(sizes, 25.0, 0.0), most_within(sizes, 25.0, 0.0))


def test_a_long_list_is_merged_into_one_that_binds_at_least_as_much() -> None:
    """A status has room for little, and a restart must not loosen anything."""
    entries = [(count, 600.0 - count) for count in range(40)]

    high, low = to_pairs(entries, max), to_pairs(entries, min)

    assert len(high) <= MOST_SAVED
    for count, left in entries:
        assert any(kept >= count and seconds >= left for kept, seconds in high)
        assert any(kept <= count and seconds >= left for kept, seconds in low)
    assert [(3, 1.5)] == from_pairs(to_pairs([(3, 1.5)], max), 0.0, 60.0)


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        "1",
        [[1, 2.0]] * 17,
        [1],
        [[1]],
        [[1, 2.0, 3.0]],
        [["1", 2.0]],
        [[1, True]],
        [[-1, 2.0]],
        [[10**10, 2.0]],
        [[1, 61.0]],
        [[1, -0.1]],
        [[1, float("nan")]],
    ],
)
def test_what_was_not_saved_is_refused(garbage: object) -> None:
    """Anybody may edit a status."""
    assert from_pairs(garbage, 0.0, 60.0) is None
