"""Nodes, users and registries that are not ours to choose: GPU pools, OpenShift, private images.

Registry and store listen where the node runs, so this wants the local cluster.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.cluster.devcluster import network, node, paths
from tests.cluster.devcluster.choice import Flavour, flavour

import cluster
from certificates import make_certificates
from object_store import KEY, REGION, SECRET, running_store
from private_registry import Registry, private_registry

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        os.environ.get("CLUSTER") == Flavour.CURRENT or flavour() is not Flavour.LOCAL,
        reason="wants the local cluster",
    ),
]

EXAMPLES: Final = cluster.ROOT / "examples/08-platforms"
MANIFESTS: Final = cluster.ROOT / "tests/e2e/manifests"
PLUGIN: Final = cluster.ROOT / "tests/support/device_plugin.py"
PLUGIN_FOLDER: Final = "/var/lib/kubelet/device-plugins"
OBJECT: Final = "scaled/factor.txt"
TAINT: Final = "nvidia.com/gpu=present:NoSchedule"
OPENSHIFT: Final = "e2e-openshift"
FIRST_USER: Final = 1000680000
"""Of the namespace, as restricted-v2.yaml has it."""


@contextmanager
def made(kind: str, name: str, **more: Any) -> Iterator[None]:
    """A namespace, for the length of a block."""
    cluster.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **more}}, "")
    try:
        yield
    finally:
        cluster.kubectl("delete", kind, name, "--wait=true")


def apply_example(name: str, namespace: str, **names: str) -> None:
    """A manifest of examples/08-platforms, with other names for what lies outside the cluster."""
    text = (EXAMPLES / name).read_text()
    for old, new in names.items():
        host = f"{old}.example.org"
        assert host in text
        text = text.replace(host, new)
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)


def answer_of(name: str, namespace: str, item: float) -> Any:
    """The API's answer, as soon as it is Ready."""
    ready = "--for=condition=Ready"
    cluster.kubectl("wait", "-n", namespace, ready, f"bapi/{name}", "--timeout=180s")
    url = cluster.service_url(name, namespace)
    cluster.wait_for(lambda: cluster.post(url, item)[0] == 200, 90, f"an answer of {name}")
    return cluster.post(url, item)[1]


def plugin() -> list[dict[str, Any]]:
    """A device plugin as vendors install theirs: a pod on each node, whatever its taints."""
    source = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "plugin"},
        "data": {PLUGIN.name: PLUGIN.read_text()},
    }
    labels = {"app": "gpu-plugin"}
    container = {
        "name": "plugin",
        "image": "batchedapi-serving:dev",
        "command": ["python", f"/plugin/{PLUGIN.name}", "nvidia.com/gpu", "2"],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [
            {"name": "kubelet", "mountPath": PLUGIN_FOLDER},
            {"name": "plugin", "mountPath": "/plugin"},
        ],
    }
    pod = {
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [
            {"name": "kubelet", "hostPath": {"path": PLUGIN_FOLDER}},
            {"name": "plugin", "configMap": {"name": "plugin"}},
        ],
    }
    daemons = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "gpu-plugin"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    return [source, daemons]


@pytest.fixture
def gpu_pool(namespace: str) -> Iterator[str]:
    """The namespace, with a node that has two GPUs and a taint."""
    (node,) = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    name = node["metadata"]["name"]

    def has_gpus() -> bool:
        (found,) = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
        return bool(found["status"]["allocatable"].get("nvidia.com/gpu") == "2")

    with made("Namespace", "gpu-plugin"):
        for manifest in plugin():
            cluster.apply(manifest, "gpu-plugin")
        cluster.wait_for(has_gpus, 180, "two GPUs on the node")
        cluster.kubectl("label", "node", name, "pool=gpu")
        cluster.kubectl("taint", "node", name, TAINT)
        yield namespace
        cluster.kubectl("taint", "node", name, f"{TAINT}-")
        cluster.kubectl("label", "node", name, "pool-")


@pytest.fixture
def registry() -> Iterator[Registry]:
    """With the serving image and a file more, for who knows the password."""
    content = paths.RUN / "containerd" / "io.containerd.content.v1.content"
    files = {"app/NOTICE": "private\n", "model/factor.txt": "2.5"}
    with private_registry(content, "batchedapi-serving", files) as found:
        spoken = node.REGISTRIES / found.address / "hosts.toml"
        spoken.parent.mkdir(parents=True)
        spoken.write_text(f'server = "http://{found.address}"\n')
        yield found


def test_a_tainted_gpu_pool_a_private_registry_and_a_bucket(
    gpu_pool: str, registry: Registry
) -> None:
    """The example as it is: each process has a GPU of its own, and what the bucket says."""
    with running_store(host=network.ADDRESS) as store:
        store.objects[OBJECT] = b"2.5"
        keys = {
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": store.url,
        }
        words = (f"--from-literal={name}={value}" for name, value in keys.items())
        cluster.kubectl("create", "secret", "generic", "models-bucket", "-n", gpu_pool, *words)
        cluster.kubectl(
            "create", "secret", "docker-registry", "models-registry", "-n", gpu_pool,
            *registry.options,
        )  # fmt: skip
        apply_example("gpu-pool.yaml", gpu_pool, registry=registry.address)
        cluster.kubectl("run", "kept-away", "-n", "default", "--image=batchedapi-serving:dev")

        first = answer_of("gpu-pool", gpu_pool, 4.0)
        url = cluster.service_url("gpu-pool", gpu_pool)
        seen = cluster.wait_for(
            lambda: (
                len(seen := {cluster.post(url, 4.0)[1]["gpus"] for _ in range(20)}) > 1 and seen
            ),
            90,
            "answers of both processes",
        )
        other = cluster.get("pod", "kept-away", "default")

    assert 10.0 == first["scaled"]
    assert "cuda:0" == first["device"]
    assert {"GPU-0", "GPU-1"} == seen
    assert registry.refused
    assert [path for path in registry.given if "/blobs/" in path]
    assert "untolerated taint" in json.dumps(other["status"]["conditions"])
    cluster.kubectl("delete", "pod", "kept-away", "-n", "default", "--wait=false")
    cluster.kubectl("delete", "bapi", "gpu-pool", "-n", gpu_pool)


def test_a_model_in_a_registry_is_a_volume_that_the_node_has_pulled(
    namespace: str, registry: Registry
) -> None:
    """The replica has no credentials of the registry, and nothing to fetch."""
    source, api = yaml.safe_load_all((EXAMPLES / "gpu-pool.yaml").read_text())
    uri = f"oci://{registry.address}/models/scaled@{registry.digest}/model/factor.txt"
    api["metadata"]["name"] = "mounted"
    predictor = {key: api["spec"]["predictor"][key] for key in ("path", "source", "config")}
    pod = {key: api["spec"]["pod"][key] for key in ("volumes", "volumeMounts")}
    secrets = {"imagePullSecrets": [{"name": "puller"}]}
    api["spec"] = {"predictor": {**predictor, "model": {"uri": uri}}, "pod": {**pod, **secrets}}
    words = ("secret", "docker-registry", "puller", "-n", namespace)
    cluster.kubectl("create", *words, *registry.options)
    for one in (source, api):
        cluster.apply(one, namespace)

    assert 10.0 == answer_of("mounted", namespace, 4.0)["scaled"]

    (one,) = cluster.pods_of("mounted", namespace, "")
    assert "image" in {volume["name"]: volume for volume in one["spec"]["volumes"]}["model"]
    assert registry.refused
    cluster.kubectl("delete", "bapi", "mounted", "-n", namespace)


@pytest.fixture(scope="module")
def openshift(namespace: str) -> Iterator[str]:
    """A namespace in which the rules of restricted-v2 hold."""
    assert namespace
    cluster.kubectl("apply", "-f", MANIFESTS / "restricted-v2.yaml")
    labels = {"scc": "restricted-v2", "pod-security.kubernetes.io/enforce": "restricted"}
    with made("Namespace", OPENSHIFT, labels=labels):
        cluster.wait_for(
            lambda: is_admitted() and not is_admitted(runAsUser=65532), 90, "the policies in force"
        )
        yield OPENSHIFT
    cluster.kubectl("delete", "-f", MANIFESTS / "restricted-v2.yaml")


def is_admitted(**context: int) -> bool:
    """Whether the namespace takes a restricted pod with this security context."""
    container = {
        "name": "bare",
        "image": "batchedapi-serving:dev",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    profile = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": {**profile, **context}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"}, "spec": spec}
    done = subprocess.run(
        ["kubectl", "create", "-n", OPENSHIFT, "--dry-run=server", "-f", "-"],
        input=json.dumps(pod), capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode == 0


def is_service_account(token: str) -> bool:
    """Whether the cluster says that a token is one of `reads-models`, and meant for the store."""
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": ["sts.amazonaws.com"]},
    }
    told = cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review))
    status = json.loads(told)["status"]
    user = status.get("user", {}).get("username")
    return bool(f"system:serviceaccount:{OPENSHIFT}:reads-models" == user)


def test_openshift_chooses_the_user_and_a_service_account_reads_the_bucket(
    openshift: str, tmp_path: Path
) -> None:
    """The example as it is: a high user id, group 0, volumes it may write, and no key anywhere."""
    certificates = make_certificates(tmp_path, [f"IP:{network.ADDRESS}"])
    file = f"--from-file=authority.pem={certificates.authority}"
    with running_store(certificates.server, host=network.ADDRESS) as store:
        store.objects[OBJECT] = b"2.5"
        store.trusts = is_service_account
        cluster.kubectl("create", "configmap", "store-authority", "-n", openshift, file)
        apply_example("openshift.yaml", openshift, store=store.url.removeprefix("https://"))

        answer = answer_of("openshift", openshift, 4.0)

    assert (10.0, FIRST_USER, 0) == (answer["scaled"], answer["user"], answer["group"])


def test_a_user_id_of_ones_own_is_refused_there_and_named(openshift: str) -> None:
    """Without `runAsUser: Platform` the status says what the cluster says."""
    text = (EXAMPLES / "openshift.yaml").read_text()
    fixed = text.replace("    runAsUser: Platform\n", "")
    assert text != fixed
    cluster.kubectl("apply", "-n", openshift, "-f", "-", stdin=fixed)

    def refused() -> dict[str, Any] | None:
        condition = cluster.condition_of(cluster.get("bapi", "openshift", openshift), "SpecValid")
        return condition if condition.get("status") == "False" else None

    condition = cluster.wait_for(refused, 180, "SpecValid False")

    assert "PodTemplateRefused" == condition["reason"]
    assert "runAsUser: Invalid value: 65532" in condition["message"]
