"""Conditions that follow from what requests and batches took: in the status, with a remedy."""

from collections.abc import Sequence
from typing import Any

from tests.unit.operator.autoscaling.pages import page
from tests.unit.operator.autoscaling.test_loop import Situation

from batchedapi_core import contract
from batchedapi_core.bottleneck import Filling, Level
from batchedapi_core.manifest import REASONS, ConditionType
from batchedapi_core.placement import AdviceReason
from batchedapi_operator.autoscaling.metrics_page import parse_page
from batchedapi_operator.autoscaling.scrape import Outcome
from batchedapi_operator.views import PodView

TARGET: dict[str, Any] = {"serverSideBatching": {"maxLatency": "50ms"}}


class Timed(Situation):
    """One pod that serves 40 rows a second and tells how long requests took."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.rate, self.late, self.fast, self.slow = 40.0, False, 0.0, 0.0

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """As Situation, with the histogram of requests' times: within 10 ms, or half a second."""
        new = self.rows - self.fast - self.slow
        self.fast, self.slow = self.fast + new * (not self.late), self.slow + new * self.late
        edges = (*map(str, contract.LATENCY_BUCKETS), "+Inf")
        lines = [
            f'batchedapi_request_seconds_bucket{{method="predict",le="{edge}"}}'
            f" {self.fast * (float(edge) >= 0.01) + self.slow * (float(edge) >= 0.5)}\n"
            for edge in edges
        ]
        total = 0.01 * self.fast + 0.5 * self.slow
        lines += [
            f'batchedapi_request_seconds_{part}{{method="predict"}} {value}\n'
            for part, value in (("count", self.rows), ("sum", total))
        ]
        batches = self.rows / 4
        text = page(
            received=self.rows, rows=self.rows, batches=batches, seconds=0.012 * batches, full=0,
            extra="".join(lines),
        )  # fmt: skip
        return [
            parse_page(text, pod.uid, time=self.now, unix_time=4600.0 + self.now) for pod in pods
        ]

    def told(self, kind: str) -> dict[str, Any]:
        """A condition; empty where there is none."""
        found = self.status.get("conditions", ())
        return next((one for one in found if one["type"] == kind), {})


async def test_late_requests_are_told_within_ten_seconds_and_forgotten_with_their_window() -> None:
    """A minute of looks has to pass, and ten seconds in which nobody is late."""
    api = Timed(**TARGET)
    await api.run(60)
    met = api.told("SLOMet")["reason"]
    api.late = True
    await api.run(10)
    missed = api.told("SLOMet")
    api.late = False
    await api.run(90)

    assert "Met" == met
    assert ("False", "ExecutionTime") == (missed["status"], missed["reason"])
    assert missed["message"].startswith("p99 is between 250 ms and 500 ms, target 50 ms")
    assert missed["message"].endswith(REASONS[ConditionType.SLO_MET]["ExecutionTime"].remedy)
    assert "True" == api.told("SLOMet")["status"]


async def test_an_api_without_a_target_has_no_such_condition() -> None:
    """It would be met for ever, or missed by nobody's measure."""
    api = Timed()
    await api.run(30)

    assert {} == api.told("SLOMet")
    assert ("True", "Filling") == (
        api.told("BatchingEffective")["status"],
        api.told("BatchingEffective")["reason"],
    )


async def test_what_was_said_stands_until_a_new_operator_has_seen_enough() -> None:
    """An apply without the condition would take it away, and give it back ten seconds later."""
    api = Timed(**TARGET)
    await api.run(60)
    api.restarted()
    api.cluster.statuses.clear()
    await api.run(5)

    before = (api.told("SLOMet")["reason"], api.told("BatchingEffective")["reason"])
    assert ("Met", "Filling") == before


async def test_batches_that_nobody_asks_for_are_not_known_to_fill() -> None:
    """Unknown is not False: there is nothing to change."""
    api = Timed()
    api.rate = 0.0
    await api.run(30)

    told = api.told("BatchingEffective")
    assert ("Unknown", "Idle") == (told["status"], told["reason"])


async def test_a_condition_that_does_not_change_is_written_once() -> None:
    """A busy API must not be written to with every look, but for what was learned."""
    api = Timed(**TARGET)
    await api.run(120)
    api.cluster.writes.clear()

    await api.run(120)

    assert 1 >= sum(verb == "status" for verb, _ in api.cluster.writes)


def test_every_word_that_core_may_say_is_a_reason_with_a_meaning() -> None:
    """A word that is not in the table would end the look that says it."""
    words = {
        ConditionType.SLO_MET: Level,
        ConditionType.BATCHING_EFFECTIVE: Filling,
    }
    for kind, found in words.items():
        assert {one.value for one in found} == REASONS[kind].keys()
    advice = {reason.value for reason in AdviceReason}
    assert advice == REASONS[ConditionType.SPEC_ADVICE].keys() - {"NothingToSay"}
