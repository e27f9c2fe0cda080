"""An upgrade of the operator rolls no pod: this release renders what earlier ones rendered.

`before.yaml` has manifests of earlier releases, fields removed since included, and what they were
rendered to. It must never be written anew; a new case is added at its end.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchedapi_core import contract
from batchedapi_core.manifest import parse_api
from batchedapi_operator.resources.configmap import build_config_map, revision_of
from batchedapi_operator.resources.deployment import build_deployment, build_service

BEFORE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("before.yaml").read_text())
CASES: dict[str, Any] = BEFORE["cases"]


def digest(body: object) -> str:
    """As `before.yaml` has it."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def rendered(spec: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of the revision, and the bodies that belong to it."""
    metadata = {"name": "iris", "namespace": "demo", "uid": "api-uid"}
    head = {"apiVersion": contract.API_VERSION, "kind": contract.KIND}
    api = parse_api({**head, "metadata": metadata, "spec": spec})
    revision = revision_of(api, {"model.py": "x"}, {})
    image = api.spec.predictor.image or "batchedapi-serving:test"
    return revision.name, {
        "config_map": build_config_map(api, revision),
        "service": build_service(api),
        "template": build_deployment(api, revision, image)["spec"]["template"],
    }


def test_the_smallest_manifest_has_the_pod_that_it_had() -> None:
    """The whole of it, so that a difference can be read."""
    assert BEFORE["pod"] == rendered(CASES["smallest"]["spec"])[1]["template"]


@pytest.mark.parametrize("name", CASES)
def test_a_manifest_keeps_the_revision_and_the_pods_that_it_had(name: str) -> None:
    """Another name, or another template, would start every replica anew."""
    before = dict(CASES[name])

    revision, bodies = rendered(before.pop("spec"))

    assert before == {"revision": revision, **{part: digest(one) for part, one in bodies.items()}}
