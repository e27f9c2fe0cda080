"""The demand of a record once more, beside the very simulation that it was recorded of."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from batchedapi_core.manifest import BatchedAPI, InEffect, parse_api, scaling_policy_of
from batchedapi_core.scaling.decide import decide
from batchedapi_core.scaling.decision import ScalingDecision
from batchedapi_core.scaling.learned import LearnedModel
from batchedapi_core.scaling.minutes import Filling, Minute, Minutes
from batchedapi_core.scaling.observe import observe
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import Observation
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import BatchSums, ServiceTime
from batchedapi_core.simulated import NotReplayedError, replay, service_of, startup_of
from batchedapi_core.simulation import (
    CapacityController,
    Outcome,
    PoissonTrace,
    controllers,
    simulate,
)

SECONDS = 1800
NOON = 29_000_160 * 60.0
RATES = 25.0 * (1.0 + 0.4 * np.sin(np.arange(SECONDS) / 400.0))
for start in range(150, SECONDS, 500):
    RATES[start : start + 140] *= 2.0


def api(**scaling: Any) -> BatchedAPI:
    """A replica holds some 13 rows/s."""
    return parse_api(
        {
            "apiVersion": "batchedapi.dev/v1alpha1",
            "kind": "BatchedAPI",
            "metadata": {"name": "iris"},
            "spec": {
                "predictor": {"path": "model:Iris", "processesPerReplica": 1},
                "serverSideBatching": {
                    "maxBatchSize": 8, "batchInterval": "20ms", "strategy": "Fixed",
                    **({"queue": {"redis": {"host": "redis"}}} if "minReplicas" in scaling else {}),
                },
                "autoscaling": {"slo": {"latency": "1.5s"}, "maxReplicas": 8, **scaling},
            },
        }
    )  # fmt: skip


KNOWN = replace(
    ScalingState.empty(),
    model=LearnedModel("r", BatchSums(100.0, 800.0, 6400.0, 50.0, 400.0), 8.0),
)


class Recorder:
    """What the operator's loop records, of a simulation of it."""

    def __init__(self) -> None:
        self.filling = Filling()
        self.minutes: list[Minute] = []
        self.state = ScalingState.empty()

    def step(
        self, policy: ScalingPolicy, state: ScalingState, look: Observation, now: float
    ) -> tuple[ScalingDecision, ScalingState]:
        """As scaling.step."""
        load, state = observe(policy, state, look, now)
        self.filling, ended = self.filling.looked(load, look.current, policy.lanes)
        self.minutes += [] if ended is None else [ended]
        decision, self.state = decide(policy, load, state, now)
        return decision, self.state


def direct(what: BatchedAPI, recorder: Recorder, state: ScalingState | None = None) -> Outcome:
    """Under the demand itself."""
    policy = scaling_policy_of(what)
    trace = PoissonTrace(lambda t: float(RATES[min(int(t), SECONDS - 1)]), float(SECONDS))
    service = service_of(what, ServiceTime(0.1, 0.05), policy)
    controller = CapacityController(policy, state=state, wall=NOON)
    with patch.object(controllers, "step", recorder.step):
        return simulate(
            service, trace, controller, replicas=3, max_replicas=policy.max_replicas, seed=1
        )


def test_a_replay_tells_what_the_simulation_of_the_demand_itself_does() -> None:
    """Late requests and replicas within a tenth; what was recorded costs what it cost."""
    recorder = Recorder()
    recorded = direct(api(), recorder)
    record = Minutes.restored(Minutes().plus(recorder.minutes).to_saved())
    assert record is not None
    minutes = list(record)
    learned = ScalingState.restored(recorder.state.to_saved())
    known = replace(
        ScalingState.empty(), former=None, start_ups=learned.start_ups,
        model=replace(learned.in_use, revision=controllers.REVISION),
    )  # fmt: skip

    seen = recorded.timeline[: len(minutes) * 60]
    paid, rows = sum(one.live for one in seen), sum(one.batch_rows for one in seen)
    assert paid == pytest.approx(60.0 * sum(one.replicas for one in minutes), rel=0.01)
    assert rows == pytest.approx(60.0 * sum(one.rows for one in minutes), rel=0.01)
    late = []
    for what in (api(), api(maxReplicas=3)):
        wanted, found = direct(what, Recorder(), known), replay(what, InEffect(), learned, minutes)
        mean = wanted.cost / wanted.seconds
        assert mean == pytest.approx(found.cost / found.seconds, rel=0.1)
        late.append((wanted.miss_fraction, found.miss_fraction))
    (_, few), (wanted_of_fewer, many) = late
    assert wanted_of_fewer == pytest.approx(many, rel=0.1)
    assert few < 0.3 * many


def test_what_cannot_be_replayed_is_told_with_the_reason() -> None:
    """A simulated request waits for no first replica, and no batch takes an unknown time."""
    (minute,) = Minutes().plus([Minute(29_000_160, 10.0, 10.0, 10.0, 1.0, 0.5)])
    idle = api(minReplicas=0)

    with pytest.raises(NotReplayedError, match="not known yet how long a batch takes"):
        replay(api(), InEffect(), ScalingState.empty(), [minute])
    with pytest.raises(NotReplayedError, match="add --set autoscaling"):
        replay(idle, InEffect(), KNOWN, [minute])
    assert (20.0, 40.0) == startup_of(ScalingState.empty())
    assert (5.0, 9.0) == startup_of(replace(ScalingState.empty(), start_ups=(9.0, 5.0)))
