"""Requests through a Service while its replicas are rolled, scaled and evicted: none may be lost.

    python tests/bench/rolling.py --mode rollouts    # 20 updates; wants the cluster of KUBECONFIG
    python tests/bench/rolling.py --mode scaling     # 50 x 4 -> 1 -> 4 and an eviction
    python tests/bench/rolling.py --mode outages     # 10 minutes without an apiserver, twice

Real pods behind a real kube-proxy: examples/02-sleepy, at 80 % of what its replicas were just
measured to serve. Half of the requests have a new connection each, half go over a pool of kept
ones. Any answer but 200, and any connection that breaks, is a loss.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import yaml
from harness.report import ROOT, Table, environment, help_of, out_option, report
from harness.service_load import ServiceLoad, most, through
from tests.cluster.devcluster import local, node, processes, tools

import cluster

NAMESPACE: Final = "rolling"
NAME: Final = "sleepy"
REPLICAS: Final = 4
CLIENTS: Final = 16
"""For each replica while its capacity is measured: two batches."""
SHARE: Final = 0.8
FIXED_MS: Final = 40
"""Of a batch, where the example has 10: four replicas are to be limited by it, not by two cores."""
STEP_SECONDS: Final = 240.0
"""The longest that a rollout or a change of the replicas may take."""
APISERVER: Final = "kube-apiserver"
ROUNDS: Final = {"rollouts": 20, "scaling": 50, "outages": 1}
REQUESTS: Final = {"rollouts": 100_000, "scaling": 50_000, "outages": 0}


def manifest() -> list[dict[str, Any]]:
    """The example, with as many replicas as we say."""
    text = (ROOT / "examples/02-sleepy/batchedapi.yaml").read_text()
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(text))
    spec = documents[-1]["spec"]
    spec["predictor"]["config"]["fixed_ms"] = FIXED_MS
    spec["autoscaling"] = {"mode": "External"}
    spec["replicas"] = REPLICAS
    spec["updateStrategy"] = {"maxUnavailable": 0}
    spec["compute"] = {"cpu": "150m"}  # they sleep, and all have to fit on one small node
    return documents


@contextlib.contextmanager
def deployed(networking: dict[str, Any] | None = None, *settings: str) -> Iterator[str]:
    """Address of the Service; operator and namespace are gone afterwards.

    Args:
        networking: Of the API.
        settings: Values of the chart.
    """
    cluster.install_chart(*settings)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = {"apiVersion": "v1", "kind": "Namespace"}
    cluster.apply({**space, "metadata": {"name": NAMESPACE, "labels": labels}}, NAMESPACE)
    try:
        for document in manifest():
            if networking and "predictor" in document.get("spec", {}):
                document["spec"]["networking"] = networking
            cluster.apply(document, NAMESPACE)
        until_there(REPLICAS, "")
        yield cluster.get("service", NAME, NAMESPACE)["spec"]["clusterIP"]
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true")
        cluster.uninstall_chart()


def pods() -> list[dict[str, Any]]:
    """All that are there, those that end included."""
    return cluster.get_all("pod", NAMESPACE, f"batchedapi.dev/api={NAME}")


def until_there(replicas: int, before: str) -> str:
    """Wait for so many ready pods and no other, of another revision than `before`; which it is."""

    def there() -> str | None:
        found = pods()
        revisions = {one["metadata"]["labels"]["batchedapi.dev/revision"] for one in found}
        ready = len(found) == replicas and all(map(cluster.is_ready, found))
        if not ready or len(revisions) != 1 or before in revisions:
            return None
        endpoints = cluster.get_all("endpointslice", NAMESPACE, f"batchedapi.dev/api={NAME}")
        known = [one for found in endpoints for one in found["endpoints"] or ()]
        return revisions.pop() if len(known) == replicas else None

    return cluster.wait_for(there, STEP_SECONDS, f"{replicas} ready pods and no other")


def roll(number: int, before: str) -> str:
    """Another revision; which it is, once only its pods are there."""
    env = [{"name": "ROUND", "value": str(number)}]
    cluster.patch_api(NAME, NAMESPACE, {"predictor": {"env": env}})
    return until_there(REPLICAS, before)


def scale(replicas: int) -> None:
    """Through /scale of the API, as an HPA would."""
    cluster.kubectl("scale", "bapi", NAME, "-n", NAMESPACE, f"--replicas={replicas}")
    until_there(replicas, "")


def evict(rng: random.Random) -> None:
    """One pod, by the Eviction API, as a drain of its node would; wait for another in its place."""
    name = rng.choice(pods())["metadata"]["name"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": NAMESPACE},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"

    def evicted() -> bool:  # a disruption budget says when
        command = ["kubectl", "create", "--raw", path, "-f", "-"]
        done = subprocess.run(
            command, input=json.dumps(body), capture_output=True, text=True, check=False
        )
        return done.returncode == 0

    cluster.wait_for(evicted, STEP_SECONDS, f"the eviction of {name}")
    until_there(REPLICAS, "")


def stop_apiserver(seconds: float) -> None:
    """Connections to it stay open, and nothing is answered."""
    pid = processes.recorded()[APISERVER]
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
    until_back()


def kill_apiserver(seconds: float) -> None:
    """Connections to it are refused; another is started afterwards."""
    processes.kill({processes.recorded()[APISERVER]})
    try:
        time.sleep(seconds)
    finally:
        processes.start(APISERVER, [str(tools.kubernetes()), *node.api_server()])
    until_back()


def until_back() -> None:
    """The node is Ready once more, and so are all replicas."""
    cluster.wait_for(local.ready, STEP_SECONDS, "the apiserver and a node that is Ready")
    until_there(REPLICAS, "")


def steps(
    mode: str, rounds: int, seed: int, outage_seconds: float
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Disturbances of the replicas or of the apiserver, one after the other."""
    rng = random.Random(seed)
    revision = ""

    def rolled(number: int) -> None:
        nonlocal revision
        revision = roll(number, revision)

    for number in range(1, rounds + 1):
        if mode == "rollouts":
            yield f"update {number}", lambda number=number: rolled(number)  # type: ignore[misc]
        elif mode == "outages":
            yield f"{number}: stopped", lambda: stop_apiserver(outage_seconds)
            yield f"{number}: killed", lambda: kill_apiserver(outage_seconds)
        else:
            yield f"{number}: to 1", lambda: scale(1)
            yield f"{number}: to {REPLICAS}", lambda: scale(REPLICAS)
            yield f"{number}: eviction", lambda: evict(rng)


async def measure(
    address: str,
    mode: str,
    todo: Iterator[tuple[str, Callable[[], None]]],
    *,
    rate: float | None,
    requests: int,
) -> dict[str, Any]:
    """All steps under load; goes on after them until enough was asked."""
    path = f"/{NAME}"
    capacity = await most(address, 80, path, CLIENTS * REPLICAS, 10.0)
    fewest = 1 if mode == "scaling" else REPLICAS
    rate = rate or SHARE * capacity * fewest / REPLICAS
    click.echo(f"{capacity:.0f} requests/s of {REPLICAS} replicas; {rate:.0f} are sent")
    load = ServiceLoad(address, 80, path, rate)
    found = await through(load, todo, requests)
    return {"mode": mode, "capacity": capacity, "rate": rate, **found}


def table_of(mode: str, found: dict[str, Any], outage_seconds: float) -> Table:
    """The disturbances, and what clients noticed."""
    what = {
        "rollouts": "rolling updates",
        "scaling": f"times {REPLICAS} -> 1 -> {REPLICAS}",
        "outages": f"times {outage_seconds:g} s without an apiserver, stopped and killed",
    }[mode]
    counts = found["counts"]
    ends = ("update", "to 1", "killed")
    done = sum(any(word in step["step"] for word in ends) for step in found["steps"])
    row = [
        str(done), f"{counts['sent']:,}", f"{counts['answered']:,}",
        str(sum(counts["lost"].values())), f"{found['rate']:.0f}", f"{counts['slowest']:.2f} s",
    ]  # fmt: skip
    head = [what, "requests", "answered", "lost", "requests/s", "slowest"]
    return Table(f"Requests to a Service under {what}", head, [row])


@click.command(help=help_of(__doc__))
@click.option("--mode", type=click.Choice(list(ROUNDS)), default="rollouts")
@click.option("--rounds", type=click.IntRange(1), help="[default: 20, 50 or 1]")
@click.option("--requests", type=click.IntRange(0), help="[default: 100,000, 50,000, any]")
@click.option("--rate", type=click.FloatRange(1), help="Requests a second, and not 80 %.")
@click.option("--seed", default=1, show_default=True)
@click.option("--seconds", default=600.0, show_default=True, help="Of an outage.")
@out_option
def main(
    *,
    mode: str,
    rounds: int | None,
    requests: int | None,
    rate: float | None,
    seed: int,
    seconds: float,
    out: Path | None,
) -> None:
    """See the module's docstring."""
    began = environment()
    todo = steps(mode, rounds or ROUNDS[mode], seed, seconds)
    asked = REQUESTS[mode] if requests is None else requests
    with deployed() as address:
        found = asyncio.run(measure(address, mode, todo, rate=rate, requests=asked))
    kept = [[str(n), why] for why, n in found["counts"]["lost"].items()]
    lost = sum(found["counts"]["lost"].values())
    table = table_of(mode, found, seconds)
    reasons = Table("Lost", ["requests", "of which"], kept)
    note = (
        f"A batch takes {FIXED_MS} ms and 0.2 ms a row, up to 8 rows: {REPLICAS} replicas serve"
        f" {found['capacity']:.0f} requests/s here. Half of the requests have a new connection"
        " each, half go over kept ones."
    )
    tables = [table, *([reasons] if lost else [])]
    report(f"rolling_{mode}", began, tables, notes=[note], measured=found, out=out)
    if lost or "broken_off" in found:
        sys.exit(1)


if __name__ == "__main__":
    main()
