"""Children that not every API has: budget, network policy, and addresses beside the Service."""

from dataclasses import dataclass

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI
from batchedapi_operator.cluster import (
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    JsonObject,
    Resource,
)
from batchedapi_operator.resources import head, role_labels, selector_labels, web_name
from batchedapi_operator.resources.exposure import build_address, build_policy


@dataclass(frozen=True, slots=True)
class Policies:
    """The kinds that APIs have; one that they do not have is neither read nor watched."""

    disruption_budgets: bool = True
    admin_peers: tuple[JsonObject, ...] = ()
    """Peers that reach the admin port, each a NetworkPolicyPeer; empty: APIs may ask for none."""
    addresses: tuple[Resource, ...] = ()
    """Those of `exposure.ADDRESSES` that an API may ask for."""

    @property
    def kinds(self) -> tuple[Resource, ...]:
        """In the order in which they are made."""
        return (
            *([NETWORK_POLICIES] if self.admin_peers else []),
            *([DISRUPTION_BUDGETS] if self.disruption_budgets else []),
            *self.addresses,
        )

    def build(
        self, resource: Resource, api: BatchedAPI, *, roles: bool = False
    ) -> JsonObject | None:
        """The child of one of `kinds`; None: the API has none of it.

        Args:
            resource: The kind.
            api: The manifest.
            roles: Some of its pods may be web pods.
        """
        if resource in self.addresses:
            return build_address(resource, api)
        if resource is NETWORK_POLICIES:
            return build_policy(api, self.admin_peers)
        name = api.metadata.name
        selector: JsonObject = {"matchLabels": selector_labels(name)}
        if roles:  # web pods have one of their own, and a pod of two budgets is never evicted
            role, web = contract.LABEL_ROLE, [contract.ROLE_WEB]
            selector["matchExpressions"] = [{"key": role, "operator": "NotIn", "values": web}]
        return _disruption_budget(api, name, selector)


def build_web_budget(api: BatchedAPI) -> JsonObject:
    """Budget of web pods of an API with a queue, which are two at least: one may go."""
    own = role_labels(api.metadata.name, contract.ROLE_WEB)
    body = _disruption_budget(api, web_name(api.metadata.name), {"matchLabels": own})
    body["metadata"]["labels"] |= own
    return body


def _disruption_budget(api: BatchedAPI, name: str, selector: JsonObject) -> JsonObject:
    """One pod at a time may be evicted: a single replica never holds a node back.

    Those that are not ready are evicted whatever the budget says; they serve nobody.
    """
    body = head(api, DISRUPTION_BUDGETS, name)
    body["spec"] = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": selector,
    }
    return body
