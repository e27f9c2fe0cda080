"""Revisions: the same content has the same name, another content another."""

from typing import Any, Final

import pytest
import yaml
from tests.unit.operator.worlds import KEY, UID, api, deployment_body

from batchedapi_core.manifest import parse_api
from batchedapi_operator.errors import InvalidSpecError
from batchedapi_operator.reconcile.plan import running
from batchedapi_operator.resources import url
from batchedapi_operator.resources.configmap import build_config_map, revision_of
from batchedapi_operator.resources.deployment import build_service
from batchedapi_operator.resources.setting import Running, Stored, parts_of
from batchedapi_operator.views import DeploymentView, Observed


def test_it_holds_the_slice_and_every_file() -> None:
    """A replica needs nothing but what is mounted."""
    revision = revision_of(api(), {"model.py": "x"}, {"weights.bin": "AA=="})

    body = build_config_map(api(), revision)

    assert body["immutable"] is True
    assert {"batchedapi.yaml", "model.py"} == set(body["data"])
    assert {"weights.bin": "AA=="} == body["binaryData"]
    assert parse_api(yaml.safe_load(body["data"]["batchedapi.yaml"])).endpoint == "/iris"


@pytest.mark.parametrize(
    ("spec", "data"),
    [
        pytest.param({"serverSideBatching": {"batchInterval": "7ms"}}, {}, id="batching"),
        pytest.param({"predictor": {"path": "model:Other"}}, {}, id="predictor"),
        pytest.param({}, {"model.py": "x"}, id="source"),
        pytest.param(
            {"predictor": {"path": "model:Iris", "image": "mine"}}, {}, id="explicit image"
        ),
    ],
)
def test_what_changes_a_replica_changes_the_name(
    spec: dict[str, object], data: dict[str, str]
) -> None:
    """Pods roll because they mount another ConfigMap."""
    assert revision_of(api(), {}, {}).name != revision_of(api(**spec), data, {}).name


def test_another_image_of_a_model_changes_the_name() -> None:
    """Replicas are told of the folder alone that it is mounted at."""
    one, other = (
        api(predictor={"path": "m:C", "model": {"uri": f"oci://h/a@sha256:{digit * 64}"}})
        for digit in "01"
    )
    names = {
        revision_of(found, {}, {}).name
        for found in (one.with_image_mounted(), other.with_image_mounted(), one)
    }

    assert len(names) == 3


def test_limits_do_not_change_the_name() -> None:
    """Raising maxReplicas must roll nothing."""
    raised = api(autoscaling={"maxReplicas": 50})

    assert revision_of(api(), {}, {}) == revision_of(raised, {}, {})


def test_more_than_a_config_map_may_have_is_told_with_a_remedy() -> None:
    """The apiserver says `[]: Too long`, of an object that the user has never heard of."""
    half = {"model.py": "ü" * 250_000}

    revision_of(api(), half, {"weights.bin": "A" * 600_000})  # base64 of 450,000
    with pytest.raises(InvalidSpecError, match=r"spec\.predictor\.config, .* put large files"):
        revision_of(api(), half, {"weights.bin": "A" * 760_000})


SETTING: Final[dict[str, Any]] = {
    "predictor": {"path": "model:Iris", "env": [{"name": "A", "value": "1"}, {"name": "B"}]},
    "compute": {"cpu": "1.5", "mem": "1024Mi", "gpu": 1},
}
AS_STORED: Final[dict[str, Any]] = {
    "env": [{"name": "B"}, {"name": "A", "value": "1"}],
    "resources": {
        "requests": {"cpu": "1500m", "memory": "1Gi"},
        "limits": {"memory": "1Gi", "nvidia.com/gpu": "1"},
    },
}
"""The same setting as the apiserver keeps it."""
STORED: Final = Stored(parts_of(AS_STORED), None)


def changed(section: str, **fields: Any) -> dict[str, Any]:
    """SETTING with other fields in one section."""
    return {**SETTING, section: {**SETTING[section], **fields}}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(changed("compute", cpu="500m"), id="less cpu"),
        pytest.param(changed("compute", mem="2Gi"), id="more memory"),
        pytest.param(changed("compute", mem=None), id="no memory limit"),
        pytest.param(changed("compute", gpu=2), id="another gpu"),
        pytest.param(changed("predictor", env=[{"name": "A", "value": "2"}]), id="another value"),
        pytest.param(changed("predictor", env=[{"name": "A", "value": "1"}]), id="a variable less"),
        pytest.param(changed("predictor", processesPerReplica="cpu_count"), id="told its cpu"),
    ],
)
def test_another_setting_is_another_revision(spec: dict[str, Any]) -> None:
    """A quarter of the CPU has another service time: what was learned is not of it."""
    before = revision_of(api(**SETTING), {}, {})
    running = Running(before.digest, STORED)

    after = revision_of(api(**spec), {}, {}, running)
    back = revision_of(
        api(**SETTING), {}, {}, Running(after.digest, Stored({"requests/cpu": "9"}, None))
    )

    assert len({before.name, after.name, back.name}) == 3
    assert after == revision_of(api(**spec), {}, {}, Running(after.digest, None))


@pytest.mark.parametrize("setting", [STORED, None], ids=["as stored", "not told"])
def test_a_setting_that_is_not_changed_keeps_the_name(setting: Stored | None) -> None:
    """Also one that an earlier version gave, which knew nothing of settings: no pod is rolled."""
    before = revision_of(api(**SETTING), {}, {})
    raised = api(**SETTING, autoscaling={"maxReplicas": 50})

    assert before == revision_of(raised, {}, {}, Running(before.digest, setting))


OWNED: Final[dict[str, Any]] = {
    "f:env": {'k:{"name":"A"}': {".": {}, "f:value": {}}, 'k:{"name":"B"}': {".": {}}},
    "f:resources": {"f:requests": {"f:cpu": {}}, "f:limits": {"f:memory": {}}},
}
"""What the operator has applied, as `managedFields` tell it."""


def applied(container: dict[str, Any]) -> Observed:
    """A Deployment that runs the first revision of SETTING, with `container` stored."""
    body = deployment_body(revision=revision_of(api(**SETTING), {}, {}).digest)
    pods = body["spec"]["template"]["spec"]
    pods["containers"] = [{"name": "serving", "image": "x", **container}]
    owned = {"f:template": {"f:spec": {"f:containers": {'k:{"name":"serving"}': OWNED}}}}
    ours = {"manager": "batchedapi-operator", "fieldsV1": {"f:spec": owned}}
    body["metadata"]["managedFields"].append(ours)
    return Observed(status={}, deployment=DeploymentView.of(body))


INJECTED: Final[dict[str, Any]] = {
    "env": [*AS_STORED["env"], {"name": "HTTP_PROXY", "value": "http://proxy"}],
    "resources": {
        "requests": {**AS_STORED["resources"]["requests"], "ephemeral-storage": "1Gi"},
        "limits": {**AS_STORED["resources"]["limits"], "cpu": "2"},
    },
}


def test_what_others_add_is_no_change_of_the_setting() -> None:
    """A webhook on Deployments or `kubectl set env`: an apply leaves it, so nobody changed it."""
    before = revision_of(api(**SETTING), {}, {})

    after = revision_of(api(**SETTING), {}, {}, running(api(**SETTING), applied(INJECTED)))

    assert before == after


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(changed("predictor", env=[{"name": "A", "value": "1"}]), id="a variable less"),
        pytest.param(changed("predictor", env=[]), id="no variable left"),
        pytest.param(changed("compute", mem=None), id="no memory limit"),
        pytest.param(changed("compute", cpu="500m"), id="less cpu"),
    ],
)
def test_what_we_have_applied_and_would_not_any_more_is_a_change(spec: dict[str, Any]) -> None:
    """Also beside what others have added."""
    before = revision_of(api(**SETTING), {}, {})

    after = revision_of(api(**spec), {}, {}, running(api(**spec), applied(INJECTED)))

    assert before.name != after.name


def test_settings_that_we_never_write_are_told_apart() -> None:
    """A hand edit may have any quantity and any source of a value."""
    edits: list[dict[str, Any]] = [
        {},
        {"resources": {"requests": {"cpu": "1e3"}}},
        {"resources": {"limits": {"cpu": "1"}}},
        {"env": [{"name": "A"}]},
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
    ]

    assert len(edits) == len({str(parts_of(one)) for one in edits})


@pytest.mark.parametrize("binary", [False, True])
def test_a_file_named_like_the_manifest_is_refused(*, binary: bool) -> None:
    """It would replace the manifest that the operator writes."""
    files = {"batchedapi.yaml": ""}

    with pytest.raises(InvalidSpecError, match=r"batchedapi\.yaml is reserved"):
        revision_of(api(), {} if binary else files, files if binary else {})


def test_children_are_controlled_by_the_api() -> None:
    """The owner reference gets them deleted, and makes a finalizer unneeded."""
    body = build_service(api())

    (owner,) = body["metadata"]["ownerReferences"]
    assert (UID, True, True) == (owner["uid"], owner["controller"], owner["blockOwnerDeletion"])


def test_the_service_maps_port_80_to_the_named_port() -> None:
    """The address is http://<name>.<namespace>.svc/<endpoint>, without a port."""
    (port,) = build_service(api())["spec"]["ports"]

    assert (80, "http") == (port["port"], port["targetPort"])
    assert f"http://iris.{KEY.namespace}.svc/v1/iris" == url(
        api(networking={"endpoint": "/v1/iris"})
    )


def test_grpc_is_a_second_port_of_the_service() -> None:
    """Gateways must be told that it is HTTP/2 in the clear."""
    _, port = build_service(api(networking={"grpc": True}))["spec"]["ports"]

    assert (9000, "grpc", "kubernetes.io/h2c") == (
        port["port"],
        port["targetPort"],
        port["appProtocol"],
    )


def test_another_claim_is_another_revision() -> None:
    """The slice has the folder that it is mounted at, which is the same for every claim."""
    one, other = (
        api(predictor={"path": "model:Iris", "model": {"uri": f"pvc://{name}/iris"}})
        for name in ("a", "b")
    )

    assert revision_of(one, {}, {}).data == revision_of(other, {}, {}).data
    assert revision_of(one, {}, {}).name != revision_of(other, {}, {}).name
