"""`--assert`: what can be compared, in which units, and what a failure says."""

import dataclasses
from math import inf, nan
from typing import Any

import pytest

from batchedapi_core.contract import API_VERSION, KIND
from batchedapi_core.manifest import parse_api
from batchedapi_core.service_model import ServiceTime
from batchedapi_core.simulation import StepTrace
from batchedapi_serving.laptop.simulating.report import render
from batchedapi_serving.laptop.simulating.run import (
    AssertionFormError,
    parse_assertion,
    run,
    shown,
)
from batchedapi_serving.laptop.simulating.settings import (
    OptionError,
    Setup,
    SimulateOptions,
    set_up,
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


def setup_of(options: SimulateOptions, **batching: Any) -> Setup:
    """Four replicas of 50 ms + 5 ms a row, 16 rows a batch, 500 ms."""
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "api"},
        "spec": {
            "predictor": {"path": "model:Model"},
            "serverSideBatching": {"maxBatchSize": 16, "maxLatency": "500ms", **batching},
            "autoscaling": {"mode": "Off"},
            "replicas": 4,
        },
    }
    time = ServiceTime(0.050, 0.005)
    return set_up(parse_api(manifest), dataclasses.replace(options, service=time))


def test_one_queue_is_compared_with_connections_that_stay_where_they_are() -> None:
    """Near the capacity some replicas refuse what others would have had room for."""
    trace = StepTrace((0.0,), (410.0,), 10.0)
    simulated = run(setup_of(SimulateOptions(connections=16)), trace)
    ways = simulated.ways
    assert ways is not None
    anywhere, pinned, one = (way.outcome for way in ways.ways)

    assert 4 == ways.replicas
    assert one.miss_fraction <= anywhere.miss_fraction <= pinned.miss_fraction
    assert pinned.miss_fraction > one.miss_fraction + 0.01
    assert "16 connections that stay" in render(simulated)
    told = simulated.as_object()["ways"]
    assert [way.name for way in ways.ways] == [way["name"] for way in told["ways"]]


def test_a_manifest_with_a_queue_is_compared_without_being_asked() -> None:
    """It is what its user wants to know; others see nothing of it."""
    trace = StepTrace((0.0,), (0.0,), 2.0)

    with_queue = run(setup_of(SimulateOptions(), queue={"redis": {}}), trace)
    assert with_queue.ways is not None
    assert [None] * 3 == [way["p99"] for way in with_queue.ways.as_object()["ways"]]
    without = run(setup_of(SimulateOptions()), trace)
    assert without.ways is None
    assert "one queue" not in render(without)


def test_an_api_that_goes_to_zero_is_not_simulated_there() -> None:
    """Requests would be refused that a queue holds."""
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "api"},
        "spec": {
            "predictor": {"path": "model:Model"},
            "serverSideBatching": {"queue": {"redis": {}}},
            "autoscaling": {"minReplicas": 0},
        },
    }
    with pytest.raises(OptionError, match="--min-replicas 1"):
        set_up(parse_api(manifest), SimulateOptions(ServiceTime(0.01, 0.001)))
    setup = set_up(parse_api(manifest), SimulateOptions(ServiceTime(0.01, 0.001), min_replicas=1))
    assert 64 == setup.connections
