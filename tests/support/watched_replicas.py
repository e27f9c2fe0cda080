"""A slow model on the cluster, and its replicas watched: what the autoscaler does, and does not."""

import threading
import time
from typing import Any, Final

import cluster

SLOW: Final = """
import time

from batchedapi_serving import batched


class Slow:
    def __init__(self, config, context):
        pass

    @batched(example={"id": 1})
    def predict(self, items):
        time.sleep(0.040 + 0.002 * len(items))
        return items
"""


def manifest(name: str, **spec: Any) -> dict[str, Any]:
    """A BatchedAPI of the class above."""
    return {
        "apiVersion": "batchedapi.dev/v1alpha1",
        "kind": "BatchedAPI",
        "metadata": {"name": name},
        "spec": {
            "predictor": {"path": "model:Slow", "source": {"configMap": "slow-model"}},
            "serverSideBatching": {"maxBatchSize": 8},
            "compute": {"cpu": "50m"},
            **spec,
        },
    }


class Replicas:
    """The replicas of a Deployment twice a second, and who asked for how many."""

    def __init__(self, name: str, namespace: str) -> None:
        self._name, self._namespace = name, namespace
        self._ended = threading.Event()
        self._began = time.monotonic()
        self.changes: list[tuple[float, int]] = []
        """(seconds since the watch began, replicas) of every change, the first look included."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            found = cluster.get("deployment", self._name, self._namespace)["spec"]["replicas"]
            if not self.changes or self.changes[-1][1] != found:
                self.changes.append((round(time.monotonic() - self._began, 1), found))

    def stop(self) -> list[int]:
        """End the watch; every count there was, in order."""
        self._ended.set()
        self._thread.join()
        return [count for _, count in self.changes]

    def seconds(self) -> float:
        """Since the watch began."""
        return time.monotonic() - self._began


def wait_until_ready(namespace: str, name: str, replicas: int) -> None:
    """Wait until so many are."""
    cluster.wait_for(
        lambda: (
            cluster.get("bapi", name, namespace).get("status", {}).get("readyReplicas") == replicas
        ),
        60,
        f"{replicas} replicas of {name}",
    )
