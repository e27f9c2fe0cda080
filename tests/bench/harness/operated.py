"""BatchedAPIs in a control plane without nodes: the operator beside pods that only have pages."""

import asyncio
import hashlib
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml
from aiohttp import web
from kubernetes.aio import client, config

from batchedapi_core import contract
from batchedapi_operator.cluster import BATCHED_APIS, DEPLOYMENTS, PODS, REPLICA_SETS, JsonObject
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.kube import Kube
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.page import scaling_page
from batchedapi_serving.metrics.recorder import MethodRecorder
from ports import free_port

from .control_plane import ADMIN, OPERATOR, ControlPlane, Identity

CRD: Final = Path(__file__).resolve().parents[3] / "crds/batchedapis.yaml"
NAMESPACE: Final = "bench"
PATH_LOAD: Final = "/load"
SWING_SECONDS: Final = 300.0
MOST_PODS: Final = 250
"""Of an API, as there are addresses for them."""
_COUNTER: Final = re.compile(r"_(total|sum|count|bucket)(\{|$)")
_MERGE: Final = "application/merge-patch+json"


class Pages:
    """Pages of pods: 240 rows a second each, a fifth more or less as minutes go by."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "metrics"
            slots.create_memory(path)
            memory = slots.map_memory(path)
        memory[slots.START_TIME], memory[slots.MODEL_MEMORY] = time.time() - 3600.0, 3e8
        recorder = MethodRecorder(memory, slots.method_block(memory, 0))
        recorder.sized(32)
        for number in range(30):  # of one second
            rows = 4 + number % 8
            recorder.received(rows)
            recorder.dispatched("interval" if rows < 11 else "full", [0.004] * rows)
            recorder.executed(rows, rows, rows, 0.008 + 0.0002 * rows)
            recorder.answered(200, [0.014] * rows)
        recorder.gauges(lanes=1, queue_rows=2, in_flight=3, max_batch_size=32, batch_interval=0.005)
        text = scaling_page(memory, [("predict", 32)]).decode()
        self._lines = [line.rpartition(" ") for line in text.splitlines()]
        self._began = self._changed = time.monotonic()
        self._before, self.load, self._stopped = 3600.0, 1.0, math.inf

    def at(self, address: str, now: float) -> str:
        """The page of the pod at that address."""
        now = min(now, self._stopped)
        phase = int.from_bytes(hashlib.sha256(address.encode()).digest()[:2]) / 10_000
        turn = 2 * math.pi / SWING_SECONDS
        swing = 0.2 / turn * (math.cos(phase) - math.cos(turn * (now - self._began) + phase))
        seconds = self._before + self.load * (now - self._changed) + swing
        return "".join(
            f"{before} {float(value) * seconds if _COUNTER.search(before) else value}\n"
            for before, _, value in self._lines
        )

    def change(self, load: float, now: float) -> None:
        """So many times as many rows from now on; with 0 nothing changes any more, for good."""
        self._before += self.load * (now - self._changed)
        self.load, self._changed = load, now
        self._stopped = math.inf if load else now


async def answer_as_pods(port: int) -> None:
    """Until killed."""
    pages = Pages()

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=pages.at(request.host, time.monotonic()))

    async def load(request: web.Request) -> web.Response:
        pages.change(float(request.query["times"]), time.monotonic())
        return web.Response()

    app = web.Application()
    app.router.add_get(contract.PATH_METRICS, metrics)
    app.router.add_get(PATH_LOAD, load)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port, backlog=4096).start()
    await asyncio.Event().wait()


def operate(pods_port: int, admin_port: int, decisions_port: int, namespace: str) -> None:
    """The operator, with pods that answer on a port of ours."""
    contract.ADMIN_PORT = pods_port  # type: ignore[misc] # 8081 may be somebody's here
    from batchedapi_operator import cluster, logs, process  # noqa: PLC0415 - they read the port

    settings = process.Settings(
        "serving:bench",
        cluster.Namespaces((namespace,)),
        log_format=logs.LogFormat.JSON,
        admin_host="127.0.0.1",
        admin_port=admin_port,
        decisions_port=decisions_port,
        lease_name=f"operator-of-{namespace}",
    )
    logs.set_up(settings.log_level, settings.log_format)
    asyncio.run(process.run(settings))


def main(arguments: list[str]) -> None:
    """`pods PORT` or `operator PORT PORT PORT NAMESPACE`: the other processes."""
    if arguments[0] == "pods":
        asyncio.run(answer_as_pods(int(arguments[1])))
    else:
        pods_port, admin_port, decisions_port = map(int, arguments[1:4])
        operate(pods_port, admin_port, decisions_port, arguments[4])


@dataclass
class Rig:
    """The control plane, the pods' process and the operator's, which sees one namespace."""

    plane: ControlPlane
    kube: Kube
    pods_port: int
    log: Path
    namespace: str = NAMESPACE
    identity: Identity = OPERATOR
    """Requests of `OPERATOR` and `STANDBY` alone are audited."""
    scheduled: int = MOST_PODS
    """So many pods of an API find a node, and are ready at once."""
    preload: Mapping[str, str] = field(default_factory=dict)
    """Environment of the operator beside the usual one."""
    operator: "subprocess.Popen[bytes] | None" = None
    admin_port: int = 0
    _made: dict[str, int] = field(default_factory=dict)
    """Pods by ReplicaSet."""

    def start_operator(self) -> None:
        """As a process of its own; liveness is asked by us."""
        self.admin_port = free_port()
        config = {"KUBECONFIG": str(self.plane.kubeconfig(self.identity))}
        environment = {**os.environ, **config, **self.preload}
        ports = map(str, (self.pods_port, self.admin_port, free_port()))
        words = ["operator", *ports, self.namespace]
        command = [sys.executable, "-m", "harness.operated", *words]
        with self.log.open("ab") as stream:
            self.operator = subprocess.Popen(
                command, env=environment, stderr=stream, cwd=Path(__file__).parents[1]
            )

    def stop_operator(self) -> None:
        """As a rollout would."""
        if self.operator is not None:
            self.operator.terminate()
            self.operator.wait(30)
            self.operator = None

    def rss(self) -> int:
        """Bytes that the operator has."""
        assert self.operator is not None
        pages = Path(f"/proc/{self.operator.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    async def probe(self, path: str) -> int:
        """Status of the operator's admin port; 0 without an answer."""
        url = f"http://127.0.0.1:{self.admin_port}{path}"
        try:
            timeout = aiohttp.ClientTimeout(total=5)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as found:
                return found.status
        except (aiohttp.ClientError, TimeoutError):
            return 0

    async def leads(self) -> bool:
        """Whether this operator's gauge says so."""
        url = f"http://127.0.0.1:{self.admin_port}{contract.PATH_METRICS}"
        try:
            timeout = aiohttp.ClientTimeout(total=1)
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as found:
                return f"\n{contract.OPERATOR_LEADER} 1.0" in await found.text()
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def change_load(self, times: float) -> None:
        """Change the load of all pods."""
        url = f"http://127.0.0.1:{self.pods_port}{PATH_LOAD}?times={times}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            answer.raise_for_status()

    async def create_apis(self, numbers: range, spec: JsonObject) -> None:
        """`api-0` and so on."""
        for name in map(api_name, numbers):
            await self.post(BATCHED_APIS, {"metadata": {"name": name}, "spec": spec})

    async def post(self, resource: Any, body: JsonObject) -> JsonObject:
        """As a user's tool would."""
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return await self.kube._request("POST", resource.path(self.namespace), {}, full)

    async def merge(self, resource: Any, name: str, body: JsonObject, sub: str = "") -> None:
        """A merge patch."""
        path = resource.path(self.namespace, name, sub)
        await self.kube._request("PATCH", path, {}, body, content_type=_MERGE)

    async def list(self, resource: Any) -> list[JsonObject]:
        """All of one kind."""
        return await self.kube.find(resource, self.namespace)

    @asynccontextmanager
    async def controlled(self) -> AsyncIterator[None]:
        """The namespace, with controllers; the operator is stopped at the end."""
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        await self.kube._request("POST", "/api/v1/namespaces", {}, space)
        controllers = asyncio.create_task(self.control())
        try:
            yield
        finally:
            controllers.cancel()
            self.stop_operator()

    async def control(self) -> None:
        """Be the controllers: pods that are ready at once for each Deployment, until cancelled."""
        settled: dict[str, tuple[str, int]] = {}
        while True:
            with suppress(ApplyError):
                for body in await self.list(DEPLOYMENTS):
                    metadata = body["metadata"]
                    now = (metadata["uid"], metadata["generation"])
                    if settled.get(metadata["name"]) != now:
                        await self._settle(body)
                        settled[metadata["name"]] = now
            await asyncio.sleep(1.0)

    async def _settle(self, deployment: JsonObject) -> None:
        metadata, spec = deployment["metadata"], deployment["spec"]
        name, replicas = metadata["name"], spec["replicas"]
        set_name = f"{name}-{metadata['uid'][:8]}"
        labels = spec["template"]["metadata"]["labels"]
        owner = {"apiVersion": "apps/v1", "controller": True}
        sets = {one["metadata"]["name"]: one for one in await self.list(REPLICA_SETS)}
        found = sets.get(set_name) or await self.post(
            REPLICA_SETS,
            {
                "metadata": {
                    "name": set_name,
                    "labels": labels,
                    "ownerReferences": [
                        {**owner, "kind": "Deployment", "name": name, "uid": metadata["uid"]}
                    ],
                },
                "spec": {"selector": {"matchLabels": labels}, "template": spec["template"]},
            },
        )
        of_set = {
            **owner, "kind": "ReplicaSet", "name": set_name, "uid": found["metadata"]["uid"],
        }  # fmt: skip
        for number in range(replicas):
            with suppress(ApplyError):  # it is there
                await self._create_pod(set_name, number, labels, of_set, name)
        for number in range(replicas, self._made.get(set_name, 0)):
            with suppress(ApplyError):  # there is none
                body = {"gracePeriodSeconds": 0}
                path = PODS.path(self.namespace, f"{set_name}-{number}")
                await self.kube._request("DELETE", path, {}, body)
        self._made[set_name] = replicas
        rolled = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
        status = {
            "replicas": replicas,
            "updatedReplicas": replicas,
            "readyReplicas": min(replicas, self.scheduled),
            "observedGeneration": metadata["generation"],
            "conditions": [rolled],
        }
        await self.merge(DEPLOYMENTS, name, {"status": status}, "status")

    async def _create_pod(
        self, set_name: str, number: int, labels: JsonObject, owner: JsonObject, api: str
    ) -> None:
        name = f"{set_name}-{number}"
        metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
        spec = {"containers": [{"name": "serving", "image": "serving:bench"}]}
        await self.post(PODS, {"metadata": metadata, "spec": spec})
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if number < self.scheduled:
            ip = address(api, number)
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
            addresses = {"podIP": ip, "podIPs": [{"ip": ip}]}
            status = {"phase": "Running", "conditions": [ready], **addresses}
        else:
            words = {"reason": "Unschedulable", "message": "0/3 nodes are available"}
            waits = {"type": "PodScheduled", "status": "False", "lastTransitionTime": now, **words}
            status = {"phase": "Pending", "conditions": [waits]}
        await self.merge(PODS, name, {"status": status}, "status")


def api_name(number: int) -> str:
    """The name of the API with that number."""
    return f"api-{number}"


def address(name: str, replica: int) -> str:
    """Address of a pod of an API, on this machine."""
    number = int(name.rpartition("-")[2])
    return f"127.{60 + number // 250}.{1 + number % 250}.{1 + replica}"


@asynccontextmanager
async def rig(plane: ControlPlane) -> AsyncIterator[Rig]:
    """The CRD, a namespace, and pods' pages."""
    await config.load_kube_config(str(plane.kubeconfig(ADMIN)))  # type: ignore[no-untyped-call]
    port, here = free_port(), Path(__file__).parents[1]
    words = [sys.executable, "-m", "harness.operated", "pods", str(port)]
    pods = await asyncio.create_subprocess_exec(*words, cwd=here)
    try:
        async with client.ApiClient() as api:
            kube = Kube(api)
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            await kube._request("POST", path, {}, yaml.safe_load(CRD.read_text()))
            await asyncio.sleep(3.0)  # until the apiserver serves the new kind
            made = Rig(plane, kube, port, plane.folder / "operator.log")
            async with made.controlled():
                yield made
    finally:
        pods.kill()
        await pods.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
