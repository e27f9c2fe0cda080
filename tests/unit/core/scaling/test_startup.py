"""How long a replica takes to be ready, as far as a forecast should look."""

import random
from dataclasses import replace

from tests.unit.core.scaling.closed_loop import Replica

from batchedapi_core.scaling.learned import (
    LONGEST_PLACEMENT,
    LONGEST_START,
    placements_of,
    start_up_of,
    start_ups_of,
)
from batchedapi_core.scaling.samples import PodSample


def pod(name: str, seconds: float | None) -> PodSample:
    """A pod that took so long."""
    return replace(Replica(name, 0.0).scrape(10.0), startup=seconds)


def test_unknown_is_what_the_caller_takes_it_for_until_one_was_measured() -> None:
    """A guess among the measurements would look like one."""
    assert () == start_ups_of((), (), [pod("a", None)])
    assert (12.0,) == start_ups_of((), (), [pod("a", None), pod("b", 12.0)])
    assert (30.0, 12.0) == (start_up_of((), 30.0), start_up_of((12.0,), 30.0))


def test_a_pod_counts_once() -> None:
    """It starts once, and is seen every two seconds."""
    known = pod("a", 90.0)

    assert (30.0,) == start_ups_of((30.0,), [known], [known])


def test_it_is_nearly_as_long_as_the_slowest_of_the_last() -> None:
    """Being late costs requests, being early a little money."""
    chance, known = random.Random(5), tuple[float, ...]()
    for number in range(100):
        known = start_ups_of(known, (), [pod(str(number), chance.uniform(20.0, 40.0))])

    assert 16 == len(known)
    assert 33.0 < start_up_of(known, 30.0) < 40.0
    assert 1 == sum(seconds > start_up_of(known, 30.0) for seconds in known)


def test_hours_were_no_start() -> None:
    """A pod that waited for a node over night must not make the forecast look a day ahead."""
    assert (LONGEST_START,) == start_ups_of((), (), [pod("a", 86_400.0)])


def test_a_node_that_is_bought_is_waited_for_and_a_full_cluster_is_not() -> None:
    """The wait for a node is planned apart; of who waits for others to go nothing is learned."""
    bought, full, unknown = (
        replace(pod(name, 30.0), placement=seconds)
        for name, seconds in (("a", 90.0), ("b", LONGEST_PLACEMENT + 1.0), ("c", None))
    )

    assert (4.0, 90.0) == placements_of((4.0,), (), [bought, full, unknown])
    assert (4.0,) == placements_of((4.0,), [bought], [bought])
