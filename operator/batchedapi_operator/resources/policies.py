"""What an API tells drains and networks: its PodDisruptionBudget and its NetworkPolicy."""

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


@dataclass(frozen=True, slots=True)
class Policies:
    """Which of the two APIs have; a kind that they do not have is neither read nor watched."""

    disruption_budgets: bool = True
    admin_peers: tuple[JsonObject, ...] = ()
    """Who reaches the admin port of replicas, each a NetworkPolicyPeer; empty: no policies."""

    @property
    def kinds(self) -> tuple[Resource, ...]:
        """In the order in which they are made."""
        return (
            *([NETWORK_POLICIES] if self.admin_peers else []),
            *([DISRUPTION_BUDGETS] if self.disruption_budgets else []),
        )

    def build(self, resource: Resource, api: BatchedAPI, *, roles: bool = False) -> JsonObject:
        """The child of one of `kinds`; `roles`: some of its pods may be web pods."""
        if resource is NETWORK_POLICIES:
            return _network_policy(api, self.admin_peers)
        return _disruption_budget(api, roles=roles)


def _disruption_budget(api: BatchedAPI, *, roles: bool) -> JsonObject:
    """One replica at a time may be evicted: a single one never holds a node back.

    Replicas that are not ready are evicted whatever the budget says; they serve nobody.
    """
    body = head(api, DISRUPTION_BUDGETS, api.metadata.name)
    selector: JsonObject = {"matchLabels": selector_labels(api.metadata.name)}
    if roles:  # web pods have one of their own, and a pod of two budgets is never evicted
        others = {"key": contract.LABEL_ROLE, "operator": "NotIn", "values": [contract.ROLE_WEB]}
        selector["matchExpressions"] = [others]
    body["spec"] = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": selector,
    }
    return body


def build_web_budget(api: BatchedAPI) -> JsonObject:
    """Of the web pods of an API with a queue, which are two at least: one of them may go."""
    body = head(api, DISRUPTION_BUDGETS, web_name(api.metadata.name))
    own = role_labels(api.metadata.name, contract.ROLE_WEB)
    body["metadata"]["labels"] |= own
    body["spec"] = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": own},
    }
    return body


def _network_policy(api: BatchedAPI, admin_peers: tuple[JsonObject, ...]) -> JsonObject:
    """Predictions from everywhere, the admin port from `admin_peers`; nothing is said of egress.

    Probes come from the replica's own node, which no policy keeps out.
    """
    body = head(api, NETWORK_POLICIES, api.metadata.name)
    asked = [contract.HTTP_PORT, *([contract.GRPC_PORT] if api.spec.networking.grpc else [])]
    body["spec"] = {
        "podSelector": {"matchLabels": selector_labels(api.metadata.name)},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": [{"protocol": "TCP", "port": port} for port in asked]},
            {
                "from": list(admin_peers),
                "ports": [{"protocol": "TCP", "port": contract.ADMIN_PORT}],
            },
        ],
    }
    return body
