"""Pauses, first counts, and the autoscaler's part of the status, against a real apiserver."""

import asyncio
from datetime import datetime

import pytest
from tests.contract.operator.conftest import OperatorProcess
from tests.contract.operator.test_operator import IN_IMAGE, replicas, template
from tests.contract.operator.world import World, until

from batchedapi_core import contract
from batchedapi_core.bottleneck import Kind, Verdict
from batchedapi_core.scaling.decide import decide
from batchedapi_core.scaling.observe import observe
from batchedapi_core.scaling.policy import SECONDS_BETWEEN_LOOKS, ScalingPolicy
from batchedapi_core.scaling.recommendation import Batching, BatchingRecommendation
from batchedapi_core.scaling.record import replay
from batchedapi_core.scaling.samples import Observation
from batchedapi_core.scaling.state import ScalingState
from batchedapi_operator.autoscaling.report import Decided, Look, build_report, recommendation
from batchedapi_operator.cluster import BATCHED_APIS, JsonObject, ObjectKey

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]


async def test_nothing_of_a_paused_api_is_changed_until_it_is_resumed(world: World) -> None:
    """Neither its pods' template nor its replicas, in mode External too; the phase says why."""
    scaling = {"autoscaling": {"mode": "External"}, "replicas": 1}
    await world.create_api("paused", {"predictor": IN_IMAGE, **scaling})
    await world.until_condition("paused", "SpecValid", "Accepted")
    before = template(await world.deployment("paused"))
    edit = {"paused": True, "replicas": 3, "predictor": {"env": [{"name": "A", "value": "2"}]}}
    await world.patch(BATCHED_APIS, "paused", {"spec": edit})

    async def phase() -> str:
        return str((await world.api("paused"))["status"].get("phase"))

    async def paused() -> bool:
        return await phase() == "Paused"

    await until(paused, "the phase to be Paused")
    await world.until_condition("paused", "AutoscalingActive", "Paused")
    await asyncio.sleep(2)
    assert (before, 1) == (
        template(await world.deployment("paused")),
        await replicas(world, "paused"),
    )
    await world.patch(BATCHED_APIS, "paused", {"spec": {"paused": False}})

    async def resumed() -> bool:
        changed = template(await world.deployment("paused")) != before
        return changed and await replicas(world, "paused") == 3

    async def said() -> bool:
        return await phase() != "Paused"

    await until(resumed, "the edit to be rolled out")
    await until(said, "the phase to follow, at the pace of statuses")


async def test_every_field_that_the_autoscaler_writes_is_kept_by_the_apiserver(
    world: World,
) -> None:
    """A field that the schema lacks is dropped without a word, and its news written for ever."""
    made = await world.create_api("told", {"predictor": IN_IMAGE, "paused": True})
    written = full_report()
    key = ObjectKey(world.namespace, "told")

    await world.kube.apply_status(key, made["metadata"]["uid"], written, "contract-tests")

    status = (await world.api("told"))["status"]
    for part in ("batching", "autoscaling", "effective", "recommendation"):
        assert written[part] == {name: status[part].get(name) for name in written[part]}
    last = status["autoscaling"]["lastDecision"]
    assert last["desired"] == replay(last["record"])


async def test_standing_aside_takes_the_figures_out_and_leaves_what_was_learned(
    world: World,
) -> None:
    """An apply takes away what its manager applied before and does not now; once, not for ever."""
    others = {"autoscaling": {"mode": "External"}, "replicas": 1}
    made = await world.create_api("aside", {"predictor": IN_IMAGE, **others})
    await world.until_condition("aside", "AutoscalingActive", "External")
    written = full_report()
    key = ObjectKey(world.namespace, "aside")

    uid = made["metadata"]["uid"]
    await world.kube.apply_status(key, uid, written, contract.AUTOSCALER_FIELD_MANAGER)

    async def aside() -> bool:
        return not (await world.api("aside"))["status"]["autoscaling"].get("policy")

    await until(aside, "the autoscaler to stand aside again")
    await world.until_condition("aside", "AutoscalingActive", "External")
    status = (await world.api("aside"))["status"]
    for part in ("lastDecision", "lastScaleTime", "learned"):
        assert written["autoscaling"][part] == status["autoscaling"][part]
    assert not status.get("batching")
    assert not status.get("effective")
    assert not status.get("recommendation")
    before = await applied_at(world, "aside")
    await asyncio.sleep(3 * SECONDS_BETWEEN_LOOKS)
    assert before == await applied_at(world, "aside")


async def applied_at(world: World, name: str) -> list[str]:
    """When the autoscaler wrote last."""
    entries = (await world.api(name))["metadata"]["managedFields"]
    ours = contract.AUTOSCALER_FIELD_MANAGER
    return [str(one["time"]) for one in entries if one["manager"] == ours]


def full_report() -> JsonObject:
    """Every field that the autoscaler ever writes."""
    policy = ScalingPolicy(min_replicas=1, max_replicas=5, max_batch_size=8, batch_interval=0.01)
    nothing = Observation(samples=(), ready=0, current=1, revision="r")
    load, state = observe(policy, ScalingState.empty(), nothing, 0.0)
    decision, state = decide(policy, load, state, 0.0)
    look = Look(
        Decided(policy, load, decision, 0, ()),
        state.to_saved(),
        {"processesPerReplica": 1, "lanes": 1, "maxBatchSize": 8, "batchInterval": "10ms"},
        verdict=Verdict(Kind.IDLE, "0 batches in 60 s: nothing to change"),
    )
    time = "2026-01-02T03:04:05Z"
    written = build_report(look, {}, 1, time, last_scale=time)
    written["batching"]["releaseReasons"] = {"full": 31, "interval": 69}
    in_effect, found = Batching(8, 0.01), BatchingRecommendation("more", Batching(32, 0.005))
    now = datetime.fromisoformat(time)
    written["recommendation"] = recommendation(found, in_effect, {}, now)
    return written


async def test_decisions_that_nobody_made_are_told_with_a_sentence(
    operator: OperatorProcess,
) -> None:
    """Every name has an answer; a 404 is that of an operator that knows nothing of it."""
    status, _ = operator.decisions("/decisions/demo/nobody")

    assert 404 == status
