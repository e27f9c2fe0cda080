"""From manifest and options to a simulation: who wins, and where each value is from."""

from math import inf
from typing import Any

import pytest

from batchedapi_core.batching import SizeUnit, Strategy
from batchedapi_core.contract import API_VERSION, KIND
from batchedapi_core.manifest import BatchedAPI, ManifestError, parse_api
from batchedapi_core.service_model import ServiceTime
from batchedapi_core.simulation import STARTUP
from batchedapi_serving.laptop.simulating.settings import (
    OptionError,
    Setup,
    SimulateOptions,
    parse_lengths,
    parse_service,
    parse_startup,
    set_up,
)

TIME = ServiceTime(0.008, 0.00015)


def api(**spec: Any) -> BatchedAPI:
    """A manifest with these sections."""
    predictor = {"path": "model:Model", **spec.pop("predictor", {})}
    return parse_api(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": "api"},
            "spec": {"predictor": predictor, **spec},
        }
    )


def origins(setup: Setup) -> dict[str, tuple[str, str]]:
    """Value and origin by name."""
    return {name: (value, origin) for name, value, origin in setup.settings}


def test_a_manifest_is_simulated_as_it_is_served() -> None:
    """Every field that a replica forms batches by."""
    written = api(
        predictor={"processesPerReplica": 2, "threadsPerProcess": 3},
        serverSideBatching={
            "maxBatchSize": 16,
            "batchInterval": "7ms",
            "strategy": "Adaptive",
            "sizeUnit": "Requests",
            "maxLatency": "80ms",
            "queueOrder": "Deadline",
        },
        overload={"timeout": "0s", "maxReplicaConcurrency": 99},
        autoscaling={
            "minReplicas": 2,
            "maxReplicas": 9,
            "targetUtilizationPercent": 60,
            "window": "120s",
            "slo": {"percentile": 95, "latency": "70ms"},
        },
    )

    setup = set_up(written, SimulateOptions(TIME))

    service, policy = setup.service, setup.policy
    assert (16, 0.007, 0.070, 0.080) == (
        service.max_batch_size,
        service.batch_interval,
        service.latency_target,
        service.max_latency,
    )
    assert (Strategy.ADAPTIVE, SizeUnit.REQUESTS) == (
        service.strategy,
        service.size_unit,
    )
    assert (6, 99, inf) == (service.lanes, service.max_in_flight, service.timeout)
    assert policy is not None
    assert (2, 9, 0.6, 0.95, 6, 120.0, 0.070) == (
        policy.min_replicas,
        policy.max_replicas,
        policy.target_utilization,
        policy.quantile,
        policy.lanes,
        policy.window,
        policy.latency_target,
    )
    assert 0.95 == setup.quantile
    said = origins(setup)
    assert ("7ms", "manifest") == said["serverSideBatching.batchInterval"]
    assert ("70ms for 95 % of the requests", "manifest") == said["latency target"]
    assert ("80ms", "manifest") == said["serverSideBatching.maxLatency"]
    assert ("20s..40s", "assumed") == said["start-up of a replica"]
    assert ("0s", "manifest") == said["overload.timeout"]
    assert ("of the policy", "default") == said["autoscaling.behavior"]


def test_an_option_beats_the_manifest_and_says_so() -> None:
    """As with the flags of `serve`."""
    written = api(serverSideBatching={"maxBatchSize": 16, "batchInterval": "7ms"})
    options = SimulateOptions(
        TIME,
        max_batch_size=4,
        batch_interval=0.001,
        max_latency=0.1,
        min_replicas=2,
        max_replicas=3,
        startup=(1.0, 2.0),
        replicas=3,
        seed=7,
    )

    setup = set_up(written, options)

    service = setup.service
    assert (4, 0.001, 0.1, 0.1) == (
        service.max_batch_size,
        service.batch_interval,
        service.latency_target,
        service.max_latency,
    )
    assert (2, 3, 3, (1.0, 2.0), 7) == (
        setup.min_replicas,
        setup.max_replicas,
        setup.replicas,
        setup.startup,
        setup.seed,
    )
    said = origins(setup)
    assert ("4", "--max-batch-size") == said["serverSideBatching.maxBatchSize"]
    assert ("100ms for 99 % of the requests", "--max-latency") == said["latency target"]
    assert ("3", "--max-replicas") == said["autoscaling.maxReplicas"]
    assert ("1s..2s", "--startup") == said["start-up of a replica"]
    assert ("7", "--seed") == said["seed"]


def test_what_nobody_says_is_the_default_of_the_product() -> None:
    """And is printed as such."""
    setup = set_up(api(), SimulateOptions(TIME))

    service = setup.service
    assert (32, 0.010, None, Strategy.WINDOW, 1, 1024, 30.0) == (
        service.max_batch_size,
        service.batch_interval,
        service.latency_target,
        service.strategy,
        service.lanes,
        service.max_in_flight,
        service.timeout,
    )
    assert STARTUP == setup.startup
    assert setup.replicas is None
    assert ("none: only what is refused is a miss", "default") == origins(setup)["latency target"]
    assert ("32", "default") == origins(setup)["serverSideBatching.maxBatchSize"]


def test_with_cpu_count_the_request_says_how_many_lanes() -> None:
    """As the replica would, in a pod with that request."""
    written = api(predictor={"processesPerReplica": "cpu_count"}, compute={"cpu": "2500m"})

    assert 2 == set_up(written, SimulateOptions(TIME)).service.lanes


def test_methods_with_batching_of_their_own_are_mentioned() -> None:
    """One queue is simulated; whoever has two must know."""
    methods = [{"name": "a", "serverSideBatching": {"maxBatchSize": 2}}, {"name": "b"}]

    setup = set_up(api(predictor={"methods": methods}), SimulateOptions(TIME))

    assert "1 with batching of their own run with the common one" == origins(setup)["methods"][0]


def test_pause_and_behavior_reach_the_policy() -> None:
    """Whoever tries out a behavior sees what it does."""
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 7}}

    setup = set_up(api(paused=True, autoscaling={"behavior": behavior}), SimulateOptions(TIME))

    assert setup.policy is not None
    assert setup.policy.paused
    assert 7.0 == setup.policy.down.stabilization
    assert ("as written", "manifest") == origins(setup)["autoscaling.behavior"]


@pytest.mark.parametrize("mode", ["External", "Off"])
def test_without_our_autoscaler_the_replicas_are_those_written(mode: str) -> None:
    """`spec.replicas`, from beginning to end, unless another number is tried out."""
    written = api(autoscaling={"mode": mode}, replicas=4)

    setup, tried = (
        set_up(written, SimulateOptions(TIME)),
        set_up(written, SimulateOptions(TIME, replicas=9)),
    )

    assert setup.policy is tried.policy is None
    assert (4, 9) == (setup.replicas, tried.replicas)
    assert 1 == set_up(api(autoscaling={"mode": mode}), SimulateOptions(TIME)).replicas


def test_a_policy_by_concurrency_is_told_its_target() -> None:
    """Written, or as many as the batches of a replica have room for."""
    own, written = (
        set_up(
            api(
                serverSideBatching={"maxBatchSize": 8},
                predictor={"processesPerReplica": 2},
                autoscaling={"policy": "Concurrency", **more},
            ),
            SimulateOptions(TIME),
        ).policy
        for more in ({}, {"targetReplicaConcurrency": "1500m"})
    )

    assert own is not None
    assert written is not None
    assert (16.0, 1.5) == (own.target_concurrency, written.target_concurrency)


def test_without_a_service_time_the_remedy_is_named() -> None:
    """No manifest says how fast a model is."""
    with pytest.raises(OptionError, match=r"--service: .*`batchedapi check -f FILE` measures it"):
        set_up(api(), SimulateOptions())


def test_an_option_is_checked_by_the_rules_of_the_manifest() -> None:
    """One set of bounds."""
    with pytest.raises(ManifestError, match="minReplicas must be <= "):
        set_up(api(autoscaling={"maxReplicas": 3}), SimulateOptions(TIME, min_replicas=5))


@pytest.mark.parametrize("text", ["a=8ms,b=0.15ms", "b=150us, a=8ms"])
def test_a_service_time_is_two_durations(text: str) -> None:
    """In any order."""
    assert (TIME, 0.0) == parse_service(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8ms", "expected a=DURATION,b=DURATION"),
        ("a=8ms", "such as a=8ms,b=0.15ms, got 'a=8ms'"),
        ("a=8ms,b=1ms,d=1ms", "expected a=DURATION,b=DURATION"),
        ("a=8ms,b=1ms,c=1", "expected a duration such as 5ms"),
        ("a=8,b=1ms", "expected a duration such as 5ms"),
        ("a=0s,b=0s", "not both 0"),
    ],
)
def test_a_service_time_that_is_none_is_refused(text: str, message: str) -> None:
    """With what was expected."""
    with pytest.raises(OptionError, match=message):
        parse_service(text)


def test_rows_of_different_lengths_take_a_third_duration_and_lengths() -> None:
    """As many from 4 to 8 as from 256 to 512; one without the other would change nothing."""
    time, per_length = parse_service("a=8ms,b=0.15ms,c=2us")
    lengths = parse_lengths("4..512")

    setup = set_up(api(), SimulateOptions(time, per_length=per_length, lengths=lengths))

    assert (2e-6, lengths) == (setup.service.per_length, setup.service.lengths)
    assert (4, 512) == (min(lengths), max(lengths))
    assert sum(n < 8 for n in lengths) == pytest.approx(sum(n > 256 for n in lengths), rel=0.2)
    assert ("8ms + 150us * rows + 2us * padded lengths", "--service") == origins(setup)[
        "service time"
    ]
    assert ("4 to 512, 105 in the mean", "--lengths") == origins(setup)["lengths of rows"]
    for alone in ({"per_length": per_length}, {"lengths": lengths}):
        with pytest.raises(OptionError, match="--service: expected c=DURATION"):
            set_up(api(), SimulateOptions(time, **alone))


@pytest.mark.parametrize("text", ["", "4", "512..4", "0..4", "4..", "1..1000001", "a..b"])
def test_lengths_that_are_none_are_refused(text: str) -> None:
    """With what was expected."""
    with pytest.raises(OptionError, match=r"--lengths: expected LEAST\.\.MOST of 1 to 1000000"):
        parse_lengths(text)


def test_a_start_up_is_one_duration_or_two() -> None:
    """The same for all, or drawn between them."""
    assert (20.0, 60.0) == parse_startup("20s..1m")
    assert (5.0, 5.0) == parse_startup("5s")


@pytest.mark.parametrize(
    ("text", "message"),
    [("60s..20s", "the shorter first"), ("20", "expected a duration"), ("..5s", "a duration")],
)
def test_a_start_up_that_is_none_is_refused(text: str, message: str) -> None:
    """With what was expected."""
    with pytest.raises(OptionError, match=message):
        parse_startup(text)
