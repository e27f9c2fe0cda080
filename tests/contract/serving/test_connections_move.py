"""`maxConnectionAge` and `keepAlive` on real sockets: connections end, and nothing is lost."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc.aio as triton

from ports import HOST, free_port
from raw_http import connected, request_bytes
from serving import ECHO, Replica, running_replica, write_manifest

AGE = 2.0
NETWORKING = {"networking": {"maxConnectionAge": "2s", "keepAlive": "3s"}}


@pytest.fixture(scope="module")
def grpc_port() -> int:
    """The gRPC port of the one replica of this file."""
    return free_port()


@pytest.fixture(scope="module")
def replica(folder: Path, grpc_port: int) -> Iterator[Replica]:
    """Its connections live for two seconds, idle ones for three."""
    manifest = write_manifest(folder, ECHO, NETWORKING)
    arguments = ["-f", str(manifest), "--grpc-port", str(grpc_port)]
    with running_replica(folder, arguments) as started:
        yield started


async def lives(port: int, until: float) -> list[float]:
    """Seconds from connect to `Connection: close` of one client's connections, one by one."""
    ages = []
    while time.monotonic() < until:
        async with connected(port) as connection:
            began = time.monotonic()
            while True:
                response = await connection.post_json("/predict", 1)
                assert response.status == 200
                if response.headers.get("connection") == "close":
                    ages.append(time.monotonic() - began)
                    assert await connection.is_closed_by_server()
                    break
    return ages


async def test_connections_in_use_end_with_an_answer_at_about_their_age(replica: Replica) -> None:
    """Every request of eight closed loops is answered; no connection ends but with an answer."""
    until = time.monotonic() + 3 * AGE

    loops = await asyncio.gather(*(lives(replica.port, until) for _ in range(8)))
    ages = [age for loop in loops for age in loop]

    assert len(ages) >= 16
    assert all(0.85 * AGE < age for age in ages)
    assert sorted(ages)[len(ages) // 2] < 2 * AGE


def sent_ahead(port: int) -> bytes:
    """The bytes a client receives that sends twenty requests, one by one, on an old connection."""
    with socket.create_connection((HOST, port), timeout=20) as connection:
        time.sleep(1.3 * AGE)
        for _ in range(20):
            connection.sendall(request_bytes("/predict", b"["))  # refused at once
            time.sleep(0.02)
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
        return received


async def test_a_client_that_sends_ahead_of_the_end_is_not_reset(replica: Replica) -> None:
    """It has sent more before it reads that the connection ends; its answer is still there."""
    received = await asyncio.to_thread(sent_ahead, replica.port)

    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nconnection: close\r\n" in received
    assert 1 == received.count(b"HTTP/1.1 ")


async def test_an_idle_connection_stays_for_the_time_it_is_given(replica: Replica) -> None:
    """It is not closed for its age: its client could not be told."""
    async with connected(replica.port) as connection:
        assert (await connection.post_json("/predict", 1)).status == 200
        began = time.monotonic()

        assert await connection.is_closed_by_server(20)

        assert 2.9 < time.monotonic() - began


async def test_calls_over_grpc_go_on_over_other_connections(
    replica: Replica, grpc_port: int
) -> None:
    """The client is told to open another one; no call fails, and connections are seen to change."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    item = triton.InferInput("input", [1], "INT64")
    item.set_data_from_numpy(np.array([7]))
    seen: list[grpc.ChannelConnectivity] = []

    async with triton.InferenceServerClient(f"{HOST}:{grpc_port}", channel_args=own) as client:
        watching = asyncio.create_task(_states(client._channel, seen))
        until = time.monotonic() + 3 * AGE
        answers = []
        while time.monotonic() < until:
            answers.append(int((await client.infer("api", [item])).as_numpy("output")[0]))
        watching.cancel()

    assert replica.process.poll() is None
    assert {7} == set(answers)
    assert seen.count(grpc.ChannelConnectivity.READY) >= 3


async def _states(channel: grpc.aio.Channel, seen: list[grpc.ChannelConnectivity]) -> None:
    while True:
        state = channel.get_state(try_to_connect=True)
        seen.append(state)
        await channel.wait_for_state_change(state)
