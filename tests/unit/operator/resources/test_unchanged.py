"""What an earlier version rendered, this one renders: an upgrade of the operator rolls no pod.

`children_before.json` was written by the version before fields such as `model`, `methods` and
`grpc` existed; it must never be written anew.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from batchedapi_core import contract
from batchedapi_core.manifest import parse_api
from batchedapi_operator.resources import (
    build_config_map,
    build_deployment,
    build_service,
    revision_of,
)

BEFORE: dict[str, Any] = json.loads(Path(__file__).with_name("children_before.json").read_text())


@pytest.mark.parametrize("name", BEFORE)
def test_an_api_without_newer_fields_has_the_children_that_it_had(name: str) -> None:
    """Byte by byte, in the order of keys too: a revision is named after its text."""
    spec = BEFORE[name]["spec"]
    metadata = {"name": "iris", "namespace": "demo", "uid": "api-uid", "generation": 1}
    api = parse_api(
        {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "metadata": metadata,
            "spec": spec,
        }
    )
    revision = revision_of(api, {"model.py": "x"}, {})

    children = [
        build_config_map(api, revision),
        build_service(api),
        build_deployment(api, revision, "batchedapi-serving:test"),
    ]

    assert json.dumps(BEFORE[name]["children"]) == json.dumps(children)
