"""`kubectl batchedapi`: found by kubectl as `kubectl-batchedapi` on the PATH."""

import importlib
import signal
import sys
from types import ModuleType


def main() -> None:
    """Run the command line."""
    command = _loaded("__main__").main
    try:
        command(prog_name="kubectl batchedapi")
    finally:
        # a second Ctrl-C while Python ends would be a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def complete() -> None:
    """Print what may come next, for kubectl: it runs `kubectl_complete-batchedapi` on Tab."""
    program = _loaded("__main__")
    program.print_completions(program.main, sys.argv[1:])


def _loaded(name: str) -> ModuleType:
    """A module of this package; ends the program where what it imports is not installed."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("batchedapi_"):
            raise
        package = error.name.partition(".")[0]
        sys.exit(
            f"kubectl batchedapi: the Python package {package!r} is not installed;"
            " what this command needs comes with: pip install 'batchedapi[operator]'"
        )
