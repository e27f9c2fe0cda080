"""Bodies that take long to take apart hold up nobody else, and cost what their length should."""

import asyncio
import contextlib
import gzip
import io
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import msgpack
import numpy as np
import pytest

from hostile_bodies import CODE, GRPC, Body, body_of
from raw_http import Connection, connected, request_bytes
from serving import Replica, running_replica, write_manifest

NUMBERS = [float(i % 1000) for i in range(60_000)]
SLACK = 60.0
"""Seconds for one large body on a machine with nothing to spare."""
MIB = 1 << 20


def npy() -> bytes:
    """As numpy.save writes it; more than a MiB, and sent in a wider type."""
    stream = io.BytesIO()
    np.save(stream, np.array([NUMBERS * 5], dtype="f4"))
    return stream.getvalue()


def v2(*, raw: bool, numbers: list[float] = NUMBERS) -> tuple[bytes, dict[str, str]]:
    """One tensor of one row, in JSON or behind it."""
    packed = np.array(numbers, dtype="<f4").tobytes()
    said = f'"parameters":{{"binary_data_size":{len(packed)}}}' if raw else f'"data":{numbers}'
    text = (
        f'{{"inputs":[{{"name":"input","datatype":"FP32","shape":[1,{len(numbers)}],{said}}}]}}'
    ).encode()
    if not raw:
        return text, {}
    headers = {
        "content-type": "application/octet-stream",
        "inference-header-content-length": str(len(text)),
    }
    return text + packed, headers


CASES = {
    "json": ("/api/wide", str(NUMBERS).encode(), {}, b"0.0"),
    "instances": (
        "/api/wide", f'{{"instances":[{NUMBERS}]}}'.encode(), {}, b'{"predictions":[0.0]}',
    ),
    "msgpack": (
        "/api/wide", msgpack.packb(NUMBERS), {"content-type": "application/msgpack"},
        msgpack.packb(0.0),
    ),
    "npy": ("/api/wide", npy(), {"content-type": "application/x-npy"}, b"\x93NUMPY"),
    "v1": (
        "/v1/models/api.wide:predict", f'{{"instances":[{NUMBERS}]}}'.encode(), {},
        b'{"predictions":[0.0]}',
    ),
    "v2": ("/v2/models/api.wide/infer", *v2(raw=False), b'{"model_name":"api.wide"'),
    "v2 raw": ("/v2/models/api.wide/infer", *v2(raw=True), b'{"model_name":"api.wide"'),
    "v2 raw, large": (
        "/v2/models/api.wide/infer", *v2(raw=True, numbers=NUMBERS * 5),
        b'{"model_name":"api.wide"',
    ),
    "items": ("/api/items", b'["%b"]' % (b"," * MIB), {}, b"0"),
    "call": ("/api/call", b'["%b"]' % (b"[" * MIB), {}, b"0"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_large_body_is_answered_as_a_small_one(
    replica: Replica, case: tuple[str, bytes, dict[str, str], bytes]
) -> None:
    """Whichever process takes it apart, and however many commas its texts have."""
    path, body, headers, expected = case
    async with connected(replica.port) as connection:
        await connection.send(request_bytes(path, body, headers))
        response = await connection.receive(patience=SLACK)

    assert (200, expected) == (response.status, response.body[: len(expected)])


REFUSED = {
    "not JSON": ("/api/wide", b"[" + b"1," * MIB, {}, 400, b"expected JSON"),
    "too many lists": ("/api/items", b"[" + b"[]," * MIB + b"1]", {}, 413, b"1048576 arrays"),
    "too many maps": (
        "/api/items", b"\xdd" + (2 * MIB).to_bytes(4, "big") + b"\x80" * 2 * MIB,
        {"content-type": "application/msgpack"}, 413, b"1048576 arrays",
    ),
    "too many texts": (
        "/v2/models/api.items/infer",
        b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1,9000000],"parameters":'
        b'{"binary_data_size":16}}]}' + bytes(MIB),
        {"content-type": "application/octet-stream", "inference-header-content-length": "105"},
        400, b"",
    ),
    "wrong shape": ("/api/flat", b"[%b1]" % (b"1," * MIB), {}, 422, b"expected FP32 of shape [4]"),
    "no such type": ("/api/flat", b"1" * MIB, {"content-type": "text/csv"}, 415, b"text/csv"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
async def test_a_large_body_is_refused_as_a_small_one(
    replica: Replica, case: tuple[str, bytes, dict[str, str], int, bytes]
) -> None:
    """With the place, what was expected and what came, and the connection goes on."""
    path, body, headers, status, text = case
    async with connected(replica.port) as connection:
        await connection.send(request_bytes(path, body, headers))
        refused = await connection.receive(patience=SLACK)
        await connection.send(request_bytes("/api/flat", b"[1,2,3,4]"))
        answered = await connection.receive()

    assert status == refused.status
    assert text in refused.body
    assert (200, b"10.0") == (answered.status, answered.body)


async def test_others_are_answered_while_a_body_is_taken_apart(replica: Replica) -> None:
    """A second of parsing is nobody else's second; a refusal waits for no model."""
    longest = 0.0
    async with connected(replica.port) as large, connected(replica.port) as small:
        await large.send(request_bytes("/api/items", b"[%b1]" % (b"1.5," * (2 * MIB))))
        answer = asyncio.create_task(large.receive(patience=SLACK))
        asked = 0
        while not answer.done():
            began = time.monotonic()
            await small.send(request_bytes("/api/flat", b"[1]"))
            assert 422 == (await small.receive()).status
            longest = max(longest, time.monotonic() - began)
            asked += 1
            await asyncio.sleep(0.005)

    print(f"longest wait {longest * 1000:.0f} ms of {asked} requests")  # the figure is the bench's
    assert 200 == answer.result().status
    assert asked > 3


def signal_codec_processes(replica: Replica, number: int) -> None:
    """Send a signal to the codec processes of all web processes."""
    for pid in codec_processes(replica):
        os.kill(pid, number)


def codec_processes(replica: Replica) -> list[int]:
    """The codec processes of all web processes."""
    return [
        int(entry.name)
        for web in replica.children("web")
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _is_codec_of(web, int(entry.name))
    ]


def _is_codec_of(web: int, pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return f" {web} " in stat[stat.rindex(")") :][:20] and b"codec_process" in line


async def test_a_codec_process_that_dies_is_replaced(replica: Replica) -> None:
    """Its body is answered 503; the web process goes on, and so does what comes next."""
    webs = replica.children("web")
    path, body, headers, expected = CASES["json"]
    async with connected(replica.port) as connection:
        await connection.send(request_bytes(path, body, headers))
        await connection.receive(patience=SLACK)
        signal_codec_processes(replica, signal.SIGSTOP)
        await connection.send(request_bytes(path, body, headers))
        await asyncio.sleep(0.5)
        signal_codec_processes(replica, signal.SIGKILL)
        lost = await connection.receive(patience=SLACK)
        await connection.send(request_bytes(path, body, headers))
        answered = await connection.receive(patience=SLACK)

    assert (503, "not_ready") == (lost.status, lost.error["code"])
    assert "retry-after" in lost.headers
    assert (200, expected) == (answered.status, answered.body)
    assert webs == replica.children("web")


async def test_a_body_of_100_kilobytes_does_not_wait_for_one_that_takes_seconds(
    folder: Path,
) -> None:
    """However long that takes: it has a codec process of its own, which is stopped here."""
    huge, large = (json.dumps(["x" * size]).encode() for size in (2 * MIB, 100_000))
    with running_replica(folder, ["-f", "batchedapi.yaml"]) as replica:
        async with connected(replica.port) as greedy, connected(replica.port) as other:
            first = await greedy.post("/api/items", huge)
            signal_codec_processes(replica, signal.SIGSTOP)
            await greedy.send(request_bytes("/api/items", huge))
            beside = await other.post("/api/items", large)
            waits = not greedy.has_received()
            signal_codec_processes(replica, signal.SIGCONT)
            last = await greedy.receive()

    assert [200] * 3 == [answer.status for answer in (first, beside, last)]
    assert waits


async def test_a_client_that_leaves_is_not_waited_for(replica: Replica) -> None:
    """Bodies that nobody waits for any more are not taken apart."""
    path, body, headers, expected = CASES["json"]
    for _ in range(20):
        async with connected(replica.port) as leaving:
            await leaving.send(request_bytes("/api/items", b"[%b1]" % (b"1.5," * MIB), headers))
    async with connected(replica.port) as connection:
        await connection.send(request_bytes(path, body, headers))
        answered = await connection.receive(patience=SLACK)

    assert (200, expected) == (answered.status, answered.body)
    replica.wait_for(
        lambda: replica.metrics()["batchedapi_in_flight_requests"] == 0, "requests are left"
    )


def resident(pid: int) -> int:
    """MiB of memory of a process."""
    return (
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // MIB
    )


async def test_bodies_of_all_clients_have_one_budget(replica: Replica) -> None:
    """Twelve of 31 MiB do not fit: some are told to come back, and all memory goes back."""
    (web,) = replica.children("web")
    before, body = resident(web), b" " * (31 * MIB)
    head = request_bytes("/api/items", body)[: -len(body)]
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(replica.port)) for _ in range(12)]

        async def send(client: Connection) -> bytes:
            with contextlib.suppress(ConnectionError):
                await client.send(head)
                for start in range(0, len(body) - MIB, MIB):
                    await client.send(body[start : start + MIB])
                return b""
            return b"refused"

        await asyncio.gather(*(send(client) for client in clients))
        most = resident(web)
        refused = [
            await client.receive(patience=1.0) for client in clients if client.has_received()
        ]
        async with connected(replica.port) as small:
            await small.send(request_bytes("/api/flat", b"[1,2,3,4]"))
            answered = await small.receive()
    async with asyncio.timeout(SLACK):  # our own sockets close in this loop
        while resident(web) > before + 40:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.2)
    async with connected(replica.port) as connection:
        await connection.send(request_bytes("/api/items", b'"%b"' % (b"a" * 31 * MIB)))
        again = await connection.receive(patience=SLACK)

    assert {(503, "bodies_full")} == {(r.status, r.error["code"]) for r in refused}
    assert before + 256 + 64 > most
    assert 200 == answered.status
    assert (200, b"0") == (again.status, again.body)


async def test_packed_bodies_take_no_more_memory_than_others(replica: Replica) -> None:
    """Eight of 46 KiB are 244 MiB of texts: each is answered, and most stay packed meanwhile."""
    (web,) = replica.children("web")
    before, most = resident(web), 0
    packed = gzip.compress(b"[" + b'"aaaaa",' * 4_000_000 + b"1]", 9)

    async def ask() -> int:
        async with connected(replica.port) as client:
            await client.send(request_bytes("/api/items", packed, {"content-encoding": "gzip"}))
            return (await client.receive(patience=SLACK)).status

    asked = [asyncio.create_task(ask()) for _ in range(8)]
    while not all(one.done() for one in asked):
        most = max(most, resident(web))
        await asyncio.sleep(0.02)

    assert [200] * 8 == [one.result() for one in asked]
    assert most - before < 150


def paths_of(body: Body) -> str:
    """Where a body is sent to."""
    model = f"models/api.{body.method}"
    return {"v1": f"/v1/{model}:predict", "v2": f"/v2/{model}/infer"}.get(
        body.wire, f"/api/{body.method}"
    )


async def test_bodies_that_are_dear_to_take_apart_cost_nobody_a_process(replica: Replica) -> None:
    """Each of thirty drawn bodies is answered or refused."""
    processes = replica.children()
    bodies = [body_of(seed, 2 * MIB) for seed in range(30)]
    statuses = []
    for body in (body for body in bodies if body.content_type != GRPC):
        async with connected(replica.port) as connection:
            headers = {"content-type": body.content_type, **dict(body.headers)}
            await connection.send(request_bytes(paths_of(body), body.data, headers))
            statuses.append((await connection.receive(patience=SLACK)).status)

    assert set(statuses) <= {200, 400, 413, 415, 422}
    assert processes == replica.children()


async def freeze_codec_processes(replica: Replica, clients: Sequence[Connection]) -> None:
    """From now on nothing is taken apart of what these send."""
    path, body, headers, _ = CASES["json"]
    for client in clients:
        await client.send(request_bytes(path, body, headers))
        assert 200 == (await client.receive(patience=SLACK)).status
    for pid in codec_processes(replica):
        os.kill(pid, signal.SIGSTOP)


async def test_who_waits_for_the_codec_process_waits_no_longer_than_the_timeout(
    tmp_path: Path,
) -> None:
    """Neither for the body before it nor for its own."""
    manifest = write_manifest(tmp_path, CODE, {"overload": {"timeout": "3s"}})
    with running_replica(tmp_path, ["-f", str(manifest)]) as replica:
        path, body, headers, _ = CASES["json"]
        async with connected(replica.port) as active, connected(replica.port) as waiting:
            await freeze_codec_processes(replica, (active, waiting))
            for connection in (active, waiting):
                await connection.send(request_bytes(path, body, headers))
            responses = [await c.receive(patience=SLACK) for c in (active, waiting)]

    assert [(504, "deadline_exceeded")] * 2 == [(r.status, r.error["code"]) for r in responses]


@pytest.mark.parametrize("web_processes", [1, 2])
async def test_who_waits_for_the_codec_process_at_the_end_of_a_stop_is_told(
    tmp_path: Path, web_processes: int
) -> None:
    """Answered like whoever waits in the queue, not reset with the web process."""
    manifest = write_manifest(tmp_path, CODE, {"overload": {"timeout": "4s"}})
    arguments = ["-f", str(manifest), "--drain-delay", "2s"]
    arguments += ["--web-processes", str(web_processes)]
    with running_replica(tmp_path, arguments) as replica:
        path, body, headers, _ = CASES["json"]
        whole = request_bytes(path, body, headers)
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(replica.port)) for _ in range(8)]
            await freeze_codec_processes(replica, clients)
            for client in clients:
                await client.send(whole[:-1])
            replica.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(3)  # its own timeout ends a second after the stop does
            for client in clients:
                await client.send(whole[-1:])
            responses = [await client.receive(patience=SLACK) for client in clients]
        code = await asyncio.to_thread(replica.stop)

    assert [(503, "draining")] * 8 == [(r.status, r.error["code"]) for r in responses]
    assert 0 == code
