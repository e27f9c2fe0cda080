"""Rules for what holds requests outside of queue and lanes: the door, and the web processes."""

from typing import Final

from batchedapi_core.bottleneck.evidence import BottleneckEvidence
from batchedapi_core.bottleneck.limits import limit
from batchedapi_core.bottleneck.verdict import Finding, Kind
from batchedapi_core.words import ms, percent

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
    return Finding(Kind.ADMISSION, f"{head}: {_crowd(e) if crowded > late else _target(e)}")


def _spare(e: BottleneckEvidence) -> str:
    """Lanes that start whatever is queued are busy long before they are short of time."""
    capacity = e.capacity(e.max_batch_size)
    if capacity is None:
        return f"lanes are busy {percent(e.busy)}"
    return f"lanes use {percent(e.arrival / capacity)} of what they serve"


def _crowd(e: BottleneckEvidence) -> str:
    most = e.replica_concurrency
    change = "raise it" if most is None else f"raise it from {most} to {2 * most}"
    return f"more requests come at once than spec.overload.maxReplicaConcurrency lets in; {change}"


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
    elsewhere = _elsewhere(e)
    if e.request_seconds is None or elsewhere < NOTICEABLE:
        return None
    if elsewhere < limit(ELSEWHERE, Kind.UNKNOWN, standing) * e.request_seconds:
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


def _elsewhere(e: BottleneckEvidence) -> float:
    """Mean seconds of a request outside of queue and batch; 0 where not known.

    The batch that the mean row travelled in takes sum(n t) / sum(n).
    """
    if e.request_seconds is None or e.queue_wait is None or e.sums.rows <= 0:
        return 0.0
    return e.request_seconds - e.queue_wait - e.sums.row_seconds / e.sums.rows
