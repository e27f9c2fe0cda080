"""A slow model on the cluster, and replicas watched: what the autoscaler does, and does not."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest
import yaml

import cluster

UNLOADED: Final = pytest.StashKey[float]()
"""From when on, as the changes are dated, no request to 02-sleepy is left to be decided on."""
SLOW: Final = """
import time

from batchedapi_serving import batched


class Slow:
    @batched(example={"id": 1})
    def predict(self, items):
        time.sleep(0.040 + 0.002 * len(items))
        return items
"""


SLEEPY_CAPACITY: Final = 172.0
"""Rows a second that one replica of `sleepy` serves: 8 in 46.4 ms."""


def sleepy(name: str = "sleepy", **spec: object) -> str:
    """Example 02 at a quarter of its speed, with another name and these fields of its spec changed.

    Two cores also carry the node, the operator and whoever sends: at its own speed, what three
    replicas can do is more than a busy machine can send.
    """
    text = (cluster.ROOT / "examples/02-sleepy/batchedapi.yaml").read_text()
    documents = list(yaml.safe_load_all(text))
    (api,) = (one for one in documents if one["kind"] == "BatchedAPI")
    api["metadata"]["name"] = name
    api["spec"]["predictor"]["config"] = {"fixed_ms": 40, "per_row_ms": 0.8}
    api["spec"] |= spec
    return yaml.safe_dump_all(documents)


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


class Change(NamedTuple):
    """A replica count that was not the one before."""

    at: float  # seconds since the watch began
    replicas: int
    reason: str  # in a sentence; empty where none is told


Look = Callable[[str, str], tuple[int, str]]
"""Replicas of the API of that namespace and name, and the reason."""


def asked_for(namespace: str, name: str) -> tuple[int, str]:
    """The replicas in the Deployment's spec, whoever set them."""
    return cluster.get("deployment", name, namespace)["spec"]["replicas"], ""


def decided(namespace: str, name: str) -> tuple[int, str]:
    """The operator's number in the status, and its reason; 0 before there is one."""
    status = cluster.get("bapi", name, namespace).get("status", {})
    decision = status.get("autoscaling", {}).get("lastDecision", {})
    return status.get("desiredReplicas", 0), decision.get("text", "")


def written(namespace: str, name: str) -> tuple[int, str]:
    """A number that is another after each write to the API or a child of it."""
    kinds = ("deployment", "service", "configmap")
    label = f"batchedapi.dev/api={name}"
    found = [cluster.get("bapi", name, namespace)]
    found += [child for kind in kinds for child in cluster.get_all(kind, namespace, label)]
    versions = [(one["kind"], one["metadata"]["resourceVersion"]) for one in found]
    return hash(tuple(versions)), str(versions)


class Replicas:
    """Every change of an API's replica count, or what `look` gives for it, until stopped."""

    def __init__(
        self, namespace: str, name: str, *, look: Look = asked_for, every: float = 0.5
    ) -> None:
        """`every` is the seconds between two looks; a count that comes and goes between is lost."""
        self.changes: list[Change] = []
        """The first count seen is one."""
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(namespace, name, look, every))
        self._thread.start()

    def _run(self, namespace: str, name: str, look: Look, every: float) -> None:
        while not self._ended.wait(every):
            count, reason = look(namespace, name)
            if not self.changes or self.changes[-1].replicas != count:
                self.changes.append(Change(self.seconds(), count, reason))

    def stop(self) -> list[int]:
        """End the watch; every count there was, in order."""
        self._ended.set()
        self._thread.join()
        return [change.replicas for change in self.changes]

    def latest(self) -> int:
        """As last seen; 0 before the first look."""
        return self.changes[-1].replicas if self.changes else 0

    def seconds(self) -> float:
        """Since the watch began."""
        return time.monotonic() - self._began

    def report(self, title: str) -> None:
        """Print what the figures in the README are made of."""
        lines = [f"{at:6.1f} s  {count}  {reason}" for at, count, reason in self.changes]
        print(f"\n{title}:", *lines, sep="\n  ")


def wait_until_ready(namespace: str, name: str, replicas: int) -> None:
    """Wait until so many are."""
    cluster.wait_for(
        lambda: (
            cluster.get("bapi", name, namespace).get("status", {}).get("readyReplicas") == replicas
        ),
        180,
        f"{replicas} replicas of {name}",
    )
