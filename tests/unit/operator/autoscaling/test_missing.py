"""F10: unknown is never zero, on the way from pods to replicas."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.operator.autoscaling.test_loop import Situation

from batchedapi_operator.autoscaling.scrape import Outcome
from batchedapi_operator.errors import MetricsUnavailableError
from batchedapi_operator.views import PodView

PODS = 5


class Partly(Situation):
    """A situation in which the metrics port of some pods is dead."""

    silent = 0

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """As Situation, but for the first `silent` pods."""
        outcomes = await super().scrape(pods)
        dead = MetricsUnavailableError("unreachable", "connection refused")
        return [dead if n < self.silent else one for n, one in enumerate(outcomes)]


def fleet(rate: float, **scaling: Any) -> Partly:
    """Five pods; one of them serves 500 rows/s."""
    api = Partly(replicas=PODS, autoscaling={"minReplicas": 1, "maxReplicas": 20, **scaling})
    api.rate, api.max_batch_size = rate, 10
    return api


@pytest.mark.parametrize("policy", ["CapacitySLO", "Concurrency"])
@pytest.mark.parametrize("silent", range(1, PODS + 1))
async def test_dead_metrics_ports_move_nothing(silent: int, policy: str) -> None:
    """The load is right for five pods; k of them fall silent for ten minutes."""
    # in flight: 5 in every page, and a target of as many keeps the five
    api = fleet(1900.0, policy=policy, targetReplicaConcurrency="5")
    await api.run(300)
    assert PODS == api.replicas
    api.silent = silent

    await api.run(600)

    assert PODS == api.replicas
    assert ("None" if silent == PODS else "Partial") == api.reason("MetricsAvailable")


@pytest.mark.parametrize("silent", [2, 3, 4, 5])
async def test_nothing_is_removed_on_the_word_of_a_few(silent: int) -> None:
    """The load is gone as far as anybody can see, and that is not far enough."""
    api = fleet(1900.0)
    await api.run(300)
    api.silent, api.rate = silent, 1.0

    await api.run(900)

    assert PODS == api.replicas


async def test_an_hour_without_metrics_changes_nothing() -> None:
    """An outage of the network between operator and pods is none of the load."""
    api = fleet(1900.0)
    await api.run(300)
    api.silent = PODS

    await api.run(3600)

    assert PODS == api.replicas
    assert 1 == len([one for one in api.cluster.events if one["reason"] == "MetricsMissing"])


async def test_an_operator_that_restarts_under_load_makes_no_wrong_move() -> None:
    """Mid-window: neither down for want of samples, nor up for counters without a beginning."""
    api = fleet(1900.0)
    await api.run(300)
    counts = set()
    for _ in range(6):
        api.restarted()
        for _ in range(7):
            await api.run(5)
            counts.add(api.replicas)

    assert {PODS} == counts


async def test_counters_that_fall_are_counted_and_not_believed() -> None:
    """The scrape counter says `invalid`; the pod counts as not seen until it says better."""
    api = fleet(1900.0)
    await api.run(300)
    api.rows /= 2.0

    await api.run(60)

    invalid = api.metrics.registry.get_sample_value(
        "batchedapi_operator_scrapes_total",
        {"namespace": "demo", "name": "iris", "result": "invalid"},
    )
    assert invalid is not None
    assert PODS <= invalid
    assert PODS == api.replicas
