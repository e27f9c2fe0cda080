"""The supervisor lacks descriptors, or its admin port is besieged: never ready and unable."""

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchedapi_core import contract
from batchedapi_serving.cli import serve
from batchedapi_serving.errors import LoadError
from batchedapi_serving.metrics import slots
from batchedapi_serving.processes import Child
from batchedapi_serving.supervisor.lifecycle import Life
from batchedapi_serving.supervisor.web_processes import web_processes
from connections import web_settings
from ports import HOST, free_port
from raw_http import ask
from serving import Replica, end_replica, running_replica, start_replica, write_manifest

BENCH = Path(__file__).parents[2] / "bench"

CODE = """
    import os, time
    from batchedapi_serving import batched

    class Model:
        def __init__(self, config, context):
            if os.path.exists(config.get("hang", "")):
                time.sleep(1000)

        @batched(example=0)
        def predict(self, items):
            return items
"""


def allow_descriptors(pid: int, limit: int) -> None:
    """Let a process open only descriptors below `limit` from now on."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))


@contextlib.contextmanager
def few_descriptors(soft: int) -> Iterator[None]:
    """Lower the soft limit of processes started meanwhile; they may raise it to the hard one."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("which", ["admin_port", "port"])
def test_idle_connections_of_a_replica_with_few_descriptors_are_in_nobodys_way(
    tmp_path: Path, which: str
) -> None:
    """A soft limit of 256 is macOS's, and of some container runtimes; the hard one is far above."""
    with contextlib.ExitStack() as stack:
        with few_descriptors(256):
            arguments = ["-f", str(write_manifest(tmp_path, CODE, {}))]
            replica = stack.enter_context(running_replica(tmp_path, arguments))
        for _ in range(300):
            address = (HOST, getattr(replica, which))
            stack.enter_context(socket.create_connection(address, timeout=10))

        assert [200] * 5 == [replica.admin("/readyz")[0] for _ in range(5)]
        assert 200 == asyncio.run(ask(replica.port, 1)).status


@pytest.mark.parametrize("role", ["model", "web"])
def test_a_process_that_cannot_be_started_again_ends_the_replica(tmp_path: Path, role: str) -> None:
    """No descriptor is left for pipe or socketpair: exit code 70, with the reason."""
    with running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, CODE, {}))]) as replica:
        allow_descriptors(replica.pid, 3)
        os.kill(replica.children(role)[0], signal.SIGKILL)
        code = replica.process.wait(60)

    last = replica.text().strip().splitlines()[-1]
    assert code == 70
    assert last.startswith("batchedapi: CrashLooping: ")
    assert "Too many open files" in last


@pytest.mark.parametrize("role", ["model", "web"])
async def test_a_start_that_fails_once_is_tried_again(tmp_path: Path, role: str) -> None:
    """The shortage is over in half a second, and so is the gap."""
    with running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, CODE, {}))]) as replica:
        allow_descriptors(replica.pid, 3)
        (before,) = replica.children(role)
        os.kill(before, signal.SIGKILL)
        replica.wait_for(lambda: "Too many open files" in replica.text(), "nothing failed")
        allow_descriptors(replica.pid, 1024)
        replica.wait_for(lambda: replica.children(role) not in ([], [before]), "not replaced")
        replica.wait_ready()
        answer = await ask(replica.port, 7)

    assert (200, 7) == (answer.status, answer.json())


def test_a_replacement_that_hangs_while_it_loads_is_not_ready_and_has_an_end(
    tmp_path: Path,
) -> None:
    """No lane: not ready within seconds; killed after startupTimeout, which ends the replica."""
    sign = tmp_path / "hang"
    predictor = {"config": {"hang": str(sign)}, "startupTimeout": "12s"}
    manifest = write_manifest(tmp_path, CODE, {"predictor": predictor})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        sign.touch()
        os.kill(replica.children("model")[0], signal.SIGKILL)
        began = time.monotonic()
        replica.wait_for(lambda: replica.admin("/readyz")[0] == 503, "ready without a lane")
        unready = time.monotonic() - began
        assert 200 == replica.admin("/livez")[0]
        code = replica.process.wait(60)

    assert code == 70
    assert 1 < unready < 10
    assert "StartupTimeout: model process 0 had not loaded its model after" in replica.text()


def test_a_first_start_that_takes_too_long_says_so(tmp_path: Path) -> None:
    """Before the kubelet would end it without a reason."""
    (tmp_path / "hang").touch()
    predictor = {"config": {"hang": str(tmp_path / "hang")}, "startupTimeout": "3s"}
    manifest = write_manifest(tmp_path, CODE, {"predictor": predictor})
    replica = start_replica(tmp_path, ["-f", str(manifest)])
    try:
        code = replica.process.wait(30)
    finally:
        end_replica(replica)

    last = replica.text().strip().splitlines()[-1]
    assert code == 1
    assert last.startswith("batchedapi: StartupTimeout: ")
    assert "spec.predictor.startupTimeout" in last


@pytest.mark.parametrize("slow", [False, True], ids=["idle", "slow"])
def test_probes_are_answered_beside_a_thousand_connections(replica: Replica, *, slow: bool) -> None:
    """On the admin port itself and on that of predictions."""
    with contextlib.ExitStack() as stack:
        held = []
        for port in [replica.admin_port, replica.port] * 500:
            held.append(stack.enter_context(socket.create_connection((HOST, port))))
            if slow:
                held[-1].sendall(b"GET /readyz HTTP/1.1\r\nx-")
        for _ in range(5):
            for connection in held if slow else ():
                with contextlib.suppress(OSError):
                    connection.send(b"a")
            for path in ("/readyz", "/livez", "/startupz", "/metrics"):
                assert 200 == replica.admin(path)[0]
            time.sleep(0.1)
        assert descriptors(replica) < 400
    replica.wait_for(lambda: descriptors(replica) < 50, "connections stay")


def descriptors(replica: Replica) -> int:
    """The number of descriptors that its supervisor has open."""
    return len(os.listdir(f"/proc/{replica.pid}/fd"))  # noqa: PTH208 - names are enough


def test_the_admin_port_answers_when_no_descriptor_is_left(tmp_path: Path) -> None:
    """Some are set aside, and connections that do nothing are closed for who comes last."""
    with running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, CODE, {}))]) as replica:
        used = max(int(name) for name in os.listdir(f"/proc/{replica.pid}/fd"))  # noqa: PTH208 - names are enough
        allow_descriptors(replica.pid, used + 1)
        with contextlib.ExitStack() as stack:
            for _ in range(30):
                stack.enter_context(socket.create_connection((HOST, replica.admin_port)))
            statuses = [replica.admin("/readyz")[0] for _ in range(20)]

    assert [200] * 20 == statuses


def test_the_admin_port_speaks_http(replica: Replica) -> None:
    """Keep-alive, HEAD, 1.0, absolute addresses, an upgrade that is not taken, and nonsense."""
    get, close = b"GET %b HTTP/1.1\r\nhost: t\r\n", b"connection: close\r\n\r\n"
    replies = {
        b"200 200": get % b"/livez" + b"\r\n" + b"HEAD /livez HTTP/1.1\r\nhost: t\r\n" + close,
        b"200": b"GET /readyz HTTP/1.0\r\n\r\n",
        b"200 ": get % b"http://t/livez?x=1"
        + b"upgrade: h2c\r\nconnection: upgrade, close\r\n\r\n",
        b"405": b"POST /livez HTTP/1.1\r\nhost: t\r\ncontent-length: 2\r\n" + close + b"ab",
        b"400": b"\x16\x03\x01\r\n\r\n",
        b"404": get % b"http://[" + close,
    }
    for expected, request in replies.items():
        with socket.create_connection((HOST, replica.admin_port), timeout=20) as connection:
            connection.sendall(request)
            reply = b""
            while data := connection.recv(65536):
                reply += data
        assert expected.split() == re.findall(rb"HTTP/1.1 (\d+)", reply), request


def test_calls_of_the_supervisor_that_fail_leave_no_replica_ready_and_unable() -> None:
    """A sample of tests/bench/faults.py, which finds all calls and makes each fail; drawn anew."""
    share, port = 0.005, free_port()
    command = [sys.executable, str(BENCH / "faults.py"), "--which", "once", "--share", str(share)]
    found = subprocess.run(
        [*command, "--seed", str(port), "--port", str(port)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip

    print(found.stdout)
    assert 0 == found.returncode, found.stderr


def test_a_termination_message_is_whole_json(tmp_path: Path) -> None:
    """However long the reason: half an object would tell the operator nothing."""
    file = tmp_path / "log"
    file.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contract, "TERMINATION_LOG", str(file))
        serve._leave_termination_message(LoadError("InitFailed", "ä\n" * 9000))

    assert len(file.read_bytes()) <= 4096
    assert "InitFailed" == json.loads(file.read_text())["reason"]


class Noted(Child):
    """A process that is none, and the signals that it was sent."""

    def __init__(self) -> None:
        super().__init__("web-0", "nothing")
        self.signals: list[int] = []

    def signal(self, number: int) -> None:
        """See Child."""
        self.signals.append(number)


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b'{"ready": 1}\n', b"\xff\n", b"x" * 2_000_000])
async def test_a_web_process_that_cannot_be_understood_is_replaced(line: bytes) -> None:
    """Nobody would hear from it of a model process that hangs."""

    def heard(message: dict[str, Any]) -> None:
        assert message["methods"]

    settings, child = web_settings(), Noted()
    memory = memoryview(bytearray(slots.BYTES)).cast("d")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        web = web_processes(settings, memory, ours, Life(), heard)
        listening = asyncio.create_task(web._listen(child, ours))
        with contextlib.suppress(ConnectionError):  # the longest line is not read to its end
            await asyncio.to_thread(theirs.sendall, line)
        await asyncio.wait_for(listening, 20)

    assert [signal.SIGKILL] == child.signals
