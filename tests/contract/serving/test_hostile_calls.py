"""Whoever has no key, or wants all there is, over gRPC: others are answered, memory stays."""

import asyncio
import contextlib
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import grpc.aio
import numpy as np
import pytest

import hostile_calls
from batchedapi_serving.codecs import open_inference_pb2 as messages
from batchedapi_serving.web.limits import BODIES_BYTES, MOST_CONNECTIONS
from hostile_calls import INFER, MESSAGE, Wire, message
from ports import HOST, free_port
from serving import Replica, running_replica, write_manifest

MIB: Final = 1024 * 1024
BUDGET: Final = BODIES_BYTES + 80 * MIB
"""Of a web process, with what it takes without clients."""
CLIENTS: Final = 16
SECONDS: Final = 6.0
"""The figures of a minute are those of `python tests/support/hostile_calls.py` beside a load."""
OTHER: Final = "127.0.0.2"
"""Another address of this machine."""
LIVE: Final = "/inference.GRPCInferenceService/ServerLive"
CODE: Final = """
    import numpy as np
    from batchedapi_serving import Tensor, batched

    class Model:
        @batched(inputs=Tensor("FP32", ["n"]), outputs=Tensor("FP32", ["m"]), max_batch_size=1)
        def predict(self, x):
            return np.zeros((1, 1048576 if x[0, 0] == 9 else 1), np.float32)
"""


@pytest.fixture(scope="module")
def grpc_port() -> int:
    """Where the replica answers gRPC."""
    return free_port()


@pytest.fixture
def guarded(tmp_path: Path, grpc_port: int) -> Iterator[Replica]:
    """Two clients have keys; each test has a replica whose memory nobody has used before."""
    write_manifest(tmp_path, CODE, {})
    (tmp_path / "keys").mkdir()
    for key in ("mine", "yours"):
        (tmp_path / "keys" / key).write_text(key)
    arguments = ["-f", "batchedapi.yaml", "--api-keys", "keys", "--grpc-port", str(grpc_port)]
    with running_replica(tmp_path, arguments) as replica:
        yield replica


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough for this end of all connections of a web process."""
    some, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (some, most))


def peak_bytes(replica: Replica) -> int:
    """The peak memory of its web process."""
    (pid,) = replica.children("web")
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def infer(length: int = 4, value: float = 1.0) -> bytes:
    """A message of one row; 9 asks for an answer of 4 MiB."""
    request = messages.ModelInferRequest(model_name="api")
    request.inputs.add(name="input", datatype="FP32", shape=[1, length])
    request.raw_input_contents.append(np.full(length, value, np.float32).tobytes())
    return request.SerializeToString()


async def asks(port: int, end: float, key: str, codes: Counter[str]) -> list[float]:
    """A well-behaved client, small messages and larger ones in turn; seconds of each answer."""
    seconds = []
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"{HOST}:{port}", options=own) as channel:
        call = channel.unary_unary(INFER)
        while (began := time.monotonic()) < end:
            for body in (infer(), infer(8000)):
                try:
                    await call(body, metadata=(("x-api-key", key),), timeout=60)
                    codes["OK"] += 1
                except grpc.aio.AioRpcError as error:
                    codes[error.code().name] += 1
            seconds.append(time.monotonic() - began)
            await asyncio.sleep(0.05)
    return seconds


async def load(port: int, seconds: float, clients: int = CLIENTS) -> tuple[Counter[str], float]:
    """Codes of all answers to so many of them, and the time of the slowest hundredth."""
    codes: Counter[str] = Counter()
    end = time.monotonic() + seconds
    found = await asyncio.gather(*(asks(port, end, "mine", codes) for _ in range(clients)))
    ordered = sorted(second for one in found for second in one)
    return codes, ordered[len(ordered) * 99 // 100]


@pytest.mark.alone
async def test_a_hundred_strangers_are_nothing_to_those_with_a_key(
    guarded: Replica, grpc_port: int
) -> None:
    """Sending, half sending, exploding, never beginning, watching; refused with the metadata."""
    _, before = await load(grpc_port, SECONDS)
    program = [sys.executable, hostile_calls.__file__, str(grpc_port), str(SECONDS)]
    strangers = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)

    codes, beside = await load(grpc_port, SECONDS)
    said, _ = await strangers.communicate()
    print(f"p99 {before:.3f} s, beside {beside:.3f} s; peak {peak_bytes(guarded) / MIB:.0f} MiB")
    print(f"strangers: {said.decode()}")

    assert {"OK"} == set(codes)
    assert b'"UNAUTHENTICATED"' in said
    assert b'"OK"' not in said
    assert peak_bytes(guarded) < 1.2 * BUDGET
    assert beside < max(3 * before, 1.0)


async def test_one_key_does_not_take_all(guarded: Replica, grpc_port: int) -> None:
    """40 messages of 32 MiB that never end are a gigabyte, of a client that has a key."""
    async with contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(wired(grpc_port)) for _ in range(40)]
        body = message(bytes(MESSAGE))[:-1]
        sending = [
            asyncio.create_task(
                wire.send(wire.call(INFER, x_api_key="yours"), body, ends=False, seconds=SECONDS)
            )
            for wire in wires
        ]
        codes, _ = await load(grpc_port, SECONDS, clients=2)
        await asyncio.gather(*sending)
    print(f"peak {peak_bytes(guarded) / MIB:.0f} MiB", [wire.codes for wire in wires])

    assert {"OK"} == set(codes)
    assert peak_bytes(guarded) < 1.2 * BUDGET


@pytest.mark.usefixtures("guarded")
async def test_answers_that_nobody_reads_are_in_nobodys_way(grpc_port: int) -> None:
    """60 of 4 MiB on connections that are not read; others get theirs."""
    async with contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(wired(grpc_port)) for _ in range(60)]
        for wire in wires:
            stream = wire.call(INFER, x_api_key="yours")
            await wire.send(stream, message(infer(value=9.0)), ends=True, seconds=1)
        codes, _ = await load(grpc_port, SECONDS, clients=2)

    assert {"OK"} == set(codes)


@contextlib.asynccontextmanager
async def wired(port: int, address: str = HOST) -> AsyncIterator[Wire]:
    """A connection from an address."""
    reader, writer = await asyncio.open_connection(HOST, port, local_addr=(address, 0))
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()


@pytest.mark.alone
@pytest.mark.usefixtures("descriptors", "guarded")
async def test_idle_connections_of_one_address_lock_no_other_out(grpc_port: int) -> None:
    """As many as there may be, and some; gRPC itself would close whoever comes next."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MOST_CONNECTIONS + 50):
            with contextlib.suppress(OSError):
                wire = await stack.enter_async_context(wired(grpc_port))
                await wire.moves(0)
        began = time.monotonic()
        codes: dict[int, str] = {}
        while not codes and time.monotonic() < began + 30:
            with contextlib.suppress(OSError):
                async with wired(grpc_port, OTHER) as other:
                    stream = other.call(LIVE)
                    await other.send(stream, message(b""), ends=True, seconds=1)
                    await other.moves(0.5)
                    codes = other.codes
        print(f"answered after {time.monotonic() - began:.2f} s")

    assert {"OK"} == set(codes.values())
