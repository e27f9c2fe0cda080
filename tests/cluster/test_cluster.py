"""Things that every test in a cluster relies on, tested on the cluster of `tests/cluster/up`."""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

import pytest

pytestmark = pytest.mark.cluster

NAMESPACE: Final = "test-cluster"
IMAGE: Final = "batchedapi-serving:dev"
STARTED_WITHIN: Final = "60s"
RESTRICTED_POD: Final = {
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESTRICTED_CONTAINER: Final = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def kubectl(*arguments: str, stdin: str = "") -> str:
    """Run kubectl on the cluster of KUBECONFIG; a failure shows what it said."""
    done = subprocess.run(
        ["kubectl", *arguments], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def apply(*manifests: dict[str, Any]) -> None:
    """Apply manifests in the namespace of these tests."""
    items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(items))


def pod(name: str, *command: str, **container: object) -> dict[str, Any]:
    """Build a pod of the serving image as `restricted` demands."""
    main = {
        "name": "main",
        "image": IMAGE,
        "command": list(command),
        "securityContext": RESTRICTED_CONTAINER,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": RESTRICTED_POD,
            "containers": [main | container],
        },
    }


@pytest.fixture(autouse=True, scope="module")
def namespace() -> Iterator[None]:
    """Give these tests a namespace that admits nothing but restricted pods."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": NAMESPACE, "labels": labels}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    yield
    kubectl("delete", "namespace", NAMESPACE)


def test_the_node_is_ready() -> None:
    """A node that is not would leave every pod of the other tests pending."""
    ready = 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'

    assert kubectl("get", "nodes", "-o", ready) == "True"


def test_the_serving_image_runs_restricted_on_a_read_only_root() -> None:
    """Users' namespaces enforce this; an image that needs more would not start there."""
    program = "import numpy, fastapi; print('imported')"
    apply(pod("imports", "python", "-c", program))

    done = "--for=jsonpath={.status.phase}=Succeeded"
    kubectl("wait", "-n", NAMESPACE, "pod/imports", done, f"--timeout={STARTED_WITHIN}")

    assert kubectl("logs", "-n", NAMESPACE, "imports") == "imported\n"


def test_a_pod_that_asks_for_more_is_refused() -> None:
    """The label of the namespace has to bite, or the test above shows nothing."""
    careless = pod("careless", "true", securityContext={"privileged": True})

    with pytest.raises(AssertionError, match=r'violates PodSecurity "restricted'):
        apply(careless)


def test_a_service_is_reached_from_the_host_by_its_node_port() -> None:
    """Load generators and benchmarks run on the host and talk to Services."""
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    apply(
        pod("web", "python", "-m", "http.server", "-d", "/etc", readinessProbe=probe),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {
                "type": "NodePort",
                "selector": {"app": "web"},
                "ports": [{"port": 80, "targetPort": 8000}],
            },
        },
    )
    ready = ("--for=condition=Ready", f"--timeout={STARTED_WITHIN}")
    kubectl("wait", "-n", NAMESPACE, "pod/web", *ready)
    field = ("-o", "jsonpath={.spec.ports[0].nodePort}")
    port = kubectl("get", "-n", NAMESPACE, "service", "web", *field)

    assert fetch(f"http://127.0.0.1:{port}/hostname", seconds=10) == "web"


def fetch(url: str, *, seconds: float) -> str:
    """Get a page; tries again when refused: kube-proxy hears of a pod after it is Ready."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310  (an http URL)
                page: bytes = response.read()
                return page.decode().strip()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
