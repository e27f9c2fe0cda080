"""The rate that one replica truly holds, and the price that a clairvoyant would pay."""

import functools
from dataclasses import replace

import pytest

from batchedapi_core.batching import SizeUnit, Strategy
from batchedapi_core.service_model import ServiceTime, lane_capacity
from batchedapi_core.simulation import (
    NoisyService,
    PoissonTrace,
    RecordedTrace,
    StepTrace,
    clairvoyant,
    max_rate,
    simulate,
)

EMB = NoisyService(0.025, 0.005, 32, 0.020, 0.500)
held = functools.cache(max_rate)
"""Minutes of load for each service, and several tests ask for the same."""


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("service", "expected"),
    [
        (NoisyService(0.008, 0.00015, 32, 0.005, 0.100), 2483.0),
        (EMB, 164.0),
        (NoisyService(0.001, 0.004, 8, 0.005, 0.250), 236.0),
    ],
)
def test_the_rate_of_one_replica_is_that_of_the_reference(
    service: NoisyService, expected: float
) -> None:
    """The three services of docs/decisions/0003, found by another simulator."""
    assert expected == pytest.approx(held(service), rel=0.02)


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "service",
    [
        NoisyService(0.008, 0.00015, 32, 0.005, 0.100),
        NoisyService(0.001, 0.004, 8, 0.005, 0.250),
        NoisyService(0.100, 0.0, 1, 0.0, 0.500),
        NoisyService(0.500, 0.0, 4, 0.100, 2.0),
        NoisyService(0.040, 0.001, 16, 0.010, 0.300),
        NoisyService(0.200, 0.010, 2, 0.020, 1.0),
    ],
)
def test_the_formula_of_capacity_is_near_what_a_replica_holds(service: NoisyService) -> None:
    """Also where few rows fill a batch, and another costs its share of a further batch."""
    planned = lane_capacity(
        ServiceTime(service.fixed, service.per_row),
        largest_batch=service.max_batch_size,
        batch_interval=service.batch_interval,
        latency_target=service.latency_target,
        quantile=0.99,
    )

    assert 1.0 == pytest.approx(planned.rows_per_second / held(service), abs=0.15)


def test_at_that_rate_the_target_holds_and_above_it_does_not() -> None:
    """The definition, checked with another seed."""
    rate = held(EMB)

    below, above = (
        simulate(EMB, PoissonTrace(lambda _, load=load: load, 120.0), None, seed=9)  # type: ignore[misc]  # a default binds the loop's value
        for load in (0.95 * rate, 1.1 * rate)
    )

    assert below.miss_fraction <= 0.01 < above.miss_fraction


def test_without_a_target_full_batches_are_the_measure() -> None:
    """There is no latency to keep."""
    assert EMB.capacity == max_rate(replace(EMB, latency_target=None))


def test_sizes_of_requests_count() -> None:
    """Requests of 20 rows leave a batch of 32 with 12 rows of room that nobody fits in."""
    service = replace(EMB, strategy=Strategy.WINDOW)

    assert max_rate(service, sizes=(20,)) < 0.95 * max_rate(service)


def test_in_requests_a_batch_has_as_many_rows_as_they_bring() -> None:
    """`sizeUnit: Requests`: full batches have 4 x 10 rows."""
    service = replace(EMB, size_unit=SizeUnit.REQUESTS, max_batch_size=4, latency_target=None)

    assert 40 / 0.225 == pytest.approx(max_rate(service, sizes=(5, 15)))
    assert 4 / 0.045 == pytest.approx(max_rate(service))


def test_the_clairvoyant_pays_for_the_peak_of_each_five_seconds() -> None:
    """Without any time to start replicas; the last span may be shorter."""
    trace = StepTrace((0.0, 7.0, 10.0), (100.0, 250.0, 0.0), 12.0)

    found = clairvoyant(trace, 100.0)

    assert (1, 3, 1) == found.replicas
    assert 5 + 15 + 2 == found.cost
    assert (2, 3, 2) == clairvoyant(trace, 100.0, min_replicas=2).replicas


def test_of_a_recording_the_mean_of_five_seconds_counts() -> None:
    """The peak of a count would be chance, and nobody needs replicas for it."""
    trace = RecordedTrace([1.0 + i / 1000 for i in range(500)] + [9.5], [1] * 501)

    assert (1, 1) == clairvoyant(trace, 100.0).replicas
