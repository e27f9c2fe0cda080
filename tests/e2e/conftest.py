"""The product as a user has it: chart installed, both examples, a restricted namespace."""

import time
from collections.abc import Iterator
from typing import Final

import pytest

import cluster
import watched_replicas

NAMESPACE: Final = "e2e"
EXTERNAL_SECONDS: Final = 1800.0
"""Of load on the API of mode External: until the end, whatever comes before."""
FIRST_ANSWER: Final = pytest.StashKey[float]()


@pytest.fixture(scope="session")
def namespace() -> Iterator[str]:
    """A namespace that admits only `restricted` pods, with the operator running."""
    cluster.install_chart()
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": NAMESPACE, "labels": labels}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, NAMESPACE)
    yield NAMESPACE
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true")
    cluster.uninstall_chart()


@pytest.fixture(scope="session")
def iris(namespace: str, request: pytest.FixtureRequest) -> tuple[str, str]:
    """(namespace, name) of 01-iris, answering; how long that took is in the session's stash."""
    began = time.monotonic()
    cluster.apply(cluster.ROOT / "examples/01-iris/batchedapi.yaml", namespace)

    url = cluster.service_url("iris", namespace)
    cluster.wait_for(
        lambda: cluster.post(url, [5.1, 3.5, 1.4, 0.2], timeout=1.0)[0] == 200,
        180,
        "an answer from iris",
    )
    request.session.stash[FIRST_ANSWER] = time.monotonic() - began
    return namespace, "iris"


@pytest.fixture(scope="session")
def deployed_sleepy(namespace: str) -> tuple[str, str]:
    """(namespace, name) of 02-sleepy, answering."""
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=watched_replicas.sleepy())
    cluster.kubectl(
        "wait", "-n", namespace, "--for=condition=Ready", "bapi/sleepy", "--timeout=180s"
    )
    url = cluster.service_url("sleepy", namespace)
    cluster.wait_for(lambda: cluster.post(url, 1)[0] == 200, 90, "an answer from sleepy")
    return namespace, "sleepy"


@pytest.fixture(scope="session")
def sleepy_replicas(deployed_sleepy: tuple[str, str]) -> Iterator[watched_replicas.Replicas]:
    """The replicas of 02-sleepy, from before the load until after the way down."""
    watch = watched_replicas.Replicas(*deployed_sleepy, look=watched_replicas.decided, every=1.0)
    yield watch
    watch.stop()


@pytest.fixture(scope="session")
def writes_to_iris(iris: tuple[str, str]) -> Iterator[watched_replicas.Replicas]:
    """Watched from when nobody asks it any more."""
    watch = watched_replicas.Replicas(*iris, look=watched_replicas.written, every=5.0)
    yield watch
    watch.stop()


@pytest.fixture(scope="session")
def first_answer_seconds(iris: tuple[str, str], request: pytest.FixtureRequest) -> float:
    """From kubectl apply to the first 200 through the Service."""
    assert iris
    return request.session.stash[FIRST_ANSWER]


@pytest.fixture(scope="session")
def model(namespace: str) -> str:
    """The namespace, with the ConfigMap of the class."""
    source = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "slow-model"},
        "data": {"model.py": watched_replicas.SLOW},
    }
    cluster.apply(source, namespace)
    return namespace


@pytest.fixture(scope="session")
def external(model: str) -> Iterator[watched_replicas.Replicas]:
    """An API of mode External under load, watched from here on."""
    scaling = {"mode": "External", "minReplicas": 1, "maxReplicas": 5}
    cluster.apply(watched_replicas.manifest("external", autoscaling=scaling, replicas=2), model)
    watched_replicas.wait_until_ready(model, "external", 2)
    watch = watched_replicas.Replicas(model, "external")
    cluster.wait_for(lambda: watch.changes, 60, "a first look at the replicas")
    url = cluster.service_url("external", model)
    load = cluster.Load(url, 20, EXTERNAL_SECONDS)
    yield watch
    watch.stop()
    load.stop()
