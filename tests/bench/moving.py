"""Whether pooled connections reach the pods that a scale-up adds, through a Service of a cluster.

    python tests/bench/moving.py    # about 8 minutes; wants the cluster that KUBECONFIG names

Three pods, 64 clients that keep their connections, `maxConnectionAge: 20s`. The pods become six. A
pod's share is the mean number of connections that it has, looked at each second for 20 ages, from
one age after the new ones are ready on. Every client checks every answer.
"""

import asyncio
import collections
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from harness.http_answers import read_answer, request
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core import contract

_NAMESPACE: Final = "moving"
_IMAGE: Final = "batchedapi-serving:dev"
_TOLERANCE: Final = 0.2
_READY_SECONDS: Final = 180
_CODE: Final = """
import os

class Where:
    def __init__(self, config, context):
        self.here = os.uname().nodename

    def predict(self, payload, query_params, headers):
        return [self.here, payload]
"""


class Clients:
    """Closed loops with a pause, each over one connection at a time.

    Attributes:
        pods: Where the connection of each client leads.
        answers: Right ones.
        failures: What else came, by its words.
        moves: Connections that ended with an answer.
    """

    def __init__(self, address: str, count: int, pause: float) -> None:
        self.pods: dict[int, str] = {}
        self.answers = 0
        self.failures: collections.Counter[str] = collections.Counter()
        self.moves = 0
        self._address = address
        self._pause = pause
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(count)]

    async def stop(self) -> None:
        """Ask nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, number: int) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(self._address, 80)
                with contextlib.closing(writer):
                    await self._ask(number, reader, writer)
                self.moves += 1
            except (OSError, EOFError, ValueError) as error:
                self.failures[f"{type(error).__name__}: {error}"] += 1
                await asyncio.sleep(self._pause)

    async def _ask(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Until the server says that the connection ends."""
        asked = number
        while True:
            asked += 1000
            writer.write(request(contract.PATH_PREDICT, contract.JSON, b"%d" % asked))
            data = b""
            while (answer := read_answer(data)) is None:
                async with asyncio.timeout(30):
                    piece = await reader.read(65536)
                if not piece:
                    raise EOFError("closed without an answer")
                data += piece
            pod, echoed = json.loads(answer.body)
            if answer.status != 200 or echoed != asked:
                raise ValueError(f"{answer.status} {answer.body!r}")
            self.pods[number] = pod
            self.answers += 1
            if answer.closes:
                return
            await asyncio.sleep(self._pause)


async def measure(
    address: str, connections: int, age: float, ages: int, pause: float
) -> dict[str, Any]:
    """Scale up under the clients, then look at where their connections lead."""
    clients = Clients(address, connections, pause)
    await asyncio.sleep(age)
    old = set(clients.pods.values())
    await asyncio.to_thread(_scale, 6)
    await asyncio.sleep(age)
    looks: list[collections.Counter[str]] = []
    end = time.monotonic() + ages * age
    while time.monotonic() < end:
        await asyncio.sleep(1)
        looks.append(collections.Counter(clients.pods.values()))
    await clients.stop()
    pods = sorted({pod for look in looks for pod in look})
    return {
        "connections": connections,
        "age": age,
        "answers": clients.answers,
        "moves": clients.moves,
        "failures": dict(clients.failures),
        "old": sorted(old),
        "means": {pod: statistics.mean(look[pod] for look in looks) for pod in pods},
        "looks": [dict(look) for look in looks],
    }


def _scale(replicas: int) -> None:
    _kubectl("scale", "deployment", "where", f"--replicas={replicas}")
    _kubectl("rollout", "status", "deployment/where", f"--timeout={_READY_SECONDS}s")


@contextlib.contextmanager
def deployed(age: float) -> Iterator[str]:
    """Address of a Service over three ready pods; all of it is gone afterwards."""
    gone = ("delete", "namespace", _NAMESPACE, "--ignore-not-found", "--wait")
    _kubectl(*gone)
    try:
        _kubectl("apply", "-f", "-", stdin=json.dumps(_objects(age)))
        _kubectl("rollout", "status", "deployment/where", f"--timeout={_READY_SECONDS}s")
        yield _kubectl("get", "service", "where", "-o", "jsonpath={.spec.clusterIP}").strip()
    finally:
        _kubectl(*gone)


def _objects(age: float) -> dict[str, Any]:
    manifest = {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": "where"},
        "spec": {
            "predictor": {"path": "model:Where"},
            "networking": {"maxConnectionAge": f"{age:g}s"},
        },
    }
    folder = contract.MANIFEST_DIRECTORY
    container = {
        "name": "serving",
        "image": _IMAGE,
        "args": ["serve", "-f", f"{folder}/{contract.MANIFEST_FILE}", "--host", "0.0.0.0"],
        "resources": {"requests": {"cpu": "20m"}},
        "readinessProbe": {
            "httpGet": {"path": contract.PATH_READY, "port": contract.ADMIN_PORT},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
        },
        "volumeMounts": [
            {"name": "manifest", "mountPath": folder},
            {"name": "scratch", "mountPath": "/tmp"},  # noqa: S108 - inside the pod
        ],
    }
    labels = {"app": "where"}
    pod = {
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [
            {"name": "manifest", "configMap": {"name": "manifest"}},
            {"name": "scratch", "emptyDir": {}},
        ],
    }
    files = {contract.MANIFEST_FILE: json.dumps(manifest), "model.py": _CODE}
    service_ports = [{"port": 80, "targetPort": contract.HTTP_PORT}]
    items: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "manifest"}, "data": files},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "where"},
            "spec": {"selector": labels, "ports": service_ports},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "where"},
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _kubectl(*arguments: str, stdin: str | None = None) -> str:
    command = ["kubectl", "-n", _NAMESPACE, *arguments]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def table(found: dict[str, Any]) -> Table:
    """One row a pod."""
    share = found["connections"] / len(found["means"])
    return Table(
        "3 -> 6 replicas under pooled connections",
        ["pod", "was there before", "connections, mean", "of its share"],
        [
            [
                f"{number}",
                "yes" if pod in found["old"] else "no",
                f"{mean:.2f}",
                f"{mean / share:.2f}",
            ]
            for number, (pod, mean) in enumerate(
                sorted(found["means"].items(), key=lambda item: item[0] not in found["old"]), 1
            )
        ],
    )


@click.command(help=help_of(__doc__))
@click.option("--connections", type=click.IntRange(1, 500), default=64, show_default=True)
@click.option("--age", type=click.FloatRange(1, 300), default=20, show_default=True)
@click.option("--ages", type=click.IntRange(1, 100), default=20, show_default=True)
@click.option("--pause", type=click.FloatRange(0.01, 10), default=0.25, show_default=True,
              help="Seconds between an answer and the next request.")  # fmt: skip
@out_option
def main(*, connections: int, age: float, ages: int, pause: float, out: Path | None) -> None:
    """See the module's docstring."""
    began = environment()
    with deployed(age) as address:
        found = asyncio.run(measure(address, connections, age, ages, pause))
    note = (
        f"{connections} clients, each with one connection and {pause:g} s of pause between answer"
        f" and request; maxConnectionAge {age:g} s, {ages} ages. {found['answers']:,} answers,"
        f" {found['moves']:,} connections that ended with an answer,"
        f" {sum(found['failures'].values())} lost or wrong."
    )
    report("moving", began, [table(found)], notes=[note], measured=found, out=out)
    share = connections / 6
    new = [mean for pod, mean in found["means"].items() if pod not in found["old"]]
    good = len(new) == 3 and all(abs(mean / share - 1) <= _TOLERANCE for mean in new)
    if found["failures"] or not good:
        sys.exit(f"a new pod has not its share, or something was lost: {found['failures']}")


if __name__ == "__main__":
    main()
