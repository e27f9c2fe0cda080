"""The wire between the processes of a replica: length-prefixed frames, no pickle.

    uint32  length of meta      little endian
    uint64  length of payload
    meta    one JSON object
    payload raw bytes: packed rows, or JSON text

A model process opens its lanes and its channel to one socket, and says first
    {"hello": {"worker_index", "pid", "methods": [MethodSpec, ...]}}
with "channel": true if it is the channel, "memories" on a lane (see shared_memory), and "warm_up":
[rows, size, seconds] of each batch of the warm-up of a method with a latency target. Then, on a
lane:
    {"method", "rows", ...}    a batch; what else is in it is the codec's
    {"kind": "tensors" | "items" | "error", ...}    its result
where "shared": length stands for a payload that is in shared memory, and "memory": 1 for a batch
that has the second one; its result has the same. A frame may come while a batch runs. On the
channel such frames go both ways and have numbers (see channel); so they have between web processes
(see remote_frames).
"""

import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

Meta = dict[str, Any]
Payload: TypeAlias = bytes | memoryview
_HEADER: Final = struct.Struct("<IQ")
MAX_META_BYTES: Final = 64 * 1024 * 1024
MAX_PAYLOAD_BYTES: Final = 1 << 40
_READ_BYTES: Final = 1 << 18


class Frame(NamedTuple):
    """One message."""

    meta: Meta
    payload: bytes


class BrokenFrameError(ConnectionError):
    """The other side sent something that is no frame; the connection is of no further use."""


def encode_frame(meta: Meta, payload: Sequence[Payload] = (), length: int | None = None) -> bytes:
    """The bytes of one frame; `payload` is sent in one piece, `length` is its own if known."""
    text = orjson.dumps(meta)
    if length is None:
        length = sum(map(len, payload))
    return b"".join((_HEADER.pack(len(text), length), text, *payload))


class FrameReader:
    """Takes bytes as they come and gives frames as they are complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterable[Frame]:
        """Frames that are complete now that `data` has come; to be iterated over at once.

        Raises:
            BrokenFrameError: lengths beyond the limits, or meta that is not a JSON object; now, or
                when the iteration comes there.
        """
        # A small batch and its result mostly come whole and alone: they are read where they are.
        if not self._buffer and len(data) >= _HEADER.size:
            meta_length, payload_length = _HEADER.unpack_from(data)
            middle = _HEADER.size + meta_length
            if len(data) == middle + payload_length and meta_length <= MAX_META_BYTES:
                return (Frame(_meta_of(data[_HEADER.size : middle]), bytes(data[middle:])),)
        return self._pieces(data)

    def _pieces(self, data: bytes | memoryview) -> Iterator[Frame]:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _HEADER.size:
            meta_length, payload_length = _HEADER.unpack_from(buffer)
            if meta_length > MAX_META_BYTES or payload_length > MAX_PAYLOAD_BYTES:
                raise BrokenFrameError(f"frame of {meta_length} + {payload_length} bytes")
            middle = _HEADER.size + meta_length
            end = middle + payload_length
            if len(buffer) < end:
                return
            meta = _meta_of(memoryview(buffer)[_HEADER.size : middle])
            payload = bytes(memoryview(buffer)[middle:end])
            del buffer[:end]
            yield Frame(meta, payload)


def _meta_of(text: bytes | memoryview) -> Meta:
    try:
        meta = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BrokenFrameError("frame whose meta is not JSON") from error
    if type(meta) is not dict:
        raise BrokenFrameError(f"frame whose meta is {type(meta).__name__}")
    return meta


def read_frames(connection: socket.socket) -> Iterator[Frame]:
    """Frames from a blocking socket, until the other side closes it."""
    reader = FrameReader()
    # One buffer for all: a new one of this size for each read is mapped and unmapped by the kernel,
    # which costs a small batch more than reading it.
    buffer = memoryview(bytearray(_READ_BYTES))
    while length := connection.recv_into(buffer):
        yield from reader.feed(buffer[:length])
