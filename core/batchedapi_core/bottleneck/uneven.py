"""The rule for pods of which one has too much to do while the others have not."""

from typing import Final

from batchedapi_core.bottleneck.evidence import BottleneckEvidence, PodLoad
from batchedapi_core.bottleneck.limits import limit
from batchedapi_core.bottleneck.verdict import Finding, Kind
from batchedapi_core.words import percent

UNEVEN: Final = 1.5  # times what the other pods have
USED: Final = 0.7  # of what its lanes serve: a pod with less is not too loaded, however uneven
BUSY: Final = 0.85  # of its lanes' time
# Both may be below what replicas are planned with: pods with even shares are never `UNEVEN`.
SIGNIFICANT: Final = 100.0  # rows; of fewer, chance alone makes such shares


def uneven(e: BottleneckEvidence, standing: Kind | None) -> Finding | None:
    """Rows unlike the lanes that a pod has, or lanes that are slower than the others'."""
    pods = [pod for pod in e.pods if pod.lane_seconds > 0]
    if len(pods) < 2:  # noqa: PLR2004 - one has no others
        return None
    times = limit(UNEVEN, Kind.SKEW, standing)
    fullest = max(pods, key=_rows)
    if (
        fullest.rows >= SIGNIFICANT
        and _rows(fullest) >= times * _rows(_others(pods, fullest))
        and _used(e, fullest) >= limit(USED, Kind.SKEW, standing)
    ):
        return _more_rows(pods, fullest)
    slowest = max(pods, key=_busy)
    others = _busy(_others(pods, slowest))
    if slowest.rows >= SIGNIFICANT and _busy(slowest) >= max(
        times * others, limit(BUSY, Kind.SKEW, standing)
    ):
        return _slower(slowest, others)
    return None


def _more_rows(pods: list[PodLoad], fullest: PodLoad) -> Finding:
    rows = sum(pod.rows for pod in pods)
    lanes = sum(pod.lane_seconds for pod in pods)
    return Finding(
        Kind.SKEW,
        f"{fullest.pod} gets {percent(fullest.rows / rows)} of the rows with"
        f" {percent(fullest.lane_seconds / lanes)} of the lanes of {len(pods)} pods, and is busy"
        f" {percent(_busy(fullest))}: a connection stays with its pod, so let clients open more of"
        " them or renew them, or balance single requests in front of the Service",
    )


def _slower(slowest: PodLoad, others: float) -> Finding:
    return Finding(
        Kind.SKEW,
        f"{slowest.pod} is busy {percent(_busy(slowest))} and the other pods {percent(others)} with"
        " no more rows: look at its node for slower or shared CPUs and GPUs, or delete the pod to"
        " have it placed anew",
    )


def _rows(pod: PodLoad) -> float:
    """Per second of a lane."""
    return pod.rows / pod.lane_seconds


def _busy(pod: PodLoad) -> float:
    return pod.batch_seconds / pod.lane_seconds


def _used(e: BottleneckEvidence, pod: PodLoad) -> float:
    """Share of what its lanes serve; of their time while t(n) is not known."""
    capacity = e.capacity(e.max_batch_size)
    return _rows(pod) * e.lanes / capacity if capacity else _busy(pod)


def _others(pods: list[PodLoad], one: PodLoad) -> PodLoad:
    """All but one, as if they were a single pod."""
    rest = [pod for pod in pods if pod is not one]
    return PodLoad(
        "the others",
        sum(pod.rows for pod in rest),
        sum(pod.lane_seconds for pod in rest),
        sum(pod.batch_seconds for pod in rest),
    )
