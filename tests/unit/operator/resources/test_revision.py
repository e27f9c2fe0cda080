"""Revisions: the same content has the same name, another content another."""

import pytest
import yaml
from tests.unit.operator.worlds import KEY, UID, api

from batchedapi_core.manifest import parse_api
from batchedapi_operator.errors import InvalidSpecError
from batchedapi_operator.resources import build_config_map, build_service, revision_of, url


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


def test_limits_do_not_change_the_name() -> None:
    """Raising maxReplicas must roll nothing."""
    raised = api(autoscaling={"maxReplicas": 50}, compute={"cpu": "1"})

    assert revision_of(api(), {}, {}) == revision_of(raised, {}, {})


@pytest.mark.parametrize("binary", [False, True])
def test_a_file_named_like_the_manifest_is_refused(*, binary: bool) -> None:
    """It would replace the manifest that the operator writes."""
    files = {"batchedapi.yaml": ""}

    with pytest.raises(InvalidSpecError, match=r"batchedapi\.yaml is reserved"):
        revision_of(api(), {} if binary else files, files if binary else {})


def test_children_are_controlled_by_the_api() -> None:
    """That is what deletes them, and what keeps a finalizer unneeded."""
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
