"""What docs/guides/platforms.md says to write for controllers of others, beside what is made."""

from typing import Any, Final

import yaml
from tests.unit.operator.worlds import IMAGE, api

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
