"""`spec.paused`: nothing of an API is changed, and what would be is still said."""

from typing import Any

import pytest
from tests.unit.operator.autoscaling.test_loop import Situation
from tests.unit.operator.worlds import KEY, deliver_all

from batchedapi_core.scaling.record import replay
from batchedapi_operator.cluster import DEPLOYMENTS


async def test_a_paused_api_is_not_scaled_and_says_what_it_would_need() -> None:
    """The decision is made and recorded, and its last clamp is the pause."""
    busy = Situation(paused=True, autoscaling={"maxReplicas": 5})
    busy.rate = 900.0

    await busy.run(120)

    last = busy.status["autoscaling"]["lastDecision"]
    assert 1 == busy.replicas == last["desired"] == replay(last["record"])
    assert "Paused" == last["record"]["bound"] == busy.reason("AutoscalingActive")
    assert 1 < last["record"]["terms"]["raw"]
    assert "Paused" == busy.autoscaler.decisions.last(KEY, 1)[0]["record"]["bound"]
    assert not [what for verb, what in busy.cluster.writes if verb == "scale"]


async def test_an_api_that_is_resumed_goes_on_with_what_it_has_learned() -> None:
    """The load that was seen meanwhile counts: replicas come at the next looks."""
    busy = Situation(paused=True, autoscaling={"maxReplicas": 5})
    busy.rate = 900.0
    await busy.run(120)

    busy.edit(paused=False)
    await busy.run(15)

    assert 1 < busy.replicas
    assert "Active" == busy.reason("AutoscalingActive")


async def test_a_pause_with_load_gone_removes_nothing_until_it_ends() -> None:
    """Both directions stand still."""
    quiet = Situation(replicas=4, paused=True)
    quiet.rate = 100.0
    await quiet.run(600)
    before = quiet.replicas

    quiet.edit(paused=False)
    await quiet.run(600)

    assert (4, 1) == (before, quiet.replicas)


@pytest.mark.parametrize("mode", ["External", "Off"])
async def test_in_other_modes_the_pause_is_what_is_said(mode: str) -> None:
    """The reconciler copies no replicas then, so `spec.replicas decides` would be wrong."""
    aside = Situation(paused=True, autoscaling={"mode": mode}, spec_replicas=1)

    await aside.run(60)

    assert "Paused" == aside.reason("AutoscalingActive")
    assert [("status", "batchedapi-autoscaler")] == aside.cluster.writes


async def test_a_pause_before_there_is_a_deployment_is_said_too() -> None:
    """Nothing will come until it ends; a status without a word would look like a fault."""
    new = Situation(paused=True)
    del new.cluster.objects[DEPLOYMENTS, KEY]
    new.store.remove_deployment(KEY, KEY.name)

    await new.autoscaler.round()
    await deliver_all(new.outbox)

    assert "Paused" == new.reason("AutoscalingActive")


async def test_metrics_that_are_missing_meanwhile_are_no_reason_to_hide_the_pause() -> None:
    """AutoscalingActive has one reason: the one that a user can end."""
    silent = Situation(replicas=2, paused=True)
    silent.answering = False

    await silent.run(60)

    reasons: tuple[Any, ...] = (silent.reason("AutoscalingActive"), silent.reason("ScalingLimited"))
    assert ("Paused", "NotLimited") == reasons
    assert "None" == silent.reason("MetricsAvailable")


@pytest.mark.parametrize("edit", [{"paused": True}, {"autoscaling": {"maxReplicas": 1}}])
async def test_an_edit_while_pods_are_asked_stops_what_that_look_would_do(
    edit: dict[str, Any],
) -> None:
    """A look takes seconds where pods are slow, and was begun under another manifest."""
    looks, control = 0, Situation(autoscaling={"maxReplicas": 5})
    control.rate = 900.0
    while control.replicas == 1:
        await control.run(5)
        looks += 1
    edited = Situation(autoscaling={"maxReplicas": 5})
    edited.rate = 900.0
    await edited.run(5 * (looks - 1))
    edited.meanwhile = lambda: edited.edit(**edit)

    await edited.run(5)

    decided = edited.autoscaler.decisions.last(KEY, 1)[0]
    assert (control.replicas, 1) == (decided["desired"], edited.replicas)
    assert not [what for verb, what in edited.cluster.writes if verb == "scale"]
