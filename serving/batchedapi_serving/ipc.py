"""The wire between the processes of a replica: length-prefixed frames, no pickle.

    uint32  length of meta      little endian
    uint64  length of payload
    meta    one JSON object
    payload raw bytes: packed rows, or JSON text

A model process opens its lanes and its channel to one socket, and says first
    {"hello": {"worker_index", "pid", "methods": [MethodSpec, ...]}}
with "channel": true if it is the channel, "memories" on a lane (see SharedMemory), and "warm_up":
[rows, size, seconds, length] of each batch of the warm-up of a method with a latency target, or
with rows of different lengths. Then, on a lane:
    {"method", "rows", ...}    a batch, with its "size" if that is not its rows; what else is in it
                               is the codec's
    {"kind": "tensors" | "items" | "error", ...}    its result
where "shared": length stands for a payload that is in shared memory, and "memory": 1 for a batch
that has the second one; its result has the same. A frame may come while a batch runs. On the
channel such frames go both ways and have numbers (see channel); so they have between web processes
(see dispatch.messages).

Large payloads between the dispatcher and a lane go by shared memory, and the frame says only how
many bytes. A socket copies a payload twice and hands it over in pieces; through memory that both
sides have mapped it is copied once on each side: in a model process into the arrays that user code
gets. The model process makes two memories a lane, as one batch may be on its way while another
runs, each of two regions, one for each direction. Its hello says which; whoever writes a region
also grows it. They are anonymous (memfd): no name, so nothing is left behind however the processes
end, and no limit of a /dev/shm, which in a container is 64 MiB.

Nobody is killed by SIGBUS here: pages are allocated (`posix_fallocate`) before they are written, a
region is sealed against shrinking, and the dispatcher opens none that is not. Where any of it is
not to be had (no memfd, no /proc, no memory) payloads go inline as small ones do.
"""

import asyncio
import contextlib
import fcntl
import logging
import mmap
import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from orjson import JSONDecodeError, dumps, loads

log = logging.getLogger(__name__)
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
    text = dumps(meta)
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


class FrameProtocol(asyncio.Protocol):
    """One end of a connection of frames, which ends with the first that is broken."""

    PEER: ClassVar = "another process"
    """The other end, for the log."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.closed: Final = asyncio.Event()
        self._reader = FrameReader()

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        try:
            for meta, payload in self._reader.feed(data):
                self.take(meta, payload)
        except BrokenFrameError as error:
            log.error("broken frame from %s", self.PEER, extra={"error": str(error)})  # noqa: TRY400 - the connection is the fact, not the stack
            self.transport.abort()

    def say(self, meta: Meta, payload: Sequence[Payload] = ()) -> None:
        """Send a frame, if the connection is not over."""
        if not self.transport.is_closing():
            self.transport.write(encode_frame(meta, payload))

    def take(self, meta: Meta, payload: bytes) -> None:
        """Act on one frame.

        Raises:
            BrokenFrameError: it is none that may come here.
        """
        raise NotImplementedError

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why makes no difference
        """See asyncio.Protocol."""
        self.closed.set()


def whole_frames(data: bytes) -> Iterator[tuple[bytes, bytes] | None]:
    """Meta and payload of each frame, of which neither is looked into; last None for a torn rest.

    For what was not written by a process of ours alone: one frame that cannot be read costs none
    of those behind it.
    """
    start = 0
    while start < len(data):
        middle = start + _HEADER.size
        end = middle
        if middle <= len(data):
            meta_length, payload_length = _HEADER.unpack_from(data, start)
            middle += meta_length
            end = middle + payload_length
        if end > len(data):
            yield None
            return
        yield data[start + _HEADER.size : middle], data[middle:end]
        start = end


def _meta_of(text: bytes | memoryview) -> Meta:
    try:
        meta = loads(text)
    except JSONDecodeError as error:
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
    while True:
        try:
            length = connection.recv_into(buffer)
        except BaseException as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            # Of a handler of signals, which user code has set and which may raise in the main
            # thread long after its batch: nothing was read.
            log.warning("a handler of signals raised", exc_info=True)
            continue
        if not length:
            return
        yield from reader.feed(buffer[:length])


THRESHOLD: Final = 32 * 1024
"""Bytes from which on shared memory is used.

Median round trip with a payload of this length each way, inline and shared, on two busy cores:
4 KiB 0.04 and 0.04 ms, 32 KiB 0.07 and 0.04 ms, 64 KiB 0.10 and 0.04 ms, 256 KiB 2.1 and 0.05 ms
(more than a socket's buffer), 1 MiB 11 and 0.2 ms, 4 MiB 20 and 4 ms, 16 MiB 90 and 20 ms.
"""
LARGEST: Final = 1 << 28
"""Bytes of one region; what is longer goes inline: a region never shrinks again."""
MEMORIES: Final = 2
"""A lane has one for the batch that runs, and one for the next on its way."""
_STEP: Final = 1 << 20
_SEALS: Final = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_SEAL", 0)


class Region:
    """Memory that two processes have mapped; one of them writes and grows it."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over."""
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._length = 0

    @classmethod
    def create(cls) -> "Region | None":
        """An empty region; None where the system has no sealed memory files."""
        if not hasattr(os, "memfd_create"):
            return None
        try:
            descriptor = os.memfd_create("batchedapi", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            return None
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return cls(descriptor)

    @classmethod
    def open(cls, pid: int, descriptor: int) -> "Region | None":
        """The region that process `pid` made; None if it cannot be opened or could shrink."""
        try:
            # Not blocking: the other side may name a pipe of its own.
            ours = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            regular = stat.S_ISREG(os.fstat(ours).st_mode)
            if regular and fcntl.fcntl(ours, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                return cls(ours)
        except OSError:  # a file that knows no seals
            pass
        os.close(ours)
        return None

    def close(self) -> None:
        """Give the memory up; views of it that are still held keep it alive."""
        self._map, self._length = None, 0
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def write(self, buffers: Sequence[Payload], length: int) -> bool:
        """Put `buffers`, `length` bytes in all, at the start; False if there is no room."""
        if length > self._length:
            size = -(-length // _STEP) * _STEP
            if size > LARGEST or self.descriptor < 0:
                return False
            try:
                os.posix_fallocate(self.descriptor, 0, size)
                self._remap(size)
            except OSError:  # no memory
                return False
        if self._map is None:
            return False
        start = 0
        with memoryview(self._map) as view:
            for buffer in buffers:
                stop = start + len(buffer)
                view[start:stop] = buffer
                start = stop
        return True

    def read(self, length: int) -> memoryview:
        """The first `length` bytes, until the other side writes the next.

        Raises:
            BrokenFrameError: there are not as many.
        """
        if length > self._length:
            size = min(os.fstat(self.descriptor).st_size, LARGEST)
            if length > size:
                raise BrokenFrameError(f"shared memory of {size} bytes, {length} were announced")
            try:
                self._remap(size)
            except OSError as error:  # no memory for one more mapping
                raise BrokenFrameError(f"shared memory of {size} bytes cannot be mapped") from error
        if self._map is None:
            return memoryview(b"")
        return memoryview(self._map)[:length]

    def _remap(self, size: int) -> None:
        # The old mapping is dropped, not closed: user code may still hold a view of it.
        self._map = mmap.mmap(self.descriptor, size)
        self._length = size


class SharedMemory:
    """One side's two regions; without them every payload is inline."""

    def __init__(self, outgoing: Region | None, incoming: Region | None) -> None:
        self._outgoing = outgoing
        self._incoming = incoming

    @classmethod
    def create(cls) -> "SharedMemory":
        """The model process's side."""
        return cls(Region.create(), Region.create())

    @classmethod
    def open(cls, pid: int, announced: object) -> "SharedMemory":
        """The dispatcher's side of what the hello of process `pid` says of one, or of nothing."""
        match announced:
            case [int(theirs_in), int(theirs_out)]:
                return cls(Region.open(pid, theirs_in), Region.open(pid, theirs_out))
            case _:
                return cls(None, None)

    def hello(self) -> list[int]:
        """Its descriptors, incoming and outgoing, for the hello of the model process."""
        if self._incoming is None or self._outgoing is None:
            return []
        return [self._incoming.descriptor, self._outgoing.descriptor]

    def encode(self, meta: Meta, payload: Sequence[Payload]) -> bytes:
        """The frame of `meta` and `payload`, which is in shared memory if it is large and fits.

        The other side must have taken the payload before: one batch at a time has a memory.
        """
        length = sum(map(len, payload))
        outgoing = self._outgoing
        if length >= THRESHOLD and outgoing is not None and outgoing.write(payload, length):
            return encode_frame({**meta, "shared": length})
        return encode_frame(meta, payload, length)

    def view(self, meta: Meta, payload: bytes) -> Payload:
        """The payload of a frame, wherever it is; a view holds until the next `encode` there.

        Raises:
            BrokenFrameError: the frame speaks of memory that there is not.
        """
        if "shared" not in meta:
            return payload
        length = meta["shared"]
        if self._incoming is None or type(length) is not int or length < 0:
            raise BrokenFrameError(f"frame with shared memory of {length!r}, which was never made")
        return self._incoming.read(length)

    def take(self, meta: Meta, payload: bytes) -> bytes:
        """As `view`, but the caller's own: the next batch may begin.

        Raises:
            BrokenFrameError: see `view`.
        """
        return payload if "shared" not in meta else bytes(self.view(meta, payload))

    def close(self) -> None:
        """Give both regions up."""
        for region in (self._outgoing, self._incoming):
            if region is not None:
                with contextlib.suppress(OSError):
                    region.close()
