"""Clients that send or read slowly, too much, or nothing, hold neither connections nor memory.

The limits are those of the contract, so this file takes a little longer than the first of them.
"""

import asyncio
import contextlib
import os
import resource
import socket
import time
from pathlib import Path

from batchedapi_core import contract
from raw_http import connected, request_bytes
from serving import Replica, running_replica, write_manifest

CODE = """
    class Model:
        def predict(self, payload, query_params, headers):
            return payload
"""
HEAD = b"POST /predict HTTP/1.1\r\nhost: t\r\n"
BODY = HEAD + b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n"
SLACK = 5.0
"""Seconds: the sweep is once a second, the machine may be busy."""


async def drip(replica: Replica, start: bytes, every: bytes, seconds: float) -> tuple[int, float]:
    """Status and time at which a request is refused that goes on with `every` each half second."""
    async with connected(replica.port) as connection:
        began = time.monotonic()
        await connection.send(start)

        async def go_on() -> None:
            while True:
                await asyncio.sleep(0.5)
                await connection.send(every)

        sending = asyncio.create_task(go_on())
        try:
            response = await connection.receive(patience=seconds + SLACK)
        finally:
            sending.cancel()
        return response.status, time.monotonic() - began


async def test_headers_that_trickle_and_bodies_that_stall_do_not_stay(replica: Replica) -> None:
    """408 after ten seconds for headers, however alive the client looks; others are served."""
    limit = contract.HEADER_ARRIVAL_SECONDS
    attacks = [
        asyncio.create_task(drip(replica, HEAD, b"x-a: b\r\n", limit)),
        asyncio.create_task(drip(replica, b"PO", b"", limit)),
        asyncio.create_task(drip(replica, request_bytes("/nowhere", b"")[:-2], b"", limit)),
        asyncio.create_task(drip(replica, BODY, b" ", limit)),
    ]
    async with connected(replica.port) as silent, connected(replica.port) as pipelining:
        await pipelining.send(request_bytes("/predict", b"1") * 2 + HEAD)
        first = [await pipelining.receive() for _ in range(2)]
        served = [await pipelining_client(replica) for _ in range(5)]
        results = await asyncio.gather(*attacks)
        last = await pipelining.receive(patience=SLACK)

        assert await silent.is_closed_by_server(SLACK)

    assert [408] * 4 == [status for status, _ in results]
    assert all(limit - 1 <= seconds <= limit + SLACK for _, seconds in results)
    assert ([200, 200], 408) == ([response.status for response in first], last.status)
    assert {200} == set(served)


async def pipelining_client(replica: Replica) -> int:
    """Status of an ordinary request beside them."""
    async with connected(replica.port) as connection:
        return (await connection.post("/predict", b"1")).status


async def test_clients_that_do_not_read_are_dropped(replica: Replica) -> None:
    """S28: they ask for megabytes and take none; memory stays, and others are served."""
    body = b'"' + b"x" * 1_000_000 + b'"'
    request = request_bytes("/predict", body)
    async with contextlib.AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(connected(replica.port)) for _ in range(10)]
        for reader in readers:
            reader.writer.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
            )
            reader.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a ReadTransport too
            reader.writer.write(request * 8)
        began = time.monotonic()
        statuses = []
        while connections_of(replica) > 1 and time.monotonic() - began < 25:
            statuses.append(await pipelining_client(replica))
            await asyncio.sleep(0.5)
        seconds = time.monotonic() - began

    assert seconds < 20
    assert {200} == set(statuses)


def connections_of(replica: Replica) -> int:
    """Established connections to its port, as the kernel counts them; ours are among them."""
    (web,) = replica.children("web")
    rows = Path(f"/proc/{web}/net/tcp").read_text().splitlines()[1:]
    local = f":{replica.port:04X}"
    return sum(row.split()[1].endswith(local) and row.split()[3] == "01" for row in rows)


async def test_a_body_without_end_is_cut_at_the_limit(replica: Replica) -> None:
    """S8: by its announced length unread, and in chunks as soon as it is too large."""
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    head = b"POST /predict HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n"
    before = memory_of(replica)
    for _ in range(3):
        async with connected(replica.port) as announced:
            await announced.send(HEAD + b"content-length: 1073741824\r\n\r\n")
            assert 413 == (await announced.receive()).status
        async with connected(replica.port) as endless:
            with contextlib.suppress(ConnectionError):
                await endless.send(head)
                for _ in range(200):
                    await endless.send(chunk)
            assert 413 == (await endless.receive()).status

    assert memory_of(replica) - before < 100 << 20


def memory_of(replica: Replica) -> int:
    """Resident bytes of its web process."""
    (web,) = replica.children("web")
    pages = Path(f"/proc/{web}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def test_without_descriptors_left_a_replica_recovers(folder: Path) -> None:
    """S24: no more connections fit; health answers, and when some leave it serves again."""
    with running_replica(folder, ["-f", str(write_manifest(folder, CODE, {}))]) as replica:
        (web,) = replica.children("web")
        used = len(os.listdir(f"/proc/{web}/fd"))  # noqa: PTH208 - names are enough
        resource.prlimit(web, resource.RLIMIT_NOFILE, (used + 20, used + 20))
        async with contextlib.AsyncExitStack() as stack:
            held = [await stack.enter_async_context(connected(replica.port)) for _ in range(60)]
            before = cpu_seconds(web)
            await asyncio.sleep(2)
            spent = cpu_seconds(web) - before
            health = await asyncio.to_thread(replica.admin, "/readyz")
            assert 60 == len(held)
        after = await eventually(replica)

    assert (200, 200) == (health[0], after)
    assert spent < 0.5  # it does not try again and again


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def eventually(replica: Replica) -> int:
    """Status of the first request that is answered, within a few seconds."""
    for _ in range(50):
        with contextlib.suppress(ConnectionError):
            return await pipelining_client(replica)
        await asyncio.sleep(0.1)
    return 0
