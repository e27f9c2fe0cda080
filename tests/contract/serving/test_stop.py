"""SIGTERM: what was accepted is answered, then everything ends."""

import asyncio
import contextlib
import ctypes
import functools
import os
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from batchedapi_serving.web.sockets import drain_backlog
from ports import HOST, free_port
from raw_http import ask, connected, request_bytes
from serving import IN_A_POD, Replica, is_alive, running_replica, write_manifest

SO_ATTACH_FILTER: Final = 26
SO_DETACH_FILTER: Final = 27

CODE = """
    import time
    from batchedapi_serving import batched

    class Model:
        @batched(example=0)
        def predict(self, items):
            time.sleep(max(0.01, max(items) if items[0] < 100 else 0))
            return items
"""


async def client(port: int, number: int, results: list[object]) -> None:
    """Asks over one connection until the server says that it closes it, or breaks it."""
    async with connected(port) as connection:
        while True:
            number += 1
            try:
                response = await connection.post_json("/predict", number)
            except (OSError, asyncio.IncompleteReadError) as error:
                results.append(error)
                return
            results.append(response.status if response.json() == number else response)
            if response.headers.get("connection") == "close":
                return


@pytest.mark.parametrize("arguments", [[], ["--drain-delay", "1s"]], ids=str)
async def test_sigterm_under_load_loses_no_accepted_request(
    tmp_path: Path, arguments: list[str]
) -> None:
    """Every client gets its answer, with `Connection: close`; exit code 0, soon, nothing left."""
    manifest = write_manifest(tmp_path, CODE, {"serverSideBatching": {"maxBatchSize": 8}})
    with running_replica(tmp_path, ["-f", str(manifest), *arguments]) as replica:
        children = replica.children()
        results: list[object] = []
        clients = [
            asyncio.create_task(client(replica.port, 1000 * n, results)) for n in range(1, 33)
        ]
        await asyncio.sleep(0.5)

        replica.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        await asyncio.gather(*clients)
        code = await asyncio.to_thread(replica.stop)

        assert {200} == set(results)
        assert len(results) > 100
        assert code == 0, replica.text()
        assert time.monotonic() - began < 8
        assert [] == [pid for pid in children if is_alive(pid)]
        assert replica.admin("/livez")[0] == 0


async def test_readiness_ends_at_once_and_requests_are_taken_for_the_drain_delay(
    tmp_path: Path,
) -> None:
    """Endpoints take seconds to settle: until then somebody still sends requests here."""
    manifest = write_manifest(tmp_path, CODE, {})
    with running_replica(tmp_path, ["-f", str(manifest), "--drain-delay", "2s"]) as replica:
        replica.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)

        ready, live = replica.admin("/readyz")[0], replica.admin("/livez")[0]
        response = await ask(replica.port, 100)

        assert (503, 200) == (ready, live)
        assert (200, "close") == (response.status, response.headers.get("connection"))
        assert await asyncio.to_thread(replica.stop) == 0


@pytest.mark.parametrize("arguments", [[], ["--web-processes", "2"]], ids=str)
async def test_in_a_pod_it_is_ready_as_long_as_it_lets_anybody_in(
    tmp_path: Path, arguments: list[str]
) -> None:
    """A pod that ends is known by its deletion, and gets new clients while no other is ready.

    A replica that said otherwise would be left out, and whoever asks the only one be refused.
    """
    manifest = write_manifest(tmp_path, CODE, {})
    arguments = ["-f", str(manifest), "--drain-delay", "1s", *arguments]
    pod = {IN_A_POD: "10.96.0.1"}
    with running_replica(tmp_path, arguments, pod) as replica:
        began = time.monotonic()
        replica.process.send_signal(signal.SIGTERM)

        while time.monotonic() - began < 5:  # outside of a pod it is at most twice `drainDelay`
            assert 200 == (await ask(replica.port, 100)).status
            async with connected(replica.port) as connection:
                await connection.send(request_bytes("/v2/health/ready", b"", method="GET"))
                assert 200 == (await connection.receive()).status
            assert 200 == replica.admin("/readyz")[0]
            await asyncio.sleep(0.1)

        async with connected(replica.port) as last:  # answered in the end, when nobody is let in
            asked = asyncio.create_task(last.post_json("/predict", 4))
            gone = functools.partial(replica.wait_for, lambda: replica.admin("/readyz")[0] == 503)
            await asyncio.to_thread(gone, "still ready")
            assert not asked.done()
            assert 200 == (await asked).status
        assert await asyncio.to_thread(replica.stop) == 0


@pytest.mark.parametrize("seconds", [2.5, 6.0])
async def test_while_clients_still_connect_the_listener_stays_open_for_at_most_as_long_again(
    tmp_path: Path, seconds: float
) -> None:
    """On a busy node endpoints settle late; who is in the backlog of a closed listener is reset."""
    manifest = write_manifest(tmp_path, CODE, {})
    with running_replica(tmp_path, ["-f", str(manifest), "--drain-delay", "2s"]) as replica:
        began = time.monotonic()
        replica.process.send_signal(signal.SIGTERM)
        refused: list[float] = []

        while (now := time.monotonic() - began) < seconds:
            try:
                assert (await ask(replica.port, 100)).status == 200
            except OSError:
                refused.append(now)
            await asyncio.sleep(0.2)

        assert (seconds > 4) == bool(refused)
        assert all(at > 3.9 for at in refused)
        assert await asyncio.to_thread(replica.stop) == 0


def test_whoever_asks_again_and_again_changes_no_exit_code(tmp_path: Path) -> None:
    """The last moments of the process hear SIGTERM too, when its loop is closed already."""
    with running_replica(tmp_path, ["-f", str(write_manifest(tmp_path, CODE, {}))]) as replica:
        while replica.process.poll() is None:
            replica.process.send_signal(signal.SIGTERM)
            time.sleep(0.001)

        assert replica.process.returncode == 0


async def infer(client: triton.InferenceServerClient, value: int) -> int:
    """One request of one row over gRPC."""
    item = triton.InferInput("input", [1], "INT64")
    item.set_data_from_numpy(np.array([value]))
    return int((await client.infer("api", [item])).as_numpy("output")[0])


async def ask_over_grpc(port: int, value: int) -> int:
    """The same over a connection of its own."""
    own = [("grpc.use_local_subchannel_pool", 1)]  # else channels share a connection
    async with triton.InferenceServerClient(f"{HOST}:{port}", channel_args=own) as client:
        return await infer(client, value)


@pytest.mark.parametrize("seconds", [2.5, 6.0])
async def test_clients_that_still_connect_over_grpc_keep_the_listener_open_as_well(
    tmp_path: Path, seconds: float
) -> None:
    """Nobody speaks HTTP here: they would be refused from `drainDelay` on, and bounded it stays."""
    manifest = write_manifest(tmp_path, CODE, {})
    port = free_port()
    arguments = ["-f", str(manifest), "--drain-delay", "2s", "--grpc-port", str(port)]
    with running_replica(tmp_path, arguments) as replica:
        await ask_over_grpc(port, 100)
        began = time.monotonic()
        replica.process.send_signal(signal.SIGTERM)
        refused: list[float] = []

        while (now := time.monotonic() - began) < seconds:
            try:
                assert await ask_over_grpc(port, 100) == 100
            except InferenceServerException:
                refused.append(now)
            await asyncio.sleep(0.2)

        assert (seconds > 4) == bool(refused)
        assert all(at > 3.9 for at in refused)
        assert await asyncio.to_thread(replica.stop) == 0


async def test_a_connection_over_grpc_that_stays_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    """Only the end sends it away: were its calls to count, every stop would take twice as long."""
    manifest = write_manifest(tmp_path, CODE, {})
    port = free_port()
    arguments = ["-f", str(manifest), "--drain-delay", "2s", "--grpc-port", str(port)]
    with running_replica(tmp_path, arguments) as replica:
        async with triton.InferenceServerClient(f"{HOST}:{port}") as client:
            await infer(client, 100)
            began = time.monotonic()
            replica.process.send_signal(signal.SIGTERM)

            with contextlib.suppress(InferenceServerException):
                while time.monotonic() - began < 6:
                    await infer(client, 100)
                    await asyncio.sleep(0.1)

            assert 2 < time.monotonic() - began < 3.9
        assert await asyncio.to_thread(replica.process.wait, 30) == 0


async def test_in_a_pod_a_connection_over_grpc_that_stays_is_answered_while_it_asks(
    tmp_path: Path,
) -> None:
    """The end would send it away, and where this is the only replica it has nowhere to go."""
    manifest = write_manifest(tmp_path, CODE, {})
    port = free_port()
    arguments = ["-f", str(manifest), "--drain-delay", "1s", "--grpc-port", str(port)]
    pod = {IN_A_POD: "10.96.0.1"}
    with running_replica(tmp_path, arguments, pod) as replica:
        async with triton.InferenceServerClient(f"{HOST}:{port}") as client:
            began = time.monotonic()
            replica.process.send_signal(signal.SIGTERM)

            while time.monotonic() - began < 5:
                assert 100 == await infer(client, 100)
                assert await client.is_server_ready()
                await asyncio.sleep(0.1)

        assert await asyncio.to_thread(replica.process.wait, 10) == 0


async def test_a_request_that_takes_longer_than_the_stop_is_still_answered(tmp_path: Path) -> None:
    """The batch that runs is run to its end."""
    manifest = write_manifest(tmp_path, CODE, {})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        asked = asyncio.create_task(ask(replica.port, 1.5))
        await asyncio.sleep(0.3)

        replica.process.send_signal(signal.SIGTERM)
        response = await asked

        assert (200, 1.5) == (response.status, response.json())
        assert await asyncio.to_thread(replica.stop) == 0


async def test_ctrl_c_stops_and_a_second_one_at_once(tmp_path: Path) -> None:
    """A person in front of a terminal has little patience."""
    manifest = write_manifest(tmp_path, CODE, {})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        asked = asyncio.create_task(ask(replica.port, 20))
        await asyncio.sleep(0.3)
        replica.process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.3)
        running: Replica = replica

        began = time.monotonic()
        await asyncio.to_thread(running.stop, signal.SIGINT)
        await asyncio.gather(asked, return_exceptions=True)

        assert time.monotonic() - began < 5


async def busy_client(port: int, number: int, pause: float, results: list[object]) -> None:
    """Asks, over one connection after the other, until nobody listens any more."""
    with contextlib.suppress(ConnectionRefusedError):
        while True:
            async with connected(port) as connection:
                closes = False
                while not closes:
                    try:
                        response = await connection.post_json("/predict", number)
                    except (OSError, asyncio.IncompleteReadError) as error:
                        results.append(error)
                        break
                    results.append(response.status)
                    closes = response.headers.get("connection") == "close"
                    await asyncio.sleep(pause)


@pytest.mark.parametrize(
    ("pause", "arguments"),
    [(0.0, []), (0.0, ["--web-processes", "3"]), (0.6, [])],
    ids=str,
)
async def test_a_stop_breaks_no_busy_connection(
    tmp_path: Path, pause: float, arguments: list[str]
) -> None:
    """Nor one that is just being made: closed loops see answers, then that nobody listens."""
    manifest = write_manifest(tmp_path, CODE, {"serverSideBatching": {"maxBatchSize": 64}})
    with running_replica(tmp_path, ["-f", str(manifest), *arguments]) as replica:
        results: list[object] = []
        clients = [
            asyncio.create_task(busy_client(replica.port, 100 + n, pause, results))
            for n in range(64)
        ]
        await asyncio.sleep(1)

        code = await asyncio.to_thread(replica.stop)
        await asyncio.gather(*clients)

    assert code == 0
    assert {200} == set(results)
    assert len(results) > 100


async def test_a_stop_breaks_no_busy_connection_over_grpc(tmp_path: Path) -> None:
    """Every call is answered, or finds that nobody listens."""
    manifest = write_manifest(tmp_path, CODE, {"serverSideBatching": {"maxBatchSize": 64}})
    port = free_port()
    ends: list[str] = []

    async def loop_of_calls() -> None:
        own = [("grpc.use_local_subchannel_pool", 1)]
        async with triton.InferenceServerClient(f"{HOST}:{port}", channel_args=own) as client:
            try:
                while True:
                    assert await infer(client, 100) == 100
            except InferenceServerException as error:
                ends.append(str(error))

    arguments = ["-f", str(manifest), "--grpc-port", str(port)]
    with running_replica(tmp_path, arguments) as replica:
        clients = [asyncio.create_task(loop_of_calls()) for _ in range(16)]
        await asyncio.sleep(1.5)
        code = await asyncio.to_thread(replica.stop)
        await asyncio.gather(*clients)

    assert code == 0
    assert [] == [end for end in ends if "Connection refused" not in end]


async def test_idle_connections_do_not_hold_up_the_stop(tmp_path: Path) -> None:
    """Pools keep them open for minutes."""
    manifest = write_manifest(tmp_path, CODE, {})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        async with connected(replica.port) as used, connected(replica.port) as unused:
            assert (await used.post_json("/predict", 100)).status == 200

            began = time.monotonic()
            code = await asyncio.to_thread(replica.stop)

            assert code == 0
            assert time.monotonic() - began < 5
            assert await used.is_closed_by_server()
            assert await unused.is_closed_by_server()


async def test_a_web_process_that_is_stopped_alone_shuts_nobody_out(tmp_path: Path) -> None:
    """The listener is everybody's: while one is replaced the others accept, at once."""
    manifest = write_manifest(tmp_path, CODE, {})
    with running_replica(tmp_path, ["-f", str(manifest), "--web-processes", "3"]) as replica:
        replica.wait_for(lambda: len(replica.children("web")) == 3, "no three web processes")
        before = replica.children("web")
        os.kill(before[1], signal.SIGTERM)
        slowest = 0.0

        while replica.children("web") == before or len(replica.children("web")) < 3:
            began = time.monotonic()
            _, writer = await asyncio.open_connection(HOST, replica.port)
            slowest = max(slowest, time.monotonic() - began)
            writer.close()
            await asyncio.sleep(0.02)

        assert slowest < 0.9, "the kernel asks again after a second"
        assert await asyncio.to_thread(replica.stop) == 0


def shut_filter(endpoint: socket.socket) -> None:
    """The kernel passes on nothing that comes in."""
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0), 8)
    program = struct.pack("HP", 1, ctypes.addressof(nothing))
    endpoint.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
async def test_a_handshake_that_has_begun_ends_and_none_begins(
    family: socket.AddressFamily, host: str
) -> None:
    """Its client is about to send a request: a reset would be an answer to that."""
    with socket.create_server((host, 0), family=family) as listener:
        listener.settimeout(10)
        with socket.socket(family) as begun, socket.socket(family) as late:
            shut_filter(begun)
            begun.setblocking(False)
            begun.connect_ex(listener.getsockname())  # it hears nothing of the kernel's answer
            await drain_backlog(listener)
            begun.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)

            accepted, _ = listener.accept()  # the kernel says it again after a second
            with accepted:
                begun.send(b"request")
                assert accepted.recv(100) == b"request"
            late.settimeout(0.5)
            with pytest.raises(TimeoutError):
                late.connect(listener.getsockname())


async def test_a_connection_made_just_before_the_stop_gets_its_answer(tmp_path: Path) -> None:
    """Clients without keep-alive: whoever was accepted is answered, the others cannot connect."""
    manifest = write_manifest(tmp_path, CODE, {"serverSideBatching": {"maxBatchSize": 8}})
    statuses: list[int] = []
    broken: list[ConnectionError] = []

    async def one_by_one(port: int, number: int) -> None:
        while True:
            try:
                statuses.append((await ask(port, number)).status)
            except (ConnectionRefusedError, ConnectionResetError):
                return  # not accepted: refused, or still in the kernel's backlog
            except ConnectionError as error:
                broken.append(error)
                return

    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        clients = [asyncio.create_task(one_by_one(replica.port, 100 + n)) for n in range(32)]
        await asyncio.sleep(0.5)

        code = await asyncio.to_thread(replica.stop)
        await asyncio.gather(*clients)

    assert code == 0
    assert [] == broken
    assert {200} == set(statuses)
