"""Clients that want all there is: of bodies, of answers that they do not read, of connections."""

import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

from batchedapi_serving.web.limits import BODIES_BYTES, MOST_CONNECTIONS
from ports import HOST, free_ports
from raw_http import connected, request_bytes
from serving import Replica, running_replica, write_manifest

BENCH: Final = Path(__file__).parents[2] / "bench"
MIB: Final = 1024 * 1024
BUDGET: Final = BODIES_BYTES + 64 * MIB
"""Of a web process, with what it takes without clients."""
KEY: Final = {"x-api-key": "a-key"}
OTHER: Final = "127.0.0.2"
"""Another address of this machine."""
CODE: Final = f"""
    ANSWER = "x" * {4 * MIB}

    class Model:
        def predict(self, payload):
            return ANSWER if payload == "large" else len(payload)
"""
LARGE: Final = b'"large"'


@pytest.fixture(scope="module")
def descriptors() -> Iterator[None]:
    """Enough for both ends of all connections of a web process."""
    some, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (some, most))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the manifest, and a folder of one key."""
    folder = tmp_path_factory.mktemp("greedy")
    write_manifest(folder, CODE, {})
    (folder / "keys").mkdir()
    (folder / "keys" / "mine").write_text(KEY["x-api-key"])
    return folder


@pytest.fixture
def replica(folder: Path) -> Iterator[Replica]:
    """Open to all; each test has its own, whose memory nobody has used before."""
    with running_replica(folder, ["-f", "batchedapi.yaml"]) as replica:
        yield replica


@pytest.fixture
def guarded(folder: Path) -> Iterator[Replica]:
    """The same with keys."""
    with running_replica(folder, ["-f", "batchedapi.yaml", "--api-keys", "keys"]) as replica:
        yield replica


def peak_bytes(replica: Replica) -> int:
    """The peak memory of its web process."""
    (pid,) = replica.children("web")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def post(replica: Replica, size: int, address: str = HOST, **headers: str) -> int:
    """Status of the answer to a body of so many bytes, from a connection of its own."""
    transport = httpx.HTTPTransport(local_address=address)
    with httpx.Client(transport=transport, timeout=30) as client:
        url = f"http://{HOST}:{replica.port}/predict"
        body = b'"%b"' % (b"x" * size)
        return client.post(url, content=body, headers={**headers}).status_code


async def unfinished(
    replica: Replica, stack: contextlib.AsyncExitStack, count: int, size: int
) -> None:
    """Uploads of so many bytes, of which the last one is missing."""
    for _ in range(count):
        connection = await stack.enter_async_context(connected(replica.port))
        with contextlib.suppress(ConnectionError):  # of those that are refused
            await connection.send(request_bytes("/predict", bytes(size))[:-1])


async def test_uploads_without_a_key_take_nothing(guarded: Replica) -> None:
    """They were held until their time was over, and whoever has a key was told to come again."""
    before = peak_bytes(guarded)
    async with contextlib.AsyncExitStack() as stack:
        await unfinished(guarded, stack, 12, 31 * MIB)
        codes = [await asyncio.to_thread(post, guarded, 20_000, **KEY) for _ in range(10)]

    assert [200] * 10 == codes
    assert peak_bytes(guarded) - before < 16 * MIB


def test_a_crowd_without_keys_costs_those_with_keys_no_answer() -> None:
    """Bodies, halves of bodies, gzip and forms, a short sample of what `tests/bench` does."""
    command = [sys.executable, str(BENCH / "keyless.py"), "--seconds", "5"]
    found = subprocess.run(
        [*command, "--port", str(free_ports(1)[0])],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    print(found.stdout)
    assert 0 == found.returncode, found.stderr


async def test_uploads_of_one_address_leave_room_for_another(replica: Replica) -> None:
    """Without keys an address is all that is known of a client."""
    async with contextlib.AsyncExitStack() as stack:
        await unfinished(replica, stack, 12, 31 * MIB)
        codes = [await asyncio.to_thread(post, replica, size, OTHER) for size in (20_000, MIB)]
        peak = peak_bytes(replica)
        large = await asyncio.to_thread(post, replica, 30 * MIB, OTHER)

    assert [200] * 3 == [*codes, large]
    assert peak < 1.2 * BUDGET


async def test_answers_that_nobody_reads_take_no_more_than_the_budget(replica: Replica) -> None:
    """300 of 4 MiB are a gigabyte; who reads is answered beside them, from the same address too."""
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((HOST, replica.port))
            client.sendall(request_bytes("/predict", LARGE))
        async with connected(replica.port) as reader:
            answers = [await reader.post("/predict", LARGE) for _ in range(20)]

    assert [(200, 4 * MIB)] * 20 == [(one.status, len(one.body.strip(b'"'))) for one in answers]
    assert peak_bytes(replica) < 1.2 * BUDGET


@pytest.mark.usefixtures("descriptors")
async def test_connections_that_have_begun_a_request_lock_nobody_out(replica: Replica) -> None:
    """None of them is idle, and all are young; a client of another address is answered at once."""
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_CONNECTIONS + 50):
            client = stack.enter_context(socket.create_connection((HOST, replica.port)))
            with contextlib.suppress(OSError):
                client.send(b"P")
        began = time.monotonic()
        code = await asyncio.to_thread(post, replica, 10, OTHER)
        seconds = time.monotonic() - began
        same = await asyncio.to_thread(post, replica, 10)
    print(f"answered after {seconds:.2f} s")

    assert (200, 200) == (code, same)
