"""The chart is installed by the admin of a namespace, as the guide says, on a real apiserver."""

import random
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from chart import CHART, helm
from pages import blocks

pytestmark = pytest.mark.cluster

GUIDE: Final = "docs/guides/namespaces-and-rights.md"
ALONE: Final = ("crds.install=false", "userRoles.install=false")


def kubectl(*arguments: str, body: str = "") -> subprocess.CompletedProcess[str]:
    """Run kubectl; the caller looks at the exit code."""
    command = ["kubectl", *arguments]
    return subprocess.run(command, input=body, capture_output=True, text=True, check=False)


def rendered(namespace: str) -> list[dict[str, Any]]:
    """The chart without its Deployment: an operator that ran here would act beside others."""
    settings = (*ALONE, f"watchNamespaces={{{namespace}}}")
    flags = [flag for setting in settings for flag in ("--set", setting)]
    done = helm("template", "batchedapi", str(CHART), "-n", namespace, *flags)
    assert done.returncode == 0, done.stderr
    made = yaml.safe_load_all(done.stdout)
    return [one for one in made if one and one["kind"] not in {"Deployment", "Pod"}]


@pytest.fixture
def namespace(installed_crd: None) -> Iterator[str]:  # noqa: ARG001 - needed, not used
    """One with an admin of that name, and no right of theirs elsewhere."""
    name = f"tenant-{random.randrange(16**8):08x}"
    assert not kubectl("create", "namespace", name).returncode
    role = ("--clusterrole=admin", f"--user={name}")
    assert not kubectl("create", "rolebinding", "owner", "-n", name, *role).returncode
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def test_the_admin_of_a_namespace_may_install_what_the_guide_says(namespace: str) -> None:
    """RBAC lets nobody grant what they lack; the guide's role is what an admin lacks."""
    objects = yaml.safe_dump_all(rendered(namespace))
    (role,) = (one.text for one in blocks(GUIDE) if "kind: ClusterRole\n" in one.text)
    apply = ("apply", "-n", namespace, f"--as={namespace}", "-f", "-")

    refused = kubectl(*apply, body=objects)
    assert "attempting to grant RBAC permissions not currently held" in refused.stderr
    try:
        assert not kubectl("apply", "-f", "-", body=role).returncode
        deadline = time.monotonic() + 30
        while (done := kubectl(*apply, body=objects)).returncode:
            assert time.monotonic() < deadline, done.stderr
            time.sleep(1)  # the roles of the cluster are put together a moment later
    finally:
        kubectl("delete", "-f", "-", body=role)
