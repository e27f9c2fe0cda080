"""Settings of the pods: what may be asked for, and what lies under it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from crds.crd import kubernetes_parts

from batchedapi_core import contract
from batchedapi_core.manifest import ManifestError, Pod, parse_api, pod_defaults, serving_slice
from batchedapi_core.manifest.pod import SPREAD as EVENLY
from batchedapi_core.manifest.pod import as_written
from pod_specs import ACCEPTED, KEY, REFUSED, SPREAD, pod


def document(spec: dict[str, Any]) -> dict[str, Any]:
    """A BatchedAPI with that spec."""
    head = {"apiVersion": contract.API_VERSION, "kind": contract.KIND}
    return {**head, "metadata": {"name": "iris"}, "spec": spec}


def settings(**written: Any) -> Pod:
    """The pod settings of a manifest."""
    return parse_api(document(pod(**written))).spec.pod


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_a_platform_needs_is_accepted_and_rolls_nothing_by_its_slice(name: str) -> None:
    """Replicas are told nothing of it: another line of theirs would be another revision."""
    smallest = document({"predictor": {"path": "model:Iris"}})

    told = serving_slice(parse_api(document(ACCEPTED[name])))

    assert serving_slice(parse_api(smallest)) == told


@pytest.mark.parametrize("name", REFUSED)
def test_what_breaks_ours_or_reaches_the_node_is_refused_with_its_field(name: str) -> None:
    """Among them is what the cluster would refuse later, with less to say."""
    spec, path = REFUSED[name]

    with pytest.raises(ManifestError) as refused:
        parse_api(document(spec))

    assert any(path in line for line in refused.value.problems)


def test_settings_are_kept_as_they_were_written() -> None:
    """They are Kubernetes' own: a default of ours in them would be another pod."""
    written = ACCEPTED["every setting of the pods"]["pod"]

    assert written == as_written(settings(**written))


def test_maps_are_joined_with_the_defaults_and_the_rest_replaces_them() -> None:
    """One rule for all: a list that were joined could never be made shorter."""
    defaults = pod_defaults(
        {
            "labels": {"team": "platform", "cost": "1"},
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "gpu"}],
            "imagePullSecrets": [{"name": "registry"}],
            "runAsUser": "Platform",
        }
    )

    effective = settings(labels={"team": "a"}, tolerations=[], runAsUser=7).over(defaults)

    assert as_written(effective) == {
        "labels": {"team": "a", "cost": "1"},
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [],
        "imagePullSecrets": [{"name": "registry"}],
        "runAsUser": 7,
    }


def test_an_api_with_defaults_under_it_is_the_same_in_everything_else() -> None:
    """The operator renders one value, with the defaults in it."""
    spec = {"predictor": {"path": "m:C", "env": [{"name": "A", "value": "1"}]}}
    written = parse_api(document(spec))

    api = written.with_pod_defaults(pod_defaults({"runAsUser": "Platform"}))

    assert "Platform" == api.spec.pod.run_as_user
    assert (written.metadata, written.spec.predictor) == (api.metadata, api.spec.predictor)
    assert written.spec.pod.run_as_user is None


def test_a_variable_of_a_secret_has_no_value_in_the_manifest() -> None:
    """It is not an empty one."""
    env = [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": KEY}}]

    api = parse_api(document({"predictor": {"path": "m:C", "env": env}}))

    assert {"A": "1"} == api.spec.predictor.variables


def test_volumes_and_their_mounts_are_replaced_together() -> None:
    """A mount of the chart's without its volume would keep every pod from starting."""
    volume, mount = {"name": "ca", "emptyDir": {}}, {"name": "ca", "mountPath": "/ca"}
    defaults = pod_defaults({"volumes": [volume], "volumeMounts": [mount]})

    assert as_written(settings().over(defaults)) == as_written(defaults)
    assert as_written(settings(volumes=[]).over(defaults)) == {"volumes": []}


def test_an_empty_list_of_constraints_is_not_spread() -> None:
    """Absent is another thing: that is spread where it is possible."""
    assert [] == settings(topologySpreadConstraints=[]).over(EVENLY).topology_spread_constraints
    assert 2 == len(settings().over(EVENLY).topology_spread_constraints)
    assert [SPREAD] == as_written(settings(topologySpreadConstraints=[SPREAD]).over(EVENLY))[
        "topologySpreadConstraints"
    ]


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ({"toleration": []}, "defaults.pod.toleration: unknown field; did you mean tolerations?"),
        (
            {"tolerations": [{"effect": 1}]},
            "defaults.pod.tolerations[0].effect: Input should be",
        ),
        (
            {"volumes": [{"name": "tmp", "emptyDir": {}}]},
            "defaults.pod.volumes[0].name: defaults.pod.volumes[].name must not be",
        ),
    ],
)
def test_a_wrong_default_is_named_as_a_value_of_the_chart(written: Any, line: str) -> None:
    """Whoever reads it has values.yaml open, and no manifest."""
    with pytest.raises(ValueError, match="defaults") as refused:
        pod_defaults(written)

    assert str(refused.value).startswith(line)


def test_what_is_kubernetes_own_is_known_by_its_kind() -> None:
    """The reference names the kind, and leaves its fields to Kubernetes."""
    found = kubernetes_parts()

    assert "list of Toleration" == found["spec.pod.tolerations"]
    assert "list of EnvVar" == found["spec.predictor.env"]
    assert not any(path.startswith("spec.pod.affinity.") for path in found)


def test_what_the_guide_says_to_write_is_accepted() -> None:
    """It is copied from there: manifests, and values of the chart."""
    page = (Path(__file__).resolve().parents[4] / "docs/guides/processes-and-gpus.md").read_text()
    blocks = [
        yaml.safe_load(b)
        for b in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    ]

    for block in blocks:
        if "defaults" in block:
            pod_defaults(block["defaults"]["pod"])
        else:
            parse_api(document(block["spec"]))
    assert 6 == len(blocks)
