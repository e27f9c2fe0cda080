"""`kubectl batchedapi status` against an apiserver that answers over a real socket."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from tests.unit.operator.autoscaling.pages import page
from tests.unit.operator.plugin.test_command_line import API, Cluster, apiserver
from tests.unit.operator.plugin.test_screen import API as SLEEPY
from tests.unit.operator.plugin.test_screen import DEPLOYMENT, pod

from batchedapi_operator.cluster import JsonObject
from batchedapi_operator.plugin import replicas
from batchedapi_operator.plugin.__main__ import main

__all__ = ["apiserver"]

PODS = "/api/v1/namespaces/demo/pods"
OF_DEPLOYMENT = "/apis/apps/v1/namespaces/demo/deployments/iris"


@dataclass
class Replicas(Cluster):
    """An API with pods, whose pages are behind the forward."""

    listed: list[JsonObject] = field(default_factory=list)
    refused: frozenset[str] = frozenset()
    """Paths that the user may not read."""
    pages: list[str] = field(default_factory=list)
    """The next ones; the last stays."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """As the apiserver does."""
        if request.path in self.refused:
            return web.json_response({"kind": "Status"}, status=403)
        if request.path == PODS:
            assert "batchedapi.dev/api=iris" == request.query["labelSelector"]
            return web.json_response({"kind": "PodList", "items": self.listed})
        if request.path.startswith(PODS):
            assert "8081" == request.query["ports"]
            return await self._forward(request)
        return await super().answer(request)

    @asynccontextmanager
    async def _replica(self) -> AsyncIterator[None]:
        async def metrics(_request: web.Request) -> web.Response:
            text = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
            return web.Response(text=text, status=200 if text else 500)

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        yield
        await runner.cleanup()

    def behind(self) -> AbstractAsyncContextManager[object]:
        """The one replica's admin port."""
        return self._replica()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Replicas:
    """One API with one replica."""
    monkeypatch.setattr(replicas, "BETWEEN_SECONDS", 0.1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    metadata = {"namespace": "demo", "name": "iris", "generation": 3}
    return Replicas(
        {API: {**SLEEPY, "metadata": metadata}, OF_DEPLOYMENT: DEPLOYMENT},
        port=port,
        listed=[pod("iris-a", "3f2a1b9c", running={})],
        pages=[page(), page(batches=14, rows=140)],
    )


def status(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["status", "iris", *arguments])


@pytest.mark.usefixtures("apiserver")
def test_one_screen_of_what_the_api_and_its_replicas_say() -> None:
    """Batch sizes are of the seconds after the command was given."""
    told = status()

    assert 0 == told.exit_code, told.output
    assert "demo/iris: Degraded" in told.output
    assert "REPLICAS  3 wanted, 2 ready" in told.output
    assert "BATCHES  of 1 pod within " in told.output
    assert "predict: 10.0 rows each" in told.output
    assert "\x1b" not in told.output
    assert "missing" not in told.output


@pytest.mark.usefixtures("apiserver")
def test_as_json_it_has_the_same_for_programs() -> None:
    """Nothing else is printed."""
    told = json.loads(status("-o", "json").output)

    assert ["predict"] == [one["method"] for one in told["methods"]]
    assert ["iris-a"] == [one["name"] for one in told["pods"]]
    assert [] == told["missing"]


@pytest.mark.usefixtures("apiserver")
@pytest.mark.parametrize(
    ("world", "words"),
    [
        ({"forward": 403}, "take `get` and `create` on pods/portforward, which whoever has the"),
        ({"refused": frozenset({PODS})}, "pods, and so their batch sizes, queues and rates: you"),
        ({"refused": frozenset({OF_DEPLOYMENT})}, "that takes `get` on deployments"),
        ({"pages": [""]}, "1 of 1 pods (iris-a): expected 200, got 500"),
        ({"pages": ["<html>\n"]}, "1 of 1 pods (iris-a): not a page of metrics"),
        ({"pages": [page() + "# " + 2**19 * "x"]}, "a page of more than 524288 bytes"),
        ({"port": 0}, "1 of 1 pods (iris-a): cannot forward"),
    ],
    ids=["no forward", "no pods", "no deployment", "broken", "no page", "large", "silent"],
)
def test_what_cannot_be_read_is_said_and_the_rest_is_shown(
    cluster: Replicas, world: dict[str, Any], words: str
) -> None:
    """The screen is not for those alone who may do everything."""
    for name, value in world.items():
        setattr(cluster, name, value)

    told = status()

    assert 0 == told.exit_code, told.output
    assert "demo/iris: Degraded" in told.output
    text = " ".join(told.output.split())
    assert "missing: " in text
    assert words.replace("take ", "takes ") in text


@pytest.mark.usefixtures("apiserver")
def test_an_api_that_may_not_be_read_is_the_end(cluster: Replicas) -> None:
    """There is nothing left to show."""
    cluster.refused = frozenset({API})

    told = status()

    assert 1 == told.exit_code
    assert "you may not read BatchedAPI 'iris' in namespace 'demo': that takes `get`" in told.output


@pytest.mark.usefixtures("apiserver")
def test_an_api_that_is_not_there_is_told_with_what_lists_all() -> None:
    """Most often it is the namespace that is wrong."""
    told = CliRunner().invoke(main, ["status", "iris", "-n", "elsewhere"])

    assert 1 == told.exit_code
    assert "no BatchedAPI 'iris' in namespace 'elsewhere'; kubectl get bapi -A" in told.output
