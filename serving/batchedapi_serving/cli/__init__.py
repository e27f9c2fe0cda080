"""The command line: `batchedapi serve` and `batchedapi check`."""

import signal
import sys


def main() -> None:
    """Run the command line.

    As process 1 of a container a program that has no handler for SIGTERM does not get it at all:
    a pod deleted while this one is still importing would wait for its whole grace period. Ctrl+C
    in the midst of an import is no error either.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
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
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


__all__ = ["main"]
