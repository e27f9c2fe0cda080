"""The model process of a replica that forks the others, as the supervisor asks it."""

import errno
import logging
import signal
import socket
from typing import Final

from batchedapi_serving.processes import Child

log = logging.getLogger(__name__)

_SECONDS: Final = 5.0
"""Until a fork is given up. The supervisor waits for it: a process that ended before its pid is
known would be reaped as nobody's."""
_LONGEST: Final = 32


class ForkServer:
    """At most one; without it model processes load for themselves, and the first one becomes it."""

    def __init__(self) -> None:
        self.process = Child("fork-server", "batchedapi_serving.model")
        self._control: socket.socket | None = None

    def take(self, child: Child, control: socket.socket) -> None:
        """Have the process that `child` was be the server, which is asked over `control`."""
        self.end()
        if child.pid is None:  # it has ended since it said so
            return
        self.process.become(child.leave())
        self._control = control.dup()
        self._control.settimeout(_SECONDS)
        log.info("model is shared", extra={"fork_server": self.process.pid})

    def fork(self, child: Child, index: int, control: socket.socket) -> bool:
        """Make `child` model process `index`; False: there is no server.

        Args:
            child: Is the fork from now on.
            control: The end of its control socket that the fork gets.

        Raises:
            OSError: the machine has no process for it, or the server does not answer and is ended.
        """
        if self._control is None or self.process.pid is None:
            return False
        try:
            socket.send_fds(self._control, [str(index).encode()], [control.fileno()])
            said, problem = self._control.recv(_LONGEST), "it ends"
        except OSError as error:  # a TimeoutError would be taken for one of loading
            said, problem = b"", repr(error)
        if not said:
            self.end()
            raise OSError(errno.ECHILD, f"fork server does not answer: {problem}")
        pid = int(said)
        if pid < 0:
            raise OSError(-pid, "no fork could be made")
        child.become(pid)
        return True

    def end(self) -> None:
        """End it, if there is one: the next model process loads anew."""
        self.process.signal(signal.SIGKILL)
        if self._control is not None:
            self._control.close()
            self._control = None
