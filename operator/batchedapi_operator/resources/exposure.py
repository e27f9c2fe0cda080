"""Who reaches an API: an Ingress, an HTTPRoute, a GRPCRoute, and a NetworkPolicy."""

import math
from collections.abc import Collection, Sequence
from typing import Final

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, GatewaySpec, as_written
from batchedapi_operator.cluster import (
    GRPC_ROUTES,
    HTTP_ROUTES,
    INGRESSES,
    NETWORK_POLICIES,
    JsonObject,
    Resource,
)
from batchedapi_operator.errors import InvalidSpecError
from batchedapi_operator.resources import annotate, head, selector_labels

EXPOSURE: Final = {"gateway": (HTTP_ROUTES, GRPC_ROUTES), "ingress": (INGRESSES,)}
"""Field of `spec.networking` -> the kinds that it is made of."""
ADDRESSES: Final = tuple(kind for kinds in EXPOSURE.values() for kind in kinds)
ASKED_FOR: Final = (*ADDRESSES, NETWORK_POLICIES)
"""Kinds that an API has while its manifest asks for them."""
MARGIN_SECONDS: Final = 5
"""By which a route is more patient than the replica, whose own 504 says more."""
_LONGEST_MILLISECONDS: Final = 99_999
"""A duration of the Gateway API has five digits."""


def refuse_unserved(api: BatchedAPI, kinds: Collection[Resource]) -> None:
    """What a manifest asks for, and this operator was not set to make, is never silently missing.

    Raises:
        InvalidSpecError: The API asks for one.
    """
    asked = api.spec.networking
    for given, field, needed, value in (
        (asked.gateway, "gateway", EXPOSURE["gateway"], "exposure.gateway"),
        (asked.ingress, "ingress", EXPOSURE["ingress"], "exposure.ingress"),
        (asked.allow_from, "allowFrom", (NETWORK_POLICIES,), "networkPolicies.enabled"),
    ):
        if given is not None and not {*needed} <= {*kinds}:
            raise InvalidSpecError(
                "Invalid",
                f"spec.networking.{field}: this operator makes none; leave it out, or have the"
                f" chart's {value} set to true",
            )


def build_policy(api: BatchedAPI, admin_peers: Sequence[JsonObject]) -> JsonObject | None:
    """Lets in whom the API names, and `admin_peers` to the admin port; None: it names nobody.

    Policies add up: without a name there is none, as it would open what another one has closed.
    Nothing is said of egress. Probes come from the replica's own node, which no policy keeps out.
    """
    asked, name = api.spec.networking, api.metadata.name
    if asked.allow_from is None:
        return None
    ports = [contract.HTTP_PORT, *([contract.GRPC_PORT] if asked.grpc else [])]
    selector = {"matchLabels": selector_labels(name)}
    own = [{"podSelector": selector}] if api.spec.update_strategy.compare.is_on else []
    body = head(api, NETWORK_POLICIES, name)
    body["spec"] = {
        "podSelector": selector,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [as_written(peer) for peer in asked.allow_from], "ports": _tcp(ports)},
            {"from": [*admin_peers, *own], "ports": _tcp([contract.ADMIN_PORT])},
        ],
    }
    return body


def _tcp(ports: Sequence[int]) -> list[JsonObject]:
    return [{"protocol": "TCP", "port": port} for port in ports]


def build_address(resource: Resource, api: BatchedAPI) -> JsonObject | None:
    """The address of one kind of `EXPOSURE`; None: the API asks for none."""
    if resource is INGRESSES:
        return _ingress(api)
    return _http_route(api) if resource is HTTP_ROUTES else _grpc_route(api)


def _ingress(api: BatchedAPI) -> JsonObject | None:
    asked, name = api.spec.networking.ingress, api.metadata.name
    if asked is None:
        return None
    service = {"service": {"name": name, "port": {"name": contract.HTTP_PORT_NAME}}}
    paths = [{"path": path, "pathType": "Prefix", "backend": service} for path in asked.paths]
    body = head(api, INGRESSES, name)
    annotate(body, asked.annotations)
    body["spec"] = {"rules": [{"host": asked.host, "http": {"paths": paths}}]}
    if asked.class_name is not None:
        body["spec"]["ingressClassName"] = asked.class_name
    if asked.tls_secret is not None:
        body["spec"]["tls"] = [{"hosts": [asked.host], "secretName": asked.tls_secret}]
    return body


def _http_route(api: BatchedAPI) -> JsonObject | None:
    asked = api.spec.networking.gateway
    if asked is None:
        return None
    matches = [{"path": {"type": "PathPrefix", "value": path}} for path in asked.paths]
    rule = {"matches": matches, "timeouts": {"request": _patience(api)}}
    body = head(api, HTTP_ROUTES, api.metadata.name)
    return _route(body, asked, asked.hostnames, api.spec.networking.service.port, rule)


def _grpc_route(api: BatchedAPI) -> JsonObject | None:
    asked = api.spec.networking.gateway
    if asked is None or not asked.grpc_hostnames:
        return None
    body = head(api, GRPC_ROUTES, api.metadata.name)
    return _route(body, asked, asked.grpc_hostnames, contract.GRPC_PORT, {})


def _route(
    body: JsonObject, asked: GatewaySpec, hostnames: Sequence[str], port: int, rule: JsonObject
) -> JsonObject:
    backend = {"name": body["metadata"]["name"], "port": port}
    body["spec"] = {
        "parentRefs": [as_written(parent) for parent in asked.parent_refs],
        "hostnames": list(hostnames),
        "rules": [{**rule, "backendRefs": [backend]}],
    }
    return body


def _patience(api: BatchedAPI) -> str:
    """A duration of the Gateway API; 0s: no limit."""
    timeout = api.spec.overload.timeout
    if timeout == 0:
        return "0s"
    milliseconds = math.ceil((timeout + MARGIN_SECONDS) * 1000)
    if milliseconds <= _LONGEST_MILLISECONDS:
        return f"{milliseconds}ms"
    return f"{math.ceil(milliseconds / 1000)}s"
