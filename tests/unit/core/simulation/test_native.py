"""Our own autoscaler in the fleet: it is asked as the operator asks it."""

from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.simulation import CapacityController, NoisyService, StepTrace, simulate

EMB = NoisyService(0.025, 0.005, 32, 0.020, 0.500)
POLICY = ScalingPolicy(
    min_replicas=1, max_replicas=20, max_batch_size=32, batch_interval=0.020, latency_target=0.5
)


def test_it_decides_every_two_seconds_and_follows_the_load_up_and_down() -> None:
    """1 -> N -> 1, with a reason for each answer."""
    trace = StepTrace((0.0, 100.0, 400.0), (100.0, 600.0, 100.0), 900.0)
    controller = CapacityController(POLICY)
    assert "" == controller.why()

    outcome = simulate(EMB, trace, controller, why=controller.why)

    assert [2.0 * (i + 1) for i in range(450)] == [choice.t for choice in outcome.replicas]
    desired = [choice.desired for choice in outcome.replicas]
    assert [1, 1, 1] == [desired[5], desired[45], desired[-1]]
    assert 4 <= desired[150] <= 6  # 600 / (0.93 * 164) = 3.9
    assert all(choice.reason for choice in outcome.replicas)
    assert outcome.miss_fraction < 0.1


def test_it_looks_as_often_as_it_is_told() -> None:
    """The effect of a slower poll can be measured."""
    controller = CapacityController(POLICY, every=15.0)

    outcome = simulate(EMB, StepTrace((0.0,), (50.0,), 60.0), controller)

    assert [15.0, 30.0, 45.0, 60.0] == [choice.t for choice in outcome.replicas]
