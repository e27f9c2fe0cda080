"""`kubectl batchedapi why` against an apiserver that answers over a real socket."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner, Result
from tests.unit.operator.plugin.test_history import decision
from tests.unit.operator.worlds import no_fleet

from batchedapi_operator.admin import decisions_server
from batchedapi_operator.cluster import JsonObject, ObjectKey
from batchedapi_operator.plugin.__main__ import main

API: Final = "/apis/batchedapi.dev/v1alpha1/namespaces/demo/batchedapis/iris"
PODS: Final = "/api/v1/namespaces/{}/pods"
STATUS: Final = {"status": {"autoscaling": {"lastDecision": decision(30, 30)}}}
OLDER: Final = [decision(15, 25, 4), decision(0, 10, 2)]


def pod(name: str, phase: str = "Running") -> JsonObject:
    """An operator's pod."""
    env = [{"name": "BATCHEDAPI_LEASE_NAME", "value": "mine-operator"}]
    return {
        "metadata": {"name": name},
        "spec": {"serviceAccountName": "shared", "containers": [{"name": "operator", "env": env}]},
        "status": {"phase": phase},
    }


@dataclass
class Cluster:
    """A stand-in for the apiserver, and for the operator behind it."""

    objects: dict[str, JsonObject]
    pods: list[JsonObject] = field(default_factory=lambda: [pod("operator-1")])
    namespace: str = "batchedapi-system"
    may_list: bool = True
    forward: int = 101
    """Status of the forward; 101: it is opened."""
    decisions: dict[ObjectKey, list[JsonObject]] = field(default_factory=dict)
    """One that is asked for and not in here is an error of the operator's."""
    port: int = 0
    """Of the operator, as it listens behind the forward."""
    said: list[str] = field(default_factory=list)
    """Authorization of each forward."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """As the apiserver does."""
        pods = PODS.format(self.namespace)
        if request.path.startswith(f"{pods}/") and request.path.endswith("/portforward"):
            return await self._forward(request)
        if request.path == pods:
            assert "app.kubernetes.io/name=batchedapi-operator" == request.query["labelSelector"]
            if not self.may_list:
                return web.json_response({"kind": "Status"}, status=403)
            return web.json_response({"kind": "PodList", "items": self.pods})
        if request.path.endswith("/pods"):
            return web.json_response({"kind": "PodList", "items": []})
        found = self.objects.get(request.path)
        return web.json_response(found or {"kind": "Status"}, status=200 if found else 404)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        """Two channels a port, each begun with its number: bytes, and what went wrong."""
        self.said.append(request.headers.get("Authorization", ""))
        if self.forward != 101:
            return web.json_response({"kind": "Status"}, status=self.forward)
        channel = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await channel.prepare(request)
        number = int(request.query["ports"]).to_bytes(2, "little")
        await channel.send_bytes(b"\0" + number)
        await channel.send_bytes(b"\1" + number)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError as error:
            await channel.send_bytes(b"\1" + f"cannot forward: {error}".encode())
            await channel.close()
            return channel

        async def back() -> None:
            while data := await reader.read(4096):
                await channel.send_bytes(b"\0" + data)

        answers = asyncio.create_task(back())
        async for message in channel:
            writer.write(message.data[1:])
        answers.cancel()
        writer.close()
        return channel

    def known(self, key: ObjectKey, count: int) -> list[JsonObject]:
        """The decisions that the operator remembers."""
        return self.decisions[key][:count]

    @asynccontextmanager
    async def serve(self, listener: socket.socket) -> AsyncIterator[None]:
        """Until the block ends."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        async with self.behind():
            yield
        await runner.cleanup()

    def behind(self) -> AbstractAsyncContextManager[object]:
        """The server behind the forward."""
        return decisions_server(self.port, self.known, no_fleet)


def run(cluster: Cluster, listener: socket.socket, up: Callable[[], None]) -> Callable[[], None]:
    """Serve in a thread; returns what stops it."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with cluster.serve(listener):
            up()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()

    def end() -> None:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()

    return end


@pytest.fixture
def cluster() -> Cluster:
    """One API and the operator that decides about it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    known = {ObjectKey("demo", "iris"): list(OLDER)}
    return Cluster({API: STATUS}, decisions=known, port=port)


@pytest.fixture
def apiserver(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serves that, with a kubeconfig that leads to it."""
    listener = socket.create_server(("127.0.0.1", 0))
    kubeconfig: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [
            {"name": "c", "cluster": {"server": f"http://127.0.0.1:{listener.getsockname()[1]}"}}
        ],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [
            {"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "demo"}},
            {"name": "other", "context": {"cluster": "c", "user": "u", "namespace": "elsewhere"}},
        ],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    up = threading.Event()
    end = run(cluster, listener, up.set)
    assert up.wait(30)
    yield
    end()


def why(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["why", "iris", *arguments])


@pytest.mark.usefixtures("apiserver")
def test_the_newest_decision_needs_nothing_but_the_api() -> None:
    """Whoever may see the API may know why it has as many replicas."""
    told = why()

    assert 0 == told.exit_code, told.output
    assert "3 replicas (Demand)\ndecided 2026-01-02T03:04:30Z" in told.output
    assert "TIMES" not in told.output


@pytest.mark.usefixtures("apiserver")
def test_padding_and_what_is_recommended_come_last(cluster: Cluster) -> None:
    """Neither is of the decision."""
    told = {"batching": {"paddingPercent": 31}, "recommendation": {"effect": "none needed"}}
    cluster.objects[API] = {"status": STATUS["status"] | told}

    assert (
        "\n\npadding: 31 % of what batches compute\nrecommended batching: none needed\n"
        in why().output
    )


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize(
    ("policy", "first"),
    [
        ("", "nothing is decided now: External, spec.replicas decides; the last decision:"),
        ("CapacitySLO", "3 replicas (Demand)"),
    ],
    ids=["others decide", "metrics are missing"],
)
def test_a_decision_from_before_others_decided_is_not_told_as_that_of_today(
    cluster: Cluster, policy: str, first: str
) -> None:
    """The status keeps the last one in mode External, too; a pause of ours says it itself."""
    condition = {
        "type": "AutoscalingActive",
        "status": "False",
        "reason": "External",
        "message": "spec.replicas decides",
    }
    told = {**STATUS["status"]["autoscaling"], "policy": policy}
    cluster.objects[API] = {"status": {"autoscaling": told, "conditions": [condition]}}

    assert first == why().output.splitlines()[0]


@pytest.mark.usefixtures("apiserver")
def test_older_ones_come_from_the_operator_the_newest_first(cluster: Cluster) -> None:
    """Through the apiserver, with the user's own rights: it listens on loopback alone (F3)."""
    told = why("--last", "5")

    assert 0 == told.exit_code, told.output
    lines = told.output.splitlines()
    table = lines[next(n for n, line in enumerate(lines) if line.startswith("TIME ")) + 1 :]
    assert ["30", "25", "10"] == [line[17:19] for line in table]
    assert ["Bearer t"] == cluster.said


@pytest.mark.usefixtures("apiserver")
def test_as_json_it_is_the_decisions_as_they_are() -> None:
    """For programs, with every term in full."""
    told = json.loads(why("--last", "5", "-o", "json").output)

    assert [STATUS["status"]["autoscaling"]["lastDecision"], *OLDER] == told


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize(
    ("world", "words"),
    [
        ({"forward": 403}, "-n batchedapi-system --user=YOU --role=mine-operator-decisions-view"),
        ({"may_list": False}, "--role=batchedapi-operator-decisions-view"),
        ({"forward": 500}, "asked to forward to the operator's pod in 'batchedapi-system': 500"),
        ({"namespace": "ops"}, "no operator runs in namespace 'batchedapi-system': name"),
        ({"pods": [pod("operator-1", "Pending")]}, "no operator runs in namespace"),
        ({"port": 0}, "port 8082 of pod 'operator-1' in namespace 'batchedapi-system' does not"),
        ({"port": 0}, "is that operator older than this command?"),
        ({"decisions": {}}, "expected decisions, got 500"),
    ],
    ids=["refused", "not shown", "broken", "elsewhere", "starting", "silent", "older", "wrong"],
)
def test_an_operator_that_cannot_be_asked_is_told_with_the_remedy(
    cluster: Cluster, world: dict[str, Any], words: str
) -> None:
    """Most users may not forward to pods of that namespace at first."""
    for name, value in world.items():
        setattr(cluster, name, value)

    told = why("--last", "5")

    assert 1 == told.exit_code
    assert words in told.output


@pytest.mark.usefixtures("apiserver")
def test_an_operator_that_has_just_started_leaves_what_the_status_has(cluster: Cluster) -> None:
    """Its 404 is an answer."""
    cluster.decisions = {ObjectKey("demo", "iris"): []}

    told = why("--last", "5")

    assert 0 == told.exit_code, told.output
    assert 2 == told.output.count("03:04:30Z")


@pytest.mark.usefixtures("apiserver")
def test_the_operator_may_be_elsewhere(cluster: Cluster) -> None:
    """Another release, another namespace."""
    cluster.namespace = "ops"

    told = why("--last", "5", "--operator-namespace", "ops")

    assert 0 == told.exit_code, told.output
    assert "03:04:25Z" in told.output


@pytest.mark.usefixtures("apiserver")
def test_a_context_that_is_named_brings_its_namespace() -> None:
    """As with kubectl; the current context's namespace is not meant."""
    told = why("--context", "other")

    assert 1 == told.exit_code
    assert "no BatchedAPI 'iris' in namespace 'elsewhere'" in told.output
