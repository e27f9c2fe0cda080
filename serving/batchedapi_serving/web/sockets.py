"""What the kernel knows of the other end of a connection; how a listener ends and resets nobody.

The kernel connects clients by itself, and whoever is in its backlog when the listener closes is
reset, with the request it may have sent already. So a filter keeps new ones out first, then
everybody in the backlog is let in, and only then the listener closes. Who comes meanwhile is not
answered, asks again a second later, as the kernel does it, and is refused then.
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
_DETACH_FILTER: Final = 27
_DROP: Final = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of the kernel's packet filter: return 0, keep nothing of the packet."""
_BACKLOG_AT: Final = 24
"""Where TCP_INFO of a listener has the length of its backlog (tcpi_unacked)."""
_LONGEST_SECONDS: Final = 1.0
_ROUNDS: Final = 3
"""Of the loop, from accepting a connection to telling its protocol."""


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


def remove_filter(endpoint: Any) -> None:
    """Take off the filter of `drain_backlog`, which a connection has that was made that moment."""
    with contextlib.suppress(OSError, AttributeError):  # it was never shut; it is no socket
        endpoint.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)


async def drain_backlog(listener: socket.socket) -> None:
    """Connect nobody more, and wait until the loop has accepted everybody who is connected."""
    loop = asyncio.get_running_loop()
    program = ctypes.create_string_buffer(_DROP, len(_DROP))
    filters = struct.pack("HP", 1, ctypes.addressof(program))
    with contextlib.suppress(OSError):  # a sandbox without filters: the last moment may be reset
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filters)
    end = loop.time() + _LONGEST_SECONDS
    rounds = _ROUNDS
    while rounds > 0 and loop.time() < end:
        await asyncio.sleep(0)  # the loop accepts one each time round
        waiting = 0
        with contextlib.suppress(OSError):  # a socket of another kind
            known = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BACKLOG_AT + 4)
            (waiting,) = struct.unpack_from("I", known, _BACKLOG_AT)
        rounds = _ROUNDS if waiting > 0 else rounds - 1
