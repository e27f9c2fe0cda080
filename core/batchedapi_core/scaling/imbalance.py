"""Load that is not even: the replica with the most of it misses the target first.

A pod's load is what arrives at it, times how much slower than the pooled service time it is. A
balancer that splits evenly makes the slowest pod the limit, one with sticky connections the most
popular.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batchedapi_core.scaling.demand import arrived
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import PodChange
from batchedapi_core.service_model.line import ServiceTime

FEWEST_PODS = 2
"""One alone is as loaded as the mean."""


@dataclass(frozen=True, slots=True)
class Share:
    """A pod's load over the mean pod's, smoothed."""

    pod: str
    load: float


def shares_of(
    policy: ScalingPolicy,
    before: Iterable[Share],
    changes: Sequence[PodChange],
    service: ServiceTime | None,
    interval: float,
) -> tuple[Share, ...]:
    """Of the pods that had time to get their part of the load; none while fewer than two had.

    Args:
        policy: Says how fast a share is forgotten.
        before: At the last look.
        changes: Of the pods that answered.
        service: Pooled service time; without it no pod can be called slow.
        interval: Seconds since the last look.
    """
    loads = _loads(changes, service, interval)
    mean = sum(load for _, load in loads) / len(loads) if loads else 0.0
    if len(loads) < FEWEST_PODS or mean <= 0.0:
        return ()
    keep = 0.5 ** (interval / policy.imbalance_half_life)
    known = {share.pod: share.load for share in before}
    return tuple(
        Share(pod, known.get(pod, 1.0) * keep + load / mean * (1.0 - keep)) for pod, load in loads
    )


def imbalance(policy: ScalingPolicy, shares: Iterable[Share]) -> float:
    """Factor on the need that keeps the hottest replica below `hot_utilization`.

    Or below the target, where the user set that higher: even load then adds nothing.
    """
    limit = max(policy.hot_utilization, policy.target_utilization)
    hottest = max((share.load for share in shares), default=1.0)
    factor = hottest * policy.target_utilization / limit
    return min(policy.imbalance_cap, max(1.0, factor))


def _loads(
    changes: Sequence[PodChange], service: ServiceTime | None, interval: float
) -> list[tuple[str, float]]:
    if service is None:
        return []
    loads = []
    for change in changes:
        sums = change.sums
        if change.mature and change.tells_service_time:
            rate = arrived(change) / max(change.seconds, interval)
            loads.append((change.pod, rate * sums.seconds / sums.modelled(service)))
    return loads
