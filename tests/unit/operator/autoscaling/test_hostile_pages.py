"""10,000 pages of replicas that run somebody else's code, all the way to a replica count."""

import math
import random
from collections.abc import Iterator, Sequence
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
from batchedapi_core.scaling.decide import step
from batchedapi_core.scaling.decision import ScalingDecision
from batchedapi_core.scaling.samples import LARGEST_COUNT, Observation
from batchedapi_core.scaling.state import ScalingState
from batchedapi_operator.autoscaling.in_effect import policy_of, refusal_of, samples_of
from batchedapi_operator.autoscaling.metrics_page import Layout, MetricsPage, parse_page
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

    def look(
        self, look: int, mutations: Sequence[Mutation | None], seed: int
    ) -> "tuple[ScalingDecision, Fleet]":
        """One tick; each pod's page goes through its mutation, as bytes off the network."""
        now, honest = 5.0 * look, self.replica.at(look)
        chance, pages = random.Random(seed), list[MetricsPage]()
        before = {sample.pod: sample for sample in self.state.samples}
        for number, mutation in enumerate(mutations):
            raw = honest.encode() if mutation is None else mutation(honest, chance)
            name = f"pod-{number}"
            found = self._page(raw.decode("utf-8", errors="replace"), name, now)
            if found is not None and refusal_of(self.api, name, found, before.get(name)) is None:
                pages.append(found)
        policy = policy_of(self.api, pages, self.state, now)
        samples = samples_of(self.api, pages)
        decision, state = step(policy, self.state, Observation(samples, PODS, PODS, "r"), now)
        return decision, replace(self, state=state)

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
    fleet = Fleet(manifest, replica, Layout(), state)
    for look in range(1, CALM):
        decision, fleet = fleet.look(look, [None] * PODS, 0)
    assert (PODS, "") == (decision.desired, decision.bound), decision
    return fleet


def decisions_of(
    calm: Fleet, mutation: Mutation, rounds: int
) -> Iterator[tuple[str, ScalingDecision]]:
    """The decision of every look at hostile pages, and the seed to look there again.

    Each round starts from `calm`; one pod lies in the first, two in the second, and so on.
    """
    for round_ in range(rounds):
        fleet, hostile = calm, 1 + round_ % PODS
        mutations = [mutation] * hostile + [None] * (PODS - hostile)
        for look in range(CALM, CALM + LOOKS):
            seed = 1000 * round_ + look
            decision, fleet = fleet.look(look, mutations, seed)
            yield f"seed {seed}, {hostile} hostile: {decision}", decision


@pytest.mark.parametrize("autoscaling", [SLO, IN_FLIGHT], ids=["CapacitySLO", "Concurrency"])
@pytest.mark.parametrize("mutation", UNBELIEVABLE, ids=lambda it: it.__name__)
def test_pages_that_cannot_be_true_move_nothing(
    tmp_path: Path, mutation: Mutation, autoscaling: dict[str, Any]
) -> None:
    """F10, O24: of one pod or of all four; 4,500 pages, and the load stays as it was."""
    calm = fleet_of(tmp_path, autoscaling)

    for told, decision in decisions_of(calm, mutation, rounds=20):
        assert PODS == decision.desired, told


@pytest.mark.parametrize("autoscaling", [SLO, IN_FLIGHT], ids=["CapacitySLO", "Concurrency"])
@pytest.mark.parametrize("mutation", BELIEVABLE, ids=lambda it: it.__name__)
def test_lies_that_could_be_true_stay_within_the_users_bounds(
    tmp_path: Path, mutation: Mutation, autoscaling: dict[str, Any]
) -> None:
    """5,500 pages; a replica's code may say what it likes of itself, and no more than that."""
    calm = fleet_of(tmp_path, autoscaling)

    for told, decision in decisions_of(calm, mutation, rounds=75):
        assert BOUNDS[0] <= decision.desired <= BOUNDS[1], told


def in_series(number: int, value: float) -> Mutation:
    """Puts `value` into one of the series that are not comments, counted from 0."""

    def mutation(text: str, _: random.Random) -> bytes:
        lines = text.split("\n")
        at = series_of(text)[number]
        lines[at] = f"{lines[at].rpartition(' ')[0]} {value!r}"
        return "\n".join(lines).encode()

    return mutation


def series_of(text: str) -> list[int]:
    """Numbers of the lines that carry a value."""
    return [n for n, line in enumerate(text.split("\n")) if line and not line.startswith("#")]


@pytest.mark.parametrize("autoscaling", [SLO, IN_FLIGHT], ids=["CapacitySLO", "Concurrency"])
@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        pytest.param(math.nextafter(LARGEST_COUNT, math.inf), PODS, PODS, id="just above"),
        pytest.param(LARGEST_COUNT, *BOUNDS, id="at it"),
    ],
)
def test_the_largest_number_is_no_crash_in_any_series_and_one_above_it_moves_nothing(
    tmp_path: Path, value: float, least: int, most: int, autoscaling: dict[str, Any]
) -> None:
    """Every series of the page in turn, of one pod and of all; products of it must not overflow."""
    calm = fleet_of(tmp_path, autoscaling)
    series = series_of(calm.replica.at(CALM))
    assert len(series) > 50

    for number in range(len(series)):
        for hostile in (1, PODS):
            mutations = [in_series(number, value)] * hostile + [None] * (PODS - hostile)
            decision, after = calm.look(CALM, mutations, 0)
            later, _ = after.look(CALM + 1, [None] * PODS, 0)
            for each in (decision, later):
                assert least <= each.desired <= most, (number, hostile, each)
