"""What the clock repeats: kept in the status, so that another operator expects it, too."""

import copy
from datetime import timedelta

from tests.unit.operator.autoscaling.test_loop import Situation
from tests.unit.operator.worlds import KEY, WALL

from batchedapi_core.scaling.forecast import Point, Points
from batchedapi_core.scaling.schedule import DAY, Schedule
from batchedapi_operator.cluster import BATCHED_APIS


async def test_an_operator_that_was_restarted_orders_for_a_jump_of_most_days() -> None:
    """One start-up (30 s until one was measured) and 20 s ahead, and says so."""
    steady = Situation(autoscaling={"maxReplicas": 10})
    steady.rate = 400.0
    await steady.run(600)
    due = (WALL + timedelta(seconds=steady.now + 900.0)).timestamp()
    days = Points.of(Point(due - day * DAY, 3.0) for day in range(5, 0, -1))
    body = copy.deepcopy(steady.cluster.objects[BATCHED_APIS, KEY])
    body["status"]["autoscaling"]["learned"] |= Schedule(due - 9 * DAY, days).to_saved()
    steady.cluster.put(BATCHED_APIS, body)
    steady.refresh()
    steady.restarted()

    await steady.run(820)
    early = steady.replicas
    await steady.run(50)

    told = steady.status["autoscaling"]
    assert (1, 3) == (early, steady.replicas)
    assert "LearnedSchedule" == told["lastDecision"]["reason"]
    assert "5 of the last 8 days brought about 3.0 times as much" in told["lastDecision"]["text"]
    assert days == Schedule.restored(told["learned"]).jumps
