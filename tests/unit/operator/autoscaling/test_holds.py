"""Events of lost metrics: one when a hold begins, one when it ends, never a stream."""

from tests.unit.operator.autoscaling.test_loop import Situation
from tests.unit.operator.worlds import deployment_body

from batchedapi_operator.cluster import DEPLOYMENTS


def events_of(situation: Situation) -> list[str]:
    """Reasons of the events about metrics."""
    wanted = ("MetricsMissing", "MetricsBack")
    return [one["reason"] for one in situation.cluster.events if one["reason"] in wanted]


async def test_users_are_told_that_metrics_are_missing_and_that_they_are_back() -> None:
    """F10: while they are, replicas stay as they are, whatever the load does."""
    api = Situation(replicas=2)
    api.rate = 800.0
    await api.run(60)
    api.answering = False
    await api.run(60)
    during = events_of(api)
    api.answering = True

    await api.run(30)

    assert ["MetricsMissing"] == during
    assert ["MetricsMissing", "MetricsBack"] == events_of(api)
    assert "nothing moves" in api.cluster.events[0]["note"]


async def test_a_scrape_that_fails_once_is_no_news() -> None:
    """A pod that is being replaced does not answer for a moment: three looks in a row are news."""
    api = Situation(replicas=2)
    api.rate = 100.0
    await api.run(60)
    api.answering = False
    await api.run(5)
    api.answering = True

    await api.run(60)

    assert [] == events_of(api)


async def test_metrics_that_come_and_go_are_told_once_in_five_minutes() -> None:
    """Twenty seconds of each, for ten minutes: events are kept for an hour in every cluster."""
    api = Situation(replicas=2)
    api.rate = 100.0
    for _ in range(15):
        api.answering = not api.answering
        await api.run(40)

    assert events_of(api).count("MetricsMissing") <= 3
    assert abs(events_of(api).count("MetricsMissing") - events_of(api).count("MetricsBack")) <= 1


async def test_a_new_operator_knows_that_users_were_told() -> None:
    """From the status: else every restart in an outage would say it again."""
    api = Situation(replicas=2)
    api.rate = 100.0
    await api.run(60)
    api.answering = False
    await api.run(60)
    api.restarted()
    await api.run(60)
    api.answering = True

    await api.run(30)

    assert ["MetricsMissing", "MetricsBack"] == events_of(api)


async def test_pods_that_are_not_ready_are_not_missing_metrics() -> None:
    """A model that takes ten minutes to load is no fault of the metrics."""
    starting = Situation(replicas=1)
    starting.cluster.put(DEPLOYMENTS, deployment_body(replicas=1, ready=0))
    starting.pods = 0
    starting.refresh()
    starting.store.replace_pods(next(iter(starting.store.apis())), ())

    await starting.run(60)

    assert [] == events_of(starting)
