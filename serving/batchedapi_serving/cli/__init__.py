"""The command line: `batchedapi serve` and `batchedapi check`."""

import os
import signal
import sys

from batchedapi_serving.standard_descriptors import open_standard_descriptors


def main() -> None:
    """Run the command line.

    As process 1 of a container a program that has no handler for SIGTERM does not get it at all:
    a pod deleted while this one is still importing would wait for its whole grace period. Ctrl+C
    in the midst of an import is no error either. Until there is something to put away the process
    just ends: an exception in the midst of an import may become another one, or none.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    # what came while the interpreter started, where whoever started it has kept it: our image does
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    _open_standard_streams()
    try:
        from batchedapi_serving.cli.main import main as run  # noqa: PLC0415 - after the handlers
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("batchedapi_"):
            raise
        package = error.name.partition(".")[0]
        sys.exit(
            f"batchedapi: the Python package {package!r} is not installed;"
            " what this command needs comes with: pip install 'batchedapi[serving]'"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _open_standard_streams() -> None:
    """Have streams on 0, 1 and 2, also where whoever started this has closed them."""
    open_standard_descriptors()
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - it is open
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


__all__ = ["main"]
