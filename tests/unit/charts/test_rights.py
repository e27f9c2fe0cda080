"""Rights that the chart gives: what the operator uses, and no more."""

from typing import Any

import pytest

from batchedapi_core import contract
from chart import Objects, only, render


def rules(objects: Objects, kind: str) -> list[dict[str, Any]]:
    """Rules of all operator roles of a kind (those that users aggregate are another matter)."""
    return [
        rule
        for item in objects
        if item["kind"] == kind and not item["metadata"]["name"].endswith(("-view", "-edit"))
        for rule in item["rules"]
    ]


@pytest.mark.parametrize("namespace", ["", "team-a"], ids=["cluster", "namespace"])
def test_no_role_has_a_wildcard_or_reads_secrets(namespace: str) -> None:
    """An operator with more rights than it uses is a way into the cluster."""
    objects = render(f"watchNamespace={namespace}")

    for rule in rules(objects, "ClusterRole") + rules(objects, "Role"):
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        assert not {"secrets", "pods/exec", "roles", "rolebindings"} & set(rule["resources"])


def test_with_a_namespace_the_operator_has_no_rights_outside_it() -> None:
    """`watchNamespace` is a promise to the owners of all other namespaces."""
    objects = render("watchNamespace=team-a")

    assert "team-a" == only(objects, "Role", "batchedapi-operator")["metadata"]["namespace"]
    assert "team-a" == only(objects, "RoleBinding")["metadata"]["namespace"]
    assert [] == rules(objects, "ClusterRole")
    assert not [item for item in objects if item["kind"] == "ClusterRoleBinding"]


def test_the_rights_in_one_namespace_are_those_of_all_together() -> None:
    """The two ways to install may not drift apart."""
    in_one = rules(render("watchNamespace=team-a"), "Role")
    in_all = rules(render(), "ClusterRole")

    assert in_one
    assert in_all == in_one


def test_users_who_may_edit_a_namespace_may_edit_its_apis() -> None:
    """The usual roles of a namespace include BatchedAPIs, but never their status."""
    edit = only(render(), "ClusterRole", "-edit")

    assert "true" == edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"]
    assert "batchedapis/status" not in {
        name for rule in edit["rules"] for name in rule["resources"]
    }


def test_older_decisions_are_read_by_whom_an_administrator_lets() -> None:
    """They tell of the load of every namespace: the right is there, and bound to nobody (F3)."""
    objects = render()
    role = only(objects, "Role", "-decisions-view")
    operator = only(objects, "Deployment")["spec"]["template"]

    assert {"pods": ["get", "list"], "pods/portforward": ["get", "create"]} == {
        rule["resources"][0]: rule["verbs"] for rule in role["rules"]
    }
    bindings = [one for one in objects if one["kind"].endswith("RoleBinding")]
    assert role["metadata"]["name"] not in [one["roleRef"]["name"] for one in bindings]
    # the plugin finds the pod by its label, and names the role after the account
    name, value = contract.SELECTOR_OF_OPERATOR.split("=")
    assert value == operator["metadata"]["labels"][name]
    account = operator["spec"]["serviceAccountName"]
    assert f"{account}-decisions-view" == role["metadata"]["name"]


def test_no_service_leads_to_the_decisions() -> None:
    """Nor could one: they listen on loopback."""
    ports = {port["name"] for port in only(render(), "Service")["spec"]["ports"]}

    assert {"admin"} == ports
