"""One queue for all replicas, on a Redis in the cluster: real web pods, workers, and none of them.

The image of Redis is made of Debian's package, which wants the local cluster.
"""

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import pytest
from tests.cluster.devcluster.choice import Flavour, flavour

import cluster
import cluster_redis
from cluster_redis import EXAMPLE
from watched_replicas import manifest

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        os.environ.get("CLUSTER") == Flavour.CURRENT or flavour() is not Flavour.LOCAL,
        reason="wants the local cluster",
    ),
]

ITEM: Final = {"content": "string", "nested": {"key": "string", "values": [1, 5, 2]}}
PATIENCE: Final = 90.0
"""Seconds of a client: a pod has to start first."""
RATE: Final = 60.0
"""Requests a second: two workers serve 284."""


@pytest.fixture(scope="module")
def redis(namespace: str) -> Iterator[str]:
    """Address of the example's Redis."""
    yield cluster_redis.applied(namespace)
    cluster.kubectl("delete", "-n", namespace, "-f", EXAMPLE, "--wait=true", "--ignore-not-found")


@pytest.fixture(scope="module")
def items(namespace: str, redis: str) -> str:
    """The namespace, with 09-own-app as it is but for its Redis and how long nobody has to ask."""
    text = EXAMPLE.read_text().replace("{host: redis}", f"{{host: {redis}}}")
    text = text.replace("idleTimeout: 5m", "idleTimeout: 2s")
    assert text.count(redis) == text.count("2s") == 1
    cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)
    cluster.kubectl(
        "wait", "-n", namespace, "--for=condition=Ready", "bapi/items", "--timeout=180s"
    )
    return namespace


@pytest.fixture(scope="module")
def pulling(model: str, redis: str) -> Iterator[str]:
    """The namespace, with an API of two workers on the example's Redis."""
    batching = {"maxBatchSize": 8, "queue": {"redis": {"host": redis}}}
    api = manifest(
        "pulling", serverSideBatching=batching, autoscaling={"mode": "External"}, replicas=2
    )
    cluster.apply(api, model)
    cluster.wait_for(lambda: len(ready("worker")) == len(ready("web")) == 2, 180, "two of each")
    yield model
    cluster.kubectl("delete", "bapi", "pulling", "-n", model, "--wait=true")


def ready(role: str, name: str = "pulling", namespace: str = "e2e") -> list[str]:
    """Names of an API's pods that have a role, or none, are ready, and stay."""
    return sorted(
        pod["metadata"]["name"]
        for pod in cluster.pods_of(name, namespace, role)
        if cluster.is_ready(pod) and "deletionTimestamp" not in pod["metadata"]
    )


def are_ready(pods: dict[str, int]) -> bool:
    """Whether so many of each role are; those of an API without a queue have none."""
    return pods == {role: len(ready(role)) for role in pods}


def at_zero(name: str, namespace: str) -> bool:
    """Whether an API has no worker, is Ready, and says why."""
    api = cluster.get("bapi", name, namespace)
    condition = cluster.condition_of(api, "Ready")
    pods = cluster.get_all(
        "pod", namespace, f"batchedapi.dev/api={name},batchedapi.dev/role=worker"
    )
    return not pods and (condition.get("status"), condition.get("reason")) == (
        "True",
        "ScaledToZero",
    )


def test_none_runs_while_nobody_asks_and_the_first_row_starts_one(items: str) -> None:
    """To zero and back, twice: the client waits while a pod starts, and is answered."""
    url = cluster.service_url("items", items)
    waited = []
    for _ in range(2):
        cluster.wait_for(lambda: at_zero("items", items), 180, "no replica, and Ready")
        began = time.monotonic()
        status, answer = cluster.post(url, ITEM, timeout=PATIENCE)
        waited.append(time.monotonic() - began)
        assert (200, [2, 6, 3]) == (status, answer["nested"]["values_add1"])

    print(f"\nanswered from zero after {', '.join(f'{one:.1f}' for one in waited)} s")


def test_the_screen_shows_queue_and_web_pods(items: str) -> None:
    """Both `kubectl get` and `kubectl batchedapi status` show an API's queue."""
    line = cluster.kubectl("get", "bapi", "items", "-n", items)
    screen = cluster.kubectl("batchedapi", "status", "items", "-n", items)

    print(f"\n{line}\n{screen}")
    assert "QUEUE" in line.splitlines()[0].split()
    assert "QUEUE" in screen


def test_a_killed_worker_and_a_drained_web_pod_lose_nothing(pulling: str) -> None:
    """Rows of a killed worker are run by another; a web pod answers its requests before it goes."""
    load = cluster.Load(cluster.service_url("pulling", pulling), RATE, 120)
    time.sleep(3)  # of load, so that each has some in hand
    cluster.sigkill(cluster.get("pod", ready("worker")[0], pulling), 60)
    cluster.wait_for(lambda: len(ready("worker")) == 2, 180, "two workers again")
    (web, _) = ready("web")
    cluster.kubectl("delete", "pod", web, "-n", pulling, "--wait=false")
    cluster.wait_for(
        lambda: web not in ready("web") and len(ready("web")) == 2, 180, "another web pod"
    )
    time.sleep(3)
    report = load.stop()

    print(f"\n{report}")
    assert (0, 0) == (report["wrong"], report["lost"])
    assert report["ok"] > 9 * RATE / 2


def test_a_queue_that_is_taken_away_and_given_back_loses_nothing(pulling: str, redis: str) -> None:
    """The old pods go only when the new ones answer, in both directions."""
    load = cluster.Load(cluster.service_url("pulling", pulling), RATE, 240)
    for queue in (None, {"redis": {"host": redis}}):
        cluster.patch_api("pulling", pulling, {"serverSideBatching": {"queue": queue}})
        wanted = {"worker": 2, "web": 2, "": 0} if queue else {"worker": 0, "web": 0, "": 2}
        cluster.wait_for(partial(are_ready, wanted), 300, f"ready pods {wanted}")
    report = load.stop()

    print(f"\n{report}")
    assert (0, 0) == (report["wrong"], report["lost"])
    assert report["ok"] > 9 * RATE / 2
