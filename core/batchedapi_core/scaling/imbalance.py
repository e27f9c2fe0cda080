"""Load that is not even: the replica with the most of it misses the target first.

A pod's load is what arrives at it, times how much slower than the pooled service time it is. A
balancer that splits evenly makes the slowest pod the limit, one with sticky connections the most
popular.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import PodChange
from batchedapi_core.service_model.line import ServiceTime

FEWEST_PODS = 2
"""One alone is as loaded as the mean."""
DOUBT = 2.0
"""Shares of few requests differ by chance, and the highest of many pods most: as much is left out
as this many times 1/sqrt(N), nearly three standard errors of a share that is smoothed."""


@dataclass(frozen=True, slots=True)
class Share:
    """A pod's load over the mean pod's, smoothed."""

    pod: str
    load: float
    requests: float = 0.0  # that it rests on, forgotten as fast


def shares_of(
    policy: ScalingPolicy,
    before: Iterable[Share],
    changes: Sequence[PodChange],
    service: ServiceTime | None,
    interval: float,
    *,
    ready: int,
) -> tuple[Share, ...]:
    """Of the pods that had time to get their part of the load; none where there is one pod.

    Of a pod that this look says nothing of, what was known stands: while some pods are not seen it
    may be one of them. Once all are seen, the others are gone.

    Args:
        policy: Says how fast a share is forgotten.
        before: At the last look.
        changes: Of the pods that answered.
        service: Pooled service time; without it no pod can be called slow.
        interval: Seconds since the last look.
        ready: Pods that there are.
    """
    if ready < FEWEST_PODS:
        return ()
    seen = {change.pod for change in changes}
    shares = {one.pod: one for one in before if one.pod in seen or len(seen) < ready}
    loads = _loads(changes, service, interval)
    mean = sum(load for _, load in loads) / len(loads) if loads else 0.0
    if len(loads) >= FEWEST_PODS and mean > 0.0:
        keep = 0.5 ** (interval / policy.imbalance_half_life)
        for change, load in loads:
            known = shares.get(change.pod, Share(change.pod, 1.0))
            shares[change.pod] = Share(
                change.pod,
                known.load * keep + load / mean * (1.0 - keep),
                known.requests * keep + (change.requests_received or change.received),
            )
    return tuple(shares.values())


def imbalance(policy: ScalingPolicy, shares: Iterable[Share]) -> float:
    """Factor on the need that keeps the hottest replica below `hot_utilization`.

    Or below the target, where the user set that higher: even load then adds nothing.
    """
    limit = max(policy.hot_utilization, policy.target_utilization)
    hottest = max(map(_surely, shares), default=1.0)
    factor = hottest * policy.target_utilization / limit
    return min(policy.imbalance_cap, max(1.0, factor))


def _surely(share: Share) -> float:
    """Load of a pod over the mean pod's that is not due to chance."""
    return share.load * (1.0 - DOUBT / math.sqrt(max(share.requests, DOUBT**2)))


def _loads(
    changes: Sequence[PodChange], service: ServiceTime | None, interval: float
) -> list[tuple[PodChange, float]]:
    """Rows/s of each pod, more where it is slow; of one that ran no batch, what came."""
    if service is None:
        return []
    loads = []
    for change in changes:
        if change.mature:
            sums, slowness = change.sums, 1.0
            if change.tells_service_time:
                slowness = sums.seconds / sums.modelled(service)
            rate = change.received / max(change.seconds, interval)
            loads.append((change, rate * slowness))
    return loads
