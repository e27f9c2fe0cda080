"""Which slices are beside each other."""

import pytest
from tracing_in_turn import Slice, beside


def test_a_slice_is_beside_its_neighbours_of_the_other_kind() -> None:
    """A B B A on a machine that gets slower by half in between: only neighbours share its speed."""
    slices = [
        Slice(draws, 1.1 * slow if draws else slow, 1.2 * slow if draws else slow, 1.0 / slow)
        for draws, slow in ((False, 1.0), (True, 1.0), (True, 2.0), (False, 2.0))
    ]

    assert pytest.approx((1.1, 1.2, 1.0)) == beside(slices)
