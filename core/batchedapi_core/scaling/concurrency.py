"""The policy `Concurrency`: requests in flight over a target, as Cortex scales.

    need = mean requests in flight over the window / target_replica_concurrency

Formula, tolerances, factors and stabilization are those of Cortex 0.20 (pkg/autoscaler); its
factors bound what is recommended, its stabilization what is done: the lowest recommendation of the
last minute going up, the highest of the last five going down, and no move in a direction before
that long was watched. What differs: it looks at each tick of ten seconds, here at each of two,
with the factors per ten seconds; and what is missing holds by the rules of CapacitySLO.
"""

from batchedapi_core.scaling.decision import Evidence
from batchedapi_core.scaling.policy import ScalingPolicy


def concurrency_need(policy: ScalingPolicy, evidence: Evidence) -> float:
    """Replicas, a fraction; none for evidence without a measurement, so hold before asking."""
    return (evidence.in_flight or 0.0) / policy.target_concurrency
