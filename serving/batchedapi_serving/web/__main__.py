"""Program of the web process; started by the supervisor, not by hand.

Arguments: the runtime folder, the descriptor of the listening socket, the descriptor of the
control socket.
"""

import socket
import sys

from batchedapi_serving.logs import configure_logging
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.server import run_web


def main(runtime: str, listener: str, control: str) -> None:
    """Serve until told to stop."""
    settings = ReplicaSettings.read(runtime)
    configure_logging(settings.log_level, "web")
    run_web(settings, socket.socket(fileno=int(listener)), socket.socket(fileno=int(control)))


if __name__ == "__main__":
    main(*sys.argv[1:])
