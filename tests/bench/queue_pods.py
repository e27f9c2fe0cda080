"""An API with one queue for all replicas, in a cluster: its pods are killed, drained and rolled.

    python tests/bench/queue_pods.py --mode workers   # a worker is killed every 10 s
    python tests/bench/queue_pods.py --mode web       # web pods are drained, rolled and killed
    python tests/bench/queue_pods.py --mode zero      # 100 times to zero and back
    python tests/bench/queue_pods.py --mode moves     # it gets the queue and loses it, 10 times

Wants the local cluster of KUBECONFIG, with its images. Real pods behind a real kube-proxy, and a
Redis of Debian's package. Half of the requests have a new connection each, half go over a pool of
kept ones. Any answer but 200, and any connection that breaks, is a loss; only the connections of a
web pod that was killed may break.
"""

import asyncio
import contextlib
import json
import math
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import yaml
from harness.report import ROOT, Table, environment, help_of, out_option, report
from harness.service_load import ServiceLoad, most, through
from tests.cluster.devcluster import images, local

import cluster

NAMESPACE: Final = "queue"
NAME: Final = "sleepy"
WORKERS: Final = 3
WEB: Final = 2
WITH_QUEUE: Final = {"worker": WORKERS, "web": WEB, "": 0}
"""Pods by role."""
WITHOUT_QUEUE: Final = {"worker": 0, "web": 0, "": WORKERS}
SHARE: Final = 0.5
"""Of what the workers were measured to serve: with one of three away the others can keep up."""
FIXED_MS: Final = 40
"""Of a batch: the workers are to be what limits, not two cores."""
KILL_SECONDS: Final = 10.0
STEP_SECONDS: Final = 240.0
"""The longest that pods may take to be replaced."""
REQUESTS: Final = {"workers": 100_000, "web": 50_000, "moves": 50_000}
ROUNDS: Final = {"workers": 30, "web": 10, "zero": 100, "moves": 10}
BROKEN: Final = ("closed", "reset", "cannot connect")
"""What the client of a web pod sees that was killed."""


def redis() -> str:
    """Address of the Redis of 09-own-app, which is made."""
    text = (ROOT / "examples/09-own-app/batchedapi.yaml").read_text()
    for document in yaml.safe_load_all(text):
        if document["metadata"]["name"] == "redis":
            cluster.apply(document, NAMESPACE)
    return redis_address()


def redis_address() -> str:
    """Of its Service; the local cluster has no DNS."""
    address: str = cluster.get("service", "redis", NAMESPACE)["spec"]["clusterIP"]
    return address


def manifest(mode: str, address: str) -> list[dict[str, Any]]:
    """02-sleepy with a queue on that Redis."""
    text = (ROOT / "examples/02-sleepy/batchedapi.yaml").read_text()
    source, api = yaml.safe_load_all(text)
    spec = api["spec"]
    spec["predictor"]["config"]["fixed_ms"] = FIXED_MS
    if mode != "moves":
        spec["serverSideBatching"]["queue"] = {"redis": {"host": address}}
    spec["compute"] = {"cpu": "50m"}  # they sleep, and all have to fit on one small node
    if mode == "zero":
        spec["autoscaling"] = {"minReplicas": 0, "maxReplicas": 2, "idleTimeout": "2s"}
    else:
        spec |= {"autoscaling": {"mode": "External"}, "replicas": WORKERS}
    return [source, api]


@contextlib.contextmanager
def deployed(mode: str) -> Iterator[str]:
    """Address of the Service; operator and namespace are gone afterwards."""
    local.load(images.redis_archive())
    cluster.install_chart()
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = {"apiVersion": "v1", "kind": "Namespace"}
    cluster.apply({**space, "metadata": {"name": NAMESPACE, "labels": labels}}, NAMESPACE)
    try:
        for document in manifest(mode, redis()):
            cluster.apply(document, NAMESPACE)
        cluster.kubectl(
            "wait", "-n", NAMESPACE, "--for=condition=Ready", f"bapi/{NAME}", "--timeout=120s"
        )
        yield cluster.get("service", NAME, NAMESPACE)["spec"]["clusterIP"]
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true")
        cluster.uninstall_chart()


def pods(role: str) -> list[dict[str, Any]]:
    """All of a role that are there."""
    return cluster.pods_of(NAME, NAMESPACE, role)


def until_there(*gone: str, queue: bool = True) -> set[str]:
    """Wait until all pods are there and ready, and no other, nor `gone`; their revisions."""
    wanted = WITH_QUEUE if queue else WITHOUT_QUEUE

    def there() -> set[str] | None:
        found = {role: pods(role) for role in wanted}
        every = [one for those in found.values() for one in those]
        whole = wanted == {role: len(those) for role, those in found.items()}
        names = {one["metadata"]["name"] for one in every}
        if not whole or names & set(gone) or not all(map(cluster.is_ready, every)):
            return None
        return {one["metadata"]["labels"]["batchedapi.dev/revision"] for one in every}

    return cluster.wait_for(there, STEP_SECONDS, f"pods by role, all ready: {wanted}")


def drain(rng: random.Random) -> None:
    """Delete a web pod, as a drain of its node would; wait for another in its place."""
    name = rng.choice(pods("web"))["metadata"]["name"]
    cluster.kubectl("delete", "pod", name, "-n", NAMESPACE, "--wait=false")
    until_there(name)


def kill(role: str, rng: random.Random) -> None:
    """SIGKILL to all of one pod."""
    cluster.sigkill(rng.choice(pods(role)), STEP_SECONDS)


def roll(number: int) -> None:
    """Another revision of web pods and workers."""
    before = until_there()
    env = [{"name": "ROUND", "value": str(number)}]
    cluster.patch_api(NAME, NAMESPACE, {"predictor": {"env": env}})
    cluster.wait_for(lambda: not until_there() & before, STEP_SECONDS, "another revision")


def move(*, queue: bool) -> None:
    """Give the API a queue, or take it away; wait until what it had has ended."""
    wanted = {"redis": {"host": redis_address()}} if queue else None
    cluster.patch_api(NAME, NAMESPACE, {"serverSideBatching": {"queue": wanted}})
    until_there(queue=queue)


def kill_worker(rng: random.Random) -> None:
    """One every 10 s, or when the last runs again."""
    end = time.monotonic() + KILL_SECONDS
    kill("worker", rng)
    time.sleep(max(0.0, end - time.monotonic()))


def steps(mode: str, rounds: int, seed: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """What is done to the pods, one after the other."""
    rng = random.Random(seed)
    for number in range(1, rounds + 1):
        if mode == "workers":
            yield "worker killed", lambda: kill_worker(rng)
        elif mode == "moves":
            yield "given a queue", lambda: move(queue=True)
            yield "its queue taken away", lambda: move(queue=False)
        else:
            yield "web pod drained", lambda: drain(rng)
            yield "rolled", lambda number=number: roll(number)  # type: ignore[misc]
            yield "web pod killed", lambda: kill("web", rng)


async def under_load(
    address: str, mode: str, rounds: int, seed: int, requests: int
) -> dict[str, Any]:
    """All steps, and then until enough was asked."""
    path = f"/{NAME}"
    await asyncio.to_thread(until_there, queue=mode != "moves")
    capacity = await most(address, 80, path, 16 * WORKERS, 10.0)
    rate = SHARE * capacity
    click.echo(f"{capacity:.0f} requests/s of {WORKERS} workers; {rate:.0f} are sent")
    load = ServiceLoad(address, 80, path, rate)
    found = await through(load, steps(mode, rounds, seed), requests)
    return {"mode": mode, "capacity": capacity, "rate": rate, **found}


class Starts:
    """When a worker's pod was seen to exist, and to be ready; from a watch of kubectl's."""

    def __init__(self) -> None:
        selector = f"batchedapi.dev/api={NAME},batchedapi.dev/role=worker"
        self.created: dict[str, float] = {}
        self.ready: dict[str, float] = {}
        self._process = subprocess.Popen(
            ["kubectl", "get", "pods", "-n", NAMESPACE, "-l", selector, "-w", "-o", "json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        text, decoder = "", json.JSONDecoder()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text += line
            if line.rstrip() != "}":
                continue
            pod, now = decoder.decode(text), time.monotonic()
            text, name = "", pod["metadata"]["name"]
            self.created.setdefault(name, now)
            if cluster.is_ready(pod):
                self.ready.setdefault(name, now)

    def beyond(self, count: int) -> bool:
        """Whether more than so many pods were ready since it was begun."""
        return len(self.ready) > count

    def last_seconds(self) -> float:
        """Of the pod that was ready last, from when it was there."""
        name = max(self.ready, key=self.ready.__getitem__)
        return self.ready[name] - self.created[name]

    def stop(self) -> None:
        """End the watch."""
        self._process.terminate()
        self._process.wait()
        self._thread.join()


def to_zero_and_back(rounds: int) -> dict[str, Any]:
    """Each time one request when no worker is there."""
    found: dict[str, Any] = {"mode": "zero", "answers": [], "starts": [], "lost": []}
    url, starts = cluster.service_url(NAME, NAMESPACE), Starts()
    try:
        for number in range(rounds):
            cluster.wait_for(lambda: not pods("worker"), STEP_SECONDS, "no worker")
            before, began = len(starts.ready), time.monotonic()
            status, answer = cluster.post(url, {"id": number}, timeout=60.0)
            found["answers"].append(time.monotonic() - began)
            if (status, answer) != (200, {"id": number}):
                found["lost"].append(f"{status} {answer}")
            cluster.wait_for(lambda: starts.beyond(before) or not pods("worker"), 60, "its start")  # noqa: B023 - asked at once
            start = starts.last_seconds() if starts.beyond(before) else None  # it went before that
            found["starts"].append(start)
            click.echo(f"{number}: {found['answers'][-1]:.2f} s, start {start or math.nan:.2f} s")
    except AssertionError as error:
        found["broken_off"] = str(error)
        click.echo(f"broken off: {error}")
    finally:
        starts.stop()
    return found


def table_of_load(found: dict[str, Any]) -> tuple[list[Table], bool]:
    """By kind of step; whether all is as it should be."""
    kinds = list(dict.fromkeys(step["step"] for step in found["steps"]))
    rows, good = [], "broken_off" not in found
    for kind in kinds:
        those = [step for step in found["steps"] if step["step"] == kind]
        lost = sum(sum(step["lost"].values()) for step in those)
        allowed = all(
            kind == "web pod killed" and any(word in reason for word in BROKEN)
            for step in those
            for reason in step["lost"]
        )
        good &= allowed
        sent = sum(step["sent"] for step in those)
        longest = max(step["seconds"] for step in those)
        rows.append([kind, str(len(those)), f"{sent:,}", str(lost), f"{longest:.0f}"])
    counts = found["counts"]
    good &= sum(counts["lost"].values()) == sum(int(row[3]) for row in rows)
    head = ["what", "times", "requests meanwhile", "lost", "longest s until all were there"]
    reasons = [[str(n), why] for why, n in counts["lost"].items()]
    whole = [
        f"{counts['sent']:,}", f"{counts['answered']:,}", f"{found['rate']:.0f}",
        f"{counts['slowest']:.2f} s",
    ]  # fmt: skip
    tables = [
        Table(f"{WORKERS} workers and {WEB} web pods on one Redis", head, rows),
        Table("In all", ["requests", "answered", "requests/s", "slowest"], [whole]),
        *([Table("Lost", ["requests", "of which"], reasons)] if reasons else []),
    ]
    return tables, good


def table_of_zero(found: dict[str, Any]) -> tuple[list[Table], bool]:
    """How long the first row waited; whether all is as it should be."""
    pairs = zip(found["answers"], found["starts"], strict=False)
    beyond = [answer - start for answer, start in pairs if start is not None]
    row = [
        str(len(found["answers"])), str(len(found["lost"])),
        f"{statistics.median(found['answers']):.2f}", f"{max(found['answers']):.2f}",
        f"{statistics.median(start for start in found['starts'] if start is not None):.2f}",
        f"{statistics.median(beyond):.2f}", f"{max(beyond):.2f}",
    ]  # fmt: skip
    head = [
        "times", "lost", "median s to the answer", "most", "median s of a pod's start",
        "median s beyond the start", "most",
    ]  # fmt: skip
    return [Table("From no worker to the first answer", head, [row])], not (
        found["lost"] or "broken_off" in found
    )


@click.command(help=help_of(__doc__))
@click.option("--mode", type=click.Choice(list(ROUNDS)), default="workers")
@click.option("--rounds", type=click.IntRange(1), help="[default: 30 kills, 10 of each, 100, 10]")
@click.option("--requests", type=click.IntRange(0), help="[default: 100,000 or 50,000]")
@click.option("--seed", default=1, show_default=True)
@out_option
def main(
    *, mode: str, rounds: int | None, requests: int | None, seed: int, out: Path | None
) -> None:
    """See the module's docstring."""
    began = environment()
    rounds = rounds or ROUNDS[mode]
    with deployed(mode) as address:
        if mode == "zero":
            found = to_zero_and_back(rounds)
            tables, good = table_of_zero(found)
            notes = ["The start of a pod is from when it was seen to exist until it was ready."]
        else:
            asked = REQUESTS[mode] if requests is None else requests
            found = asyncio.run(under_load(address, mode, rounds, seed, asked))
            tables, good = table_of_load(found)
            note = (
                f"A batch takes {FIXED_MS} ms and 0.2 ms a row, up to 8 rows: {WORKERS} workers"
                f" serve {found['capacity']:.0f} requests/s here. Killed is with SIGKILL; half of"
                " the requests have a new connection each, half go over kept ones."
            )
            notes = [note]
    report(f"queue_pods_{mode}", began, tables, notes=notes, measured=found, out=out)
    if not good:
        sys.exit(1)


if __name__ == "__main__":
    main()
