"""The command line: `batchedapi serve` and `batchedapi check`."""

import signal
import sys


def main() -> None:
    """Run the command line.

    As process 1 of a container a program that has no handler for SIGTERM does not get it at all:
    a pod deleted while this one is still importing would wait for its whole grace period.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from batchedapi_serving.cli.main import main as run  # noqa: PLC0415 - after the handler

    run()


__all__ = ["main"]
