"""What one tick of the autoscaler costs, and how long pods that hang hold it up.

    python tests/bench/autoscaler_tick.py --apis 200 --pods 5

A process of its own answers as the pods: an address of 127.0.0.0/8 for each, and pages of a real
metrics memory whose counters rise from look to look. The operator's side is its own loop, scraper
and core; only the apiserver is left out, which a tick without news does not ask.
"""

import asyncio
import collections
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import click
from aiohttp import web
from harness.report import Table, environment, help_of, out_option, report

from batchedapi_core import contract
from batchedapi_core.scaling.policy import SECONDS_BETWEEN_LOOKS
from batchedapi_operator.admin import Metrics
from batchedapi_operator.autoscaling.loop import Autoscaler
from batchedapi_operator.autoscaling.metrics_page import MetricsPage
from batchedapi_operator.autoscaling.scrape import Scraper
from batchedapi_operator.cluster import DEPLOYMENTS, JsonObject, ObjectKey, Resource
from batchedapi_operator.outbox import Outbox
from batchedapi_operator.reconcile.views import PodView
from batchedapi_operator.store import Store
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.page import scaling_page
from batchedapi_serving.metrics.recorder import MethodRecorder

HOST: Final = "127.0.0.1"
PORT: Final = 28100
TICKS: Final = 30
"""Pages that are made beforehand; a pod that was asked more often answers with the last."""
MAX_BATCH_SIZE: Final = 32
CPU_SECONDS: Final = 1.0
"""Of one tick, at most."""
HANG_SECONDS: Final = 3.0
"""Of one look at pods of which half hang, at most."""
HANGING: Final = "127.200."
"""Pods whose address begins so, and ends in an even number, never answer."""


def pages_of_a_replica() -> list[bytes]:
    """Pages at looks two seconds apart: 30 batches a second of about 8 rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics"
        slots.create_memory(path)
        memory = slots.map_memory(path)
    memory[slots.START_TIME], memory[slots.MODEL_MEMORY] = time.time() - 3600.0, 3e8
    recorder = MethodRecorder(memory, slots.method_block(memory, 0))
    recorder.sized(MAX_BATCH_SIZE)
    pages = []
    for look in range(TICKS):
        for number in range(60 if look else 3600):
            rows = 4 + (number + look) % 8
            recorder.received(rows)
            recorder.dispatched("interval" if rows < 11 else "full", [0.004] * rows)
            recorder.executed(rows, rows, rows, 0.008 + 0.0002 * rows)
            recorder.answered(200, [0.014] * rows)
        recorder.gauges(
            lanes=1, queue_rows=2, in_flight=3, max_batch_size=MAX_BATCH_SIZE, batch_interval=0.005
        )
        pages.append(scaling_page(memory, [("predict", MAX_BATCH_SIZE)]))
    return pages


async def respond(port: int) -> None:
    """Answer as pods until killed."""
    pages = pages_of_a_replica()
    asked: collections.Counter[str] = collections.Counter()

    async def metrics(request: web.Request) -> web.Response:
        address = request.host.partition(":")[0]
        if address.startswith(HANGING) and int(address.rpartition(".")[2]) % 2 == 0:
            await asyncio.sleep(3600)
        body = pages[min(asked[address], TICKS - 1)]
        asked[address] += 1
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get(contract.PATH_METRICS, metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port, backlog=4096).start()
    await asyncio.Event().wait()


class Apiserver:
    """Counts writes; a Deployment is as the store has it."""

    def __init__(self, deployments: dict[ObjectKey, JsonObject]) -> None:
        self._deployments = deployments
        self.writes = 0

    async def get(self, resource: Resource, key: ObjectKey) -> JsonObject | None:
        """The Deployment."""
        return self._deployments[key] if resource is DEPLOYMENTS else None

    async def get_metadata(self, resource: Resource, key: ObjectKey) -> JsonObject | None:
        """Not asked for by the autoscaler."""
        return await self.get(resource, key)

    async def find(self, _resource: Resource, _namespace: str | None, _s: str = "") -> list[Any]:
        """Not asked for by the autoscaler."""
        return []

    async def list_metadata(
        self, _resource: Resource, _namespace: str | None, _selector: str = ""
    ) -> tuple[list[JsonObject], str]:
        """Not asked for by the autoscaler."""
        return [], ""

    async def apply(self, _resource: Resource, body: JsonObject, *, force: bool) -> JsonObject:
        """Count."""
        self.writes += bool(force) or 1
        return body

    async def set_managers(
        self, resource: Resource, live: JsonObject, managed: list[JsonObject]
    ) -> None:
        """Not asked."""
        raise NotImplementedError

    async def apply_status(self, _key: ObjectKey, _uid: str, _status: Any, _manager: str) -> None:
        """Count."""
        self.writes += 1

    async def scale(
        self, key: ObjectKey, replicas: int, *, uid: str, version: str | None = None
    ) -> None:
        """Count."""
        del key, replicas, uid, version
        self.writes += 1

    async def delete(self, _resource: Resource, _key: ObjectKey, _uid: str) -> None:
        """Count."""
        self.writes += 1

    async def create_event(self, _body: JsonObject) -> None:
        """Count."""
        self.writes += 1


def pod_of(name: str, owner: str, address: str) -> JsonObject:
    """A pod that is ready."""
    return {
        "metadata": {
            "name": name,
            "namespace": "bench",
            "uid": f"{name}-uid",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"kind": "ReplicaSet", "uid": owner, "controller": True}],
        },
        "status": {
            "podIP": address,
            "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:20Z"}
            ],
        },
    }


def put_api(store: Store, name: str, addresses: list[str]) -> tuple[ObjectKey, JsonObject]:
    """An API and its children as the watches would bring them; its key and its Deployment."""
    key, owned = ObjectKey("bench", name), {"namespace": "bench", "resourceVersion": "1"}
    store.put_api(
        {
            "apiVersion": contract.API_VERSION,
            "kind": contract.KIND,
            "metadata": {**owned, "name": name, "uid": name, "generation": 1},
            "spec": {
                "predictor": {"path": "model:Model"},
                "serverSideBatching": {"maxLatency": "100ms"},
                "autoscaling": {"minReplicas": len(addresses), "maxReplicas": 2 * len(addresses)},
            },
        }
    )
    owner = [{"kind": contract.KIND, "name": name, "uid": name, "controller": True}]
    deployment = {
        "metadata": {**owned, "name": name, "uid": f"{name}-d", "generation": 1,
                     "ownerReferences": owner},
        "spec": {
            "replicas": len(addresses),
            "template": {"metadata": {}, "spec": {"containers": []}},
        },
    }  # fmt: skip
    store.put_deployment(key, deployment)
    of_deployment = [{"kind": "Deployment", "uid": f"{name}-d", "controller": True}]
    replica_set = {**owned, "name": name, "uid": f"{name}-rs"}
    store.put_replica_set(key, {"metadata": {**replica_set, "ownerReferences": of_deployment}})
    for number, address in enumerate(addresses):
        store.put_pod(key, pod_of(f"{name}-{number}", f"{name}-rs", address))
    return key, deployment


def world(apis: int, pods: int) -> tuple[Store, Apiserver]:
    """APIs and their children."""
    store, deployments = Store(), {}
    for number in range(apis):
        group = f"127.{1 + number // 250}.{1 + number % 250}"
        addresses = [f"{group}.{1 + pod}" for pod in range(pods)]
        key, deployment = put_api(store, f"api-{number}", addresses)
        deployments[key] = deployment
    return store, Apiserver(deployments)


async def measure_ticks(port: int, apis: int, pods: int, ticks: int) -> dict[str, Any]:
    """CPU seconds of ticks, once all counters could be compared with earlier ones."""
    store, apiserver = world(apis, pods)
    seconds, walls = [], []
    begin = time.monotonic()
    looks = 0

    def clock() -> float:
        """Two seconds between looks, however fast they follow each other here."""
        return begin + SECONDS_BETWEEN_LOOKS * looks

    async with Scraper.opened(port) as scraper:
        outbox = Outbox(monotonic=clock)
        autoscaler = Autoscaler(apiserver, store, scraper, Metrics(), outbox, monotonic=clock)
        for look in range(ticks + 3):
            looks = look
            cpu, wall = time.process_time(), time.monotonic()
            await autoscaler.round()
            while (address := outbox.take(clock())) is not None:
                await outbox.deliver(address)
            if look >= 3:
                seconds.append(time.process_time() - cpu)
                walls.append(time.monotonic() - wall)
        last = [autoscaler.decisions.last(key, 1) for key in store.apis()]
    return {
        "cpu_seconds": seconds,
        "wall_seconds": walls,
        "reasons": dict(collections.Counter(found[0]["reason"] for found in last if found)),
        "writes": apiserver.writes,
    }


async def measure_hang(port: int, pods: int) -> dict[str, Any]:
    """One look at pods of which half never answer."""
    bodies = [pod_of(f"pod-{n}", "rs", f"{HANGING}0.{1 + n}") for n in range(pods)]
    async with Scraper.opened(port) as scraper:
        begin = time.monotonic()
        outcomes = await scraper.scrape([PodView.of(body) for body in bodies])
        wall = time.monotonic() - begin
    answered = sum(isinstance(one, MetricsPage) for one in outcomes)
    return {"wall_seconds": wall, "pods": pods, "answered": answered}


@asynccontextmanager
async def responder(port: int) -> AsyncIterator[None]:
    """The other process, up and stopped again."""
    command = [sys.executable, __file__, "--respond", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"http://{HOST}:{port}{contract.PATH_METRICS}"):
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.1)
        yield
    finally:
        process.kill()
        await process.wait()


async def measure(port: int, apis: int, pods: int, ticks: int) -> dict[str, Any]:
    """Both."""
    async with responder(port):
        return {
            "ticks": await measure_ticks(port, apis, pods, ticks),
            "hang": await measure_hang(port, 100),
        }


@click.command(help=help_of(__doc__))
@click.option("--apis", type=click.IntRange(1, 1000), default=200, show_default=True)
@click.option("--pods", type=click.IntRange(1, 200), default=5, show_default=True, help="Each.")
@click.option("--ticks", type=click.IntRange(1, TICKS - 3), default=10, show_default=True)
@click.option("--port", default=PORT, show_default=True, help="Of the pods.")
@click.option("--respond", is_flag=True, hidden=True)
@out_option
def main(*, apis: int, pods: int, ticks: int, port: int, respond: bool, out: Path | None) -> None:
    """See the module's docstring."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if respond:
        asyncio.run(globals()["respond"](port))
        return
    began = environment()
    found = asyncio.run(measure(port, apis, pods, ticks))
    cpu, hang = found["ticks"]["cpu_seconds"], found["hang"]
    median, wall = statistics.median(cpu), statistics.median(found["ticks"]["wall_seconds"])
    table = Table(
        f"One tick over {apis} APIs of {pods} pods, {ticks} times; then {hang['pods']} pods of"
        " which half hang",
        ["CPU s, median", "CPU s, worst", "wall s, median", "hang: wall s", "hang: answered"],
        [[f"{median:.2f}", f"{max(cpu):.2f}", f"{wall:.2f}", f"{hang['wall_seconds']:.2f}",
          str(hang["answered"])]],
    )  # fmt: skip
    if sum(found["ticks"]["reasons"].values()) != apis:
        sys.exit(f"expected decisions about {apis} APIs, got {found['ticks']['reasons']}")
    report("autoscaler-tick", began, [table], notes=[], measured=found, out=out)
    heard = hang["answered"] * 2 == hang["pods"]
    if median > CPU_SECONDS or hang["wall_seconds"] > HANG_SECONDS or not heard:
        sys.exit(f"over the limits: {CPU_SECONDS} s of CPU a tick, {HANG_SECONDS} s with a hang")


if __name__ == "__main__":
    main()
