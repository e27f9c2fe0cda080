"""The rendered chart beside Kubernetes' own schemas, which are there once a cluster was built."""

from pathlib import Path
from typing import Any

import pytest

from chart import EVERYTHING, template
from kubernetes_schemas import RELEASES, api_description, conformity


def report_on(manifests: str, folder: Path) -> Any:
    """kubeconform's, by the schemas of the cluster's release."""
    description = api_description(RELEASES[-1])
    if description is None:
        pytest.skip("the Go module of Kubernetes is not in the module cache: no schemas offline")
    return conformity(manifests, description, folder)


@pytest.mark.parametrize("settings", [(), EVERYTHING], ids=["defaults", "everything"])
def test_rendered_objects_match_the_schemas_of_kubernetes(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    """A field in the wrong place is dropped in silence by helm install without validation."""
    report = report_on(template(settings).stdout, tmp_path)

    assert [] == report.get("resources", [])
    assert report["summary"]["valid"] >= 7
    assert 0 == report["summary"]["invalid"] + report["summary"]["errors"]


def test_a_field_in_the_wrong_place_is_found(tmp_path: Path) -> None:
    """The schemas are made here: they must be able to refuse something."""
    manifests = template(()).stdout.replace("  replicas: 1", "  replica: 1")

    (found,) = report_on(manifests, tmp_path)["resources"]

    assert ("Deployment", "statusInvalid") == (found["kind"], found["status"])
    assert "replica" in found["msg"]
