"""A predictor's child processes end with its own, whoever else has inherited its descriptors."""

import asyncio
import http.client
import os
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from ports import HOST, free_ports
from raw_http import ask
from serving import (
    PROGRAM,
    Replica,
    end_replica,
    is_alive,
    running_replica,
    start_replica,
    write_manifest,
)

POOL = """
    import os, time
    from concurrent.futures import ProcessPoolExecutor
    from batchedapi_serving import batched, endpoint

    class Model:
        def __init__(self, config, context):
            self.pool = None
            while os.path.exists("loads"):
                time.sleep(0.05)

        @batched(max_batch_size=8, example=1)
        def predict(self, items):
            # forked here, beside the lane's socket, as it is usual to do
            self.pool = self.pool or ProcessPoolExecutor(2)
            if "slow" in items:
                time.sleep(2)
            return list(self.pool.map(str, items))

        @endpoint
        async def calls(self, payload):
            return os.getpid()
"""
HELPERS = """
    import os, signal, subprocess, sys, time
    from batchedapi_serving import batched

    SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
    STUBBORN = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    )

    def daemon():
        "As a server does that puts itself into the background."
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv(sys.executable, SLEEP)
            os._exit(0)
        os.wait()

    class Model:
        def __init__(self, config, context):
            self.helpers = [
                subprocess.Popen(SLEEP),
                subprocess.Popen(SLEEP, start_new_session=True),
                subprocess.Popen(["sh", "-c", "sleep 600; true"], process_group=0),
                subprocess.Popen([sys.executable, "-c", STUBBORN]),
            ]
            subprocess.run(["sh", "-c", "sleep 600 &"])
            daemon()
            if os.fork() == 0:
                time.sleep(600)

        @batched(example=1)
        def predict(self, items):
            if items == ["die"]:
                os._exit(3)
            return items
"""
LANES = 'batchedapi_lanes{method="predict"}'
OF_EACH = 9
"""Processes that there are of a copy of HELPERS: its own, and a shell's child, among them."""


def of_workers(folder: Path) -> dict[int, str]:
    """Processes in that folder that model processes have started, or are; their worker's index."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            here = (entry / "cwd").readlink() == folder
            variables = (entry / "environ").read_bytes().split(b"\0") if here else []
        except OSError:
            continue
        for variable in variables:
            name, _, value = variable.decode().partition("=")
            if name == "BATCHEDAPI_WORKER_INDEX" and is_alive(int(entry.name)):
                found[int(entry.name)] = value
    return found


def lanes(replica: Replica) -> float:
    """The lanes of `predict`; an async method has as many as may run side by side."""
    page = replica.admin("/metrics")[1]
    (line,) = (one for one in page.splitlines() if one.startswith(LANES))
    return float(line.split()[-1])


async def test_forked_children_keep_no_lane_of_a_process_that_is_gone(tmp_path: Path) -> None:
    """They hold its sockets: it would count as serving, and batches wait for it in vain."""
    manifest = write_manifest(tmp_path, POOL, {"overload": {"timeout": "30s"}})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        assert (await ask(replica.port, 1)).status == 200
        assert (await ask(replica.port, 1, "/api/calls")).status == 200
        model = replica.children("model")[0]
        (tmp_path / "loads").touch()
        slow = asyncio.create_task(ask(replica.port, "slow", patience=60))
        await asyncio.sleep(0.5)

        os.kill(model, signal.SIGKILL)
        replica.wait_for(lambda: lanes(replica) == 0, "a dead lane")
        replica.wait_for(lambda: replica.admin("/readyz")[0] == 503, "ready without a model")
        (tmp_path / "loads").unlink()
        answered = await slow
        called = await ask(replica.port, 1, "/api/calls")

        assert (200, "slow") == (answered.status, answered.json())
        assert called.status == 200
        assert called.json() != model
        replica.wait_for(lambda: lanes(replica) == 1, "not one lane")


@pytest.mark.parametrize("processes", [1, 2])
def test_helpers_end_with_the_process_that_started_them(tmp_path: Path, processes: int) -> None:
    """They hold ports, memory and the log's pipe; those of a neighbour go on."""
    manifest = write_manifest(tmp_path, HELPERS, {"predictor": {"processesPerReplica": processes}})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        replica.wait_for(lambda: len(of_workers(tmp_path)) == processes * OF_EACH, "not all there")
        before = of_workers(tmp_path)
        first = next(pid for pid in replica.children("model") if before[pid] == "0")

        os.kill(first, signal.SIGKILL)
        replica.wait_for(lambda: first not in of_workers(tmp_path), "it runs")
        replica.wait_for(lambda: len(of_workers(tmp_path)) == processes * OF_EACH, "not all there")

        after = of_workers(tmp_path)
        neighbours = {pid for pid, index in before.items() if index != "0"}
        assert neighbours == before.keys() & after.keys()
        assert replica.stop() == 0
        assert {} == of_workers(tmp_path)


def test_helpers_end_with_a_check(tmp_path: Path) -> None:
    """It runs the constructor as a replica does, and leaves as little behind."""
    (tmp_path / "model.py").write_text(textwrap.dedent(HELPERS))

    checked = subprocess.run(
        [PROGRAM, "check", "model:Model"], cwd=tmp_path, capture_output=True, check=False
    )

    assert (0, {}) == (checked.returncode, of_workers(tmp_path)), checked.stderr


def test_helpers_end_with_each_reload(tmp_path: Path) -> None:
    """Else every edit would leave some more, on ports that the next ones want."""
    model = tmp_path / "model.py"
    model.write_text(textwrap.dedent(HELPERS))
    replica = start_replica(tmp_path, ["model:Model", "--reload"])
    try:
        replica.wait_ready()
        replica.wait_for(lambda: len(of_workers(tmp_path)) == OF_EACH, "not all there")
        before = of_workers(tmp_path)

        model.write_text(textwrap.dedent(HELPERS) + "# edited")
        replica.wait_for(lambda: not before.keys() & of_workers(tmp_path).keys(), "some are left")
        replica.wait_for(lambda: len(of_workers(tmp_path)) == OF_EACH, "not all there again")

        assert replica.stop() == 0
        assert {} == of_workers(tmp_path)
    finally:
        replica.stop()
        end_replica(replica)


async def test_a_fork_that_comes_back_from_a_method_serves_nobody(tmp_path: Path) -> None:
    """It has our code and all our connections: a second answer to one batch ends the lane."""
    code = """
        import os
        from batchedapi_serving import batched, endpoint

        class Model:
            @batched(example=1)
            def predict(self, items):
                if items == ["fork"]:
                    os.fork()
                return [os.getpid() for _ in items]

            @endpoint
            async def calls(self, payload):
                if payload == "fork":
                    os.fork()
                return os.getpid()
    """
    with running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, code, {}))]) as replica:
        model = replica.children("model")[0]

        answers = [await ask(replica.port, value) for value in ("fork", 1, "fork", 2)]
        calls = [await ask(replica.port, value, "/api/calls") for value in ("fork", 1, "fork", 2)]

        assert [(200, model)] * 8 == [(one.status, one.json()) for one in (*answers, *calls)]
        assert lanes(replica) == 1


async def test_what_user_code_executes_inherits_no_descriptor_of_ours(tmp_path: Path) -> None:
    """A helper that has a socket of ours would keep the port, or a lane, open for ever."""
    code = """
        import os, subprocess
        from batchedapi_serving import Context, batched, endpoint

        def seen():
            os.system("ls /proc/self/fd > by-system")
            popen = subprocess.run(["ls", "/proc/self/fd"], close_fds=False, capture_output=True)
            out = (os.POSIX_SPAWN_OPEN, 1, "by-spawn", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            spawned = os.posix_spawnp("ls", ["ls", "/proc/self/fd"], os.environ, file_actions=[out])
            os.waitpid(spawned, 0)
            texts = popen.stdout.decode(), open("by-system").read(), open("by-spawn").read()
            return [len(text.split()) for text in texts]

        class Model:
            def __init__(self, config, context: Context):
                self.first = seen()
                context.metrics.counter("seen", "Of nothing.").inc()

            @batched(example=1)
            def predict(self, items):
                return [[self.first, seen()] for _ in items]

            @endpoint
            async def calls(self, payload):
                return seen()
    """
    manifest = write_manifest(tmp_path, code, {"predictor": {"threadsPerProcess": 2}})
    with running_replica(tmp_path, ["-f", str(manifest), "--web-processes", "2"]) as replica:
        predicted = (await ask(replica.port, 1)).json()
        called = (await ask(replica.port, 1, "/api/calls")).json()

        own = [4, 4, 4]  # 0, 1, 2, and the folder that ls reads
        assert [own, own, own] == [*predicted, called]


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs root")
def test_process_1_of_a_container_reaps_all_orphans(tmp_path: Path) -> None:
    """Nobody else does: each would take a place in the table of processes for ever."""
    code = """
        import subprocess
        from batchedapi_serving import batched

        class Model:
            @batched(example=1)
            def predict(self, items):
                for _ in items:
                    subprocess.run(["sh", "-c", "sleep 0.01 & " * 50])
                return items
    """
    manifest = write_manifest(tmp_path, code, {})
    port, admin_port = free_ports(2)
    command = [
        "unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
        str(PROGRAM), "serve", "-f", str(manifest),
        "--port", str(port), "--admin-port", str(admin_port),
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=tmp_path)
    try:
        for i in range(20):
            assert patiently_asked(port, i) == 200
        (supervisor,) = children_of(process.pid)
        end = time.monotonic() + 20
        while len(children := children_of(supervisor)) > WEB_AND_MODEL:
            assert time.monotonic() < end, children
            time.sleep(0.1)

        os.kill(supervisor, signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


WEB_AND_MODEL = 2


def children_of(pid: int) -> list[int]:
    """Pids; zombies too."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def patiently_asked(port: int, value: int) -> int:
    """Status of an answer, once there is somebody who answers."""
    end = time.monotonic() + 60
    while True:
        connection = http.client.HTTPConnection(HOST, port, timeout=30)
        try:
            connection.request("POST", "/api", str(value), {"content-type": "application/json"})
            status = connection.getresponse().status
            if status != 503:
                return status
        except OSError:
            assert time.monotonic() < end
        finally:
            connection.close()
        time.sleep(0.1)
