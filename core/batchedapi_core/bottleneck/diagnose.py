"""Name the bottleneck: rules in the order of who hides whom, and the verdict over time."""

import math
from collections.abc import Callable
from typing import Final, TypeAlias

from batchedapi_core import contract
from batchedapi_core.bottleneck.evidence import (
    BottleneckEvidence,
    Finding,
    Kind,
    PodLoad,
    Verdict,
    limit,
    planned,
    settle,
)
from batchedapi_core.bottleneck.unpressed import idle, interval, little, shapes, unseen
from batchedapi_core.contract import ms, percent, rate, size
from batchedapi_core.service_model import ALL_BUSY

BUSY: Final = 0.85
"""Share of the lanes' time. Alone it says little: lanes that take whatever waits are busy early."""
FULL: Final = 0.5  # of the batches
FILLED: Final = 0.9  # of the largest batch, on average; of the batches, for all of them
GAIN: Final = 0.1  # in rows/s from twice the size; a tenth is the knee of the curve


def saturated(e: BottleneckEvidence, standing: Kind | None) -> Finding | None:
    """The mean batch is the largest, and a larger one may help; or neither knob does."""
    kind = Kind.COMPUTE if standing is Kind.COMPUTE else Kind.MAX_BATCH_SIZE
    full = (
        e.released_share("full") >= limit(FULL, kind, standing)
        or e.mean_size >= limit(FILLED, kind, standing) * e.max_batch_size
    )
    capacity = e.capacity(e.max_batch_size)
    # Without t(n), and batches not full: lanes that start whatever is queued are busy early.
    if e.busy < limit(BUSY, kind, standing) or (capacity is None and not full):
        return None
    # Also while lanes are used as planned: the same replicas would serve more.
    larger = _larger(e, capacity, standing) if full else None
    if larger is not None:
        return larger
    # While t(n) is not known, the lanes' time is all there is to tell by. Lanes that are used up
    # show `ALL_BUSY` or little more: targets near it and beyond cannot be told from used up.
    most = ALL_BUSY if capacity is None else 1.0
    if _used(e, capacity) <= planned(e.target_utilization, standing, most=most):
        return None
    if full:
        return _compute(e, capacity, _no_size_helps(e, capacity))
    below = f"mean {size(e.mean_size)} < max {e.max_batch_size}, so neither size nor interval helps"
    return _compute(e, capacity, below)


def _used(e: BottleneckEvidence, capacity: float | None) -> float:
    """Share of what the lanes serve.

    Where all batches are full, the lanes' time is that share as measured: clients that wait for
    their answers send no more than is served, and batches may take longer than t(n) learned.
    """
    arrives = e.arrival / capacity if capacity else 0.0
    measured = capacity is None or e.released_share("full") >= FILLED
    return max(arrives, e.busy) if measured else arrives


def _larger(e: BottleneckEvidence, capacity: float | None, standing: Kind | None) -> Finding | None:
    """Twice the size, where that is known to help or nothing is known against it."""
    larger = 2 * e.max_batch_size
    if larger > contract.MAX_BATCH_SIZE_LIMIT:
        return None
    head = (
        f"mean {size(e.mean_size)} of max {e.max_batch_size}, {percent(e.released_share('full'))}"
        f" released full, lanes busy {percent(e.busy)}"
    )
    change = f"raising maxBatchSize from {e.max_batch_size} to {larger}"
    then = e.capacity(larger)
    if not e.fixed_cost_is_known() or capacity is None or then is None:
        return Finding(
            Kind.MAX_BATCH_SIZE,
            f"{head}: {change} may serve more; batches of other sizes were not seen to tell how"
            " much",
        )
    gain = then / capacity - 1
    if gain < limit(GAIN, Kind.MAX_BATCH_SIZE, standing):
        return None
    batch = e.batch_time(larger) or 0.0
    return Finding(
        Kind.MAX_BATCH_SIZE,
        f"{head}: {change} serves {percent(gain)} more rows/s, in batches of {ms(batch)}",
    )


def _compute(e: BottleneckEvidence, capacity: float | None, why: str) -> Finding:
    served = "" if capacity is None else f" and {e.lanes:.0f} lanes serve {rate(capacity)}"
    pods = max(1, len(e.pods))
    replicas = max(pods + 1, math.ceil(pods * _used(e, capacity) / e.target_utilization))
    return Finding(
        Kind.COMPUTE,
        f"{rate(e.arrival)} arrive{served}, busy {percent(e.busy)}: {why}; go from {pods} to"
        f" {replicas} replicas, or give each more spec.compute and as many processesPerReplica or"
        " threadsPerProcess as it can feed",
    )


def _no_size_helps(e: BottleneckEvidence, capacity: float | None) -> str:
    larger = 2 * e.max_batch_size
    then = e.capacity(larger)
    if larger > contract.MAX_BATCH_SIZE_LIMIT or capacity is None or then is None:
        return f"maxBatchSize {e.max_batch_size} is as large as it gets"
    target = "" if e.latency_target is None else f" within maxLatency {ms(e.latency_target)}"
    return (
        f"maxBatchSize {larger} for {e.max_batch_size} would serve"
        f" {percent(max(0.0, then / capacity - 1))} more{target}, a longer batchInterval nothing"
    )


REJECTED: Final = 0.01  # of the rows
WEB_BUSY: Final = 0.85  # of one core: a process runs Python on one at a time
ELSEWHERE: Final = 0.5  # of the time of a request
NOTICEABLE: Final = 0.005  # seconds of a request spent elsewhere; less is decoding and encoding
ROOM: Final = 2.0  # batches: the one in progress and its own are what a row waits for


def admission(e: BottleneckEvidence, standing: Kind | None) -> Finding | None:
    """Rows are refused while lanes have time for them."""
    late, crowded = e.rejected_share("latency"), e.rejected_share("queue_full")
    if late + crowded < limit(REJECTED, Kind.ADMISSION, standing):
        return None
    head = f"{percent(late + crowded)} of the rows are rejected while {_spare(e)}"
    if crowded <= late:
        return Finding(Kind.ADMISSION, f"{head}: {_target(e)}")
    most = e.replica_concurrency
    change = "raise it" if most is None else f"raise it from {most} to {2 * most}"
    return Finding(
        Kind.ADMISSION,
        f"{head}: more requests come at once than spec.overload.maxReplicaConcurrency lets in;"
        f" {change}",
    )


def _spare(e: BottleneckEvidence) -> str:
    """Lanes that start whatever is queued are busy long before they are short of time."""
    capacity = e.capacity(e.max_batch_size)
    if capacity is None:
        return f"lanes are busy {percent(e.busy)}"
    return f"lanes use {percent(e.arrival / capacity)} of what they serve"


def _target(e: BottleneckEvidence) -> str:
    full = e.batch_time(e.max_batch_size)
    if full is None or e.latency_target is None:
        return "they are expected to miss maxLatency; raise it, or lower maxBatchSize"
    needed = max(e.batch_interval, full) + full
    if needed > e.latency_target:
        return (
            f"a full batch takes {ms(full)} and a row waits for two, beyond maxLatency"
            f" {ms(e.latency_target)}; raise it to {ms(needed)}, or lower maxBatchSize from"
            f" {e.max_batch_size} to {max(1, e.max_batch_size // 2)}"
        )
    return (
        f"bursts are expected to miss maxLatency {ms(e.latency_target)}; raise it to"
        f" {ms(ROOM * e.latency_target)}, or keep a replica more"
    )


def outside(e: BottleneckEvidence, standing: Kind | None) -> Finding | None:
    """No knob of batching helps and lanes have time: look at web processes, network, clients."""
    if e.web_cpu is not None and e.web_cpu >= limit(WEB_BUSY, Kind.PYTHON_CPU, standing):
        return Finding(
            Kind.PYTHON_CPU,
            f"a web process uses {percent(e.web_cpu)} of a core while {_spare(e)}:"
            f" raise spec.predictor.webProcesses from {e.web_processes} to {e.web_processes + 1},"
            " or let clients send a cheaper encoding (application/x-npy, gRPC)",
        )
    if e.request_seconds is None or e.queue_wait is None or e.sums.rows <= 0:
        return None
    # The batch that the mean row travelled in takes sum(n t) / sum(n).
    elsewhere = e.request_seconds - e.queue_wait - e.sums.row_seconds / e.sums.rows
    least = limit(ELSEWHERE, Kind.UNKNOWN, standing) * e.request_seconds
    if elsewhere < max(NOTICEABLE, least):
        return None
    head = (
        f"{ms(elsewhere)} of {ms(e.request_seconds)} of a request are spent neither queued nor in"
        f" a batch while {_spare(e)}"
    )
    if e.web_cpu is None:
        return Finding(
            Kind.UNKNOWN,
            f"{head}: the CPU of the web processes is not known; if it is used up, raise"
            f" spec.predictor.webProcesses from {e.web_processes} to {e.web_processes + 1}",
        )
    return Finding(
        Kind.UNKNOWN,
        f"{head} and a web process uses {percent(e.web_cpu)} of a core: look at the network, at"
        " clients that read slowly, and at neighbours on the node",
    )


UNEVEN: Final = 1.5  # times what the other pods have
USED: Final = 0.7  # of what its lanes serve: a pod with less is not too loaded, however uneven

# `BUSY` and `USED` may be below what replicas are planned with: even shares are never `UNEVEN`.
SIGNIFICANT: Final = 100.0  # rows; of fewer, chance alone makes such shares


def uneven(e: BottleneckEvidence, standing: Kind | None) -> Finding | None:
    """Rows unlike the lanes that a pod has, or lanes that are slower than the others'."""
    pods = [pod for pod in e.pods if pod.lane_seconds > 0]
    if len(pods) < 2:  # noqa: PLR2004 - one has no others
        return None
    return _fullest(e, pods, standing) or _slowest(pods, standing)


def _fullest(e: BottleneckEvidence, pods: list[PodLoad], standing: Kind | None) -> Finding | None:
    fullest = max(pods, key=_rows)
    # of what its lanes serve; of their time while t(n) is not known
    capacity = e.capacity(e.max_batch_size)
    used = _rows(fullest) * e.lanes / capacity if capacity else _busy(fullest)
    times = limit(UNEVEN, Kind.SKEW, standing)
    uneven = _rows(fullest) >= times * _rows(_others(pods, fullest))
    if fullest.rows < SIGNIFICANT or not uneven or used < limit(USED, Kind.SKEW, standing):
        return None
    rows = sum(pod.rows for pod in pods)
    lanes = sum(pod.lane_seconds for pod in pods)
    return Finding(
        Kind.SKEW,
        f"{fullest.pod} gets {percent(fullest.rows / rows)} of the rows with"
        f" {percent(fullest.lane_seconds / lanes)} of the lanes of {len(pods)} pods, and is"
        f" busy {percent(_busy(fullest))}: a connection stays with its pod, so let clients open"
        " more of them or renew them, or balance single requests in front of the Service",
    )


def _slowest(pods: list[PodLoad], standing: Kind | None) -> Finding | None:
    slowest = max(pods, key=_busy)
    others = _busy(_others(pods, slowest))
    least = max(limit(UNEVEN, Kind.SKEW, standing) * others, limit(BUSY, Kind.SKEW, standing))
    if slowest.rows < SIGNIFICANT or _busy(slowest) < least:
        return None
    return Finding(
        Kind.SKEW,
        f"{slowest.pod} is busy {percent(_busy(slowest))} and the other pods {percent(others)}"
        " with no more rows: look at its node for slower or shared CPUs and GPUs, or delete the"
        " pod to have it placed anew",
    )


def _rows(pod: PodLoad) -> float:
    """Per second of a lane."""
    return pod.rows / pod.lane_seconds


def _busy(pod: PodLoad) -> float:
    return pod.batch_seconds / pod.lane_seconds


def _others(pods: list[PodLoad], one: PodLoad) -> PodLoad:
    """All but one, as if they were a single pod."""
    rest = [pod for pod in pods if pod is not one]
    return PodLoad(
        "the others",
        sum(pod.rows for pod in rest),
        sum(pod.lane_seconds for pod in rest),
        sum(pod.batch_seconds for pod in rest),
    )


Rule: TypeAlias = Callable[[BottleneckEvidence, Kind | None], Finding | None]

_RULES: Final[tuple[Rule, ...]] = (
    unseen,
    little,
    # One pod that drowns beside idle ones rejects, is full and is busy: the others would be blamed.
    uneven,
    # Lanes that cannot keep up make admission reject and answers late.
    saturated,
    admission,
    outside,
    # Waiting matters only where nothing else holds requests.
    interval,
    shapes,
)


def find(evidence: BottleneckEvidence, standing: Kind | None) -> Finding:
    """The verdict of this window; limits are lower for the kind that stands."""
    for rule in _RULES:
        found = rule(evidence, standing)
        if found is not None:
            return found
    return idle(evidence)


def diagnose(evidence: BottleneckEvidence, before: Verdict | None, now: float) -> Verdict:
    """Name the bottleneck of an API.

    Args:
        evidence: Counters of the last window, pooled over pods.
        before: What was returned at the look before; None at the first.
        now: Monotonic seconds.

    Returns:
        A verdict whose kind changes at most once in five minutes.
    """
    return settle(find(evidence, None if before is None else before.kind), before, now)
