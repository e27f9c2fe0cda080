"""A client that ends its side of the connection, and one that left: the same bytes, until asked."""

import asyncio
import socket
import time

import pytest

from ports import HOST
from raw_http import connected, request_bytes
from serving import Replica

CODE = """
    import time
    from batchedapi_serving import batched

    class Model:
        @batched(example=0)
        def predict(self, items):
            time.sleep(max(items))
            return items
"""
SPEC = {"serverSideBatching": {"maxBatchSize": 1}}


def whole_answer(port: int, data: bytes) -> bytes:
    """The bytes that come until the server closes, after `data` and the end of our side."""
    with socket.create_connection((HOST, port), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
        return received


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("seconds", [b"0", b"0.7"])
async def test_who_ends_its_side_gets_its_answer_and_the_end(
    replica: Replica, seconds: bytes, version: str
) -> None:
    """As `nc -N` does; one of HTTP/1.1 is asked meanwhile, by an interim answer, if it is there."""
    request = request_bytes("/predict", seconds, version=version)

    received = await asyncio.to_thread(whole_answer, replica.port, request)

    interim, found, _ = received.partition(b"HTTP/1.1 200 OK\r\n")
    assert found
    assert received.endswith(b"\r\n\r\n" + seconds)
    assert interim in ((b"", b"HTTP/1.1 100 Continue\r\n\r\n") if version == "1.1" else (b"",))


async def test_what_a_client_asked_that_left_is_not_run(replica: Replica) -> None:
    """While another row is run five wait; three of them leave, with a plain close."""
    left = replica.metrics()
    async with connected(replica.port) as busy:
        await busy.send(request_bytes("/predict", b"1"))
        await asyncio.sleep(0.3)
        for _ in range(3):
            gone = socket.create_connection((HOST, replica.port))
            gone.sendall(request_bytes("/predict", b"5"))
            gone.close()
        began = time.monotonic()
        assert (await busy.receive()).status == 200
        assert (await busy.post_json("/predict", 0)).status == 200
        took = time.monotonic() - began

    assert took < 5
    name = "batchedapi_requests_total{code=499}"
    assert 3 == replica.metrics()[name] - left[name]
