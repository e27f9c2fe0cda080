"""Moves the autoscaler must not make: on missing data, on a restart, or where others decide.

What was watched since earlier tests is looked at before the operator restarts. The load is of a
slow model, so that two cores hold several busy replicas.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import cluster
from watched_replicas import UNLOADED, Replicas, manifest, wait_until_ready

pytestmark = pytest.mark.cluster

Api = tuple[str, str]
ADMIN_PORT: Final = 8081
BLIND_SECONDS: Final = 20.0
"""Ten looks of the operator."""
DECIDED_SECONDS: Final = 6.0
"""In which what was decided with all pods seen has been carried out."""
EXTERNAL_SECONDS: Final = 300.0
IDLE_SECONDS: Final = 120.0
WINDOW_SECONDS: Final = 75.0
"""The autoscaler's window of a minute, and its slowest report after it."""
REPLICAS: Final = 3
RATE: Final = 330.0
"""Requests a second: three replicas at 80 % of 8 rows / 56 ms each want 342."""


@pytest.fixture(scope="module")
def busy(model: str) -> Iterator[Api]:
    """An API with as many replicas as its load wants."""
    # Of one more, one unseen is too many to remove any; of six, which a busy machine asks for, not.
    scaling = {"minReplicas": REPLICAS, "maxReplicas": REPLICAS + 1}
    cluster.apply(manifest("busy", autoscaling=scaling), model)
    wait_until_ready(model, "busy", REPLICAS)
    url = cluster.service_url("busy", model)
    load = cluster.Load(url, RATE, 400)
    time.sleep(30)  # the service model and half a window of demand are known
    yield model, "busy"
    print(f"\nbusy: {load.stop()}")


def test_kubectl_scale_moves_the_replicas_in_mode_external(external: Replicas, model: str) -> None:
    """The other half of `/scale`: HPA and KEDA write the same."""
    cluster.kubectl("scale", "bapi/external", "--replicas=3", "-n", model)
    wait_until_ready(model, "external", 3)

    status = cluster.get("bapi", "external", model)["status"]

    assert [2, 3] == [change.replicas for change in external.changes]
    assert "External" == cluster.condition_of({"status": status}, "AutoscalingActive")["reason"]


@pytest.mark.usefixtures("local_node")
@pytest.mark.parametrize("blind", range(1, REPLICAS + 1))
def test_a_metrics_port_that_dies_takes_no_replica_with_it(busy: Api, blind: int) -> None:
    """Missing is not zero: with any number of pods unseen, no replica of a busy API goes."""
    namespace, name = busy
    pods = cluster.get_all("pod", namespace, f"batchedapi.dev/api={name}")
    operator = cluster.operator_pod()["status"]["podIP"]
    unseen = pods[:blind]
    for pod in unseen:
        filter_packets("-I", pod, operator)
    try:
        time.sleep(DECIDED_SECONDS)
        before = cluster.get("deployment", name, namespace)["spec"]["replicas"]
        pods = cluster.get_all("pod", namespace, f"batchedapi.dev/api={name}")
        watch = Replicas(namespace, name)
        time.sleep(BLIND_SECONDS)
        status = cluster.get("bapi", name, namespace)["status"]
        counts = watch.stop()
    finally:
        for pod in unseen:
            if processes_of(pod):  # one that was given up just before took the rule along
                filter_packets("-D", pod, operator)

    seen = {uid_of(pod) for pod in pods} - {uid_of(pod) for pod in unseen}
    told = cluster.condition_of({"status": status}, "MetricsAvailable")
    print(f"\n{blind} of {len(pods)} unseen: {counts}, {told['reason']}: {told['message']}")
    assert before == min(counts)
    assert ("Partial" if seen else "None") == told["reason"]


def test_an_idle_api_is_not_written_to(writes_to_iris: Replicas) -> None:
    """No write in two minutes: neither the object nor a child changes its resourceVersion."""
    cluster.wait_for(
        lambda: writes_to_iris.seconds() - writes_to_iris.changes[-1].at >= IDLE_SECONDS,
        WINDOW_SECONDS + IDLE_SECONDS,
        "two minutes without a write",
    )


def test_the_way_down_ends_at_one_replica(
    sleepy_replicas: Replicas, request: pytest.FixtureRequest
) -> None:
    """After the last load, without a step up."""
    cluster.wait_for(lambda: sleepy_replicas.latest() == 1, 420, "one replica again")
    sleepy_replicas.report("up and down")

    unloaded = request.session.stash.get(UNLOADED, 0.0)
    steps = [change.replicas for change in sleepy_replicas.changes if change.at > unloaded]
    assert sorted(steps, reverse=True) == steps


def test_an_operator_that_restarts_under_load_makes_no_wrong_move(busy: Api) -> None:
    """Its knowledge is in the status; until it has seen a window nothing goes down."""
    namespace, name = busy
    before = cluster.get("deployment", name, namespace)["spec"]["replicas"]
    watch = Replicas(namespace, name)

    place = ("-n", cluster.SYSTEM_NAMESPACE)
    cluster.kubectl("rollout", "restart", "deployment", *place)
    cluster.kubectl("rollout", "status", "deployment", *place, "--timeout=180s")
    time.sleep(45)
    counts = watch.stop()
    decision = cluster.get("bapi", name, namespace)["status"]["autoscaling"]["lastDecision"]

    print(f"\noperator restarted: {counts}\n{decision['text']}")
    assert before == min(counts)
    assert max(counts) <= before + 1
    assert decision["record"]["terms"]["service"] is not None


def test_a_paused_api_stays_as_it_is(busy: Api) -> None:
    """Neither replicas nor a new revision, until it goes on; and it says so."""
    namespace, name = busy
    revision = cluster.get("bapi", name, namespace)["status"]["revision"]["current"]
    pause = {"paused": True, "predictor": {"config": {"v": 2}}}
    watch = Replicas(namespace, name)
    try:
        cluster.patch_api(name, namespace, pause)
        cluster.wait_for(lambda: told_as_paused(namespace, name), 120, "both to say Paused")
        time.sleep(10)
        after = cluster.get("bapi", name, namespace)["status"]["revision"]["current"]
    finally:
        go_on = {"paused": False, "predictor": {"config": None}}
        cluster.patch_api(name, namespace, go_on)
    counts = watch.stop()

    assert revision == after
    assert 1 == len(set(counts))


def told_as_paused(namespace: str, name: str) -> bool:
    """By the reconciler in the phase, and by the autoscaler in its condition."""
    api = cluster.get("bapi", name, namespace)
    said = cluster.condition_of(api, "AutoscalingActive")["reason"]
    return ("Paused", "Paused") == (api["status"]["phase"], said)


def test_why_tells_older_decisions(busy: Api) -> None:
    """From the operator's memory, through the API server, with the user's own rights."""
    namespace, name = busy

    text = cluster.kubectl("batchedapi", "why", name, "-n", namespace, "--last", 5)

    print("\n" + text)
    assert "replicas (" in text


def test_nobody_else_moved_the_replicas_in_mode_external(external: Replicas) -> None:
    """Five minutes in which one replica would have been enough."""
    time.sleep(max(0.0, EXTERNAL_SECONDS - external.seconds()))

    external.report(f"external, {external.seconds():.0f} s")
    assert [2, 3] == external.stop()


@pytest.fixture
def local_node() -> None:
    """Pods run on this machine, and root filters their sockets."""
    if os.geteuid() != 0 or not processes_of(cluster.operator_pod()):
        pytest.skip("wants root, and pods that run on this machine")


def uid_of(pod: dict[str, Any]) -> str:
    """The uid, which differs for another pod of the same name."""
    uid: str = pod["metadata"]["uid"]
    return uid


def processes_of(pod: dict[str, Any]) -> list[int]:
    """The processes of a pod on this machine, by its cgroup."""
    uid = uid_of(pod)
    found = []
    for file in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            text = file.read_text()
        except OSError:  # it ended meanwhile
            continue
        if uid in text or uid.replace("-", "_") in text:
            found.append(int(file.parent.name))
    return found


def filter_packets(action: str, pod: dict[str, Any], source: str) -> None:
    """Refuse (-I), or take again (-D), what `source` sends to a pod's admin port."""
    space = f"--net=/proc/{processes_of(pod)[0]}/ns/net"
    rule = f"INPUT -p tcp --dport {ADMIN_PORT} -s {source} -j REJECT --reject-with tcp-reset"
    command = ["nsenter", space, "iptables", "-w", action, *rule.split()]
    subprocess.run(command, check=True, capture_output=True, text=True)
