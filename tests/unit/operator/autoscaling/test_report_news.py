"""When the autoscaler's part of a status is worth a write."""

from typing import Any

import pytest

from batchedapi_operator.autoscaling.news import news

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
