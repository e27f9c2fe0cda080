"""A thousand idle and a thousand slow connections on each port: others are served, probes too."""

import asyncio
import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc.aio as triton

from ports import HOST, free_port
from raw_http import ask, connected, request_bytes
from serving import ECHO, Replica, running_replica, write_manifest

MANY = 1000
SECONDS = 6.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@pytest.fixture(scope="module")
def descriptors() -> Iterator[None]:
    """Enough for both ends of four thousand connections."""
    some, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (some, most))


async def held(port: int, start: bytes, every: bytes, stack: contextlib.AsyncExitStack) -> None:
    """A thousand connections that begin with `start` and go on with `every` each second."""
    writers = []
    for _ in range(MANY):
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(start)
        writers.append(writer)
        stack.callback(writer.transport.abort)

    async def go_on() -> None:
        while every:
            await asyncio.sleep(1)
            for writer in writers:
                if not writer.transport.is_closing():
                    writer.write(every)

    task = asyncio.create_task(go_on())
    stack.callback(task.cancel)


async def slowest_probe(replica: Replica, until: float) -> float:
    """Seconds that a good answer of /readyz took at most."""
    slowest = 0.0
    while time.monotonic() < until:
        began = time.monotonic()
        status, _ = await asyncio.to_thread(replica.admin, "/readyz")
        assert status == 200
        slowest = max(slowest, time.monotonic() - began)
        await asyncio.sleep(0.2)
    return slowest


async def served_over_http(port: int, until: float) -> int:
    """Requests over connections of their own and over one that stays."""
    count = 0
    async with connected(port) as kept:
        while time.monotonic() < until:
            assert (await kept.post_json("/predict", count)).json() == count
            assert (await ask(port, count)).json() == count
            count += 2
    return count


async def served_over_grpc(port: int, until: float) -> int:
    """Calls over one connection after the other."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    item = triton.InferInput("input", [1], "INT64")
    item.set_data_from_numpy(np.array([7]))
    count = 0
    while time.monotonic() < until:
        async with triton.InferenceServerClient(f"{HOST}:{port}", channel_args=own) as client:
            assert (await client.infer("api", [item])).as_numpy("output")[0] == b"7"
            count += 1
    return count


@pytest.mark.alone
@pytest.mark.usefixtures("descriptors")
async def test_many_connections_that_do_nothing_are_in_nobodys_way(
    folder: Path,
) -> None:
    """S24, S26: 4,000 of them; others are answered, and a probe within a second."""
    grpc_port = free_port()
    manifest = write_manifest(folder, ECHO, {})
    arguments = ["-f", str(manifest), "--grpc-port", str(grpc_port)]
    with running_replica(folder, arguments) as replica:
        async with contextlib.AsyncExitStack() as stack:
            await held(replica.port, request_bytes("/predict", b"1"), b"", stack)
            await held(replica.port, b"POST /predict HTTP/1.1\r\n", b"x-a: b\r\n", stack)
            await held(grpc_port, PREFACE + SETTINGS, b"", stack)
            await held(grpc_port, PREFACE[:8], b"", stack)
            until = time.monotonic() + SECONDS
            over_http, over_grpc, slowest = await asyncio.gather(
                served_over_http(replica.port, until),
                served_over_grpc(grpc_port, until),
                slowest_probe(replica, until),
            )
        print(f"{over_http} over HTTP, {over_grpc} over gRPC, slowest probe {slowest:.3f} s")

        assert min(over_http, over_grpc) >= 10
        assert slowest < 1.0
