"""The listening socket's end, such that nobody who is connected is reset.

The kernel connects clients by itself, and whoever is in its backlog when the listener closes is
reset, with the request it may have sent already. So the door is shut first, then everybody in the
backlog is let in, and only then the listener closes. Who comes meanwhile is not answered, asks
again a second later, as the kernel does it, and is refused then.
"""

import asyncio
import contextlib
import ctypes
import socket
import struct
from typing import Any, Final

_ATTACH_FILTER: Final = 26  # SO_ATTACH_FILTER, which the module socket does not name
_DETACH_FILTER: Final = 27
_DROP: Final = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of the kernel's packet filter: return 0, keep nothing of the packet."""
_BACKLOG_AT: Final = 24
"""Where TCP_INFO of a listener has the length of its backlog (tcpi_unacked)."""
_LONGEST_SECONDS: Final = 1.0
_ROUNDS: Final = 3
"""Of the loop, from accepting a connection to telling its protocol."""


def open_door(endpoint: Any) -> None:
    """Undo `let_in_who_is_there`, where a socket was shut out that should not be.

    The listener outlives a process that was stopped alone, and a connection has the listener's
    filter that is made in the very moment in which it is shut.
    """
    with contextlib.suppress(OSError, AttributeError):  # it was never shut; it is no socket
        endpoint.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)


async def let_in_who_is_there(listener: socket.socket) -> None:
    """Connect nobody more, and wait until the loop has accepted everybody who is connected."""
    loop = asyncio.get_running_loop()
    _shut_door(listener)
    end = loop.time() + _LONGEST_SECONDS
    rounds = _ROUNDS
    while rounds > 0 and loop.time() < end:
        await asyncio.sleep(0)  # the loop accepts one each time round
        rounds = _ROUNDS if _backlog(listener) > 0 else rounds - 1


def _shut_door(listener: socket.socket) -> None:
    program = ctypes.create_string_buffer(_DROP, len(_DROP))
    filters = struct.pack("HP", 1, ctypes.addressof(program))
    with contextlib.suppress(OSError):  # a sandbox without filters: the last moment may be reset
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filters)


def _backlog(listener: socket.socket) -> int:
    with contextlib.suppress(OSError):  # a socket of another kind
        known = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BACKLOG_AT + 4)
        return int(struct.unpack_from("I", known, _BACKLOG_AT)[0])
    return 0
