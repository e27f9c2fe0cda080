"""The kernel's view of the other end of a connection, and a listener that ends and resets nobody.

The kernel connects clients by itself, and whoever is in its backlog when the listener closes is
reset, with the request it may have sent already. So a filter keeps new ones out first, then
everybody who is connected, or about to be, is let in, and only then the listener closes. Who comes
meanwhile is not answered, asks again a second later, as the kernel does it, and is refused then.
"""

import array
import asyncio
import contextlib
import ctypes
import fcntl
import socket
import struct
import termios
from typing import Any, Final

_CLOSED: Final = 7
"""State of a connection in the kernel, the first byte of what it says: reset, or ended."""


_ATTACH_FILTER: Final = 26  # SO_ATTACH_FILTER, which the module socket does not name
_NO_NEW_ONES: Final = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # the byte with TCP's flags
        (0x54, 0, 0, 0x12),  # SYN and ACK of it
        (0x15, 0, 1, 0x02),  # SYN alone, or else skip one
        (0x06, 0, 0, 0),  # nothing of the packet is kept
        (0x06, 0, 0, 0xFFFFFFFF),  # all of it
    )
)
"""For the kernel's packet filter: of a handshake that has begun, and of connections, all passes."""
_BACKLOG_AT: Final = 24
"""Where TCP_INFO of a listener has the length of its backlog (tcpi_unacked)."""
_LONGEST_SECONDS: Final = 1.0
_HANDSHAKE_SECONDS: Final = 0.05
"""For the rest of a handshake, and for the loop from accepting to telling the protocol."""


def unsent_bytes(transport: Any) -> int:
    """How many bytes of its answers a client has not taken yet.

    That is what is buffered here, and what the kernel has not been told the client's kernel has. A
    small answer leaves this process at once, so that only the kernel knows of a client that does
    not read.
    """
    queued = array.array("i", [0])
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError, ValueError):  # closed, or a system that cannot say
            fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, queued)
    return int(transport.get_write_buffer_size()) + queued[0]


def unread_bytes(transport: Any) -> int:
    """How many bytes a client has sent that are still in the kernel."""
    waiting = array.array("i", [0])
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError, ValueError):  # closed, or a system that cannot say
            fcntl.ioctl(connection.fileno(), termios.FIONREAD, waiting)
    return waiting[0]


def is_gone(transport: Any) -> bool:
    """Whether the other end has reset the connection, which nobody is told who does not read."""
    connection = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):  # no such thing on this system
        known = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return bool(known[0] == _CLOSED)
    return False


async def drain_backlog(listener: socket.socket) -> None:
    """Connect nobody more, and wait until the loop has accepted everybody who is connected."""
    loop = asyncio.get_running_loop()
    program = ctypes.create_string_buffer(_NO_NEW_ONES, len(_NO_NEW_ONES))
    filters = struct.pack("HP", len(_NO_NEW_ONES) // 8, ctypes.addressof(program))
    with contextlib.suppress(OSError):  # a sandbox without filters: the last moment may be reset
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filters)
    end = loop.time() + _LONGEST_SECONDS
    empty = loop.time()
    while loop.time() < min(end, empty + _HANDSHAKE_SECONDS):
        await asyncio.sleep(_HANDSHAKE_SECONDS / 10)
        with contextlib.suppress(OSError):  # a socket of another kind
            known = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BACKLOG_AT + 4)
            if struct.unpack_from("I", known, _BACKLOG_AT)[0] > 0:
                empty = loop.time()
