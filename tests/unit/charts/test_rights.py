"""Rights that the chart gives: what the operator uses, and no more."""

from typing import Final

import pytest

from batchedapi_core import contract
from chart import ROOT, granted, of_operator, only, render, rules

IN_ONE: Final = ("watchNamespaces={team-a}",)
EVERY_KIND: Final = (
    "networkPolicies.enabled=true",
    "exposure.gateway=true",
    "exposure.ingress=true",
)
"""Settings with which every kind that may be granted is."""


@pytest.mark.parametrize("namespaces", [(), IN_ONE], ids=["cluster", "namespace"])
def test_no_role_has_a_wildcard_or_reads_secrets(namespaces: tuple[str, ...]) -> None:
    """An operator with more rights than it uses is a way into the cluster."""
    objects = render(*namespaces, *EVERY_KIND)

    for rule in rules(objects, "ClusterRole") + rules(objects, "Role"):
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        assert not {"secrets", "pods/exec", "roles", "rolebindings"} & set(rule["resources"])


CLUSTER_SCOPED: Final = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


def test_with_namespaces_the_operator_has_no_rights_outside_them() -> None:
    """`watchNamespaces` is a promise to the owners of all other namespaces."""
    objects = render("watchNamespaces={team-a,team-b}")

    for kind in ("Role", "RoleBinding"):
        found = [one for one in of_operator(objects) if one["kind"] == kind]
        ours = [one for one in found if not one["metadata"]["name"].endswith("-leader-election")]
        assert ["team-a", "team-b"] == [one["metadata"]["namespace"] for one in ours]
    assert [] == rules(objects, "ClusterRole")
    assert not [item for item in objects if item["kind"] == "ClusterRoleBinding"]


def test_somebody_without_any_right_on_the_cluster_can_install_it_for_a_namespace() -> None:
    """The definition, and the roles that users aggregate, are then applied apart or not at all."""
    apart = ("crds.install=false", "userRoles.install=false")

    assert not CLUSTER_SCOPED & {one["kind"] for one in render(*IN_ONE, *apart)}
    assert CLUSTER_SCOPED == {one["kind"] for one in render()} & CLUSTER_SCOPED


@pytest.mark.parametrize(
    ("value", "kind"),
    [("podDisruptionBudgets", "poddisruptionbudgets"), ("networkPolicies", "networkpolicies")],
)
def test_a_kind_that_can_be_turned_off_is_granted_only_where_it_is_on(
    value: str, kind: str
) -> None:
    """A right that nothing uses is one too many."""
    kinds = {
        switch: {resource for _, resource, _ in granted(render(f"{value}.enabled={switch}"))}
        for switch in ("true", "false")
    }

    assert {kind} == kinds["true"] - kinds["false"]


@pytest.mark.parametrize("namespaces", [(), IN_ONE], ids=["cluster", "namespace"])
def test_there_are_few_rights_and_each_is_named(namespaces: tuple[str, ...]) -> None:
    """Whoever grants them reads them first."""
    objects = render(*namespaces, *EVERY_KIND)

    assert len(granted(objects)) <= 70


def test_the_rights_in_one_namespace_are_those_of_all_together() -> None:
    """The two ways to install may not drift apart."""
    in_one, in_all = (
        only(found, kind, "-batchedapi-operator")["rules"]
        for found, kind in ((render(*IN_ONE), "Role"), (render(), "ClusterRole"))
    )

    assert in_one
    assert in_all == in_one


@pytest.mark.parametrize("namespaces", [(), IN_ONE], ids=["cluster", "namespace"])
def test_leases_are_those_of_the_release_alone(namespaces: tuple[str, ...]) -> None:
    """Leases of a cluster are those of its nodes and its control plane, too."""
    with_leases = {
        (one["kind"], one["metadata"]["namespace"])
        for one in render(*namespaces)
        for rule in one.get("rules", ())
        if "leases" in rule["resources"]
    }

    assert {("Role", "system")} == with_leases


def test_the_guide_names_every_right_with_its_reason() -> None:
    """It is read before they are granted."""
    page = (ROOT / "docs/guides/namespaces-and-rights.md").read_text(encoding="utf-8")
    _, _, section = page.partition("## Rights\n")
    rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `")]

    told = {(row[0].split("`")[1], verb) for row in rows for verb in row[1].strip().split(", ")}
    given = granted(render(*EVERY_KIND))
    assert {(resource, verb) for _, resource, verb in given} == told
    assert all(reason.strip() for *_, reason in rows)


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
    # the plugin finds the pod by its label, and names the role after its Lease
    name, value = contract.SELECTOR_OF_OPERATOR.split("=")
    assert value == operator["metadata"]["labels"][name]
    lease = role["metadata"]["name"].removesuffix("-decisions-view")
    variables = operator["spec"]["containers"][0]["env"]
    assert {"name": "BATCHEDAPI_LEASE_NAME", "value": lease} in variables


def test_two_releases_may_share_an_account() -> None:
    """No object of the one has the name of the other's."""
    shared = (*IN_ONE, "serviceAccount.create=false", "serviceAccount.name=shared")
    first, second = (
        {(made["kind"], made["metadata"]["name"]) for made in render(*shared, setting)}
        for setting in ("fullnameOverride=one", "fullnameOverride=two")
    )
    assert {"CustomResourceDefinition"} == {kind for kind, _ in first & second}


def test_no_service_leads_to_the_decisions() -> None:
    """Nor could one: they listen on loopback."""
    ports = {port["name"] for port in only(render(), "Service")["spec"]["ports"]}

    assert {"admin"} == ports
