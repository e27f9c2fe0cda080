"""Chart and the operator's requests beside the schemas of every release that users may have."""

import json
from pathlib import Path
from typing import Final

import pytest
from tests.contract.operator.corpus import Document
from tests.contract.operator.test_gitops import from_examples, generated, named

from batchedapi_operator.reconcile.plan import plan
from batchedapi_operator.views import Observed
from chart import EVERYTHING, template
from kubernetes_schemas import RELEASES, conformity, downloaded

NOW: Final = "2026-01-02T03:04:05Z"


def children() -> list[Document]:
    """Whatever is applied for the examples, and for specs that have each field once."""
    found = []
    for document in named([*from_examples(), *({"spec": spec} for spec in generated())]):
        document["metadata"] |= {
            "namespace": "any",
            "uid": "any",
            "generation": 1,
            "resourceVersion": "1",
        }
        made = plan(document, Observed(status={}), "image", NOW)
        found += [one.body for one in made.apply]
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_takes_chart_and_children_as_they_are(release: str, tmp_path: Path) -> None:
    """An unknown field is an error here; an apiserver would drop it and say nothing."""
    applied = children()
    texts = [template(settings).stdout for settings in ((), EVERYTHING)]
    manifests = "\n---\n".join([*texts, *map(json.dumps, applied)])

    report = conformity(manifests, downloaded(release), tmp_path)

    assert [] == report.get("resources", [])
    assert report["summary"]["valid"] > len(applied) > 500
    assert 0 == report["summary"]["invalid"] + report["summary"]["errors"]
