"""When the autoscaler's part of a status is worth a write."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from batchedapi_operator.autoscaling.report import OLDEST, is_old, news

SAID: dict[str, Any] = {
    "batching": {"maxBatchSize": 32, "bottleneck": "Compute", "advice": "more", "meanRows": "6.0"},
    "autoscaling": {"lastDecision": {"desired": 2, "reason": "Demand"}},
    "conditions": [],
}


def batching(**figures: Any) -> dict[str, Any]:
    """The status above with other figures."""
    return {**SAID, "batching": {**SAID["batching"], **figures}}


@pytest.mark.parametrize(
    "after", [SAID, batching(advice="other words"), batching(meanRows="6.1")], ids=str
)
def test_what_was_said_is_no_news(after: dict[str, Any]) -> None:
    """Other words for it, or a figure that is 2 % off, neither."""
    assert not news(SAID, after)


@pytest.mark.parametrize(
    "after", [batching(bottleneck="Idle"), batching(meanRows="7.0"), batching(maxBatchSize=16)]
)
def test_another_verdict_or_figure_is_news(after: dict[str, Any]) -> None:
    """By more than 5 %."""
    assert news(SAID, after)


WHY = "2 web pods: 2 web pods use 0.60 CPU, 80 % of 0.2 are to be used of each => 3.75"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (WHY, False),
        (WHY.replace("0.60", "0.62"), False),
        (WHY.replace("3.75", "4.20"), False),
        (WHY.replace("3.75", "4.30"), True),
        (WHY.replace("2 web pods:", "3 web pods:"), True),
        (f"{WHY}; 4 were needed within the last 300 s", True),
        ("", True),
    ],
)
def test_why_there_are_as_many_web_pods_is_news_as_its_figures_are(
    after: str, *, expected: bool
) -> None:
    """With an idle queue it may be the only thing that changes."""
    before, new = ({**SAID, "queue": {"rows": 0, "webReason": one}} for one in (WHY, after))

    assert expected == news(before, new)


def test_the_empty_texts_of_the_schema_say_nothing() -> None:
    """The API server adds them: an API without a batch would be written to every ten seconds."""
    after = {**SAID, "batching": {"maxBatchSize": 32}}
    words = dict.fromkeys(("advice", "bottleneck", "meanRows", "serviceTime"), "")
    before = {**SAID, "batching": {"maxBatchSize": 32, **words}}

    assert not news(before, after)
    assert not news(after, before)


def test_what_is_learned_first_is_news_and_the_defaults_of_the_crd_are_none() -> None:
    """An apiserver fills in defaults that no report has: each look would be written for them."""
    defaults = {**SAID, "autoscaling": {**SAID["autoscaling"], "policy": "", "learned": {}}}
    learned = {**SAID, "autoscaling": {**SAID["autoscaling"], "learned": {"version": 2}}}

    assert not news(defaults, SAID)
    assert news(SAID, learned)


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def written(seconds: float) -> dict[str, Any]:
    """A status whose last decision is that old."""
    time = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"autoscaling": {"lastDecision": {"time": time}}}


def test_a_decision_is_written_anew_before_it_is_five_minutes_old() -> None:
    """With time left for the write to wait its turn."""
    for number in range(1000):
        assert not is_old(written(OLDEST / 2), f"uid-{number}", NOW)
        assert is_old(written(OLDEST * 0.8), f"uid-{number}", NOW)


def test_apis_that_were_written_together_are_not_for_ever() -> None:
    """A thousand that an operator found when it started would be due in the same second."""
    due = [
        next(age for age in range(300) if is_old(written(age), f"uid-{number}", NOW))
        for number in range(1000)
    ]

    assert max(due.count(age) for age in set(due)) < 50


@pytest.mark.parametrize(
    "time",
    [None, "", "soon", 5, "2026-01-02T03:04:05"],
    ids=["none", "empty", "word", "int", "naive"],
)
def test_what_is_no_time_is_not_old(time: object) -> None:
    """None was written yet, or somebody else's hand did: the next news overwrites it."""
    assert not is_old({"autoscaling": {"lastDecision": {"time": time}}}, "uid", NOW)
    assert not is_old({}, "uid", NOW)


def test_a_decision_from_the_future_is_written_anew() -> None:
    """A clock was wrong: it would be fresh for hours."""
    assert is_old(written(-3600.0), "uid", NOW)
