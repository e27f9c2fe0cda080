"""Free loopback ports for the servers that tests and benchmarks start."""

import contextlib
import errno
import itertools
import os
import random
import socket
from collections.abc import Iterator
from typing import Final

HOST: Final = "127.0.0.1"
PORTS: Final = range(20000, 24000)
"""Below the ephemeral ports, so that no client's connection takes one between test and server."""


def own_ports() -> range:
    """The ports of this test process: workers of pytest-xdist must not find the same ones free."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = len(PORTS) // workers
    return PORTS[worker * share :][:share]


def _in_turn() -> Iterator[int]:
    own = own_ports()
    first = random.randrange(len(own))
    return itertools.cycle((*own[first:], *own[:first]))


_ports: Final = _in_turn()


def free_ports(count: int) -> list[int]:
    """Different loopback ports that nobody listens on just now.

    They come in turn: a port is not given again before all others of this process were. Its server
    may not listen yet when ports are wanted for the next one.

    Raises:
        OSError: there are not so many.
    """
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for port in itertools.islice(_ports, len(own_ports())):
            try:
                stack.enter_context(socket.create_server((HOST, port)))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            ports.append(port)
            if len(ports) == count:
                return ports
    raise OSError(f"free ports: expected {count} in {own_ports()}, got {len(ports)}")


def free_port() -> int:
    """One of them."""
    (port,) = free_ports(1)
    return port
