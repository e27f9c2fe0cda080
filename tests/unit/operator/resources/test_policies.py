"""The policies of an API for drains and networks."""

from dataclasses import replace
from typing import Any, Final

import pytest
from tests.unit.operator.worlds import IMAGE, KEY, NOW, api, api_body, child_body

from batchedapi_core import contract
from batchedapi_operator.cluster import DISRUPTION_BUDGETS, NETWORK_POLICIES, JsonObject, Resource
from batchedapi_operator.reconcile.plan import plan
from batchedapi_operator.resources import selector_labels
from batchedapi_operator.resources.policies import Policies
from batchedapi_operator.views import ChildView, Observed

PEER: Final = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
BOTH: Final = Policies(admin_peers=(PEER,))
CLIENT: Final = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "shop"}}}


NAMED: Final = {"allowFrom": [CLIENT]}


def built(resource: Resource, **spec: Any) -> JsonObject:
    """The spec of one of the two."""
    body: JsonObject = BOTH.build(resource, api(**spec))["spec"]
    return body


def test_one_replica_at_a_time_may_be_evicted_and_a_sick_one_always() -> None:
    """With `minAvailable: 1` a single replica would hold a node back for ever."""
    assert {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector_labels(KEY.name)},
    } == built(DISRUPTION_BUDGETS)


@pytest.mark.parametrize("grpc", [False, True])
def test_a_policy_lets_in_whom_the_api_names_and_nobody_else(*, grpc: bool) -> None:
    """A rule without `from` would be one for everybody."""
    spec = built(NETWORK_POLICIES, networking={"grpc": grpc, "allowFrom": [CLIENT]})
    asked, admin = spec["ingress"]

    assert selector_labels(KEY.name) == spec["podSelector"]["matchLabels"]
    assert ["Ingress"] == spec["policyTypes"]
    assert [CLIENT] == asked["from"]
    ports = [contract.HTTP_PORT, *([contract.GRPC_PORT] if grpc else [])]
    assert ports == [port["port"] for port in asked["ports"]]
    assert ([PEER], [contract.ADMIN_PORT]) == (
        admin["from"],
        [port["port"] for port in admin["ports"]],
    )


def test_addresses_left_out_of_a_block_stay_out() -> None:
    """`except` is a word of Python's own; without it the policy would let them in."""
    block = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}

    spec = built(NETWORK_POLICIES, networking={"allowFrom": [block]})

    assert [block] == spec["ingress"][0]["from"]


@pytest.mark.parametrize(
    ("policies", "kinds"),
    [
        (Policies(), {"PodDisruptionBudget"}),
        (BOTH, {"PodDisruptionBudget"}),
        (Policies(disruption_budgets=False), set()),
    ],
)
def test_only_what_is_asked_for_is_made(policies: Policies, kinds: set[str]) -> None:
    """The rights of a kind are granted with its value alone; policies would add up."""
    made = plan(api_body(), Observed(status={}), IMAGE, NOW, policies=policies)

    always = {"ConfigMap", "Service", "Deployment"}
    assert kinds == {one.body["kind"] for one in made.apply} - always
    assert "Deployment" == made.apply[-1].body["kind"]


@pytest.mark.parametrize("kind", BOTH.kinds, ids=lambda kind: kind.kind)
def test_one_of_that_name_that_is_somebody_elses_is_left_alone(kind: Resource) -> None:
    """Two budgets on a pod would keep it from being evicted at all."""
    theirs = replace(ChildView.of(child_body(KEY.name)), owner_uid="another", owner_api="")
    seen = Observed(status={}, policies={kind: theirs})

    made = plan(api_body(networking=NAMED), seen, IMAGE, NOW, policies=BOTH)

    assert () == made.apply
    (told,) = [one for one in made.status["conditions"] if one["type"] == "SpecValid"]
    assert ("False", "NotOwned") == (told["status"], told["reason"])
    assert f"{kind.kind} {KEY}" in told["message"]
