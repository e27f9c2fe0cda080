"""The rendered chart beside Kubernetes' own schemas, which are there once a cluster was built."""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from chart import EVERYTHING, template, tool
from kubernetes_schemas import LOCATION, api_description, write_schemas

NOT_KUBERNETES: Final = "ServiceMonitor,PodMonitor,PrometheusRule,CustomResourceDefinition"
"""prometheus-operator's kinds have no schema in Kubernetes; the CRD is checked by the apiserver."""


def conformity(manifests: str, folder: Path) -> Any:
    """Kubeconform's report on some manifests; only what is wrong is listed in it."""
    description = api_description()
    if description is None:
        pytest.skip("the Go module of Kubernetes is not in the module cache: no schemas offline")
    write_schemas(description, folder)
    location = ("-schema-location", f"{folder}/{LOCATION}")
    flags = ("-strict", *location, "-skip", NOT_KUBERNETES, "-output", "json", "-summary")
    result = subprocess.run(
        [tool("kubeconform"), *flags, "-"],
        input=manifests,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return json.loads(result.stdout)


@pytest.mark.parametrize("settings", [(), EVERYTHING], ids=["defaults", "everything"])
def test_rendered_objects_match_the_schemas_of_kubernetes(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    """A field in the wrong place is dropped in silence by helm install without validation."""
    report = conformity(template(settings).stdout, tmp_path)

    assert [] == report.get("resources", [])
    assert report["summary"]["valid"] >= 7
    assert 0 == report["summary"]["invalid"] + report["summary"]["errors"]


def test_a_field_in_the_wrong_place_is_found(tmp_path: Path) -> None:
    """The schemas are made here: they must be able to refuse something."""
    manifests = template(()).stdout.replace("  replicas: 1", "  replica: 1")

    (found,) = conformity(manifests, tmp_path)["resources"]

    assert ("Deployment", "statusInvalid") == (found["kind"], found["status"])
    assert "replica" in found["msg"]
