"""What the kernel knows of the other end of a connection."""

import array
import contextlib
import fcntl
import socket
import termios
from typing import Any, Final

_CLOSED: Final = 7
"""State of a connection in the kernel, the first byte of what it says: reset, or ended."""


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


def is_gone(transport: Any) -> bool:
    """Whether the other end has reset the connection, which nobody is told who does not read."""
    connection = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):  # no such thing on this system
        known = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return bool(known[0] == _CLOSED)
    return False
