"""10,000 pages of replicas that run somebody else's code, all the way to a replica count."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from tests.unit.operator.autoscaling.hostile import (
    BELIEVABLE,
    START,
    UNBELIEVABLE,
    Mutation,
    Replica,
)
from tests.unit.operator.worlds import api

from batchedapi_core.manifest import BatchedAPI
from batchedapi_core.scaling import Observation, ScalingDecision, ScalingState, step
from batchedapi_operator.autoscaling.exposition import Layout
from batchedapi_operator.autoscaling.in_effect import policy_of, samples_of
from batchedapi_operator.autoscaling.metrics_page import MetricsPage, parse_page
from batchedapi_operator.autoscaling.tally import Tally
from batchedapi_operator.errors import MetricsUnavailableError

PODS: Final = 4
BOUNDS: Final = (2, 9)
CALM: Final = 70
"""Looks until removing replicas would be allowed."""
LOOKS: Final = 5
"""At hostile pages, after which what was learned before is taken up again."""
SLO: Final[dict[str, Any]] = {"targetUtilizationPercent": 60}
IN_FLIGHT: Final[dict[str, Any]] = {"policy": "Concurrency", "targetReplicaConcurrency": "12"}


@dataclass(frozen=True)
class Fleet:
    """Four replicas at the load that four are right for."""

    api: BatchedAPI
    replica: Replica
    layout: Layout
    state: ScalingState
    tally: Tally

    def look(
        self, look: int, mutations: Sequence[Mutation | None], seed: int
    ) -> "tuple[ScalingDecision, Fleet]":
        """One tick; each pod's page goes through its mutation, as bytes off the network."""
        now, honest = 5.0 * look, self.replica.at(look)
        chance, pages = random.Random(seed), dict[str, MetricsPage]()
        for number, mutation in enumerate(mutations):
            raw = honest.encode() if mutation is None else mutation(honest, chance)
            name = f"pod-{number}"
            found = self._page(raw.decode("utf-8", errors="replace"), name, now)
            if found is not None and self.tally.refusal(name, found) is None:
                pages[name] = found
        policy = policy_of(self.api, tuple(pages.values()), self.state, now)
        samples = samples_of(self.api, tuple(pages.values()))
        decision, state = step(policy, self.state, Observation(samples, PODS, PODS, "r"), now)
        tally = self.tally.looked(pages, now, policy.window)
        return decision, replace(self, state=state, tally=tally)

    def _page(self, text: str, pod: str, now: float) -> MetricsPage | None:
        try:
            return parse_page(text, pod, time=now, unix_time=START + now, layout=self.layout)
        except MetricsUnavailableError:
            return None


def fleet_of(folder: Path, autoscaling: dict[str, Any]) -> Fleet:
    """After minutes of honest pages, at the end of which nothing wants to move."""
    manifest = api(
        autoscaling={"minReplicas": BOUNDS[0], "maxReplicas": BOUNDS[1], **autoscaling},
        serverSideBatching={"maxLatency": "150ms"},
    )
    replica, state = Replica(folder, 120), ScalingState.empty()
    fleet = Fleet(manifest, replica, Layout(), state, Tally.empty())
    for look in range(1, CALM):
        decision, fleet = fleet.look(look, [None] * PODS, 0)
    assert (PODS, "") == (decision.desired, decision.bound), decision
    return fleet


@pytest.mark.parametrize("autoscaling", [SLO, IN_FLIGHT], ids=["CapacitySLO", "Concurrency"])
@pytest.mark.parametrize("mutation", UNBELIEVABLE, ids=lambda it: it.__name__)
def test_pages_that_cannot_be_true_move_nothing(
    tmp_path: Path, mutation: Mutation, autoscaling: dict[str, Any]
) -> None:
    """F10, O24: of one pod or of all four; 4,500 pages, and the load stays as it was."""
    calm = fleet_of(tmp_path, autoscaling)
    for round_ in range(20):
        fleet = calm
        hostile = 1 + round_ % PODS
        for look in range(CALM, CALM + LOOKS):
            mutations = [mutation] * hostile + [None] * (PODS - hostile)
            seed = 1000 * round_ + look
            decision, fleet = fleet.look(look, mutations, seed)
            assert PODS == decision.desired, (seed, hostile, decision)


@pytest.mark.parametrize("autoscaling", [SLO, IN_FLIGHT], ids=["CapacitySLO", "Concurrency"])
@pytest.mark.parametrize("mutation", BELIEVABLE, ids=lambda it: it.__name__)
def test_lies_that_could_be_true_stay_within_the_users_bounds(
    tmp_path: Path, mutation: Mutation, autoscaling: dict[str, Any]
) -> None:
    """5,500 pages; a replica's code may say what it likes of itself, and no more than that."""
    calm = fleet_of(tmp_path, autoscaling)
    for round_ in range(75):
        fleet = calm
        hostile = 1 + round_ % PODS
        for look in range(CALM, CALM + LOOKS):
            mutations = [mutation] * hostile + [None] * (PODS - hostile)
            seed = 1000 * round_ + look
            decision, fleet = fleet.look(look, mutations, seed)
            assert BOUNDS[0] <= decision.desired <= BOUNDS[1], (seed, decision)
