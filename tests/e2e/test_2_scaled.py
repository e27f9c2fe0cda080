"""Load on 02-sleepy: up, and new revisions under it. The way down is looked at minutes later."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

import cluster
from watched_replicas import SLEEPY_CAPACITY, UNLOADED, Replicas

pytestmark = pytest.mark.cluster

Api = tuple[str, str]
RATE: Final = 3 * 0.8 * SLEEPY_CAPACITY
"""Three replicas' worth, a little less of each than is used by default."""
UPDATE_RATE: Final = RATE / 2
"""What is shown is that nothing is lost, not how much two cores can do: beside generator, replicas
and node they load a new pod, and a node without a moment to spare answers late whatever a server
does."""
LOOK_SECONDS: Final = 5.0
"""Between two looks of the operator: requests of the last are still to be decided on."""


@pytest.fixture(scope="module")
def load(deployed_sleepy: Api, sleepy_replicas: Replicas) -> Iterator[cluster.Load]:
    """Three replicas' worth of requests, until stopped."""
    assert sleepy_replicas
    load = cluster.Load(cluster.service_url("sleepy", deployed_sleepy[0]), RATE, 400)
    yield load
    load.stop()


@pytest.fixture(scope="module")
def scaled_up(deployed_sleepy: Api, load: cluster.Load, sleepy_replicas: Replicas) -> int:
    """The replicas, once they are at least three and all ready."""
    assert load
    namespace, name = deployed_sleepy

    def settled() -> int | None:
        status = cluster.get("bapi", name, namespace)["status"]
        desired, ready = status.get("desiredReplicas", 0), status.get("readyReplicas", 0)
        return int(ready) if ready >= 3 and ready == desired == sleepy_replicas.latest() else None

    return cluster.wait_for(settled, 180, "three or more replicas ready")


def test_load_of_three_replicas_worth_scales_to_three_to_six(
    scaled_up: int, sleepy_replicas: Replicas
) -> None:
    """Demand over learned capacity: no replica count was ever written down."""
    sleepy_replicas.report("way up")

    assert 3 <= scaled_up <= 6


@pytest.mark.usefixtures("external")  # its minutes go by while later tests run
def test_why_tells_the_reason_in_a_sentence(deployed_sleepy: Api, scaled_up: int) -> None:
    """The question every autoscaler's users ask."""
    namespace, name = deployed_sleepy

    text = cluster.kubectl("batchedapi", "why", name, "-n", namespace)

    print("\n" + text)
    assert scaled_up
    assert "rows/s" in text
    assert "replicas (" in text


def test_status_reads_the_batches_of_every_replica(deployed_sleepy: Api, scaled_up: int) -> None:
    """By port-forwards through a real kubelet, in the seconds after it was asked."""
    namespace, name = deployed_sleepy
    words = ("batchedapi", "status", name, "-n", namespace)

    told = json.loads(cluster.kubectl(*words, "-o", "json"))
    print("\n" + cluster.kubectl(*words))

    assert scaled_up
    # not as many as are ready: replicas may be added, and go, while they are asked
    assert 2 <= told["window"]["pods"] <= len(told["pods"])
    assert not told["window"]["sinceStart"]
    (method,) = told["methods"]
    assert method["rowsPerSecond"] > 0
    assert method["p50"] > 0


def test_the_page_about_all_apis_reads_the_replicas(deployed_sleepy: Api, scaled_up: int) -> None:
    """By a port-forward to the operator, which reads them; the figures are those of kubectl get."""
    namespace, name = deployed_sleepy
    process = subprocess.Popen(
        ["kubectl", "batchedapi", "ui", "--port", "0"],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        found = httpx.get(f"{url}fleet", params={"api": f"{namespace}/{name}"}, timeout=30).json()
        page = httpx.get(url)
    finally:
        process.terminate()
        process.wait(10)

    (line,) = [one for one in found["apis"] if one["api"] == f"{namespace}/{name}"]
    assert scaled_up
    assert 'data-mode="fleet"' in page.text
    assert 2 <= len(found["pages"])
    assert all("batchedapi_batch_rows_bucket" in text for text in found["pages"].values())
    status = cluster.get("bapi", name, namespace)["status"]
    assert abs(status["readyReplicas"] - line["ready"]) <= 1  # one may come or go in between
    assert "replicas (" in line["why"]


def test_a_rolling_update_under_load_loses_nothing(
    deployed_sleepy: Api, load: cluster.Load, scaled_up: int
) -> None:
    """Surge, readiness after warm-up, drain before stop; the load goes on all the while.

    What one replica had to refuse before there were more is reported, but is not of the update.
    """
    before = load.stop()
    print(f"\nway up at {RATE:.0f} requests/s: {before}")

    report = updated_under(UPDATE_RATE, deployed_sleepy, scaled_up, version=2)

    assert 0 == report["wrong"]
    assert 0 == report["lost"]


def test_a_rolling_update_at_full_load_answers_nobody_wrongly(
    deployed_sleepy: Api, scaled_up: int, sleepy_replicas: Replicas, request: pytest.FixtureRequest
) -> None:
    """With as much as the replicas were scaled for, on a node with nothing to spare.

    What is lost then is reported: the generator may get to its own sockets seconds late.
    """
    report = updated_under(RATE, deployed_sleepy, scaled_up, version=3)
    request.session.stash[UNLOADED] = sleepy_replicas.seconds() + LOOK_SECONDS

    assert 0 == report["wrong"]
    assert report["ok"] > 0


def updated_under(rate: float, api: Api, replicas: int, *, version: int) -> dict[str, Any]:
    """Roll out a new revision under load; what became of the load."""
    namespace, name = api
    old = cluster.get("bapi", name, namespace)["status"]["revision"]["current"]
    load = cluster.Load(cluster.service_url(name, namespace), rate, 200)

    cluster.patch_api(name, namespace, {"predictor": {"config": {"v": version}}})

    def rolled_out() -> bool:
        deployment = cluster.get("deployment", name, namespace)
        status, wanted = deployment["status"], deployment["spec"]["replicas"]
        current = cluster.get("bapi", name, namespace)["status"]["revision"]["current"]
        pods = cluster.get_all("pod", namespace, f"batchedapi.dev/api={name}")
        return bool(
            current != old
            and status["observedGeneration"] == deployment["metadata"]["generation"]
            and status.get("updatedReplicas", 0) == status.get("availableReplicas", 0) == wanted
            and len(pods) == wanted
        )

    cluster.wait_for(rolled_out, 180, "every pod of the new revision")
    time.sleep(3)
    report = load.stop()
    print(f"\nrolling update of {replicas} replicas at {rate:.0f} requests/s: {report}")
    return report
