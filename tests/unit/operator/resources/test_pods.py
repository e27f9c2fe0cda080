"""Pods that a platform can place: what is rendered of `spec.pod`, and what is a new revision."""

import copy
from dataclasses import replace
from typing import Any, Final

import pytest
from tests.unit.operator.worlds import IMAGE, NOW, UID, api, api_body, deployment_body

from batchedapi_core import contract
from batchedapi_core.manifest import SPREAD, Pod, as_written, pod_defaults
from batchedapi_operator.reconcile.plan import Plan, plan
from batchedapi_operator.resources.configmap import revision_of
from batchedapi_operator.resources.deployment import build_deployment
from batchedapi_operator.resources.setting import Running
from batchedapi_operator.views import DeploymentView, Observed
from pod_specs import ACCEPTED, KEY, pod

EVERYTHING: Final = ACCEPTED["every setting of the pods"]
GPU_POOL: Final = pod_defaults({"tolerations": [{"key": "gpu", "operator": "Exists"}]})
LABEL: Final = "batchedapi.dev/revision"


def template(spec: dict[str, Any], defaults: Pod | None = None) -> dict[str, Any]:
    """The pods of an API that is new."""
    model = api(**spec)
    revision = revision_of(model, {}, {}, None, defaults or Pod())
    found: dict[str, Any] = build_deployment(model, revision, IMAGE)["spec"]["template"]
    return found


def test_every_setting_arrives_in_the_pod_as_it_was_written() -> None:
    """It is Kubernetes' own language: whoever reads its reference must be right."""
    made, written = template(EVERYTHING), EVERYTHING["pod"]

    spec, (container,) = made["spec"], made["spec"]["containers"]
    for name in (
        "nodeSelector", "tolerations", "affinity", "priorityClassName", "runtimeClassName",
        "schedulerName",
        "imagePullSecrets", "serviceAccountName", "resourceClaims",
    ):  # fmt: skip
        assert written[name] == spec[name], name
    assert [{"name": "gpu"}, {"name": "nic"}] == container["resources"]["claims"]
    assert written["serviceAccountName"] == spec["serviceAccount"]
    assert spec["automountServiceAccountToken"] is True
    assert (1000, 1000, 1000) == tuple(
        spec["securityContext"][name] for name in ("runAsUser", "runAsGroup", "fsGroup")
    )
    assert written["volumes"] == spec["volumes"][-len(written["volumes"]) :]
    memory = {"medium": "Memory", "sizeLimit": "1Gi"}
    assert {"name": "shared-memory", "emptyDir": memory} in spec["volumes"]
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]  # noqa: S108 - in a pod
    assert written["volumeMounts"] == container["volumeMounts"][-1:]
    assert written["labels"].items() <= made["metadata"]["labels"].items()
    assert written["annotations"].items() <= made["metadata"]["annotations"].items()


def test_pods_of_the_api_are_those_that_are_spread() -> None:
    """A constraint without a selector counts no pod, and says nothing of it."""
    own = {"matchLabels": {"batchedapi.dev/api": "iris"}}

    spread = template({}, SPREAD)["spec"]["topologySpreadConstraints"]

    assert [own, own] == [one["labelSelector"] for one in spread]
    assert {"ScheduleAnyway"} == {one["whenUnsatisfiable"] for one in spread}
    assert "topologySpreadConstraints" not in template(pod(topologySpreadConstraints=[]), SPREAD)


def test_a_user_id_is_left_to_the_platform() -> None:
    """OpenShift's restricted-v2 refuses every id that is not of the namespace's range."""
    context = template(pod(runAsUser="Platform"))["spec"]["securityContext"]

    assert {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} == context


def test_variables_come_from_secrets_without_their_values_in_the_manifest() -> None:
    """Keys of a source wait under a name of ours until the replica has looked at them."""
    predictor = {
        "path": "m:C",
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": KEY}}, {"name": "B", "value": "b"}],
        "envFrom": [{"secretRef": {"name": "s"}, "prefix": "X_"}, {"configMapRef": {"name": "c"}}],
    }

    (container,) = template({"predictor": predictor})["spec"]["containers"]

    assert predictor["env"] == container["env"][:2]
    told = (
        '{"sources": ["spec.predictor.envFrom[0], Secret s",'
        ' "spec.predictor.envFrom[1], ConfigMap c"], "env": ["A", "B"]}'
    )
    assert {"name": "BATCHEDAPI_ENV_SOURCES", "value": told} == container["env"][2]
    assert [
        {"secretRef": {"name": "s"}, "prefix": "BATCHEDAPI_SOURCE_0_X_"},
        {"configMapRef": {"name": "c"}, "prefix": "BATCHEDAPI_SOURCE_1_"},
    ] == container["envFrom"]


def test_resources_have_the_names_and_limits_that_were_asked_for() -> None:
    """Not every GPU is a whole one of one maker."""
    compute = {
        "cpu": 1, "cpuLimit": "2", "ephemeralStorage": "1Gi", "gpu": 1,
        "gpuResource": "nvidia.com/mig-1g.10gb",
    }  # fmt: skip

    (container,) = template({"compute": compute})["spec"]["containers"]

    assert {
        "requests": {"cpu": "1", "ephemeral-storage": "1Gi"},
        "limits": {"cpu": "2", "ephemeral-storage": "1Gi", "nvidia.com/mig-1g.10gb": "1"},
    } == container["resources"]


def test_the_registry_is_asked_as_the_manifest_says() -> None:
    """An image whose tag moves is pulled always."""
    spec = {"predictor": {"path": "m:C", "imagePullPolicy": "Always"}}

    assert "Always" == template(spec)["spec"]["containers"][0]["imagePullPolicy"]


@pytest.mark.parametrize(
    ("spec", "digest"),
    [
        ({}, "a085fb98"),
        ({"compute": {"cpu": "1500m", "mem": "1Gi", "gpu": 2}}, "6c401aaa"),
        (
            {
                "predictor": {
                    "path": "model:Iris",
                    "processesPerReplica": "cpu_count",
                    "env": [{"name": "B", "value": "x"}, {"name": "A"}],
                }
            },
            "0e2af958",
        ),
    ],
)
def test_a_setting_without_newer_parts_has_the_name_that_it_had(
    spec: dict[str, Any], digest: str
) -> None:
    """The names were given by the version before there were such parts."""
    running = Running("another", None)

    assert digest == revision_of(api(**spec), {"model.py": "x"}, {}, running).digest


def planned(
    spec: dict[str, Any], before: Plan | None = None, defaults: Pod = SPREAD, **shown: Any
) -> Plan:
    """The plan for `spec` in a world in which the plan `before` was carried out."""
    observed = Observed(status={})
    if before is not None:
        asked = before.apply[-1].body
        body = deployment_body(**shown)
        body["metadata"] |= {"annotations": asked["metadata"].get("annotations", {})}
        body["spec"]["template"] = asked["spec"]["template"]
        owner = [{"kind": "BatchedAPI", "name": "iris", "uid": UID, "controller": True}]
        body["metadata"]["ownerReferences"] = owner
        view = DeploymentView.of(body)
        # the API was edited since: the generation that the status tells of is not its own
        observed = Observed(status={**before.status, "observedGeneration": 0}, deployment=view)
    return plan(api_body(**spec), observed, IMAGE, NOW, defaults=defaults)


def pods_of(made: Plan) -> dict[str, Any]:
    """The template that it applies."""
    found: dict[str, Any] = made.apply[-1].body["spec"]["template"]
    return found


def revision(made: Plan) -> str:
    """The revision that its pods carry."""
    return str(pods_of(made)["metadata"]["labels"][LABEL])


@pytest.mark.parametrize(
    "changed",
    [
        pod(nodeSelector={"pool": "a"}),
        pod(tolerations=[{"operator": "Exists"}]),
        pod(affinity={"nodeAffinity": {}}),
        pod(runtimeClassName="gvisor"),
        pod(sharedMemory="1Gi"),
        pod(resourceClaims=[{"name": "a", "resourceClaimTemplateName": "b"}]),
        pod(volumes=[{"name": "a", "emptyDir": {}}]),
        {"predictor": {"path": "model:Iris", "envFrom": [{"secretRef": {"name": "s"}}]}},
        {"compute": {"gpu": 1, "gpuResource": "amd.com/gpu"}},
        {"compute": {"cpuLimit": "1"}},
    ],
)
def test_where_and_with_what_a_pod_runs_is_part_of_its_revision(changed: dict[str, Any]) -> None:
    """Service times learned on one kind of node are not believed of another."""
    first = planned(pod())
    other = planned(changed, first)
    still = planned(changed, other)
    back = planned(pod(), still)

    assert revision(first) != revision(other) == revision(still) != revision(back)
    assert pods_of(other) == pods_of(still)


@pytest.mark.parametrize(
    "changed",
    [
        pod(labels={"team": "a"}),
        pod(annotations={"note": "a"}),
        pod(priorityClassName="high"),
        pod(imagePullSecrets=[{"name": "a"}]),
        pod(serviceAccountName="a"),
        pod(topologySpreadConstraints=[]),
    ],
)
def test_what_makes_a_replica_no_faster_keeps_the_revision(changed: dict[str, Any]) -> None:
    """The learned service times are kept, although the pods are started anew."""
    first = planned(pod())
    other = planned(changed, first)

    assert revision(first) == revision(other)
    assert pods_of(first) != pods_of(other)


def test_values_that_the_apiserver_fills_in_are_no_change() -> None:
    """It adds `apiVersion: v1` to a field's path, and a mode to the volume of a Secret."""
    spec = {
        "predictor": {
            "path": "model:Iris",
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        },
        "pod": {"volumes": [{"name": "a", "secret": {"secretName": "s"}}]},
    }
    first = planned(spec)
    stored = pods_of(first)["spec"]
    (container,) = stored["containers"]
    container["env"][0] = {
        "name": "A",
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
    }

    assert revision(first) == revision(planned(spec, first))


def test_other_defaults_start_no_pod_and_are_taken_by_the_next_revision() -> None:
    """As it is with the operator's image."""
    first = planned({}, defaults=SPREAD)
    same = planned({}, first, GPU_POOL)
    other = planned({"serverSideBatching": {"maxBatchSize": 9}}, same, GPU_POOL)
    still = planned({"serverSideBatching": {"maxBatchSize": 9}}, other, SPREAD)

    assert pods_of(first) == pods_of(same)
    assert "tolerations" not in pods_of(same)["spec"]
    assert as_written(GPU_POOL)["tolerations"] == pods_of(other)["spec"]["tolerations"]
    assert pods_of(other) == pods_of(still)


@pytest.mark.parametrize("place", ["deployment", "pods"])
def test_a_record_of_defaults_that_others_remove_is_still_in_the_other_place(place: str) -> None:
    """Taken for an API of an earlier operator it would lose its spread, and roll every pod."""
    first = planned(pod(nodeSelector={"pool": "a"}))
    robbed = copy.deepcopy(first.apply[-1].body)
    owner = robbed if place == "deployment" else robbed["spec"]["template"]
    del owner["metadata"]["annotations"]["batchedapi.dev/pod"]
    made = replace(first, apply=(*first.apply[:-1], replace(first.apply[-1], body=robbed)))

    again = planned(pod(nodeSelector={"pool": "a"}), made)

    assert first.apply[-1].body == again.apply[-1].body


def test_an_api_of_an_earlier_operator_is_left_as_it_is() -> None:
    """It has no default and no record of any: the spread of today would start every pod anew."""
    first = planned({}, defaults=Pod())
    assert contract.ANNOTATION_POD not in first.apply[-1].body["metadata"]["annotations"]

    upgraded = planned({}, first, SPREAD)

    assert first.apply[-1].body == upgraded.apply[-1].body
    changed = planned({"compute": {"cpu": "2"}}, upgraded, SPREAD)
    assert "topologySpreadConstraints" in pods_of(changed)["spec"]


@pytest.mark.parametrize(
    ("condition", "ready", "taken"),
    [
        ({"type": "ReplicaFailure", "status": "True"}, 0, True),
        (
            {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},
            0,
            True,
        ),
        ({"type": "ReplicaFailure", "status": "False"}, 0, False),
        ({"type": "ReplicaFailure", "status": "True"}, 1, False),
    ],
)
def test_an_api_that_cannot_start_takes_a_default_that_mends_it(
    condition: dict[str, Any],
    ready: int,
    taken: bool,  # noqa: FBT001 - a case
) -> None:
    """OpenShift refused its pods until the chart said runAsUser: Platform; nobody is harmed."""
    first = planned({})
    platform = pod_defaults({"runAsUser": "Platform"})

    mended = planned({}, first, platform, ready=ready, conditions=[condition])

    assert taken == ("runAsUser" not in pods_of(mended)["spec"]["securityContext"])
    assert revision(first) == revision(mended)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"setting": "x", "defaults": {"no": 1}}'])
def test_a_record_that_cannot_be_read_says_nothing(text: str) -> None:
    """Somebody else has written there; then the stored setting is compared, as it once was."""
    first = planned({}, defaults=Pod())
    annotated = first.apply[-1].body
    annotated["metadata"]["annotations"] = {"batchedapi.dev/pod": text}

    assert revision(first) == revision(planned({}, replace(first), SPREAD))


def test_keys_are_mounted_by_reference_and_asked_for_with_a_flag() -> None:
    """The operator never reads them; an image that does not know the flag must not serve."""
    made = template({"networking": {"apiKeys": {"secretName": "mine"}}})
    plain = template({})

    spec, (container,) = made["spec"], made["spec"]["containers"]
    assert {"name": "batchedapi-keys", "secret": {"secretName": "mine"}} in spec["volumes"]
    mount = {"name": "batchedapi-keys", "mountPath": "/etc/batchedapi-keys", "readOnly": True}
    assert mount in container["volumeMounts"]
    assert ["--api-keys", "/etc/batchedapi-keys"] == container["args"][-2:]
    assert plain["metadata"]["labels"][LABEL] != made["metadata"]["labels"][LABEL]
    assert "batchedapi-keys" not in str(plain)
