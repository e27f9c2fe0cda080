"""Labels and annotations that a platform asks for are on every child, beside ours."""

from typing import Any, Final

import pytest
from tests.unit.operator.worlds import IMAGE, KEY, NOW, api_body

from batchedapi_core import contract
from batchedapi_core.manifest import ManifestError, parse_api
from batchedapi_operator.reconcile.plan import plan
from batchedapi_operator.resources import labels
from batchedapi_operator.resources.policies import Policies
from batchedapi_operator.views import Observed

ALL: Final = Policies(admin_peers=({"podSelector": {}},))
METADATA: Final = {"labels": {"team": "vision"}, "annotations": {"example.com/owner": "a@b"}}
QUEUE: Final = {"serverSideBatching": {"queue": {"redis": {}}}}


def children(**spec: Any) -> dict[str, dict[str, Any]]:
    """Every child of an API, by kind and name without the revision's digest."""
    named = {"networking": {"allowFrom": [{"podSelector": {}}]}}
    made = plan(api_body(**named, **spec), Observed(status={}), IMAGE, NOW, policies=ALL)
    named = ((one.body["kind"], one.body["metadata"]["name"], one.body) for one in made.apply)
    return {f"{kind}/{name.partition('-')[2] and name[:8]}": body for kind, name, body in named}


@pytest.mark.parametrize("spec", [{}, QUEUE], ids=["replicas", "a queue"])
def test_every_child_has_them_beside_ours(spec: dict[str, Any]) -> None:
    """A policy of required labels asks every kind for them; ours select and own."""
    made = children(childMetadata=METADATA, **spec)

    assert {"ConfigMap", "Service", "NetworkPolicy", "PodDisruptionBudget", "Deployment"} == {
        name.partition("/")[0] for name in made
    }
    for body in made.values():
        assert "vision" == body["metadata"]["labels"]["team"]
        assert labels(KEY.name).items() <= body["metadata"]["labels"].items()
        assert "a@b" == body["metadata"]["annotations"]["example.com/owner"]


def test_they_start_no_pod_anew() -> None:
    """Those of pods are in spec.pod: another template would start every replica."""
    plain, told = children(), children(childMetadata=METADATA)

    assert plain["Deployment/"]["spec"] == told["Deployment/"]["spec"]
    assert {name: body["metadata"]["name"] for name, body in plain.items()} == {
        name: body["metadata"]["name"] for name, body in told.items()
    }


def test_the_record_of_a_deployment_stays_beside_them() -> None:
    """Without it nothing tells with which defaults its pods were made."""
    made = children(childMetadata=METADATA, pod={"nodeSelector": {"pool": "a"}})

    assert {contract.ANNOTATION_POD, contract.ANNOTATION_SPEC, "example.com/owner"} == {
        *made["Deployment/"]["metadata"]["annotations"]
    }


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ("labels", "app.kubernetes.io/name"),
        ("labels", "batchedapi.dev/api"),
        ("annotations", "batchedapi.dev/pod"),
        ("annotations", "deployment.kubernetes.io/revision"),
        ("annotations", "kubectl.kubernetes.io/last-applied-configuration"),
    ],
)
def test_a_key_that_somebody_else_counts_with_is_refused(part: str, key: str) -> None:
    """Ours would be set back, and a controller's own would be fought over."""
    with pytest.raises(ManifestError, match=rf"spec\.childMetadata\.{part}"):
        parse_api(api_body(childMetadata={part: {key: "x"}}))
