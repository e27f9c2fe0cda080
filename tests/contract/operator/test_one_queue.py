"""An API that gets one queue for all replicas, and loses it, under Kubernetes' own controllers.

Pods are objects that nobody runs: the test says which of them are ready.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.bench.harness.control_plane import (
    ADMIN,
    OPERATOR,
    ControlPlane,
    control_plane,
    controllers,
)
from tests.cluster.devcluster import paths, pki
from tests.contract.operator.conftest import start_operator, until_ready
from tests.contract.operator.test_rights import connected, prepare
from tests.contract.operator.world import Body, World, until

from batchedapi_operator.cluster import (
    BATCHED_APIS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    PODS,
    SERVICES,
)
from batchedapi_operator.kube import Kube
from chart import of_operator, only, render

pytestmark = pytest.mark.skipif(
    not list(paths.CACHE.glob("kube-*")), reason="no Kubernetes was built here: CLUSTER=local does"
)

PLACE = "team-a"
SETTLED_SECONDS = 3.0
"""In which a controller would have done what must not be done."""
REPLICA, WEB, WORKER = "", "web", "worker"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with its controllers, and the operator with the rights of the chart."""
    folder = tmp_path_factory.mktemp("one-queue")
    chart = of_operator(render(f"watchNamespaces={{{PLACE}}}", "networkPolicies.enabled=true"))
    with control_plane(folder / "plane") as found:
        pki.issue(found.folder / "pki", OPERATOR)
        server = json.loads(found.kubeconfig(ADMIN).read_text())["clusters"][0]["cluster"]["server"]
        identity = pki.Identity("granted", "/CN=operator")
        pki.issue(found.folder / "pki", identity)
        config = pki.kubeconfig(found.folder / "pki", identity, server)
        found.kubeconfig(identity).write_text(config)
        asyncio.run(prepare(found, chart))
        with controllers(found):
            running = start_operator(
                PLACE,
                folder / "operator.log",
                release=only(chart, "Deployment")["metadata"]["name"],
                KUBECONFIG=str(found.kubeconfig(identity)),
                BATCHEDAPI_LEASE_NAMESPACE="system",
            )
            try:
                asyncio.run(until_ready(running))
                yield found
            finally:
                running.process.terminate()
                running.process.wait(timeout=30)


@pytest.fixture
async def world(plane: ControlPlane) -> AsyncIterator[World]:
    """The namespace, as the administrator sees it."""
    async with await connected(plane) as api:
        yield World(Kube(api), PLACE)


class Pods:
    """The pods of one API, made ready by the test."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    async def of(self, role: str) -> list[Body]:
        """Pods of that role."""
        found = await self._world.kube.find(PODS, PLACE, f"batchedapi.dev/api={self._name}")
        return [
            one for one in found if one["metadata"]["labels"].get("batchedapi.dev/role", "") == role
        ]

    async def make_ready(self, *roles: str) -> None:
        """Make the present pods of these roles ready."""
        for role in roles:
            await self._world.make_ready(await self.of(role))

    async def until(self, what: str, *making_ready: str, **counts: int) -> None:
        """Make them ready until there are so many of each role."""
        roles = {"replica": REPLICA, "web": WEB, "worker": WORKER}

        async def reached() -> bool:
            await self.make_ready(*making_ready)
            found = {name: len(await self.of(roles[name])) for name in counts}
            return found == counts

        await until(reached, what)
        await self.make_ready(*(roles[name] for name in counts if roles[name] in making_ready))


async def queue(world: World, name: str, wanted: Body | None) -> None:
    """Give the API a queue, or take it away."""
    await world.patch(BATCHED_APIS, name, {"spec": {"serverSideBatching": {"queue": wanted}}})


async def selector(world: World, name: str) -> Body:
    """The selector of the Service."""
    found: Body = (await world.appears(SERVICES, name))["spec"]["selector"]
    return found


async def test_an_api_gets_a_queue_and_loses_it_and_somebody_answers_all_the_while(
    world: World,
) -> None:
    """Replicas go when web pods answer; workers go when the last web pod has gone."""
    pods = Pods(world, "moves")
    await world.create_api(
        "moves", {"predictor": {"path": "model:Iris"}, "autoscaling": {"minReplicas": 2}}
    )
    await pods.until("replicas", REPLICA, replica=2)
    await world.until_condition("moves", "Ready", "AllReplicasReady")

    await queue(world, "moves", {"redis": {}})
    await pods.until("a worker beside them", worker=1, web=2, replica=2)
    await pods.make_ready(WORKER)
    await asyncio.sleep(SETTLED_SECONDS)
    assert 2 == len(await pods.of(REPLICA))
    labels = (await pods.of(WORKER))[0]["metadata"]["labels"]
    assert not (await selector(world, "moves")).items() <= labels.items()

    await pods.until("replicas to go", WORKER, WEB, replica=0, worker=2, web=2)
    ready = await world.until_condition("moves", "Ready", "AllReplicasReady")
    assert "2 of 2 web pods ready" in ready["message"]
    await world.appears(DISRUPTION_BUDGETS, "moves-web")

    await queue(world, "moves", None)
    await pods.until("as many replicas as workers", replica=2, worker=2, web=2)
    await asyncio.sleep(SETTLED_SECONDS)
    assert 2 == len(await pods.of(WEB))
    await pods.until("web pods and workers to go", REPLICA, web=0, worker=0, replica=2)

    async def as_before() -> bool:
        return {"batchedapi.dev/api": "moves"} == await selector(world, "moves")

    await until(as_before, "the Service to select as it did")

    async def forgotten() -> bool:
        return "web" not in (await world.api("moves"))["status"]

    await until(forgotten, "the status to say nothing of web pods")
    left = await world.deployment("moves-web")
    assert 0 == left["spec"]["replicas"]


async def test_a_new_api_that_may_be_at_zero_runs_one_worker_and_two_web_pods(
    world: World,
) -> None:
    """And a new revision of it keeps workers of the one before while its web pods are there."""
    pods = Pods(world, "sleeps")
    await world.create_api(
        "sleeps",
        {
            "predictor": {"path": "model:Iris"},
            "serverSideBatching": {"queue": {"redis": {}}},
            "autoscaling": {"minReplicas": 0},
        },
    )
    await pods.until("both roles", WORKER, WEB, worker=1, web=2)
    await world.until_condition("sleeps", "Ready", "AllReplicasReady")

    (former,) = [one["metadata"]["name"] for one in await pods.of(WORKER)]
    await world.patch(BATCHED_APIS, "sleeps", {"spec": {"predictor": {"config": {"a": 1}}}})
    await pods.until("a worker of the new revision", WORKER, worker=2)
    await asyncio.sleep(SETTLED_SECONDS)
    assert former in [one["metadata"]["name"] for one in await pods.of(WORKER)]

    await pods.until("the one before to go", WORKER, WEB, worker=1, web=2)
    body = await world.appears(DEPLOYMENTS, "sleeps")
    assert "minReadySeconds" not in body["spec"]
