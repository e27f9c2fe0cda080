"""F7: the size and interval that are recommended, and when nothing is."""

from collections.abc import Iterable
from dataclasses import astuple, replace
from typing import Any, Final

import pytest

from batchedapi_core.scaling.learned import LearnedModel
from batchedapi_core.scaling.need import replica_capacity
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy
from batchedapi_core.scaling.recommendation import (
    REACH,
    Batching,
    BatchingRecommendation,
    recommend,
    tells_a_row_s_price,
)
from batchedapi_core.service_model import BatchSums, RequestRows, ServiceTime
from batchedapi_core.simulation import (
    NoisyService,
    Outcome,
    PoissonTrace,
    SimulatedFleet,
    max_rate,
    simulate,
)

POLICY: Final = ScalingPolicy(
    min_replicas=1, max_replicas=50, max_batch_size=16, batch_interval=0.05, latency_target=0.1
)
GPU: Final = ServiceTime(0.008, 0.00015)


def learned(service: ServiceTime, sizes: Iterable[int], times: float = 1e6) -> LearnedModel:
    """Batches of each of `sizes`, so many times."""
    sums = BatchSums()
    for n in sizes:
        seconds = service.seconds(n)
        sums = sums.plus(BatchSums(1, n, n * n, seconds, n * seconds).scaled(times))
    return LearnedModel("r", sums)


def recommended(
    service: ServiceTime = GPU, sizes: Iterable[int] = (4, 16), **changes: Any
) -> BatchingRecommendation:
    """For POLICY with `changes`, after batches of `sizes`."""
    policy = {name: changes.pop(name) for name in list(changes) if hasattr(POLICY, name)}
    return recommend(replace(POLICY, **policy), learned(service, sizes), **changes)


CURVES: Final = [
    (ServiceTime(fixed, per_row), target * (fixed + per_row))
    for fixed, per_row in ((0.1, 0.002), (0.05, 0.001), (0.04, 0.04), (0.02, 0.005), (0.3, 0.003))
    for target in (3.0, 12.0)
]
"""t(n), and the target: 3 or 12 batches of one row."""


@pytest.mark.no_cover
@pytest.mark.parametrize(("service", "target"), CURVES)
def test_it_serves_as_much_as_was_said_and_as_the_best_of_all_sizes(
    service: ServiceTime, target: float
) -> None:
    """F7, on 10 curves, by simulation: 15 % of what it said, 10 % of the best whose batches fit."""
    model, interval = learned(service, (1, 20, 40)), target / 8
    now = replace(POLICY, max_batch_size=1, batch_interval=interval, latency_target=target)

    def truth(batching: Batching) -> float:
        return max_rate(NoisyService(*astuple(service), *batching, latency_target=target))

    found = recommend(now, model).batching

    reach = REACH * model.sums.row_weighted_mean()
    sizes = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < reach and 2 * service.seconds(n) < target]
    best = max(truth(Batching(n, interval)) for n in sizes)
    served = truth(found or Batching(1, interval))
    assert served >= 0.9 * best
    if found is None:
        return
    policy = replace(now, max_batch_size=found.max_batch_size, batch_interval=found.batch_interval)
    said = replica_capacity(policy, service, requests=RequestRows(), slowdown=1.0)
    assert pytest.approx(served, rel=0.15) == said.rows_per_second


@pytest.mark.no_cover
def test_what_is_said_holds_where_the_longest_row_sets_the_time() -> None:
    """Batches of more rows have shorter ones, so n alone told five times what one holds.

    As much of it is used as the autoscaler uses.
    """
    lengths = tuple(round(4 * 2 ** (i / 100)) for i in range(701))  # 4 to 512
    service = NoisyService(
        0.002, 0.0001, 32, 0.01, latency_target=0.2, per_length=1e-5, lengths=lengths
    )
    looks: list[SimulatedFleet] = []

    def load(rate: float) -> Outcome:
        trace = PoissonTrace(lambda _: rate, 20.0)
        return simulate(service, trace, looks.append, seed=3)

    load(450.0)
    (pod,) = looks[-1].pods
    told = pod.counters
    sums = BatchSums(
        told.batches, told.rows, told.rows_squared, told.batch_seconds, told.row_seconds
    )
    model = LearnedModel("r", sums, fixed=pod.fixed).service(POLICY)
    policy = replace(POLICY, max_batch_size=32, batch_interval=0.01, latency_target=0.2)
    assert model is not None
    said = replica_capacity(policy, model, requests=RequestRows(), slowdown=1.0).rows_per_second
    said *= POLICY.target_utilization

    assert load(said).miss_fraction < 0.01 < load(1.4 * said).miss_fraction


def test_the_worked_numbers_are_five_times_the_throughput() -> None:
    """C31: 50 ms alone are 20 rows/s; 128 in 1280 ms are 100 rows/s, and no size serves more."""
    service = ServiceTime(0.05 - 1.23 / 127, 1.23 / 127)
    ran = {"sizes": (1, 128), "batch_interval": 0.05, "latency_target": 5.0}

    alone, together = (recommended(service, **ran, max_batch_size=n) for n in (1, 128))

    assert (pytest.approx(0.05), pytest.approx(1.28)) == (service.seconds(1), service.seconds(128))
    assert alone.effect.startswith("a replica serves 98 rows/s instead of 20 rows/s within 5000 ms")
    assert alone.effect.endswith("ms instead of 50 ms")
    assert together.effect.startswith("none needed")


def test_the_size_is_throughput_times_the_interval() -> None:
    """C22, C23: the interval is the batch's own time, and both fit into the target."""
    found = recommended(ServiceTime(0.02, 0.0005))

    assert found.batching is not None
    size, interval = found.batching
    seconds = 0.02 + 0.0005 * size
    assert pytest.approx(size / seconds * interval, rel=0.05) == size
    assert interval + seconds < 0.1


def test_the_effect_is_told_with_its_figures_and_what_arrives() -> None:
    """Nobody rolls replicas for a number without a reason."""
    found = recommended(batch_interval=0.001, arrival=5000.0)

    assert Batching(54, 0.001) == found.batching
    assert (
        "a replica serves 3320 rows/s instead of 1510 rows/s within 100 ms at p99, in full batches"
        " of 16.1 ms instead of 10.4 ms; 5000 rows/s take 2 instead of 4 replicas"
    ) == found.effect


@pytest.mark.parametrize("changes", [{"arrival": 10.0}, {"arrival": 5000.0, "lanes": 10}, {
    "arrival": 5000.0, "kind": PolicyKind.CONCURRENCY}])  # fmt: skip
def test_replicas_are_told_where_there_would_be_fewer(changes: dict[str, Any]) -> None:
    """By another policy they do not follow from the capacity."""
    found = recommended(**changes)

    assert found.batching is not None
    assert "replicas" not in found.effect


def test_nothing_is_told_of_sizes_four_times_as_large_as_any_that_ran() -> None:
    """The line may bend there, and memory may end; the next recommendation reaches further."""
    modest = recommended(sizes=(2, 4), max_batch_size=4, latency_target=1.0)
    further = recommended(sizes=(7, 14), max_batch_size=14, latency_target=1.0)

    assert modest.batching is not None
    assert further.batching is not None
    assert (13, 46) == (modest.batching.max_batch_size, further.batching.max_batch_size)


def test_small_batches_say_nothing_of_a_larger_size_that_is_in_effect() -> None:
    """At night there are few rows; the size is for the day, and what was said of it stands."""
    found = recommended(sizes=(1, 3), max_batch_size=64)

    assert not found.known
    assert "not known yet: batches have too few rows to tell what more than 64 take" == found.effect


def test_an_interval_that_leaves_no_time_for_the_batch_is_shortened() -> None:
    """No size is in time while rows are held back for as long as the target is."""
    found = recommended(max_batch_size=200, sizes=(50, 200), batch_interval=0.095)

    assert Batching(263, 0.047) == found.batching
    assert "instead of 0.0 rows/s" in found.effect


def test_a_size_is_never_lowered() -> None:
    """It costs nothing where batches do not reach it, and SpecAdvice tells of those that do."""
    found = recommended(max_batch_size=1024, sizes=(16, 200), batch_interval=0.01)

    assert (None, True) == (found.batching, found.known)
    assert "none needed: what is in effect serves as much as any" == found.effect


@pytest.mark.parametrize(
    ("size", "standing", "recommends"),
    [(100, False, True), (150, False, False), (150, True, True), (190, True, False)],
)
def test_what_is_recommended_is_not_taken_back_for_little(
    size: int, *, standing: bool, recommends: bool
) -> None:
    """A gain of a tenth begins it, and less than a twentieth ends it."""
    found = recommended(
        sizes=(32, 96), max_batch_size=size, batch_interval=0.001, standing=standing
    )

    assert recommends == (found.batching is not None)
    assert found.known


@pytest.mark.parametrize(
    ("sizes", "times"), [((16, 16), 1e6), ((15, 17), 1e6), ((4, 16), 20.0), ((), 1.0)]
)
def test_batches_that_are_alike_or_few_tell_no_price_of_a_row(
    sizes: tuple[int, ...], times: float
) -> None:
    """A line through one point has any slope, and sizes were not tried."""
    model = learned(GPU, sizes, times)

    found = recommend(POLICY, model)

    assert not tells_a_row_s_price(model.sums, POLICY.ridge)
    assert not found.known
    assert found.effect.startswith("not known yet: batches of more and of fewer rows must have run")


def test_without_batching_no_batches_can_tell_and_that_is_said() -> None:
    """Whoever turned it off does not wait for what never comes."""
    found = recommended(sizes=(1,), max_batch_size=1)

    assert BatchingRecommendation("none: batching is off, maxBatchSize in effect is 1") == found


def test_without_a_target_there_is_no_best_size() -> None:
    """Larger ones always serve more, and everybody waits longer."""
    found = recommended(latency_target=None)

    assert (None, True) == (found.batching, found.known)
    assert "none without a latency target: set maxLatency" in found.effect


def test_a_target_without_room_for_two_rows_is_told() -> None:
    """No size helps; the model has to be faster, or the target longer."""
    found = recommended(ServiceTime(0.06, 0.001))

    assert found.batching is None
    assert found.effect.startswith("none: 100 ms have no room for two batches of one row, 61 ms")


def test_nothing_is_recommended_that_memory_did_not_hold() -> None:
    """Replicas have less than the manifest says, and it would be cut again."""
    assert recommended(batch_interval=0.001).batching is not None
    assert recommended(batch_interval=0.001, most=16).batching is None


def test_sizes_are_in_the_unit_of_the_manifest() -> None:
    """Requests of four rows: a batch of 16 requests is one of 64 rows."""
    ran = {"sizes": (16, 64), "max_batch_size": 64, "latency_target": 0.2, "batch_interval": 0.01}

    assert Batching(217, 0.01) == recommended(**ran).batching
    assert Batching(54, 0.01) == recommended(**ran, max_size=16).batching
