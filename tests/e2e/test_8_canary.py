"""A canary on real pods under load: worse ones are given up, an equal one is promoted."""

import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

import cluster
import watched_replicas

pytestmark = pytest.mark.cluster

CODE: Final = """
import time

from batchedapi_serving import batched


class Tried:
    def __init__(self, config, context):
        self.slower = config.get("slower", 1.0)
        self.failing = config.get("failing", False)

    @batched(example={"id": 1})
    def predict(self, items):
        if self.failing and any(item["id"] % 50 == 0 for item in items):
            raise ValueError("a fiftieth of all fail")
        loaded = self.slower if len(items) > 2 else 1.0
        time.sleep(0.040 + 0.024 * loaded * len(items))
        return items
"""
NAME: Final = "tried"
REPLICAS: Final = 4
RATE: Final = 125.0
"""Requests a second, at three quarters of what the replicas can do: a slower pod, which clients
with kept connections ask less, still has batches of more than two rows."""
GIVEN_UP_SECONDS: Final = 120.0


@pytest.fixture(scope="module")
def tried(namespace: str) -> Iterator[str]:
    """The namespace, with an API of four replicas that tries each revision in one pod for 40 s."""
    source: dict[str, Any] = {"kind": "ConfigMap", "metadata": {"name": "tried-model"}}
    cluster.apply({"apiVersion": "v1", **source, "data": {"model.py": CODE}}, namespace)
    spec: dict[str, Any] = {
        "predictor": {"path": "model:Tried", "source": {"configMap": "tried-model"}},
        "serverSideBatching": {"maxBatchSize": 32},
        "updateStrategy": {"canary": {"for": "40s"}, "compare": {"slower": "20%"}},
        "autoscaling": {"mode": "External"},
        "replicas": REPLICAS,
    }
    cluster.apply(watched_replicas.manifest(NAME, **spec), namespace)
    watched_replicas.wait_until_ready(namespace, NAME, REPLICAS)
    yield namespace
    cluster.kubectl("delete", "bapi", NAME, "-n", namespace, "--wait=true")


@pytest.fixture
def load(tried: str) -> Iterator[cluster.Load]:
    """Of which each request that fails is one too many, but those that the model fails."""
    running = cluster.Load(cluster.service_url(NAME, tried), RATE, 400.0)
    yield running
    running.stop()
    cluster.patch_api(NAME, tried, {"predictor": {"config": None}})


def revision(namespace: str) -> dict[str, str]:
    """`status.revision`."""
    found: dict[str, str] = cluster.get("bapi", NAME, namespace)["status"]["revision"]
    return found


def pods(namespace: str, *, canary: bool) -> set[str]:
    """Names of those of the canary, or of the others; those that end included."""
    found = cluster.pods_of(NAME, namespace, "canary" if canary else "")
    return {one["metadata"]["name"] for one in found}


@pytest.mark.parametrize(
    ("config", "why"),
    [({"failing": True}, "requests failed ("), ({"slower": 1.6}, "rows on average takes")],
    ids=["2 % fail", "60 % slower under load"],
)
def test_a_worse_revision_is_given_up_within_two_minutes(
    tried: str, load: cluster.Load, config: dict[str, Any], why: str
) -> None:
    """With the figures; the pods that answered before are the same, and lose no request."""
    before, current = pods(tried, canary=False), revision(tried)["current"]
    began = time.monotonic()

    cluster.patch_api(NAME, tried, {"predictor": {"config": config}})

    def given_up() -> str | None:
        api = cluster.get("bapi", NAME, tried)
        told = cluster.condition_of(api, "Progressing")
        return str(told["message"]) if told["reason"] == "RolledBack" else None

    message = cluster.wait_for(given_up, GIVEN_UP_SECONDS, "the canary to be given up")
    took = time.monotonic() - began
    cluster.wait_for(lambda: not pods(tried, canary=True), 90, "its pods to go")
    report = load.stop()
    print(f"\ngiven up after {took:.0f} s: {message}\n{report}")

    assert why in message
    assert current == revision(tried)["current"]
    assert before == pods(tried, canary=False)
    assert 0 == report["wrong"]
    assert {} == report["broken"]
    assert report["statuses"].keys() <= ({"200", "500"} if "failing" in config else {"200"})


def test_an_equal_revision_is_promoted_and_loses_nothing(tried: str, load: cluster.Load) -> None:
    """After its time; its canary goes when the others have all been replaced."""
    before = pods(tried, canary=False)

    cluster.patch_api(NAME, tried, {"predictor": {"config": {"version": 2}}})
    name = cluster.wait_for(lambda: revision(tried).get("canary"), 60, "a canary")
    cluster.wait_for(
        lambda: revision(tried)["current"] == name, GIVEN_UP_SECONDS, "the canary to be promoted"
    )

    def rolled_out() -> bool:
        there = pods(tried, canary=False)
        return len(there) == REPLICAS and not there & before and not pods(tried, canary=True)

    cluster.wait_for(rolled_out, 180, "four other replicas, and no canary")
    report = load.stop()
    print(f"\npromoted: {report}")

    assert {"200"} == report["statuses"].keys()
    assert (0, 0) == (report["wrong"], report["lost"])
    described = cluster.kubectl("describe", "bapi", NAME, "-n", tried)
    assert "no worse in" in described
