"""Processes die, hang and are killed; who asked does not notice unless it was their own doing."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from raw_http import Response, ask, connected
from serving import Replica, is_alive, running_replica, write_manifest

CODE = """
    import os, time
    from batchedapi_serving import batched

    class Model:
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


SPEC = {
    "predictor": {"processesPerReplica": 2},
    "serverSideBatching": {"maxBatchSize": 8, "batchInterval": "5ms"},
    "overload": {"timeout": "2s"},
}
"""Two model processes, a timeout of two seconds."""


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
    """The restarts of the replica's processes of one role."""
    return replica.metrics().get(f"batchedapi_process_restarts_total{{role={role}}}", 0.0)


async def lanes_are(replica: Replica, count: int) -> None:
    """Wait for so many lanes without blocking the clients."""
    end = time.monotonic() + 20
    while (await asyncio.to_thread(replica.metrics)).get("batchedapi_lanes") != count:
        assert time.monotonic() < end, replica.text()
        await asyncio.sleep(0.05)


async def test_killing_model_processes_under_load_fails_nobody(replica: Replica) -> None:
    """A model process that dies has its batch run again; every answer is the caller's own."""
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


async def test_an_item_that_ends_its_process_fails_alone(tmp_path: Path) -> None:
    """500 for it; those who were in the same batch get their answers."""
    spec = {
        "predictor": {"processesPerReplica": 2},
        "serverSideBatching": {"maxBatchSize": 8, "batchInterval": "5ms"},
        "overload": {"timeout": "2m"},  # of a busy machine: processes start anew meanwhile
    }
    with running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, CODE, spec))]) as replica:

        async def item(n: int) -> tuple[int, Any]:
            value = {"id": n, "exit": True} if n == 5 else {"id": n}
            response = await ask(replica.port, value)
            return response.status, response.json() if response.status == 200 else None

        answers = await asyncio.gather(*(item(n) for n in range(8)))

    assert [(500, None) if n == 5 else (200, n) for n in range(8)] == answers


async def test_an_item_that_hangs_gets_504_and_its_process_is_replaced(replica: Replica) -> None:
    """The other process serves meanwhile, and there are two again afterwards."""
    models, before = set(replica.children("model")), restarts(replica, "model")
    began = time.monotonic()
    hung = asyncio.create_task(ask(replica.port, {"id": 0, "hang": True}))
    await asyncio.sleep(0.2)

    others = [await ask(replica.port, {"id": n}) for n in range(20)]
    response = await hung
    seconds = time.monotonic() - began
    replica.wait_for(lambda: restarts(replica, "model") > before, "not replaced")
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


PLACES = """
    import os, time
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context):
            self.facts = {
                "index": context.worker_index,
                "variable": os.environ.get("BATCHEDAPI_WORKER_INDEX"),
                "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
                "device": context.device,
                "devices": list(context.devices),
                "omp": os.environ.get("OMP_NUM_THREADS"),
            }

        @batched(example=0)
        def predict(self, items):
            time.sleep(0.05)
            return [self.facts] * len(items)
"""


async def places(replica: Replica) -> list[dict[str, Any]]:
    """The facts that each of two model processes reports of itself, by index."""
    await lanes_are(replica, 2)
    seen: dict[int, dict[str, Any]] = {}
    end = time.monotonic() + 20
    while len(seen) < 2:
        assert time.monotonic() < end, seen
        answers = await asyncio.gather(*(ask(replica.port, 0) for _ in range(4)))
        seen |= {facts["index"]: facts for facts in (answer.json() for answer in answers)}
    return [seen[index] for index in sorted(seen)]


async def test_every_process_has_its_own_gpu_and_its_share_of_threads(tmp_path: Path) -> None:
    """W09-W11: devices as CUDA names them; nobody needs a GPU to hand out its number."""
    spec = {"predictor": {"processesPerReplica": 2, "cpuThreads": 3},
            "serverSideBatching": {"maxBatchSize": 1}}  # fmt: skip
    manifest = write_manifest(tmp_path, PLACES, spec)
    environment = {"CUDA_VISIBLE_DEVICES": "4,5", "OMP_NUM_THREADS": "9"}
    with running_replica(tmp_path, ["-f", str(manifest)], environment) as replica:
        seen = await places(replica)

    assert [("0", "4"), ("1", "5")] == [(facts["variable"], facts["gpus"]) for facts in seen]
    assert ["3", "3"] == [facts["omp"] for facts in seen]
    assert [["cuda:0"], ["cuda:0"]] == [facts["devices"] for facts in seen]


async def test_gpus_can_be_hidden(tmp_path: Path) -> None:
    """A model that would take all of one for nothing."""
    spec = {"predictor": {"processesPerReplica": 2, "gpuAssignment": "None"},
            "serverSideBatching": {"maxBatchSize": 1}}  # fmt: skip
    manifest = write_manifest(tmp_path, PLACES, spec)
    environment = {"CUDA_VISIBLE_DEVICES": "4,5"}
    with running_replica(tmp_path, ["-f", str(manifest)], environment) as replica:
        seen = await places(replica)

    assert [("", "cpu")] * 2 == [(facts["gpus"], facts["device"]) for facts in seen]


LOADING = """
    import json, time
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context):
            began = time.monotonic()
            time.sleep(0.3)
            with open(f"{config['folder']}/{context.worker_index}.json", "w") as file:
                json.dump([began, time.monotonic()], file)

        @batched(example=0)
        def predict(self, items):
            return items
"""


async def test_the_first_process_loads_alone(tmp_path: Path) -> None:
    """S22: then the others, whose files are in memory by now; it serves meanwhile."""
    spec = {"predictor": {"processesPerReplica": 3, "config": {"folder": str(tmp_path)}}}
    manifest = write_manifest(tmp_path, LOADING, spec)
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        assert (await ask(replica.port, 1)).status == 200
        await lanes_are(replica, 3)

    loads = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(3)]
    assert all(began > loads[0][1] for began, _ in loads[1:])


async def test_a_process_that_cannot_start_again_ends_the_replica(tmp_path: Path) -> None:
    """S21: exit code 70 after five tries, with the reason, although the first process serves."""
    code = """
    import os
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context):
            if context.worker_index == 1:
                raise OSError("no such device")

        @batched(example=0)
        def predict(self, items):
            return items
    """
    manifest = write_manifest(tmp_path, code, {"predictor": {"processesPerReplica": 2}})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        answers = await ask(replica.port, 1)
        exit_code = await asyncio.to_thread(replica.process.wait, 60)

    last = replica.text().strip().splitlines()[-1]
    assert (200, 70) == (answers.status, exit_code)
    assert "CrashLooping: model process 1 failed to start 5 times in a row: InitFailed" in last
    assert "OSError: no such device" in last


async def test_being_killed_from_outside_while_it_loads_is_no_crash_loop(tmp_path: Path) -> None:
    """S1, S21: a SIGKILL that want of memory does not explain says nothing of the model."""
    spec = {"predictor": {"processesPerReplica": 2}}
    file = write_manifest(tmp_path, CODE, spec)
    with running_replica(tmp_path, ["-f", str(file)]) as replica:
        await lanes_are(replica, 2)
        victims: set[int] = set(replica.children("model")[:1])
        _, survivor = replica.children("model")
        os.kill(next(iter(victims)), signal.SIGKILL)
        while len(victims) < 7:  # two more than what ends the replica for its own fault
            fresh = [p for p in replica.children("model") if p not in victims and p != survivor]
            for pid in fresh:
                os.kill(pid, signal.SIGKILL)
                victims.add(pid)
            await asyncio.sleep(0.01)
            assert replica.process.poll() is None, replica.text()
        await lanes_are(replica, 2)
        answer = await ask(replica.port, {"id": 1})

    assert answer.status == 200


async def test_a_web_process_whose_loop_does_not_run_is_replaced(tmp_path: Path) -> None:
    """S23: within ten seconds or so, and the models stay loaded."""
    manifest = write_manifest(tmp_path, CODE, {})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        (web,) = replica.children("web")
        models = replica.children("model")
        await asyncio.sleep(1)  # for its first beat

        os.kill(web, signal.SIGSTOP)
        began = time.monotonic()
        replica.wait_for(lambda: restarts(replica, "web") == 1, "not replaced")
        seconds = time.monotonic() - began
        response = await ask(replica.port, {"id": 3})

        assert response.json() == 3
        assert 5 < seconds < 15
        assert not is_alive(web)
        assert models == replica.children("model")


async def test_a_further_web_process_that_dies_is_replaced(tmp_path: Path) -> None:
    """N13: the queue is in the first one and stays."""
    manifest = write_manifest(tmp_path, CODE, {"predictor": {"webProcesses": 2}})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        replica.wait_for(lambda: len(replica.children("web")) == 2, "no two web processes")
        queue, further = replica.children("web")

        os.kill(further, signal.SIGKILL)
        replica.wait_for(lambda: restarts(replica, "web") == 1, "not replaced")
        replica.wait_for(lambda: len(replica.children("web")) == 2, "no two web processes")
        answers = [await ask(replica.port, {"id": n}) for n in range(20)]

        assert list(range(20)) == [answer.json() for answer in answers]
        assert queue in replica.children("web")
        assert further not in replica.children("web")


def test_the_memory_of_a_copy_is_on_the_page(replica: Replica) -> None:
    """W07: what processesPerReplica is multiplied with."""
    name = "batchedapi_model_process_memory_bytes"
    replica.wait_for(lambda: replica.metrics().get(name, 0) > 0, "no figure")

    assert 1 << 20 < replica.metrics()[name] < 1 << 31


async def test_cpu_time_of_a_web_process_goes_on_where_it_ended(tmp_path: Path) -> None:
    """N13: a counter that fell would be no page for the operator, and one that stood no verdict."""
    name = "batchedapi_web_cpu_seconds_total{process=0}"
    with running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, CODE, {}))]) as replica:
        replica.wait_for(lambda: replica.metrics().get(name, 0) > 0, "no figure")
        before = replica.metrics()[name]

        os.kill(replica.children("web")[0], signal.SIGKILL)
        replica.wait_for(lambda: restarts(replica, "web") == 1, "not replaced")
        assert replica.metrics()[name] >= before
        replica.wait_for(lambda: replica.metrics()[name] > before + 0.05, "it stands")

        for n in range(20):
            assert n == (await ask(replica.port, {"id": n})).json()
        assert before < replica.metrics()[name] < 60
