"""What an earlier version rendered, this one renders: an upgrade of the operator rolls no pod.

`children_before.json` was written by the version before fields such as `model`, `methods` and
`grpc` existed; `pods_before.json` later, with the examples, the smallest manifest, and one that has
every field of that time. Neither must ever be written anew.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, parse_api
from batchedapi_operator.resources.configmap import build_config_map, revision_of
from batchedapi_operator.resources.deployment import build_deployment, build_service

BEFORE: dict[str, Any] = json.loads(Path(__file__).with_name("children_before.json").read_text())
PODS: dict[str, Any] = json.loads(Path(__file__).with_name("pods_before.json").read_text())


def parsed(name: str, spec: dict[str, Any]) -> BatchedAPI:
    """The manifest `name` with `spec`."""
    metadata = {"name": name, "namespace": "demo", "uid": "api-uid", "generation": 1}
    head = {"apiVersion": contract.API_VERSION, "kind": contract.KIND}
    return parse_api({**head, "metadata": metadata, "spec": spec})


@pytest.mark.parametrize("name", BEFORE)
def test_an_api_without_newer_fields_has_the_children_that_it_had(name: str) -> None:
    """Byte by byte, in the order of keys too: a revision is named after its text.

    But for how long the Deployment waits before it says that it makes no progress, and how many
    replicas an update may lack: that is no part of a pod, and starts none anew.
    """
    api = parsed("iris", BEFORE[name]["spec"])
    revision = revision_of(api, {"model.py": "x"}, {})

    children = [
        build_config_map(api, revision),
        build_service(api),
        build_deployment(api, revision, "batchedapi-serving:test"),
    ]

    assert 660 == children[-1]["spec"]["progressDeadlineSeconds"]
    children[-1]["spec"]["progressDeadlineSeconds"] = 900
    if "updateStrategy" not in BEFORE[name]["spec"]:
        rolling = children[-1]["spec"]["strategy"]["rollingUpdate"]
        assert 0 == rolling["maxUnavailable"]
        rolling["maxUnavailable"] = "25%"
    assert json.dumps(BEFORE[name]["children"]) == json.dumps(children)


@pytest.mark.parametrize("name", PODS)
def test_a_manifest_keeps_the_revision_and_the_pods_that_it_had(name: str) -> None:
    """Another name, or another template, would start every replica anew."""
    before = PODS[name]
    api = parsed(before["name"], before["spec"])
    revision = revision_of(api, before["source"], {})
    image = api.spec.predictor.image or "batchedapi-serving:test"

    assert before["revision"] == revision.name
    template = build_deployment(api, revision, image)["spec"]["template"]
    assert before["template"] == template
