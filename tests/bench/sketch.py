"""The least that answers a workload from two processes: a bound for any server of this shape.

The web process forms batches and the model process runs them, as ours do. But it checks nothing,
counts nothing, has no limits, no failures and no end; a request is one segment of the same few
headers. And it knows its clients, that each asks again at once: so a batch of W2 or W3 is all who
are connected, and of W1, whose model takes no time, half of them, so that no process waits for the
other. A full batch waits at the model process while another runs.

Started by `throughput.py --peer sketch`: sketch.py WORKLOAD PORT.
"""

import asyncio
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson
import uvloop
import workloads

from batchedapi_serving.processes import freeze_heap

_LENGTH: Final = struct.Struct("<I")
_ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
)
_MOST_SENT: Final = 2
"""Batches: one that runs, and one ahead."""


class Batches(asyncio.Protocol):
    """The queue, and the web process's end of the line to the model process.

    A batch is its rows' bytes, an answer a length and JSON.
    """

    def __init__(self, width: int, share: int) -> None:
        """A batch is full enough with one in `share` of those who are connected."""
        self._pack = struct.Struct(f"<{width}f").pack
        self._share = share
        self._queue: deque[tuple[Connection, bytes]] = deque()
        self._sent: deque[Sequence[Connection]] = deque()
        self._buffer = bytearray()
        self._transport: Any = None
        self.connected = 0

    def connection_made(self, transport: Any) -> None:
        """The model process is there."""
        self._transport = transport

    def submit(self, connection: "Connection", row: Sequence[float]) -> None:
        """Queue a row."""
        self._queue.append((connection, self._pack(*row)))
        self.send()

    def send(self) -> None:
        """Send what is queued, if it is enough."""
        queue, sent, most = self._queue, self._sent, workloads.MAX_BATCH
        while queue and len(sent) < _MOST_SENT:
            enough = most if sent else min(most, max(1, self.connected // self._share))
            if len(queue) < enough:
                return
            batch = [queue.popleft() for _ in range(min(most, len(queue)))]
            sent.append([connection for connection, _ in batch])
            rows = b"".join([row for _, row in batch])
            self._transport.write(_LENGTH.pack(len(rows)) + rows)

    def data_received(self, data: bytes) -> None:
        """Bytes of answers."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
            if len(buffer) < end:
                return
            answers = orjson.loads(memoryview(buffer)[_LENGTH.size : end])
            del buffer[:end]
            clients = self._sent.popleft()
            self.send()
            for connection, answer in zip(clients, answers, strict=True):
                connection.answer(orjson.dumps(answer))


class Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """It connected."""
        self._transport = transport
        self._batches.connected += 1

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whatever the reason
        """It left, and those who wait for it need not."""
        self._batches.connected -= 1
        self._batches.send()

    def data_received(self, data: bytes) -> None:
        """A request."""
        self._batches.submit(self, orjson.loads(data[data.index(b"\r\n\r\n") :]))

    def answer(self, text: bytes) -> None:
        """What it asked for."""
        if not self._transport.is_closing():
            self._transport.write(_ANSWER % (len(text), text))


def run_model(workload: str, line: socket.socket) -> None:
    """Answer batches until the web process is gone."""
    chosen = workloads.WORKLOADS[workload]
    predictor = chosen.predictor({}, None)
    freeze_heap()

    def read(size: int) -> bytes:
        data = line.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            sys.exit()
        return data

    while True:
        (size,) = _LENGTH.unpack(read(_LENGTH.size))
        rows = np.frombuffer(read(size), dtype=np.float32).reshape(-1, chosen.width)
        text = orjson.dumps(predictor.predict(rows), option=orjson.OPT_SERIALIZE_NUMPY)
        line.sendall(_LENGTH.pack(len(text)) + text)


async def run_web(workload: str, port: int) -> None:
    """Serve until the process is ended."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, __file__, workload, "--model", str(theirs.fileno())]
    subprocess.Popen(command, pass_fds=[theirs.fileno()])  # ends with the line  # noqa: ASYNC220 - before anybody asks
    theirs.close()
    ours.setblocking(False)
    loop = asyncio.get_running_loop()
    share = 2 if workload == "W1" else 1
    batches = Batches(workloads.WORKLOADS[workload].width, share)
    await loop.create_connection(lambda: batches, sock=ours)
    server = await loop.create_server(lambda: Connection(batches), "127.0.0.1", port)
    freeze_heap()
    await server.serve_forever()


if __name__ == "__main__":
    match sys.argv[1:]:
        case [workload, "--model", descriptor]:
            run_model(workload, socket.socket(fileno=int(descriptor)))
        case [workload, port]:
            uvloop.run(run_web(workload, int(port)))
        case _:
            sys.exit(__doc__)
