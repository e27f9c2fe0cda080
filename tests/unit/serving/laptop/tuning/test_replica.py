"""CPUs of a replica that is tuned, and of its load generator."""

import os

import pytest

from batchedapi_core.manifest import Compute
from batchedapi_serving.laptop.tuning.replica import apart_from, cpus_of


@pytest.mark.parametrize(
    ("compute", "usable", "expected"),
    [
        ({}, 4, {2}),
        ({"cpu": "100m"}, 4, {2}),
        ({"cpu": "2500m"}, 4, {2, 3}),
        ({"cpu": "1", "cpuLimit": "3"}, 4, {2, 3, 5}),
        ({"cpu": "2"}, 2, set()),
        ({"cpu": "8"}, 4, set()),
        ({"cpu": "1"}, 1, set()),
    ],
)
def test_a_replica_has_the_cpus_that_it_asks_for_where_the_loads_have_others(
    compute: dict[str, str], usable: int, expected: set[int]
) -> None:
    """Else both share all of them, and the figures are of both."""
    assert expected == cpus_of(Compute.model_validate(compute), [2, 3, 5, 7], usable)


def test_the_generator_leaves_them_to_it_for_as_long() -> None:
    """Whoever calls has its own CPUs again."""
    before = os.sched_getaffinity(0)
    first = frozenset({min(before)})
    if len(before) > 1:
        with apart_from(first):
            assert before - first == os.sched_getaffinity(0)
    with apart_from(frozenset()):
        assert before == os.sched_getaffinity(0)
    assert before == os.sched_getaffinity(0)
