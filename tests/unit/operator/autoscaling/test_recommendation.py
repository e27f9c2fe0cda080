"""The batching that the status recommends: when it is said, how long it stands, what it costs."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from tests.unit.operator.autoscaling.pages import page
from tests.unit.operator.autoscaling.test_loop import Situation

from batchedapi_core.scaling.recommendation import Batching, BatchingRecommendation
from batchedapi_operator.autoscaling.metrics_page import parse_page
from batchedapi_operator.autoscaling.report import DAY, recommendation, recommended
from batchedapi_operator.autoscaling.scrape import Outcome
from batchedapi_operator.views import PodView

TARGET: Final = {"maxLatency": "100ms"}
ONE: Final = {"maxReplicas": 1}


class Learning(Situation):
    """Half of the batches have 4 rows and half 16; a batch takes 8 ms and 0.15 ms a row."""

    methods: str = ""
    """Of a further method, as its page has them."""

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """As Situation, with the moments that a replica exports."""
        pairs = self.rows / max(1, len(pods)) / 20
        small, large = 0.008 + 0.00015 * 4, 0.008 + 0.00015 * 16
        squares = f'batchedapi_batch_rows_squared_total{{method="predict"}} {pairs * (16 + 256)}\n'
        product = pairs * (4 * small + 16 * large)
        moments = f'batchedapi_batch_row_seconds_total{{method="predict"}} {product}\n'
        text = page(
            received=20 * pairs,
            rows=20 * pairs,
            batches=2 * pairs,
            seconds=pairs * (small + large),
            full=0,
            size=20 * pairs,
            max_batch_size=self.max_batch_size,
            extra=squares + moments + self.methods,
        )
        return [
            parse_page(text, pod.uid, time=self.now, unix_time=4600.0 + self.now) for pod in pods
        ]

    def told(self) -> Any:
        """In the status."""
        return self.status.get("recommendation")


async def learned(batching: dict[str, Any] | None = None, **spec: Any) -> Learning:
    """A replica that has served 600 rows/s for five minutes."""
    api = Learning(serverSideBatching={**TARGET, **(batching or {})}, autoscaling=ONE, **spec)
    api.rate = 600.0
    await api.run(300)
    return api


async def test_the_status_recommends_what_would_serve_more_and_stops_once_it_is_followed() -> None:
    """F7: what was learned, with its effect in words; the interval is no longer than the user's."""
    api = await learned()
    first = api.told()
    api.max_batch_size = first["maxBatchSize"]
    api.edit(serverSideBatching={**TARGET, "maxBatchSize": first["maxBatchSize"]})

    await api.run(60)

    assert (54, "5ms") == (first["maxBatchSize"], first["batchInterval"])
    assert first["effect"].startswith("a replica serves ")
    assert {"effect", "time"} == api.told().keys()


async def test_it_costs_no_write_of_its_own_and_says_the_same_for_a_day() -> None:
    """A status is written for figures and states; a recommendation goes along."""
    told, silent = await learned(), await learned({"strategy": "Adaptive"})
    first = told.told()

    for api in (told, silent):
        await api.run(600)

    assert len(silent.cluster.statuses) == len(told.cluster.statuses)
    assert first == told.told()
    assert silent.told() is None


async def test_an_operator_that_restarts_goes_on_with_what_the_status_says() -> None:
    """There is no other place in which it is kept."""
    api = await learned()
    first = api.told()
    api.restarted()

    await api.run(120)

    assert first["maxBatchSize"] > 16
    assert first == api.told()


@pytest.mark.parametrize(
    "spec",
    [
        {"serverSideBatching": {**TARGET, "strategy": "Adaptive"}},
        {"autoscaling": {"mode": "External"}, "replicas": 1},
        {"paused": True, "autoscaling": {"mode": "External"}, "replicas": 1},
    ],
    ids=["adaptive", "external", "paused"],
)
async def test_what_is_not_asked_for_or_not_looked_at_is_taken_away(spec: dict[str, Any]) -> None:
    """Even though nothing else of the API changes: what stands there would be followed."""
    api = await learned()
    before = api.told()
    api.rate = 0.0
    await api.run(120)
    api.edit(**spec)

    await api.run(30)

    assert before
    assert not api.told()


async def test_of_several_methods_none_is_recommended() -> None:
    """The time of batches is learned of all methods together."""
    api = Learning(serverSideBatching=TARGET, autoscaling=ONE)
    api.methods, api.rate = 'batchedapi_lanes{method="other"} 2\n', 600.0
    await api.run(300)
    own = {"path": "m:C", "methods": [{"name": "a", "serverSideBatching": {"maxBatchSize": 8}}]}

    written = await learned(predictor=own)

    for one in (api, written):
        assert {"effect", "time"} == one.told().keys()
        assert "several are batched" in one.told()["effect"]


async def test_what_memory_did_not_hold_is_not_recommended() -> None:
    """Replicas batch 16 where the manifest says 64: more would be cut again."""
    api = await learned({"maxBatchSize": 64})

    assert api.told()["effect"].startswith("none needed")


async def test_without_a_target_it_is_said_what_to_write() -> None:
    """Whoever looks for a recommendation finds out why there is none."""
    api = Learning(autoscaling=ONE)
    api.rate = 600.0

    await api.run(120)

    assert "set maxLatency" in api.told()["effect"]


NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
IN_EFFECT: Final = Batching(16, 0.005)
FOUND: Final = BatchingRecommendation("twice as much", Batching(64, 0.005))
UNKNOWN: Final = BatchingRecommendation("not known yet", known=False)
NONE: Final = BatchingRecommendation("none needed")


def said(**changes: Any) -> dict[str, Any]:
    """A status that recommends 60 rows since an hour."""
    told = {"effect": "of old", "maxBatchSize": 60, "batchInterval": "5ms"}
    return {"recommendation": {**told, "time": "2026-01-02T02:04:05Z", **changes}}


def after(
    found: BatchingRecommendation, before: dict[str, Any], in_effect: Batching = IN_EFFECT
) -> str:
    """The effect that is told."""
    return str(recommendation(found, in_effect, before, NOW)["effect"])


def test_a_recommendation_is_said_with_its_time() -> None:
    """In the words of a manifest."""
    told = {"effect": "twice as much", "maxBatchSize": 64, "batchInterval": "5ms"}

    assert {**told, "time": "2026-01-02T03:04:05Z"} == recommendation(FOUND, IN_EFFECT, {}, NOW)


def test_numbers_that_differ_by_less_than_a_tenth_stand_for_a_day() -> None:
    """Nobody is to read another number every minute."""
    other = BatchingRecommendation("four times as much", Batching(80, 0.005))
    old = said(time=(NOW - timedelta(seconds=DAY)).isoformat())

    assert said()["recommendation"] == recommendation(FOUND, IN_EFFECT, said(), NOW)
    assert "twice as much" == after(FOUND, old)
    assert "four times as much" == after(other, said())
    assert "none needed" == after(NONE, said())


def test_what_is_not_known_takes_nothing_back_until_it_is_followed() -> None:
    """A night of small batches says nothing of the day's large ones."""
    assert "of old" == after(UNKNOWN, said())
    assert "of old" == after(UNKNOWN, said(time="2025-01-01T00:00:00Z"))
    assert "not known yet" == after(UNKNOWN, said(), Batching(60, 0.005))
    assert "not known yet" == after(UNKNOWN, {})


def test_why_nothing_is_recommended_stands_while_it_is_the_same_reason() -> None:
    """And is said again after a day, as a recommendation is."""
    before = {"recommendation": {"effect": "none needed", "time": "2026-01-02T02:04:05Z"}}

    assert before["recommendation"] == recommendation(NONE, IN_EFFECT, before, NOW)
    assert "not known yet" == after(UNKNOWN, before)
    assert "twice as much" == after(FOUND, before)


@pytest.mark.parametrize(
    "changes",
    [
        {"maxBatchSize": "many"},
        {"maxBatchSize": None},
        {"batchInterval": "soon"},
        {"batchInterval": 3},
        {"time": "yesterday"},
        {"time": "2026-01-02T02:04:05"},
        {"time": None},
        {"time": "2999-01-02T02:04:05Z"},
    ],
    ids=str,
)
def test_a_status_that_somebody_edited_is_said_anew(changes: dict[str, Any]) -> None:
    """Anybody with the right to may write there."""
    assert "twice as much" == after(FOUND, said(**changes))


def test_a_status_without_a_recommendation_has_none() -> None:
    """As an apiserver stores it: the defaults of its texts say nothing."""
    assert recommended({}) is None
    assert recommended({"recommendation": {"effect": "none", "batchInterval": ""}}) is None
    assert Batching(60, 0.005) == recommended(said())
