"""How many bytes of its answers a client has not taken yet."""

import array
import contextlib
import fcntl
import termios
from typing import Any


def unsent_bytes(transport: Any) -> int:
    """What is buffered here, and what the kernel has not been told the client's kernel has.

    A small answer leaves this process at once, so that only the kernel knows of a client that
    does not read.
    """
    queued = array.array("i", [0])
    connection = transport.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):  # closed meanwhile, or a system that cannot say
            fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, queued)
    return int(transport.get_write_buffer_size()) + queued[0]
