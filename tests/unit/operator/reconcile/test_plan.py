"""`plan`: what is written in which world."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.worlds import (
    IMAGE,
    NOW,
    api,
    api_body,
    child_body,
    deployment_body,
    owned_by_api,
)

from batchedapi_operator.errors import InvalidSpecError
from batchedapi_operator.reconcile.plan import Plan, plan
from batchedapi_operator.resources.configmap import revision_of
from batchedapi_operator.views import ChildView, DeploymentView, Observed, SourceView


def planned(observed: Observed | None = None, **spec: Any) -> Plan:
    """The plan for an API with `spec`."""
    return plan(api_body(**spec), observed or Observed(status={}), IMAGE, NOW)


def kinds(made: Plan) -> list[str]:
    """Kinds that are applied, in order."""
    return [apply.resource.kind for apply in made.apply]


def valid(made: Plan) -> tuple[str, str]:
    """Reason and message of SpecValid."""
    (found,) = [c for c in made.status["conditions"] if c["type"] == "SpecValid"]
    return found["reason"], found["message"]


def existing(**deployment: Any) -> Observed:
    """A world in which the children are there."""
    view = DeploymentView.of(deployment_body(**deployment))
    return Observed(status={}, deployment=view, service=ChildView.of(child_body("iris")))


def test_images_of_models_are_mounted_where_the_cluster_does_it() -> None:
    """Elsewhere replicas pull them."""
    model = {"uri": f"oci://host/a@sha256:{'0' * 64}"}
    body = api_body(predictor={"path": "model:Iris", "model": model})

    for image_volumes, count in ((True, 1), (False, 0)):
        made = plan(body, Observed(status={}), IMAGE, NOW, image_volumes=image_volumes)
        deployment = next(one.body for one in made.apply if one.resource.kind == "Deployment")
        volumes = deployment["spec"]["template"]["spec"]["volumes"]
        assert count == sum("image" in volume for volume in volumes)


def test_a_new_api_gets_its_children_in_the_order_they_need_each_other() -> None:
    """Pods that name a ConfigMap which is not there yet would fail to start."""
    made = planned(autoscaling={"minReplicas": 3})

    assert ["ConfigMap", "Service", "Deployment"] == kinds(made)
    assert made.replicas == 3
    assert ("Accepted", "") == valid(made)


@pytest.mark.parametrize(
    "spec",
    [{}, {"autoscaling": {"mode": "External"}, "replicas": 5}],
    ids=["Native", "External"],
)
def test_nothing_of_a_paused_api_is_changed(spec: dict[str, Any]) -> None:
    """Neither a rollout nor a count nor a deletion, though source and count are other now."""
    changed = replace(existing(replicas=2, revision="older"), revisions=revision_children(9))

    made = planned(changed, paused=True, **spec)

    assert ((), None, ()) == (made.apply, made.replicas, made.delete)
    assert ("Paused", 2) == (made.status["phase"], made.status["desiredReplicas"])


def test_a_paused_api_says_what_runs_and_not_what_would() -> None:
    """The revision in the status is that of the pods; no event announces another."""
    pinned = {"current": "iris-abc", "image": "mine:1"}
    world = replace(existing(), status={"revision": pinned})

    made = planned(world, paused=True, predictor={"path": "m:C", "image": "mine:2"})

    assert pinned == made.status["revision"]
    assert () == made.notes


def test_a_paused_api_of_which_there_is_nothing_yet_stays_so() -> None:
    """A manifest can be applied paused, to be looked at first."""
    made = planned(paused=True)

    assert ((), None) == (made.apply, made.replicas)
    assert "Paused" == made.status["phase"]
    assert "revision" not in made.status


def test_an_api_that_is_resumed_is_rolled_out() -> None:
    """Changes made meanwhile are made up for."""
    resumed = planned(existing(replicas=2), autoscaling={"mode": "Off"}, replicas=5)

    assert ["ConfigMap", "Service", "Deployment"] == kinds(resumed)
    assert 5 == resumed.replicas
    assert "Paused" != resumed.status["phase"]


def test_the_first_count_is_written_even_if_it_is_what_there_is() -> None:
    """Only then is it somebody's, and later looks can tell a first count from a chosen one."""
    assert planned(existing(replicas=1, replicas_owned=False)).replicas == 1


def test_later_counts_are_the_autoscalers() -> None:
    """In mode Native nothing but the autoscaler moves replicas."""
    assert planned(existing(replicas=9)).replicas is None


@pytest.mark.parametrize("mode", ["External", "Off"])
@pytest.mark.parametrize(("there", "expected"), [(2, 5), (5, None)])
def test_other_modes_copy_spec_replicas(mode: str, there: int, expected: int | None) -> None:
    """An HPA writes spec.replicas through /scale of our resource."""
    made = planned(existing(replicas=there), autoscaling={"mode": mode}, replicas=5)

    assert expected == made.replicas


@pytest.mark.parametrize("mode", ["External", "Off"])
@pytest.mark.parametrize(
    ("seen", "there", "own"),
    [
        (existing(replicas=4), None, 4),
        (existing(replicas=1, replicas_owned=False), 1, 1),
        (Observed(status={"desiredReplicas": 7}), 7, 7),
        (Observed(status={}), 1, 1),
    ],
    ids=["as many as there are", "nobody has set them", "deleted", "new"],
)
def test_an_api_that_others_scale_is_told_its_own_replicas_once(
    mode: str, seen: Observed, there: int | None, own: int
) -> None:
    """Without a number an HPA cannot begin; one in Git would set back what it writes."""
    made = planned(seen, autoscaling={"mode": mode})

    assert (there, (own, "1")) == (made.replicas, made.own_replicas)
    assert planned(seen, autoscaling={"mode": mode}, replicas=own).own_replicas is None
    assert planned(seen).own_replicas is None


def test_replicas_that_an_hpa_left_say_nothing_in_mode_native() -> None:
    """The HPA owns the field: no apply of the user's takes it away."""
    made = planned(existing(replicas=2), replicas=9)

    assert (None, None) == (made.replicas, made.own_replicas)
    assert "Accepted" == valid(made)[0]


def test_another_autoscaler_of_the_deployment_is_told_once_for_each_of_its_changes() -> None:
    """Two that decide fight; what to do about it is in the event."""
    body = deployment_body(replicas=6)
    body["metadata"]["managedFields"][0]["manager"] = "kube-controller-manager"
    seen = Observed(status={"desiredReplicas": 2}, deployment=DeploymentView.of(body))
    told = replace(seen, status={"desiredReplicas": 6})

    (note,) = [one for one in planned(seen).notes if one.reason == "ScaledByAnother"]

    assert note.text.startswith("kube-controller-manager has set Deployment iris to 6 replicas")
    assert "spec.autoscaling.mode External" in note.text
    for quiet in (planned(told), planned(seen, autoscaling={"mode": "External"}, replicas=6)):
        assert "ScaledByAnother" not in {one.reason for one in quiet.notes}
    assert "ScaledByAnother" not in {one.reason for one in planned(existing(replicas=6)).notes}


def test_an_invalid_spec_leaves_the_children_untouched() -> None:
    """The last good ones go on serving, and the condition says what to change."""
    made = planned(existing(), serverSideBatching={"maxBatchSize": 0})

    assert ((), None, ()) == (made.apply, made.replicas, made.delete)
    assert valid(made)[0] == "Invalid"
    assert "spec.serverSideBatching.maxBatchSize" in valid(made)[1]
    assert made.status["phase"] == "Degraded"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "OMP_NUM_THREADS"])
def test_a_stored_api_goes_on_with_variables_that_are_refused_by_now(name: str) -> None:
    """The apiserver refuses new ones; what has long been running is not stopped by an upgrade."""
    env = [{"name": name, "value": "4,2"}]

    made = planned(predictor={"path": "model:Iris", "env": env})

    assert valid(made)[0] == "Accepted"
    assert env == made.apply[-1].body["spec"]["template"]["spec"]["containers"][0]["env"]


@pytest.mark.parametrize("spec", [None, 7, [], {"predictor": 3}, {"predictor": {"path": {}}}])
def test_any_garbage_becomes_a_condition(spec: object) -> None:
    """A stored object may be older than the schema; one must not stop the others (O17)."""
    made = plan({**api_body(), "spec": spec}, Observed(status={}), IMAGE, NOW)

    assert valid(made)[0] == "Invalid"
    assert made.status["phase"] == "Error"


def test_fields_of_a_newer_version_are_ignored() -> None:
    """An operator that was rolled back must go on."""
    assert valid(planned(tomorrow={"x": 1}))[0] == "Accepted"


def test_a_missing_source_is_named() -> None:
    """The remedy stands in the condition."""
    made = planned(predictor={"path": "model:Iris", "source": {"configMap": "gone"}})

    assert () == made.apply
    assert valid(made)[0] == "SourceMissing"
    assert "no ConfigMap 'gone' in namespace 'demo'" in valid(made)[1]


@pytest.mark.parametrize(
    "owners",
    [
        pytest.param([], id="nobody's"),
        pytest.param(
            [{"kind": "Helm", "name": "x", "uid": "other", "controller": True}], id="other's"
        ),
    ],
)
def test_a_foreign_deployment_is_refused(owners: list[dict[str, Any]]) -> None:
    """It is never overwritten, and the condition names it."""
    made = planned(existing(ownerReferences=owners, managedFields=[]))

    # deployment_body writes managedFields for /scale only, none of ours
    assert () == made.apply
    assert valid(made)[0] == "NotOwned"
    assert "Deployment demo/iris exists" in valid(made)[1]


def test_a_child_that_lost_its_owner_is_taken_back() -> None:
    """Our manager still owns its fields: nobody else made it (O14)."""
    body = deployment_body(ownerReferences=[])
    body["metadata"]["managedFields"].append({"manager": "batchedapi-operator"})
    observed = replace(existing(), deployment=DeploymentView.of(body))

    assert "Deployment" in kinds(planned(observed))


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"ownerReferences": owned_by_api("former")}, id="of the former API"),
        pytest.param({"deletionTimestamp": NOW}, id="being deleted"),
    ],
)
def test_children_of_a_former_api_of_that_name_are_waited_for(metadata: dict[str, Any]) -> None:
    """They are about to be collected; adopting them would see them vanish (O12)."""
    made = planned(existing(**metadata))

    assert () == made.apply
    assert made.retry_after == 2.0
    assert valid(made)[0] == "Accepted"


def test_a_refusal_of_the_apiserver_becomes_a_condition() -> None:
    """A quota may be raised; until then the user reads what the apiserver said."""
    refusal = InvalidSpecError("QuotaExceeded", "exceeded quota: pods")

    made = plan(api_body(), existing(), IMAGE, NOW, refusal=refusal)

    assert () == made.apply
    reason, message = valid(made)
    assert "QuotaExceeded" == reason
    assert message.startswith("exceeded quota: pods; raise the quota")


@pytest.mark.parametrize(
    ("pinned", "expected"),
    [
        pytest.param("same", "old-image", id="unchanged revision keeps its image"),
        pytest.param("another", IMAGE, id="new revision takes the operator's"),
    ],
)
def test_an_operator_upgrade_restarts_no_pod(pinned: str, expected: str) -> None:
    """The image is pinned with the revision, in the status."""
    current = revision_of(api(), {}, {}).name if pinned == "same" else "iris-0"
    status = {"revision": {"current": current, "image": "old-image"}}

    made = planned(replace(existing(), status=status))

    (container,) = made.apply[-1].body["spec"]["template"]["spec"]["containers"]
    assert expected == container["image"]
    assert expected == made.status["revision"]["image"]


def rolled_out(made: Plan) -> Observed:
    """The world after a plan was carried out, with the container as the apiserver keeps it.

    The API was edited since: the generation that the status tells of is not its own.
    """
    template = made.apply[-1].body["spec"]["template"]
    body = deployment_body(revision=template["metadata"]["labels"]["batchedapi.dev/revision"])
    body["spec"]["template"]["spec"] = template["spec"]
    status = {**made.status, "observedGeneration": 0}
    return replace(existing(), status=status, deployment=DeploymentView.of(body))


@pytest.mark.parametrize("edited", ["cpu", "label"])
def test_what_others_do_to_the_setting_is_put_right_under_the_same_name(edited: str) -> None:
    """Only an edit of the API makes another revision: pods would be rolled for nothing."""
    first = planned(compute={"cpu": "1"})
    template = copy.deepcopy(first.apply[-1].body["spec"]["template"])
    if edited == "cpu":
        template["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "7"
    else:
        template["metadata"]["labels"]["batchedapi.dev/revision"] = "theirs"
    body = deployment_body(revision=template["metadata"]["labels"]["batchedapi.dev/revision"])
    body["spec"]["template"]["spec"] = template["spec"]
    body["metadata"]["annotations"] = first.apply[-1].body["metadata"]["annotations"]
    observed = replace(existing(), status=first.status, deployment=DeploymentView.of(body))

    again = planned(observed, compute={"cpu": "1"})

    assert first.apply[-1].body == again.apply[-1].body


def test_less_cpu_is_a_new_revision_and_stays_one() -> None:
    """Pods carry its label, so that what was learned of the old ones is not believed of them."""
    first = planned(compute={"cpu": "1"})
    kept = planned(rolled_out(first), compute={"cpu": "1000m"}, autoscaling={"maxReplicas": 9})
    cut = planned(rolled_out(kept), compute={"cpu": "250m"})
    still = planned(rolled_out(cut), compute={"cpu": "0.25"})

    names = [made.status["revision"]["current"] for made in (first, kept, cut, still)]
    assert names[0] == names[1] != names[2] == names[3]
    label = cut.apply[-1].body["spec"]["template"]["metadata"]["labels"]["batchedapi.dev/revision"]
    assert f"iris-{label}" == names[2]


def test_a_first_revision_that_comes_back_has_its_name_again() -> None:
    """Else its pods would all start anew, and be compared though they have served."""
    one, two = ({"predictor": {"path": "model:Iris", "image": image}} for image in ("a:1", "a:2"))
    first = planned(**one, compute={"cpu": "1"})
    made = first.apply[0].body["metadata"]
    noted = {name: made[name] for name in ("labels", "annotations")}
    children = (ChildView.of(child_body(made["name"], **noted)),)
    second = planned(replace(rolled_out(first), revisions=children), **two, compute={"cpu": "1"})

    def back(cpu: str) -> str:
        """Name of the revision that follows with the first image."""
        observed = replace(rolled_out(second), revisions=children)
        name: str = planned(observed, **one, compute={"cpu": cpu}).status["revision"]["current"]
        return name

    assert first.status["revision"]["current"] == back("1") != back("2")


def test_a_deployment_that_was_deleted_comes_back_with_its_revision() -> None:
    """Its name is in the status, and other pods of that name are gone."""
    first = planned(compute={"cpu": "1"})
    cut = planned(rolled_out(first), compute={"cpu": "250m"})

    for made in (first, cut):
        cpu = made.apply[-1].body["spec"]["template"]["spec"]["containers"][0]["resources"]
        gone = planned(Observed(status=made.status), compute=cpu["requests"])
        assert made.status["revision"] == gone.status["revision"]


@pytest.mark.parametrize(
    ("had", "scaling", "expected"),
    [
        (7, {"minReplicas": 2}, 7),
        (9, {"maxReplicas": 4}, 4),
        (1, {"minReplicas": 2}, 2),
        (0, {"minReplicas": 2}, 2),
    ],
    ids=["as many", "no more than allowed", "no fewer", "none: as at first"],
)
def test_a_deployment_that_was_deleted_comes_back_with_the_replicas_it_had(
    had: int, scaling: dict[str, Any], expected: int
) -> None:
    """Its load is still there: with the first count most of it would be refused."""
    gone = Observed(status={"desiredReplicas": had})

    assert expected == planned(gone, autoscaling=scaling).replicas


def test_replicas_of_a_deployment_that_was_deleted_are_kept_until_they_are_set() -> None:
    """A write that fails in between would be the end of what is known of them."""
    gone = Observed(status={"desiredReplicas": 7})
    made = planned(gone)
    again = planned(replace(existing(replicas=1, replicas_owned=False), status=made.status))

    assert (7, 7) == (made.status["desiredReplicas"], made.replicas)
    assert (7, 7) == (again.status["desiredReplicas"], again.replicas)
    assert 2 == planned(replace(existing(), status=made.status)).status["desiredReplicas"]


def test_in_other_modes_a_deployment_that_was_deleted_comes_back_as_its_user_wants_it() -> None:
    """The count that an HPA has written since then is the valid one."""
    gone = Observed(status={"desiredReplicas": 7})

    assert 5 == planned(gone, autoscaling={"mode": "External"}, replicas=5).replicas


def test_older_revisions_that_were_robbed_are_given_back_what_they_had() -> None:
    """Not the current one, which is applied anyway, nor those that go."""
    gone, *others = revision_children(8)
    kept = replace(others.pop(), setting="0a1b2c3d")
    robbed = frozenset({kept.name, gone.name, revision_of(api(), {}, {}).name})
    observed = replace(existing(), revisions=(gone, *others, kept), robbed=robbed)

    (given,) = planned(observed).give_back

    assert (kept, kept.name) == (given.existing, given.body["metadata"]["name"])
    assert "7" == given.body["metadata"]["labels"]["batchedapi.dev/revision"]
    assert {"batchedapi.dev/setting": "0a1b2c3d"} == given.body["metadata"]["annotations"]
    assert "data" not in given.body


def test_the_manifests_image_wins() -> None:
    """The user asked for it by name."""
    made = planned(predictor={"path": "model:Iris", "image": "mine:1"})

    assert made.status["revision"]["image"] == "mine:1"


def revision_children(count: int) -> tuple[ChildView, ...]:
    """Unused revisions, the first the oldest."""
    return tuple(
        ChildView.of(
            child_body(
                f"iris-{number}",
                labels={"batchedapi.dev/revision": str(number)},
                creationTimestamp=f"2026-01-0{number + 1}T00:00:00Z",
            )
        )
        for number in range(count)
    )


def test_old_revisions_go_but_for_the_youngest_and_those_in_use() -> None:
    """A revision that a ReplicaSet or pod still mounts must stay: it could not start again."""
    observed = replace(
        existing(), revisions=revision_children(8), revisions_in_use=frozenset({"0"})
    )

    deleted = planned(observed).delete

    assert ["iris-3", "iris-2", "iris-1"] == [child.name for _, child in deleted]


def test_the_copy_of_files_that_a_rollback_reads_stays_and_is_the_same_source() -> None:
    """Else the next change of the spec would have none; the manifest in it is the replica's."""
    labels = {"batchedapi.dev/revision": "0"}
    copy_of_files = {**child_body("iris-0", labels=labels), "data": {"model.py": "one"}}
    copy_of_files["data"]["batchedapi.yaml"] = "spec: {}"
    source = SourceView.of(copy_of_files)
    observed = replace(existing(), revisions=revision_children(8), source=source)

    made = planned(observed, predictor={"path": "model:Iris", "source": {"configMap": "iris-0"}})

    assert SourceView({"model.py": "one"}, {}) == source
    assert ["iris-3", "iris-2", "iris-1"] == [child.name for _, child in made.delete]


def test_a_deployment_says_what_of_the_spec_its_revision_is_made_of() -> None:
    """As it was written, for a way back; its controller copies it to the newest ReplicaSet."""
    networking = {"grpc": True, "service": {"port": 81}}
    model = {"uri": f"oci://host/a@sha256:{'0' * 64}"}
    predictor = {"path": "model:Iris", "model": model}
    body = api_body(predictor=predictor, networking=networking, autoscaling={"maxReplicas": 3})

    made = plan(body, Observed(status={}), IMAGE, NOW, image_volumes=True)

    (deployment,) = (one.body for one in made.apply if one.resource.kind == "Deployment")
    assert {"predictor": predictor, "networking": {"grpc": True}} == json.loads(
        deployment["metadata"]["annotations"]["batchedapi.dev/spec"]
    )
    assert "batchedapi.dev/spec" not in deployment["spec"]["template"]["metadata"]["annotations"]


def test_an_edited_source_is_another_revision() -> None:
    """The copy in the old one goes on serving meanwhile."""
    spec = {"predictor": {"path": "model:Iris", "source": {"configMap": "iris-model"}}}
    before, after = (
        planned(replace(existing(), source=SourceView({"model.py": text}, {})), **spec)
        for text in ("one", "two")
    )

    assert before.status["revision"] != after.status["revision"]


def test_events_tell_of_a_new_revision_and_a_refusal_once() -> None:
    """An event for each reconcile would bury those that matter."""
    first = planned()
    again = planned(Observed(status=first.status))
    wrong: dict[str, Any] = {"serverSideBatching": {"maxBatchSize": 0}}
    refused = planned(Observed(status=first.status), **wrong)
    still = planned(Observed(status=refused.status), **wrong)

    assert ["NewRevision"] == [note.reason for note in first.notes]
    assert () == again.notes
    assert ["SpecRefused"] == [note.reason for note in refused.notes]
    assert () == still.notes


@pytest.mark.parametrize(
    ("owned", "named", "expected"),
    [
        ([], None, ("", "")),
        ([{"f:spec": {"f:template": {"f:spec": {"f:dnsPolicy": {}}}}}], None, ("", "")),
        ([], "models", ("models", "models")),
        (
            [{"f:spec": {"f:template": {"f:spec": {"f:serviceAccountName": {}}}}}],
            None,
            (None, None),
        ),
    ],
    ids=["nobody's", "others own others", "nobody's, and wanted", "somebody's"],
)
def test_a_service_account_that_nobody_has_set_is_taken_away(
    owned: list[Any], named: str | None, expected: tuple[str | None, str | None]
) -> None:
    """The apiserver keeps it under its old name when the new one goes; others' stays."""
    managed = [{"fieldsV1": one} for one in owned]
    body = deployment_body(replicas_owned=False, managedFields=managed)
    body["spec"]["template"]["spec"]["serviceAccount"] = "models"
    world = Observed(status={}, deployment=DeploymentView.of(body))

    made = planned(world, **({"pod": {"serviceAccountName": named}} if named else {}))

    (pod,) = (
        one.body["spec"]["template"]["spec"]
        for one in made.apply
        if one.resource.kind == "Deployment"
    )
    assert expected == (pod.get("serviceAccountName"), pod.get("serviceAccount"))
