"""Program of a web process; started by the supervisor, not by hand.

Arguments: the runtime folder, which web process this is (the queue is in number 0), and the
descriptors of the listening socket and of the control socket.
"""

import socket
import sys

from batchedapi_serving.logs import configure_logging
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.server import run_web


def main(runtime: str, index: str, listener: str, control: str) -> None:
    """Serve until told to stop."""
    settings = ReplicaSettings.read(runtime)
    configure_logging(settings.log_level, f"web-{index}" if settings.web_processes > 1 else "web")
    sockets = socket.socket(fileno=int(listener)), socket.socket(fileno=int(control))
    for ours in sockets:  # a process of our own that had them would keep the port open after us
        ours.set_inheritable(False)
    run_web(settings, *sockets, int(index))


if __name__ == "__main__":
    main(*sys.argv[1:])
