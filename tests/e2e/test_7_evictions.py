"""The only replica of an API is evicted, as drains, Karpenter and preemptions do."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import pytest

import cluster

pytestmark = pytest.mark.cluster

LOADING: Final = """
import time

from batchedapi_serving import batched


class Loading:
    def __init__(self, config, context):
        time.sleep(8)

    @batched(example=1)
    def predict(self, items):
        return items
"""
PER_SECOND: Final = 10
SOURCE: Final = {
    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "loading"},
    "data": {"model.py": LOADING},
}  # fmt: skip
LONE: Final = {
    "apiVersion": "batchedapi.dev/v1alpha1", "kind": "BatchedAPI", "metadata": {"name": "lone"},
    "spec": {
        "predictor": {"path": "model:Loading", "source": {"configMap": "loading"}},
        "replicas": 1, "autoscaling": {"mode": "Off"}, "compute": {"cpu": "50m"},
    },
}  # fmt: skip


@contextmanager
def asked(url: str) -> Iterator[list[tuple[int, Any]]]:
    """Requests, each over a connection of its own; what became of them, in no order."""
    answers: list[tuple[int, Any]] = []
    ended = threading.Event()

    def send(pool: ThreadPoolExecutor) -> None:
        due = time.monotonic()
        while not ended.wait(max(0.0, due - time.monotonic())):
            pool.submit(lambda: answers.append(cluster.post(url, 1)))
            due += 1 / PER_SECOND

    with ThreadPoolExecutor(64) as pool:
        sender = threading.Thread(target=send, args=(pool,))
        sender.start()
        try:
            yield answers
        finally:
            ended.set()
            sender.join()


def evict_the_only_one(namespace: str) -> None:
    """Through the eviction API, which asks its budget; until another is ready and it is gone."""
    (before,) = (one["metadata"]["name"] for one in pods_of(namespace))
    eviction = {
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": before, "namespace": namespace},
    }  # fmt: skip
    path = f"/api/v1/namespaces/{namespace}/pods/{before}/eviction"
    cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))

    def replaced() -> bool:
        (*names,) = (one["metadata"]["name"] for one in pods_of(namespace))
        return len(names) == 1 and names != [before] and is_ready(pods_of(namespace)[0])

    cluster.wait_for(replaced, 120, "another replica in its place")


def pods_of(namespace: str) -> list[dict[str, Any]]:
    """The pods, including those that end."""
    return cluster.get_all("pod", namespace, "batchedapi.dev/api=lone")


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether its kubelet says so."""
    told = pod["status"].get("conditions", ())
    return any((one["type"], one["status"]) == ("Ready", "True") for one in told)


def test_the_only_replica_serves_until_its_successor_does(namespace: str) -> None:
    """A model that loads for 8 s: it was refused to everybody for as long."""
    for one in (SOURCE, LONE):
        cluster.apply(one, namespace)
    cluster.kubectl("wait", "-n", namespace, "--for=condition=Ready", "bapi/lone", "--timeout=180s")
    url = cluster.service_url("lone", namespace)
    with asked(url) as answers:
        for _ in range(2):
            evict_the_only_one(namespace)

    assert len(answers) > 100
    assert [] == [one for one in answers if one[0] != 200]
    cluster.kubectl("delete", "bapi", "lone", "-n", namespace)
