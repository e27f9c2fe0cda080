"""Runs helm on the chart and reads what it renders."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "charts" / "batchedapi"
TOOLS: Final = ROOT / ".cache" / "bin"
TWO_NAMESPACES: Final = "watchNamespaces={team-a,team-b}"
EVERYTHING: Final = (
    TWO_NAMESPACES, "serviceMonitor.enabled=true", "serviceMonitor.labels.release=kps",
    "networkPolicies.enabled=true", "exposure.gateway=true", "exposure.ingress=true",
    "dashboards.enabled=true", "imagePullSecrets={pull}",
    "prometheusRule.enabled=true",
    "resources.limits.cpu=1",
    "nodeSelector.pool=system", "tolerations[0].key=system", "priorityClassName=high",
    "runtimeClassName=gvisor",
    "topologySpreadConstraints[0].maxSkew=1", "topologySpreadConstraints[0].topologyKey=zone",
    "topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway", "podLabels.team=a",
    "podAnnotations.note=b", "defaults.pod.nodeSelector.pool=gpu",
)  # fmt: skip

Objects = list[dict[str, Any]]


def tool(name: str) -> str:
    """Path of a program on PATH or among the fetched tools; skips the test without it."""
    found = shutil.which(name) or shutil.which(name, path=TOOLS)
    if found is None:
        pytest.skip(f"{name} is neither on PATH nor in {TOOLS}")
    return found


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm; the caller looks at the exit code."""
    return subprocess.run(
        [tool("helm"), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def template(settings: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """`helm template` of the chart in namespace `system` with `--set` for each setting."""
    flags = [flag for setting in settings for flag in ("--set", setting)]
    return helm("template", "batchedapi", str(CHART), "-n", "system", *flags)


def render(*settings: str) -> Objects:
    """The objects that the chart renders with some settings."""
    result = template(settings)
    assert not result.returncode, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def only(objects: Objects, kind: str, suffix: str = "") -> dict[str, Any]:
    """The one object of a kind whose name ends so."""
    (found,) = [
        item
        for item in objects
        if item["kind"] == kind and item["metadata"]["name"].endswith(suffix)
    ]
    return found


def of_operator(objects: Objects) -> Objects:
    """Without roles for users: those are another matter."""
    return [one for one in objects if not one["metadata"]["name"].endswith(("-view", "-edit"))]


def rules(objects: Objects, kind: str) -> list[dict[str, Any]]:
    """Rules of all operator roles of a kind."""
    return [rule for item in of_operator(objects) if item["kind"] == kind for rule in item["rules"]]


def granted(objects: Objects) -> set[tuple[str, str, str]]:
    """The operator's permissions in one namespace: group, resource and verb."""
    return {
        (group, resource, verb)
        for rule in rules(objects, "Role") + rules(objects, "ClusterRole")
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
