"""What docs/guides/platforms.md says to write for controllers of others, beside what is made."""

from typing import Any, Final

import pytest
import yaml
from tests.unit.operator.worlds import IMAGE, api

from batchedapi_core import contract
from batchedapi_core.manifest import Pod
from batchedapi_operator.resources.configmap import revision_of
from batchedapi_operator.resources.deployment import build_deployment
from pages import blocks, pages

BLOCKS: Final[list[dict[str, Any]]] = [
    yaml.safe_load(block.text)
    for page in pages()
    for block in blocks(page)
    if block.page == "docs/guides/platforms.md" and block.language == "yaml"
]
FIELDS: Final = {
    "provisioningStrategy": str, "podTemplateRef": dict, "scalableRef": dict, "replicas": int,
    "percentage": int, "limits": dict,
}  # fmt: skip
"""Of CapacityBufferSpec in cluster-autoscaler/apis, autoscaling.x-k8s.io/v1beta1 and v1alpha1."""
EXCLUDED: Final = {
    "Istio": (
        "traffic.sidecar.istio.io/excludeInboundPorts",
        "traffic.sidecar.istio.io/excludeOutboundPorts",
    ),
    "Linkerd": ("config.linkerd.io/skip-inbound-ports", "config.linkerd.io/skip-outbound-ports"),
}


def deployment(spec: dict[str, Any]) -> dict[str, Any]:
    """What is made of the API iris with that spec."""
    model = api(**spec)
    found: dict[str, Any] = build_deployment(model, revision_of(model, {}, {}, None, Pod()), IMAGE)
    return found


def test_a_buffer_is_aimed_at_what_the_operator_makes() -> None:
    """By group, kind and name; of another one nothing would be kept, and a condition says so."""
    (buffer,) = (one for one in BLOCKS if one.get("kind") == "CapacityBuffer")
    spec, made = buffer["spec"], deployment({})

    assert "autoscaling.x-k8s.io/v1beta1" == buffer["apiVersion"]
    assert {name: type(value) for name, value in spec.items()}.items() <= FIELDS.items()
    assert {
        "apiGroup": made["apiVersion"].partition("/")[0],
        "kind": made["kind"],
        "name": made["metadata"]["name"],
    } == spec["scalableRef"]


@pytest.mark.parametrize("mesh", EXCLUDED)
def test_a_mesh_is_kept_off_the_port_that_the_operator_reads(mesh: str) -> None:
    """And off no other: clients come through it."""
    names = EXCLUDED[mesh]
    specs = [one["spec"] for one in BLOCKS if "predictor" in one.get("spec", {})]
    (spec,) = (one for one in specs if names[0] in one.get("pod", {}).get("annotations", {}))

    template = deployment(spec)["spec"]["template"]

    found = template["metadata"]["annotations"]
    (port,) = (
        one["containerPort"]
        for one in template["spec"]["containers"][0]["ports"]
        if one["name"] == contract.ADMIN_PORT_NAME
    )
    assert dict.fromkeys(names, str(port)).items() <= found.items()
    assert str(port) == found["prometheus.io/port"]
