"""When others decide the replicas: what of the status stays, and how the autoscaler goes on."""

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.unit.operator.autoscaling.test_loop import Situation
from tests.unit.operator.worlds import KEY, deployment_body

from batchedapi_core.scaling.state import ScalingState
from batchedapi_operator.autoscaling.watched import Watched
from batchedapi_operator.cluster import DEPLOYMENTS
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.store import Store

NATIVE: dict[str, Any] = {"autoscaling": {"mode": "Native", "maxReplicas": 5}}
EXTERNAL: dict[str, Any] = {"autoscaling": {"mode": "External"}}


async def scaled_up() -> Situation:
    """An API that was scaled by the autoscaler, which has learned its service times."""
    busy = Situation(**NATIVE)
    busy.rate = 900.0
    await busy.run(120)
    assert busy.replicas > 1
    return busy


@pytest.mark.parametrize("mode", ["External", "Off"])
async def test_what_was_learned_and_done_stays_in_the_status(mode: str) -> None:
    """An apply takes away what the last one had; figures that nobody measures any more may go."""
    aside = await scaled_up()
    before = aside.status["autoscaling"]

    aside.edit(autoscaling={"mode": mode}, replicas=2)
    await aside.run(30)

    kept = aside.status["autoscaling"]
    assert mode == aside.reason("AutoscalingActive")
    assert {"lastDecision", "lastScaleTime", "learned"} == kept.keys()
    assert (before["lastDecision"], before["lastScaleTime"]) == (
        kept["lastDecision"],
        kept["lastScaleTime"],
    )
    assert before["learned"]["sums"][0] <= kept["learned"]["sums"][0]
    assert not {"batching", "effective"} & aside.status.keys()
    assert 'name="iris"' not in generate_latest(aside.metrics.registry).decode()


async def test_it_is_what_was_learned_up_to_then_even_if_the_apiserver_fails_at_first() -> None:
    """The status has what the last report said, which may be minutes old."""
    aside = await scaled_up()
    reported = aside.status["autoscaling"]["learned"]
    await aside.run(60)  # nothing that is worth a report
    assert reported == aside.status["autoscaling"]["learned"]

    aside.edit(**EXTERNAL, replicas=2)
    aside.cluster.fail = lambda _verb, _what: ApplyError("apiserver is down", 503)
    await aside.run(10)
    aside.cluster.fail = lambda _verb, _what: None
    await aside.run(10)

    kept = aside.status["autoscaling"]["learned"]
    assert "External" == aside.reason("AutoscalingActive")
    assert reported["sums"][0] < kept["sums"][0]


async def test_a_report_that_has_become_true_while_it_waited_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The write before it took longer than a look."""
    aside = await scaled_up()
    write = aside.cluster.apply_status

    async def slowly(*arguments: Any) -> None:
        await aside.autoscaler.round()
        await write(*arguments)
        aside.refresh()
        await aside.autoscaler.round()

    monkeypatch.setattr(aside.cluster, "apply_status", slowly)
    aside.cluster.writes.clear()

    aside.edit(**EXTERNAL, replicas=2)
    await aside.run(60)

    assert "External" == aside.reason("AutoscalingActive")
    assert 1 == len(aside.cluster.writes)


async def test_back_in_mode_native_it_knows_its_service_times_at_once() -> None:
    """After a restart in between, too: they took minutes to learn."""
    back = await scaled_up()
    known = back.status["batching"]["serviceTime"]
    back.edit(**EXTERNAL, replicas=2)
    await back.run(30)
    back.restarted()
    back.edit(**NATIVE, replicas=None)
    back.rate = 0.0

    await back.run(30)

    assert known == back.status["batching"]["serviceTime"]
    assert "ModelUnknown" != back.reason("AutoscalingActive")


async def test_back_in_mode_native_nothing_is_removed_before_a_window_was_watched() -> None:
    """To have watched for hours says nothing of the replicas that others chose since."""
    back = Situation(**NATIVE)
    back.rate = 100.0
    await back.run(600)
    back.edit(**EXTERNAL, replicas=4)
    back.cluster.put(DEPLOYMENTS, deployment_body(replicas=4, ready=4))
    back.pods = 4
    await back.run(3600)

    back.edit(**NATIVE, replicas=None)
    await back.run(50)
    after_50_seconds = back.replicas
    await back.run(300)

    assert (4, 1) == (after_50_seconds, back.replicas)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        pytest.param({"policy": "Utilization"}, True, id="an operator before this one"),
        pytest.param({}, False, id="nobody, for days maybe"),
    ],
)
def test_a_wait_for_a_node_before_standing_aside_is_forgotten(
    policy: dict[str, str], *, kept: bool
) -> None:
    """It keeps the hedge off for an hour from when it was seen, and nobody knows when that was."""
    learned = replace(ScalingState.empty(), node_wait=-60.0).to_saved()

    restored = Watched.restored("uid", {"autoscaling": {"learned": learned, **policy}})

    assert kept == (restored.state.node_wait is not None)


async def test_a_paused_api_whose_deployment_is_yet_to_be_listed_is_not_written_to() -> None:
    """After a start the watches bring an API first, and its Deployment a moment later."""
    paused = await scaled_up()
    paused.edit(paused=True)
    await paused.run(60)
    before = paused.status
    paused.store = Store()
    paused.restarted()
    paused.refresh()
    paused.store.remove_deployment(KEY, KEY.name)
    paused.cluster.writes.clear()

    await paused.autoscaler.round()

    assert [] == paused.cluster.writes
    assert before == paused.status


async def test_an_api_with_variables_that_are_refused_by_now_goes_on_being_scaled() -> None:
    """An upgrade must not freeze what has long been running."""
    env = [{"name": "LD_PRELOAD", "value": "libtcmalloc.so"}]
    busy = Situation(**NATIVE, predictor={"path": "model:Iris", "env": env})
    busy.rate = 900.0

    await busy.run(120)

    assert busy.replicas > 1


async def test_nothing_decided_for_an_earlier_spec_is_sent_once_it_cannot_be_used() -> None:
    """A write that waits would be of a manifest that is no more."""
    broken = Situation(**NATIVE)
    broken.rate = 900.0
    broken.cluster.fail = lambda verb, _what: (
        ApplyError("apiserver is down", 503) if verb == "scale" else None
    )
    await broken.run(120)

    broken.edit(serverSideBatching={"maxBatchSize": 0})
    await broken.autoscaler.round()
    broken.cluster.fail = lambda _verb, _what: None
    await broken.run(120)

    assert 1 == broken.replicas


async def test_the_first_pods_to_be_listed_are_not_taken_for_all() -> None:
    """Their load would seem to be that of the whole API."""
    listed = Situation(replicas=5, **NATIVE)
    listed.pods = 1
    listed.store = Store()
    listed.restarted()
    listed.refresh()

    await listed.run(30)

    condition = next(c for c in listed.status["conditions"] if c["type"] == "MetricsAvailable")
    assert "Partial" == condition["reason"]
    assert condition["message"].startswith("1 of 5 ready pods answered; let the operator reach")
    assert 5 == listed.replicas


def test_pods_are_counted_by_their_watch_once_it_was_complete() -> None:
    """It is ahead of the Deployment's count when one of them ends."""
    watched = Watched.restored("uid", {})

    counts = [watched.ready_pods(known, 5) for known in (0, 3, 5, 4)]

    assert [5, 5, 5, 4] == counts
