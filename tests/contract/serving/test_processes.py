"""Processes die, hang and are killed; who asked does not notice unless it was their own doing."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raw_http import Response, ask, connected
from serving import Replica, is_alive, running_replica, write_manifest

CODE = """
    import os, time
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context):
            pass

        @batched(example={"id": 0})
        def predict(self, items):
            for item in items:
                if item.get("exit"):
                    os._exit(3)
                if item.get("hang"):
                    time.sleep(1000)
            time.sleep(0.002)
            return [item["id"] for item in items]
"""


@pytest.fixture(scope="module")
def replica(folder: Path) -> Iterator[Replica]:
    """Two model processes, a timeout of two seconds."""
    spec = {
        "predictor": {"processesPerReplica": 2},
        "serverSideBatching": {"maxBatchSize": 8, "batchInterval": "5ms"},
        "overload": {"timeout": "2s"},
    }
    with running_replica(folder, ["-f", str(write_manifest(folder, CODE, spec))]) as started:
        yield started


@pytest.fixture(autouse=True)
def _whole(replica: Replica) -> None:
    """Every test begins with both processes there."""
    replica.wait_for(lambda: replica.metrics().get("batchedapi_lanes") == 2, "no two lanes")


class Load:
    """Closed-loop clients that check that every answer is their own."""

    def __init__(self, port: int, clients: int) -> None:
        self._port = port
        self._clients = clients
        self._stop = False
        self.ok = 0
        self.wrong: list[Response] = []
        self.broken = 0

    async def run(self) -> None:
        """Until `stop`."""
        async with asyncio.TaskGroup() as group:
            for client in range(self._clients):
                group.create_task(self._client(client * 1_000_000))

    def stop(self) -> None:
        """After the answers that are awaited."""
        self._stop = True

    async def _client(self, first: int) -> None:
        number = first
        while not self._stop:
            try:
                async with connected(self._port) as connection:
                    while not self._stop:
                        number += 1
                        response = await connection.post_json("/predict", {"id": number})
                        if response.status == 200 and response.json() == number:
                            self.ok += 1
                        else:
                            self.wrong.append(response)
            except (OSError, asyncio.IncompleteReadError):
                self.broken += 1
                await asyncio.sleep(0.05)


def restarts(replica: Replica, role: str) -> float:
    """Of the replica's processes of one role."""
    return replica.metrics().get(f"batchedapi_process_restarts_total{{role={role}}}", 0.0)


async def lanes_are(replica: Replica, count: int) -> None:
    """Wait for so many lanes without blocking the clients."""
    end = time.monotonic() + 20
    while (await asyncio.to_thread(replica.metrics)).get("batchedapi_lanes") != count:
        assert time.monotonic() < end, replica.text()
        await asyncio.sleep(0.05)


async def test_killing_model_processes_under_load_fails_nobody(replica: Replica) -> None:
    """A model process that dies has its batch run again; every answer is the asker's own."""
    before = restarts(replica, "model")
    load = Load(replica.port, 16)
    running = asyncio.create_task(load.run())
    for round_number in range(3):
        await asyncio.sleep(0.3)
        await lanes_are(replica, 2)
        os.kill(replica.children("model")[round_number % 2], signal.SIGKILL)
        await asyncio.sleep(0.1)
    await lanes_are(replica, 2)
    await asyncio.sleep(0.2)
    load.stop()
    await running

    assert ([], 0) == (load.wrong, load.broken)
    assert load.ok > 100
    assert before + 3 == restarts(replica, "model")


async def test_killing_the_web_process_leaves_models_loaded_and_counters_monotone(
    replica: Replica,
) -> None:
    """It is replaced; its models connect again, and the page goes on where it stopped."""
    assert (await ask(replica.port, {"id": 1})).status == 200
    models, before = replica.children("model"), replica.metrics()
    (web,) = replica.children("web")
    killed = restarts(replica, "web")

    os.kill(web, signal.SIGKILL)
    replica.wait_for(lambda: restarts(replica, "web") == killed + 1, "not replaced")
    response = await ask(replica.port, {"id": 7})

    await lanes_are(replica, 2)
    after = replica.metrics()
    assert response.json() == 7
    assert models == replica.children("model")
    assert not is_alive(web)
    shrunk = [
        name
        for name, value in before.items()
        if ("_total" in name or "_bucket" in name or "_count" in name) and after[name] < value
    ]
    assert [] == shrunk
    name = "batchedapi_requests_total{code=200}"
    assert before[name] + 1 == after[name]


async def test_an_item_that_ends_its_process_fails_alone(replica: Replica) -> None:
    """500 for it; those who were in the same batch get their answers."""

    async def item(n: int) -> tuple[int, Any]:
        value = {"id": n, "exit": True} if n == 5 else {"id": n}
        response = await ask(replica.port, value)
        return response.status, response.json() if response.status == 200 else None

    answers = await asyncio.gather(*(item(n) for n in range(8)))

    others = [answer for n, answer in enumerate(answers) if n != 5]
    assert answers[5][0] in {500, 504}  # 504 where starting processes takes longer than the timeout
    assert [(200, n) for n in range(8) if n != 5] == others


async def test_an_item_that_hangs_gets_504_and_its_process_is_replaced(replica: Replica) -> None:
    """The other process serves meanwhile, and there are two again afterwards."""
    models = set(replica.children("model"))
    began = time.monotonic()
    hung = asyncio.create_task(ask(replica.port, {"id": 0, "hang": True}))
    await asyncio.sleep(0.2)

    others = [await ask(replica.port, {"id": n}) for n in range(20)]
    response = await hung
    seconds = time.monotonic() - began
    await lanes_are(replica, 2)

    assert response.status == 504
    assert 1.9 < seconds < 6
    assert list(range(20)) == [other.json() for other in others]
    assert len(models & set(replica.children("model"))) == 1


async def test_health_answers_while_every_model_hangs(replica: Replica) -> None:
    """The admin port is the supervisor's own."""
    hung = [asyncio.create_task(ask(replica.port, {"id": 0, "hang": True})) for _ in range(2)]
    await asyncio.sleep(0.3)

    statuses = [replica.admin(path)[0] for path in ("/livez", "/readyz", "/startupz", "/metrics")]
    await asyncio.gather(*hung)

    assert [200] * 4 == statuses
    assert replica.admin("/other")[0] == 404


async def test_killing_the_supervisor_leaves_no_process(tmp_path: Path) -> None:
    """Also one that hangs in user code and looks at no socket."""
    manifest = write_manifest(tmp_path, CODE, {"predictor": {"processesPerReplica": 2}})
    with running_replica(tmp_path, ["-f", str(manifest)]) as doomed:
        children = doomed.children()
        hung = asyncio.create_task(ask(doomed.port, {"id": 0, "hang": True}))
        await asyncio.sleep(0.3)

        doomed.stop(signal.SIGKILL)
        await asyncio.gather(hung, return_exceptions=True)
        await asyncio.to_thread(_gone, children)

        assert len(children) == 3
        assert [] == [pid for pid in children if is_alive(pid)]


def _gone(pids: list[int]) -> None:
    """Wait until none of them runs, ten seconds at most."""
    end = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
