"""Verdicts on one window of counters, and their wording."""

from dataclasses import replace
from typing import Any

import pytest

from batchedapi_core import contract
from batchedapi_core.bottleneck import BottleneckEvidence, Kind, PodLoad
from batchedapi_core.bottleneck.diagnose import find
from batchedapi_core.service_model import BatchSums, ServiceTime

LINE = ServiceTime(0.008, 0.0005)  # 24 ms for 32 rows


def evidence(
    mean: float = 8.0, *, batches: float = 600.0, line: ServiceTime = LINE, **changes: Any
) -> BottleneckEvidence:
    """A minute of one pod with one lane whose batches all had `mean` rows, in a calm API."""
    seconds = line.seconds(mean)
    rows = mean * batches
    sums = BatchSums(batches, rows, rows * mean, batches * seconds, rows * seconds)
    calm = BottleneckEvidence(
        seconds=60.0,
        coverage=1.0,
        received=rows,
        rejected=(),
        released=(("early", batches),),
        sums=sums,
        sizes=rows,
        lane_seconds=60.0,
        max_batch_size=32,
        batch_interval=0.02,
        target_utilization=0.93,
        pods=(PodLoad("api-0", rows, 60.0, sums.seconds),),
        service=line,
    )
    return replace(calm, **changes)


def full(**changes: Any) -> BottleneckEvidence:
    """One lane that is always busy with full batches, and more rows than it serves."""
    size = changes.get("max_batch_size", 32)
    line = changes.pop("line", LINE)
    batches = 60.0 / line.seconds(size)
    wanted: dict[str, Any] = {
        "released": (("full", batches),),
        "received": 1.1 * size * batches,
        **changes,
    }
    return evidence(float(size), batches=batches, line=line, **wanted)


def by_interval(**changes: Any) -> BottleneckEvidence:
    """21.4 rows when the interval is over."""
    return evidence(
        21.4, batches=1500.0, released=(("interval", 1400.0), ("full", 100.0)), **changes
    )


def test_a_mean_at_the_maximum_says_that_a_larger_maximum_may_help() -> None:
    """C27: "it might mean that the throughput could still be further increased"."""
    found = find(full(max_batch_size=8), None)

    assert Kind.MAX_BATCH_SIZE is found.kind
    assert (
        "mean 8.0 of max 8, 100 % released full, lanes busy 100 %: raising maxBatchSize from 8 to"
        " 16 serves 50 % more rows/s, in batches of 16 ms"
    ) == found.advice


def test_a_mean_below_the_maximum_says_that_the_interval_reins_in_the_tail() -> None:
    """C28, and what to change to what: 20 ms bring 20.4 rows to the first, which needs 31."""
    found = find(by_interval(queue_wait=0.012), None)

    assert Kind.BATCH_INTERVAL is found.kind
    assert (
        "mean 21.4 < max 32: batchInterval (20 ms) releases first, after 12 ms on average; raising"
        " it to 30.4 ms fills batches, answers then take up to 54.4 ms"
    ) == found.advice


def test_batches_that_the_interval_ends_nearly_full_are_not_its_fault() -> None:
    """A longer one would add a row or two to each."""
    nearly = evidence(31.5, batches=1500.0, released=(("interval", 1400.0), ("full", 100.0)))

    assert Kind.BATCH_INTERVAL is not find(nearly, None).kind


@pytest.mark.parametrize(
    ("seen", "kind", "words"),
    [
        pytest.param(
            full(line=ServiceTime(0.0005, 0.001)),
            Kind.COMPUTE,
            "maxBatchSize 64 for 32 would serve 1 % more, a longer batchInterval nothing;"
            " go from 1 to 2 replicas",
            id="the model",
        ),
        pytest.param(
            evidence(web_cpu=0.97, web_processes=2),
            Kind.PYTHON_CPU,
            "a web process uses 97 % of a core while lanes use 6 % of what they serve: raise"
            " spec.predictor.webProcesses from 2 to 3",
            id="the CPU of the web process",
        ),
        pytest.param(
            evidence(web_cpu=0.2, request_seconds=0.1, queue_wait=0.01),
            Kind.UNKNOWN,
            "78 ms of 100 ms of a request are spent neither queued nor in a batch while lanes use"
            " 6 % of what they serve and a web process uses 20 % of a core: look at the network",
            id="network or clients",
        ),
    ],
)
def test_where_neither_knob_helps_the_bottleneck_is_elsewhere(
    seen: BottleneckEvidence, kind: Kind, words: str
) -> None:
    """C29: "bottlenecked by something else (i.e. CPU, network IO, processes_per_replica, ...)"."""
    found = find(seen, None)

    assert kind is found.kind
    assert words in found.advice


def test_without_the_cpu_of_web_processes_the_verdict_is_unknown_and_says_so() -> None:
    """A quantity that is not measured is not blamed."""
    found = find(evidence(request_seconds=0.1, queue_wait=0.01), None)

    assert Kind.UNKNOWN is found.kind
    assert "the CPU of the web processes is not known; if it is used up" in found.advice


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"request_seconds": 0.1}, id="waits not known"),
        pytest.param({"request_seconds": 0.015, "queue_wait": 0.0005}, id="too little to notice"),
        pytest.param({"request_seconds": 0.1, "queue_wait": 0.07}, id="mostly queued"),
        pytest.param({"web_cpu": 0.5}, id="time of requests not known"),
        pytest.param({}, id="calm"),
    ],
)
def test_an_api_that_keeps_up_has_nothing_to_change(changes: dict[str, Any]) -> None:
    """Lanes that start whatever is queued are busy early; that is no bottleneck."""
    found = find(evidence(**changes), None)

    assert Kind.IDLE is found.kind
    assert (
        "80 rows/s of 1333 rows/s that 1 lanes serve, lanes busy 12 %, mean batch 8.0: nothing to"
        " change"
    ) == found.advice


def test_lanes_always_busy_with_small_batches_have_room() -> None:
    """At 15 % of what full batches serve, a lane without a wait is never free."""
    assert Kind.IDLE is find(evidence(1.8, batches=6700.0), None).kind


def test_a_service_time_that_is_not_known_says_less() -> None:
    """The counts alone still tell an API that keeps up."""
    found = find(evidence(service=None), None)

    assert "80 rows/s, lanes busy 12 %, mean batch 8.0: nothing to change" == found.advice


def test_few_batches_say_nothing_of_batching() -> None:
    """Five lone requests a minute leave at the end of their interval, and nobody minds."""
    found = find(evidence(1.0, batches=5.0, released=(("interval", 5.0),)), None)

    assert Kind.IDLE is found.kind
    assert "5 batches in 60 s, lanes busy 0 %: nothing to change" == found.advice


def test_no_rows_at_all_are_idle() -> None:
    """Nothing to divide by, and nothing to do."""
    found = find(evidence(batches=0.0, released=(), pods=(), lane_seconds=0.0), None)

    assert Kind.IDLE is found.kind


def test_few_batches_of_a_slow_model_are_judged() -> None:
    """Six of ten seconds fill a window."""
    assert Kind.COMPUTE is find(full(line=ServiceTime(0.2, 0.3)), None).kind


def test_few_batches_beside_rejections_are_judged() -> None:
    """The small number of batches may itself be the fault."""
    found = find(evidence(batches=5.0, received=100.0, rejected=(("queue_full", 60.0),)), None)

    assert Kind.ADMISSION is found.kind


def test_rows_that_clients_gave_up_are_no_fault_of_the_door() -> None:
    """Neither are those that came while a pod stopped."""
    gone = (("disconnected", 300.0), ("draining", 300.0))

    assert Kind.IDLE is find(evidence(rejected=gone), None).kind


def test_rejections_without_a_row_received_are_no_share() -> None:
    """A counter of one and not of the other: pods that restart."""
    assert Kind.IDLE is find(evidence(received=0.0, rejected=(("latency", 3.0),)), None).kind


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"coverage": 0.4}, "metrics of 40 % of the ready pods are known: expected at least 50 %"),
        ({"seconds": 5.0}, "5 s of metrics are known: expected at least 10 s"),
        ({"lane_seconds": 0.0}, "80 rows/s arrive and pods report no lane to run them on"),
    ],
)
def test_what_was_not_seen_is_unknown(changes: dict[str, Any], words: str) -> None:
    """Unknown is never idle."""
    found = find(evidence(**changes), None)

    assert Kind.UNKNOWN is found.kind
    assert words in found.advice


def test_batches_of_one_size_leave_it_open_what_a_larger_one_gives() -> None:
    """A fit through one size sees no fixed cost; taken for none, C27 would never be said."""
    found = find(full(service=ServiceTime(0.0, 0.00075)), None)

    assert Kind.MAX_BATCH_SIZE is found.kind
    assert "from 32 to 64 may serve more; batches of other sizes were not seen" in found.advice


def test_batches_of_many_sizes_that_save_nothing_need_compute() -> None:
    """Here the fit could have seen a fixed cost, and saw none."""
    seen = full(service=ServiceTime(0.0, 0.00075))
    spread = replace(seen.sums, rows_squared=1.2 * seen.sums.rows_squared)

    assert Kind.COMPUTE is find(replace(seen, sums=spread), None).kind


def test_full_batches_whose_time_is_not_known_may_be_larger() -> None:
    """As the guide has it, without a curve."""
    assert Kind.MAX_BATCH_SIZE is find(full(service=None), None).kind


def test_a_larger_batch_that_misses_the_target_is_not_advised() -> None:
    """C30: twice 16 rows take 16 ms and are waited for twice, in 26 ms of 30."""
    found = find(full(max_batch_size=16, latency_target=0.034, batch_interval=0.0), None)

    assert Kind.COMPUTE is found.kind
    assert "more within maxLatency 34 ms" in found.advice


@pytest.mark.parametrize("service", [LINE, None], ids=["known", "unknown"])
def test_the_largest_size_of_all_is_not_raised(service: ServiceTime | None) -> None:
    """No manifest can say more."""
    size = contract.MAX_BATCH_SIZE_LIMIT
    found = find(full(max_batch_size=size, line=ServiceTime(1.0, 1e-7), service=service), None)

    assert Kind.COMPUTE is found.kind
    assert f"maxBatchSize {size} is as large as it gets" in found.advice


def test_lanes_used_up_below_full_batches_need_compute() -> None:
    """Rows cost the same in every batch: nothing waits long enough to fill one."""
    line = ServiceTime(0.0, 0.001)
    found = find(evidence(16.0, batches=3700.0, line=line), None)

    assert Kind.COMPUTE is found.kind
    assert "mean 16.0 < max 32, so neither size nor interval helps" in found.advice
    assert "go from 1 to 2 replicas" in found.advice


def test_full_batches_in_lanes_with_time_are_no_bottleneck() -> None:
    """Batching off is the case: every batch of one is full."""
    assert Kind.IDLE is find(evidence(1.0, max_batch_size=1, released=(("full", 1.0),)), None).kind


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(
            {"latency_target": 0.05},
            "filling them needs 30.4 ms, too long (maxLatency 50 ms): lowering batchInterval from"
            " 20 ms to 10 ms answers sooner",
            id="target too near",
        ),
        pytest.param(
            {"latency_target": 0.1},
            "raising it to 30.4 ms fills batches, answers then take up to 54.4 ms (maxLatency"
            " 100 ms)",
            id="target far",
        ),
        pytest.param({"service": None}, "raising it to 30.4 ms fills batches", id="no curve"),
        pytest.param(
            {"service": None, "latency_target": 0.03},
            "filling them needs 30.4 ms, too long",
            id="no curve, target too near",
        ),
        pytest.param(
            {"max_batch_size": 65536},
            "filling them needs 64250 ms, too long: lowering batchInterval",
            id="longer than can be said",
        ),
    ],
)
def test_the_interval_goes_up_where_the_target_allows_it_and_else_down(
    changes: dict[str, Any], words: str
) -> None:
    """Advice to fill batches that would then be late is bad advice."""
    found = find(by_interval(**changes), None)

    assert Kind.BATCH_INTERVAL is found.kind
    assert words in found.advice


def test_waits_that_the_target_ends_are_the_intervals_too() -> None:
    """Every answer is nearly late, and batches are no fuller for it."""
    late = (("deadline", 500.0), ("interval", 50.0), ("early", 50.0))
    found = find(evidence(released=late, latency_target=0.025, queue_wait=0.01), None)

    assert Kind.BATCH_INTERVAL is found.kind
    assert (
        "mean 8.0 < max 32: requests wait (maxLatency 25 ms) until their answers are nearly late,"
        " after 10 ms on average; lowering batchInterval from 20 ms to 10 ms answers sooner"
    ) == found.advice


def test_requests_that_come_alone_need_no_interval() -> None:
    """Nobody else comes in time."""
    found = find(evidence(1.1, released=(("interval", 600.0),)), None)

    assert Kind.BATCH_INTERVAL is found.kind
    assert "lowering it from 20 ms to 0 ms answers sooner" in found.advice


def test_batches_that_end_at_another_shape_are_neither_knob() -> None:
    """There is no kind for it, but there is a remedy."""
    found = find(evidence(released=(("shape", 500.0), ("early", 100.0))), None)

    assert Kind.UNKNOWN is found.kind
    assert "83 % of the batches end because the next row has another shape" in found.advice


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(
            {"rejected": (("queue_full", 100.0),), "replica_concurrency": 64},
            "2 % of the rows are rejected while lanes use 6 % of what they serve: more requests"
            " come at once than spec.overload.maxReplicaConcurrency lets in; raise it from 64 to"
            " 128",
            id="concurrency",
        ),
        pytest.param(
            {"rejected": (("queue_full", 100.0),), "service": None},
            "while lanes are busy 12 %: more requests come at once than"
            " spec.overload.maxReplicaConcurrency lets in; raise it",
            id="concurrency not known",
        ),
        pytest.param(
            {"rejected": (("latency", 100.0),), "latency_target": 0.04},
            "a full batch takes 24 ms and a row waits for two, beyond maxLatency 40 ms; raise it to"
            " 48 ms, or lower maxBatchSize from 32 to 16",
            id="full batches miss the target",
        ),
        pytest.param(
            {"rejected": (("latency", 100.0),), "latency_target": 0.1},
            "bursts are expected to miss maxLatency 100 ms; raise it to 200 ms, or keep a replica"
            " more",
            id="bursts",
        ),
        pytest.param(
            {"rejected": (("latency", 100.0),), "service": None},
            "they are expected to miss maxLatency; raise it, or lower maxBatchSize",
            id="no curve",
        ),
    ],
)
def test_rows_refused_by_lanes_with_time_are_the_doors_fault(
    changes: dict[str, Any], words: str
) -> None:
    """Capacity is bought for nothing while admission is too narrow."""
    found = find(evidence(**changes), None)

    assert Kind.ADMISSION is found.kind
    assert words in found.advice


def pods(*loads: tuple[float, float]) -> tuple[PodLoad, ...]:
    """(rows, share of its lane's time) of each."""
    return tuple(
        PodLoad(f"api-{i}", rows, 60.0, 60.0 * busy) for i, (rows, busy) in enumerate(loads)
    )


def three(loads: tuple[PodLoad, ...], **changes: Any) -> BottleneckEvidence:
    """Three pods' lanes."""
    return evidence(lane_seconds=180.0, pods=loads, **changes)


def test_a_pod_with_most_of_the_rows_is_named() -> None:
    """Adding replicas would give it no less: its connections stay."""
    found = find(three(pods((60000.0, 0.97), (9000.0, 0.3), (9000.0, 0.3))), None)

    assert Kind.SKEW is found.kind
    assert "api-0 gets 77 % of the rows with 33 % of the lanes of 3 pods" in found.advice


def test_a_pod_that_is_slower_than_the_others_is_named() -> None:
    """Rows are as many in each; its lane is what differs."""
    found = find(three(pods((20000.0, 0.5), (20000.0, 0.95), (20000.0, 0.5))), None)

    assert Kind.SKEW is found.kind
    assert "api-1 is busy 95 % and the other pods 50 % with no more rows" in found.advice


@pytest.mark.parametrize(
    "loads",
    [
        pytest.param(pods((9000.0, 0.3), (600.0, 0.1), (600.0, 0.1)), id="the fullest has room"),
        pytest.param(pods((60.0, 0.9), (6.0, 0.1), (6.0, 0.1)), id="chance"),
        pytest.param(pods((50000.0, 0.9), (45000.0, 0.9), (45000.0, 0.9)), id="alike"),
        pytest.param((PodLoad("new", 0.0, 0.0, 0.0), *pods((60000.0, 0.9))), id="one with lanes"),
    ],
)
def test_a_difference_that_hurts_nobody_is_no_skew(loads: tuple[PodLoad, ...]) -> None:
    """Few rows are never even."""
    assert Kind.IDLE is find(three(loads), None).kind


def test_without_a_curve_the_time_of_lanes_tells_who_is_used_up() -> None:
    """Skew is told as soon as pods answer."""
    uneven = pods((60000.0, 0.97), (9000.0, 0.3), (9000.0, 0.3))

    assert Kind.SKEW is find(three(uneven, service=None), None).kind


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        (evidence(web_cpu=0.8), Kind.PYTHON_CPU),
        (evidence(rejected=(("queue_full", 45.0),)), Kind.ADMISSION),
        (evidence(released=(("interval", 46.0), ("early", 54.0))), Kind.BATCH_INTERVAL),
        (evidence(released=(("shape", 46.0), ("early", 54.0))), Kind.UNKNOWN),
        (three(pods((56000.0, 0.9), (40000.0, 0.9), (40000.0, 0.9))), Kind.SKEW),
        (
            evidence(8.0, batches=4000.0, max_batch_size=8, released=(("full", 1.0),)),
            Kind.MAX_BATCH_SIZE,
        ),
    ],
    ids=lambda value: value.value if isinstance(value, Kind) else "",
)
def test_what_stands_is_found_until_it_is_a_tenth_below_its_limit(
    seen: BottleneckEvidence, kind: Kind
) -> None:
    """The figures of a steady load wander across any limit."""
    assert kind is find(seen, kind).kind
    assert Kind.IDLE is find(seen, None).kind


def test_sizes_count_what_the_limit_counts() -> None:
    """Sixteen requests of two rows each fill a batch of sixteen requests: 32 rows."""
    seen = full(max_batch_size=32)
    requests = replace(seen, max_batch_size=16, sizes=seen.sizes / 2)

    found = find(requests, None)

    assert "mean 16.0 of max 16" in found.advice
    assert "in batches of 40 ms" in found.advice


def test_large_and_small_figures_are_readable() -> None:
    """Three digits, and no little that looks like nothing."""
    slow = find(full(line=ServiceTime(0.2, 0.3)), None).advice

    assert "3.6 rows/s arrive" in slow
