"""Clients that send slowly, or nothing, do not hold connections for ever.

The limits are those of the contract, so this file takes a little longer than the first of them.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchedapi_core import contract
from raw_http import connected, request_bytes
from serving import Replica, running_replica, write_manifest

CODE = """
    class Model:
        def __init__(self, config, context):
            pass

        def predict(self, payload, query_params, headers):
            return payload
"""
HEAD = b"POST /predict HTTP/1.1\r\nhost: t\r\n"
SLACK = 5.0
"""Seconds: the sweep is once a second, the machine may be busy."""


@pytest.fixture(scope="module")
def replica(folder: Path) -> Iterator[Replica]:
    """With every default."""
    with running_replica(folder, ["-f", str(write_manifest(folder, CODE, {}))]) as started:
        yield started


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
    ]
    async with connected(replica.port) as silent, connected(replica.port) as pipelining:
        await pipelining.send(request_bytes("/predict", b"1") * 2 + HEAD)
        first = [await pipelining.receive() for _ in range(2)]
        served = [await pipelining_client(replica) for _ in range(5)]
        results = await asyncio.gather(*attacks)
        last = await pipelining.receive(patience=SLACK)

        assert await silent.is_closed_by_server(SLACK)

    assert [408] * 3 == [status for status, _ in results]
    assert all(limit - 1 <= seconds <= limit + SLACK for _, seconds in results)
    assert ([200, 200], 408) == ([response.status for response in first], last.status)
    assert {200} == set(served)


async def pipelining_client(replica: Replica) -> int:
    """Status of an ordinary request beside them."""
    async with connected(replica.port) as connection:
        return (await connection.post("/predict", b"1")).status
