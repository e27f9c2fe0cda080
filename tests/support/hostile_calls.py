"""gRPC as no client library sends it: calls that never end, messages that explode, endless heads.

    python tests/support/hostile_calls.py PORT SECONDS

A hundred clients without a key, each with calls of one kind, again and again; see KINDS. The codes
of the calls that were answered are counted.
"""

import asyncio
import contextlib
import gzip
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import grpc
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from ports import HOST

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
WATCH: Final = "/grpc.health.v1.Health/Watch"
MESSAGE: Final = 32 * 1024 * 1024 - 1000
"""Bytes, about as many as one may have."""
CLIENTS: Final = 100
_CALLS: Final = 10
"""Of one connection, one after the other; then comes the next."""
_STAYS_SECONDS: Final = 2.0
"""That a connection stays with what it has begun."""
BOMB: Final = gzip.compress(bytes(MESSAGE), 9)
HEAD: Final = (
    (":method", "POST"), (":scheme", "http"), (":authority", HOST), ("te", "trailers"),
    ("content-type", "application/grpc"),
)  # fmt: skip


class Wire:
    """One connection of HTTP/2.

    Attributes:
        codes: Names of the codes of its calls that were answered, by their streams.
        closed: Whether the server ended it.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, window: int = 65535
    ) -> None:
        """`window`: bytes of an answer that it takes."""
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self._http = h2.connection.H2Connection(config)
        values = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        self._http.local_settings = h2.settings.Settings(client=True, initial_values=values)
        self._reader, self._writer = reader, writer
        self.codes: dict[int, str] = {}
        self.closed = False
        self._http.initiate_connection()

    def call(self, path: str, **metadata: str) -> int:
        """Begin one; its number."""
        stream: int = self._http.get_next_available_stream_id()
        named = ((name.replace("_", "-"), value) for name, value in metadata.items())
        self._http.send_headers(stream, [(":path", path), *HEAD, *named])
        return stream

    async def send(self, stream: int, body: bytes, *, ends: bool, seconds: float) -> bool:
        """As much of `body` as is taken within that time; whether that is all of it."""
        end, left = time.monotonic() + seconds, memoryview(body)
        while left and not self.closed and stream not in self.codes and time.monotonic() < end:
            try:
                room = self._http.local_flow_control_window(stream)
                piece = bytes(left[: max(0, min(room, self._http.max_outbound_frame_size))])
                if piece:
                    left = left[len(piece) :]
                    self._http.send_data(stream, piece, end_stream=ends and not left)
            except h2.exceptions.ProtocolError:  # it was reset
                break
            await self.moves(0.0 if piece else 0.05)
        return not left

    async def moves(self, seconds: float) -> None:
        """Send what there is to send, and read for so long."""
        if self.closed:
            return
        try:
            self._writer.write(self._http.data_to_send())
            await self._writer.drain()
            async with asyncio.timeout(seconds):
                while data := await self._reader.read(65536):
                    self._take(data)
            self.closed = True
        except TimeoutError:
            pass
        except OSError:
            self.closed = True

    async def raw(self, data: bytes) -> None:
        """Send bytes that no library would."""
        self._writer.write(data)
        await self.moves(0.05)

    def _take(self, data: bytes) -> None:
        try:
            events = self._http.receive_data(data)
        except h2.exceptions.ProtocolError:  # the answer to what `raw` began
            events, self.closed = [], True
        for event in events:
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                status = dict[Any, Any](event.headers or ()).get("grpc-status")
                if status is not None and event.stream_id is not None:
                    self.codes[event.stream_id] = NAMES[int(status)]


NAMES: Final = {code.value[0]: code.name for code in grpc.StatusCode}


def message(body: bytes, *, packed: bool = False) -> bytes:
    """As gRPC frames it."""
    return bytes([packed]) + len(body).to_bytes(4, "big") + body


async def sends(wire: Wire) -> None:
    """Whole messages."""
    for _ in range(_CALLS):
        await wire.send(
            wire.call(INFER), message(bytes(100_000)), ends=True, seconds=_STAYS_SECONDS
        )


async def half_sends(wire: Wire) -> None:
    """The first half of messages; the calls stay as they are."""
    half = message(bytes(MESSAGE))[: MESSAGE // 2]
    for _ in range(_CALLS):
        await wire.send(wire.call(INFER), half, ends=False, seconds=_STAYS_SECONDS / _CALLS)
    await wire.moves(_STAYS_SECONDS)


async def explodes(wire: Wire) -> None:
    """Messages of 31 KiB that become 32 MiB."""
    for _ in range(_CALLS):
        stream = wire.call(INFER, grpc_encoding="gzip")
        await wire.send(stream, message(BOMB, packed=True), ends=True, seconds=_STAYS_SECONDS)


async def never_begins(wire: Wire) -> None:
    """A head that goes on and on: HEADERS and CONTINUATION without the flag that ends them."""
    await wire.moves(0.05)
    for kind in (b"\x01", *[b"\x09"] * _CALLS):
        field = b"\x00\x01a" + b"\x64" + b"b" * 100  # a literal header, not indexed
        frame = len(field).to_bytes(3, "big") + kind + b"\x00" + (1).to_bytes(4, "big") + field
        await wire.raw(frame)
    await wire.moves(_STAYS_SECONDS)


async def watches(wire: Wire) -> None:
    """Calls that would go on for as long as the client likes."""
    for _ in range(_CALLS):
        await wire.send(wire.call(WATCH), message(b""), ends=True, seconds=0.1)
    await wire.moves(_STAYS_SECONDS)


KINDS: Final[tuple[Callable[[Wire], Any], ...]] = (
    sends, half_sends, explodes, never_begins, watches,
)  # fmt: skip


async def client(port: int, kind: Callable[[Wire], Any], end: float, codes: Counter[str]) -> None:
    """One who goes on until `end`, on the monotonic clock."""
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, port)
            wire = Wire(reader, writer)
            await kind(wire)
            await wire.moves(0.5)
            codes.update(wire.codes.values())
            writer.transport.abort()
        await asyncio.sleep(0.2)


async def hostile(port: int, seconds: float, clients: int = CLIENTS) -> Counter[str]:
    """All of them; how often each code came."""
    codes: Counter[str] = Counter()
    end = time.monotonic() + seconds
    kinds = (KINDS[number % len(KINDS)] for number in range(clients))
    await asyncio.gather(*(client(port, kind, end, codes) for kind in kinds))
    return codes


if __name__ == "__main__":
    print(json.dumps(asyncio.run(hostile(int(sys.argv[1]), float(sys.argv[2])))))
