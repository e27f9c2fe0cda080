"""One BatchedAPI whose Deployment, pods and pages are what a test says, in a real apiserver."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    JsonObject,
    ObjectKey,
    Resource,
)
from batchedapi_operator.errors import ApplyError
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.page import scaling_page
from batchedapi_serving.metrics.recorder import MethodRecorder

from .operated import Rig, address

TICK_SECONDS: Final = 0.25
PATIENCE: Final = 150.0
_START: Final = """
import sys
from batchedapi_core import contract
contract.TERMINATION_LOG = sys.argv.pop(1)
from batchedapi_serving.cli import main
main()
"""


class Page:
    """The page of one pod: a load that goes on for ever, changed as a test likes."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "metrics"
            slots.create_memory(path)
            self.memory = slots.map_memory(path)
        self.memory[slots.START_TIME], self.memory[slots.MODEL_MEMORY] = time.time() - 60.0, 1e8
        self.recorder = MethodRecorder(self.memory, slots.method_block(self.memory, 0))
        self.recorder.sized(32)
        self.answers = True
        self.batches, self.rows = 4, 4  # of each tick, of each batch
        self.queue_wait, self.batch_seconds = 0.002, 0.01
        self.shed = 0.0
        """Rows refused for lateness, for each that is answered."""
        self.max_batch_size = 32

    def tick(self) -> None:
        """A quarter of a second of its load."""
        recorder, rows, batches = self.recorder, self.rows, self.batches
        for _ in range(batches):
            recorder.received(rows)
            recorder.dispatched("early", [self.queue_wait] * rows)
            recorder.executed(rows, rows, rows, self.batch_seconds)
            recorder.answered(200, [self.queue_wait + self.batch_seconds + 0.001] * rows)
        refused = round(self.shed * rows * batches)
        if refused:
            recorder.received(refused)
            recorder.rejected("latency", refused)
        recorder.gauges(
            lanes=1, queue_rows=0, in_flight=0, max_batch_size=self.max_batch_size,
            batch_interval=0.005,
        )  # fmt: skip

    def text(self) -> str:
        """As the pod would answer."""
        return scaling_page(self.memory, [("predict", 32)]).decode()


class Pages:
    """Pages of all pods, by address."""

    def __init__(self) -> None:
        self.of: dict[str, Page] = {}

    async def serve(self, port: int) -> None:
        """Until cancelled."""
        app = web.Application()
        app.router.add_get(contract.PATH_METRICS, self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", port).start()
        try:
            while True:
                await asyncio.sleep(TICK_SECONDS)
                for page in self.of.values():
                    page.tick()
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        page = self.of.get(request.host.partition(":")[0])
        if page is None or not page.answers:
            return web.Response(status=503)
        return web.Response(text=page.text())


@dataclass
class Api:
    """One API, and the controllers and kubelets of its children, which are here."""

    rig: Rig
    pages: Pages
    name: str
    spec: JsonObject = field(default_factory=dict)
    pods: list[str] = field(default_factory=list)
    pod_spec: JsonObject = field(default_factory=dict)
    """Further fields of its pods, set by webhooks and schedulers."""

    async def create(self, **spec: Any) -> None:
        """The BatchedAPI."""
        full = {"predictor": {"path": "model:Model"}, **self.spec, **spec}
        await self.rig.post(BATCHED_APIS, {"metadata": {"name": self.name}, "spec": full})

    async def get(self, resource: Resource = BATCHED_APIS, name: str = "") -> JsonObject | None:
        """The object as it is."""
        return await self.rig.kube.get(resource, ObjectKey(self.rig.namespace, name or self.name))

    async def edit(self, **spec: Any) -> None:
        """Change the spec, as the API's user would."""
        await self.rig.merge(BATCHED_APIS, self.name, {"spec": spec})

    async def delete(self, resource: Resource, name: str = "") -> None:
        """At once."""
        path = resource.path(self.rig.namespace, name or self.name)
        with suppress(ApplyError):
            await self.rig.kube._request("DELETE", path, {}, {"gracePeriodSeconds": 0})

    async def condition(self, kind: str) -> tuple[JsonObject, JsonObject]:
        """(the API, its condition, empty without one)."""
        api = await self.get() or {}
        found = (api.get("status") or {}).get("conditions") or ()
        return api, next((one for one in found if one["type"] == kind), {})

    async def until(self, kind: str, said: Callable[[JsonObject], bool]) -> tuple[float, Any, Any]:
        """Seconds until a condition is so, the API then, and the condition."""
        began = time.monotonic()
        while True:
            api, one = await self.condition(kind)
            seconds = time.monotonic() - began
            if said(one) or seconds > PATIENCE:
                return seconds, api, one
            await asyncio.sleep(0.2)

    async def deployment(self) -> JsonObject:
        """As soon as there is one."""
        began = time.monotonic()
        while (found := await self.get(DEPLOYMENTS)) is None:
            assert time.monotonic() - began < PATIENCE, f"no Deployment of {self.name}"
            await asyncio.sleep(0.2)
        return found

    async def template_changed(self, before: JsonObject) -> None:
        """Until the operator has applied another pod template."""
        began = time.monotonic()
        while (await self.deployment())["spec"]["template"] == before["spec"]["template"]:
            assert time.monotonic() - began < PATIENCE, f"{self.name} is not rolled out"
            await asyncio.sleep(0.2)

    async def start(self, replicas: int = 1, *, ready: bool = True, old: int = 0) -> None:
        """Pods for the Deployment as it is, beside `old` ready ones of an earlier template."""
        deployment = await self.deployment()
        metadata, template = deployment["metadata"], deployment["spec"]["template"]
        labels = template["metadata"]["labels"]
        set_name = f"{self.name}-{labels[contract.LABEL_REVISION]}"
        owner = {"apiVersion": "apps/v1", "controller": True}
        of_deployment = {
            **owner, "kind": "Deployment", "name": self.name, "uid": metadata["uid"],
        }  # fmt: skip
        made = await self.rig.post(
            REPLICA_SETS,
            {
                "metadata": {
                    "name": set_name, "labels": labels, "ownerReferences": [of_deployment],
                },
                "spec": {"selector": {"matchLabels": labels}, "template": template},
            },
        )  # fmt: skip
        of_set = {
            **owner, "kind": "ReplicaSet", "name": set_name, "uid": made["metadata"]["uid"],
        }  # fmt: skip
        for number in range(replicas):
            name = f"{set_name}-{number}"
            body = {"name": name, "labels": labels, "ownerReferences": [of_set]}
            more = {**self.pod_spec}
            containers = [{"name": "serving", "image": "serving:bench"}, *more.pop("beside", ())]
            spec = {"containers": containers, "volumes": template["spec"]["volumes"], **more}
            await self.rig.post(PODS, {"metadata": body, "spec": spec})
            ip = address(self.name.removesuffix("-web"), len(self.pods))
            self.pages.of[ip] = Page()
            self.pods.append(name)
            status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}
            await self.rig.merge(PODS, name, {"status": status}, "status")
            await self.pod(number=len(self.pods) - 1, ready=ready)
        await self.rolled(replicas, ready=replicas * ready + old, old=old)

    async def rolled(
        self, replicas: int, *, ready: int, old: int = 0, conditions: Any = None
    ) -> None:
        """The Deployment's status as its controller would write it."""
        deployment = await self.deployment()
        done = "ReplicaSetUpdated" if old or ready < replicas else "NewReplicaSetAvailable"
        verdict = [{"type": "Progressing", "status": "True", "reason": done, "message": "m"}]
        status = {
            "replicas": replicas + old, "updatedReplicas": replicas, "readyReplicas": ready,
            "observedGeneration": deployment["metadata"]["generation"],
            "conditions": conditions or verdict,
        }  # fmt: skip
        await self.rig.merge(DEPLOYMENTS, self.name, {"status": status}, "status")

    async def pod(
        self,
        *,
        ready: bool,
        number: int = -1,
        state: JsonObject | None = None,
        last: JsonObject | None = None,
        conditions: tuple[JsonObject, ...] = (),
        **more: str,
    ) -> None:
        """A pod's status as its kubelet would write it; `more` are other fields of it."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        word = "True" if ready else "False"
        container = {
            "name": "serving", "image": "i", "imageID": "i", "ready": ready, "started": ready,
            "restartCount": 0 if last is None else 1,
            "state": state or {"running": {"startedAt": now}}, "lastState": last or {},
        }  # fmt: skip
        told = [{"type": "Ready", "status": word, "lastTransitionTime": now}, *conditions]
        status = {"conditions": told, "containerStatuses": [container], **more}
        await self.rig.merge(PODS, self.pods[number], {"status": status}, "status")

    def page(self, number: int = 0) -> Page:
        """The metrics page of a pod."""
        return self.pages.of[address(self.name, number)]


def ended(code: int, message: str, reason: str = "Error") -> JsonObject:
    """A container's last state."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    told = {"exitCode": code, "message": message, "reason": reason}
    return {"terminated": {**told, "startedAt": now, "finishedAt": now}}


async def replica_that_fails(folder: Path, code: str, spec: Mapping[str, Any]) -> tuple[int, str]:
    """Exit code and termination message of a real replica with that predictor."""
    log = _failing(folder, code, spec)
    manifest = folder / "batchedapi.yaml"
    words = ["serve", "-f", str(manifest), "--port", "0", "--admin-port", "0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _START, str(log), *words, cwd=folder, env=dict(os.environ),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return await asyncio.wait_for(process.wait(), PATIENCE), log.read_text()


def _failing(folder: Path, code: str, spec: Mapping[str, Any]) -> Path:
    """Its files; where it leaves its last words."""
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(code)
    predictor = {"path": "model:Model", **spec.get("predictor", {})}
    manifest = {
        "apiVersion": contract.API_VERSION, "kind": contract.KIND, "metadata": {"name": "failing"},
        "spec": {**spec, "predictor": predictor},
    }  # fmt: skip
    (folder / "batchedapi.yaml").write_text(json.dumps(manifest))
    log = folder / "termination-log"
    log.touch()
    return log
