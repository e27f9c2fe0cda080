"""Our own autoscaler over a simulated fleet: what the operator's loop does, without the network."""

from typing import Final

from batchedapi_core.scaling.decide import step
from batchedapi_core.scaling.decision import ScalingDecision
from batchedapi_core.scaling.observe import in_rows
from batchedapi_core.scaling.policy import SECONDS_BETWEEN_LOOKS, ScalingPolicy
from batchedapi_core.scaling.samples import Observation, PodSample, Unready
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.simulation.fleet import Fleet, SimulatedPod

_REVISION: Final = "simulated"


class CapacityController:
    """See Controller; keeps the state between looks and the decision of the last."""

    def __init__(self, policy: ScalingPolicy, *, every: float = SECONDS_BETWEEN_LOOKS) -> None:
        """`policy.max_batch_size` is in the unit that `SimulatedPod.sizes` counts."""
        self._policy = policy
        self._every = every
        self._state = ScalingState.empty()
        self.decision: ScalingDecision | None = None

    def desired(self, fleet: Fleet) -> int | None:
        """See Controller."""
        if fleet.now % self._every:
            return None
        ready = [pod for pod in fleet.pods if pod.ready]
        samples = tuple(_sample(pod, fleet.now) for pod in ready)
        policy = in_rows(self._policy, self._state, samples, fleet.now)
        starting = (fleet.now - pod.created for pod in fleet.pods if not pod.ready)
        look = Observation(
            samples,
            len(ready),
            len(fleet.pods),
            _REVISION,
            Unready(oldest=max(starting, default=0.0)),
        )
        self.decision, self._state = step(policy, self._state, look, fleet.now)
        return self.decision.desired

    def why(self) -> str:
        """The reason of the last decision; "" before the first."""
        return "" if self.decision is None else self.decision.reason.value


def _sample(pod: SimulatedPod, now: float) -> PodSample:
    return PodSample(
        pod=pod.name,
        time=now,
        process_start=pod.created,
        uptime=now - pod.created,
        rows_received=pod.received,
        rows_rejected=pod.rejected,
        batches=pod.batches,
        rows=pod.rows,
        full_batches=pod.full_batches,
        batch_seconds=pod.batch_seconds,
        rows_squared=pod.rows_squared,
        row_seconds=pod.row_seconds,
        batch_rows_buckets=(),
        queue_rows=pod.queue_rows,
        lanes=pod.lanes,
        sizes=pod.sizes,
        requests=pod.requests,
        wait_seconds=pod.wait_seconds,
        in_flight=pod.in_flight,
        answered=pod.answered,
        startup=pod.ready_at - pod.created if pod.ready_at > pod.created else None,
    )
