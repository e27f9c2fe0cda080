"""The Service of an API, and its addresses beside it."""

from dataclasses import replace
from typing import Any, Final

import pytest
from tests.unit.operator.worlds import IMAGE, KEY, NOW, UID, api, api_body, child_body

from batchedapi_core.manifest import ManifestError, parse_api, serving_slice
from batchedapi_operator.cluster import (
    GRPC_ROUTES,
    HTTP_ROUTES,
    INGRESSES,
    NETWORK_POLICIES,
    JsonObject,
    Resource,
)
from batchedapi_operator.reconcile.plan import Plan, plan
from batchedapi_operator.resources import url
from batchedapi_operator.resources.deployment import build_service
from batchedapi_operator.resources.exposure import ADDRESSES, build_address
from batchedapi_operator.resources.policies import Policies
from batchedapi_operator.views import ChildView, Observed

ALL: Final = Policies(addresses=ADDRESSES, admin_peers=({"podSelector": {}},))
GATEWAY: Final = {"parentRefs": [{"name": "edge", "namespace": "infra"}], "hostnames": ["a.b"]}
INGRESS: Final = {"host": "iris.example.com"}


def planned(
    policies: Policies = ALL,
    there: ChildView | None = None,
    kind: Resource = INGRESSES,
    **networking: Any,
) -> Plan:
    """The plan for an API with that networking, beside a child of its name."""
    seen = Observed(status={}, policies={kind: there} if there is not None else {})
    return plan(api_body(networking=networking), seen, IMAGE, NOW, policies=policies)


def address(resource: Resource, **spec: Any) -> JsonObject:
    """The spec of an address that the API asks for."""
    body = build_address(resource, api(**spec))
    assert body is not None
    made: JsonObject = body["spec"]
    return made


def test_the_service_is_what_networking_service_says() -> None:
    """A cloud's load balancer is made by a type and annotations."""
    service = {"type": "LoadBalancer", "annotations": {"cloud/internal": "true"}, "port": 8000}
    body = build_service(
        api(
            networking={"service": {**service, "trafficDistribution": "PreferSameZone"}},
            childMetadata={"annotations": {"team": "a"}},
        )
    )

    assert ("LoadBalancer", "PreferSameZone") == (
        body["spec"]["type"],
        body["spec"]["trafficDistribution"],
    )
    assert [8000] == [port["port"] for port in body["spec"]["ports"]]
    assert {"cloud/internal": "true", "team": "a"} == body["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("networking", "expected"),
    [
        ({}, "http://iris.demo.svc/iris"),
        ({"service": {"port": 8000}, "endpoint": "/x"}, "http://iris.demo.svc:8000/x"),
        ({"ingress": INGRESS}, "http://iris.example.com/iris"),
        ({"ingress": {**INGRESS, "tlsSecret": "tls"}}, "https://iris.example.com/iris"),
        ({"ingress": INGRESS, "gateway": GATEWAY}, "https://a.b/iris"),
        ({"gateway": {**GATEWAY, "scheme": "http"}}, "http://a.b/iris"),
        ({"gateway": {**GATEWAY, "hostnames": ["*.b", "c.b"]}}, "https://c.b/iris"),
        ({"ingress": {"host": "*.example.com"}}, "http://iris.demo.svc/iris"),
        ({"ingress": {**INGRESS, "paths": ["/ir", "/v2"]}}, "http://iris.demo.svc/iris"),
        ({"ingress": {**INGRESS, "paths": ["/v2", "/iris"]}}, "http://iris.example.com/iris"),
        (
            {"ingress": INGRESS, "gateway": {**GATEWAY, "paths": ["/v2"]}, "endpoint": "/m/iris"},
            "http://iris.example.com/m/iris",
        ),
        (
            {"ingress": {**INGRESS, "paths": ["/m"]}, "endpoint": "/m/x"},
            "http://iris.example.com/m/x",
        ),
    ],
)
def test_the_url_is_the_most_public_one(networking: dict[str, Any], expected: str) -> None:
    """It is what a user copies from `kubectl get bapi -o wide`."""
    assert expected == url(api(networking=networking))
    assert expected == planned(**networking).status["url"]


def test_an_ingress_leads_to_the_port_of_http() -> None:
    """By its name: the number may be another one tomorrow."""
    more = {"className": "nginx", "tlsSecret": "tls", "paths": ["/iris", "/v2/models/iris"]}

    spec = address(INGRESSES, networking={"ingress": {**INGRESS, **more}})

    assert ("nginx", [{"hosts": ["iris.example.com"], "secretName": "tls"}]) == (
        spec["ingressClassName"],
        spec["tls"],
    )
    (rule,) = spec["rules"]
    assert more["paths"] == [one["path"] for one in rule["http"]["paths"]]
    backends = [one["backend"]["service"] for one in rule["http"]["paths"]]
    assert [{"name": "iris", "port": {"name": "http"}}] * 2 == backends


def test_an_ingress_without_class_and_certificate_leaves_both_to_the_cluster() -> None:
    """An empty class is another one than none."""
    assert {"rules"} == address(INGRESSES, networking={"ingress": INGRESS}).keys()


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [("30s", "35000ms"), ("0s", "0s"), ("1ms", "5001ms"), ("10m", "605s"), ("24h", "86405s")],
)
def test_a_route_gives_a_request_longer_than_the_replica_does(timeout: str, expected: str) -> None:
    """The replica's own 504 says what was late, a gateway's does not."""
    batching = {"batchInterval": "0s"}

    spec = address(
        HTTP_ROUTES,
        networking={"gateway": GATEWAY},
        overload={"timeout": timeout},
        serverSideBatching=batching,
    )

    (rule,) = spec["rules"]
    assert expected == rule["timeouts"]["request"]
    assert [{"path": {"type": "PathPrefix", "value": "/"}}] == rule["matches"]
    assert [{"name": "iris", "port": 80}] == rule["backendRefs"]
    assert GATEWAY["parentRefs"] == spec["parentRefs"]


def test_grpc_has_a_route_and_hosts_of_its_own() -> None:
    """A listener takes a host for one of the two."""
    gateway = {**GATEWAY, "grpcHostnames": ["grpc.a.b"]}

    spec = address(GRPC_ROUTES, networking={"grpc": True, "gateway": gateway})

    assert ["grpc.a.b"] == spec["hostnames"]
    assert [{"backendRefs": [{"name": "iris", "port": 9000}]}] == spec["rules"]
    assert build_address(GRPC_ROUTES, api(networking={"gateway": GATEWAY})) is None
    with pytest.raises(ManifestError, match=r"grpcHostnames needs spec\.networking\.grpc"):
        parse_api(api_body(networking={"gateway": gateway}))


def test_what_is_in_front_of_replicas_starts_none_of_them() -> None:
    """Their slice of the manifest does not have it."""
    plain = serving_slice(api())

    told = {"service": {"port": 8000}, "gateway": GATEWAY, "ingress": INGRESS}
    assert plain == serving_slice(api(networking=told))


def test_only_what_is_asked_for_is_made() -> None:
    """Most APIs are asked inside the cluster alone."""
    assert not {"Ingress", "HTTPRoute"} & {one.body["kind"] for one in planned().apply}
    made = {one.body["kind"] for one in planned(ingress=INGRESS, gateway=GATEWAY).apply}
    assert {"Ingress", "HTTPRoute"} <= made
    assert "GRPCRoute" not in made


@pytest.mark.parametrize(
    ("field", "asked", "value"),
    [
        ("gateway", GATEWAY, "exposure.gateway"),
        ("ingress", INGRESS, "exposure.ingress"),
        ("allowFrom", [{"podSelector": {}}], "networkPolicies.enabled"),
    ],
)
def test_what_the_operator_does_not_make_is_refused(field: str, asked: Any, value: str) -> None:
    """A user would wait for it for ever, or take an open API for a closed one."""
    made = planned(Policies(), **{field: asked})

    assert () == made.apply
    assert f"spec.networking.{field}" in made.status["message"]
    assert value in made.status["message"]


@pytest.mark.parametrize("kind", [INGRESSES, NETWORK_POLICIES], ids=lambda kind: kind.kind)
@pytest.mark.parametrize("owner", [UID, "somebody"])
def test_what_is_no_longer_asked_for_goes_and_nobody_elses_does(kind: Resource, owner: str) -> None:
    """It would go on exposing the API; another's Ingress may well have the API's name."""
    child = replace(ChildView.of(child_body(KEY.name)), owner_uid=owner, owner_api="")

    made = planned(there=child, kind=kind)

    assert made.apply
    assert ((kind, child),) * (owner == UID) == made.delete


@pytest.mark.parametrize("asked", [True, False])
def test_an_address_that_is_being_deleted_holds_its_api_up_only_where_it_is_asked_for(
    *, asked: bool
) -> None:
    """A load balancer's controller may take minutes with it."""
    child = replace(ChildView.of(child_body(KEY.name)), deleting=NOW)

    made = planned(there=child, **({"ingress": INGRESS} if asked else {}))

    assert () == made.delete
    assert asked == (not made.apply)
