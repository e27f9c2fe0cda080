"""The command line: `batchedapi serve` and `batchedapi check`."""

import sys
from importlib.util import find_spec
from typing import Final, NoReturn

from batchedapi_serving.signals import signals_end
from batchedapi_serving.standard_descriptors import open_standard_descriptors

IN_A_CONTAINER: Final = (
    'docker run --rm -p 8080:8080 -v "$PWD:/app" batchedapi-serving:0.1.0'
    " serve -f batchedapi.yaml --host 0.0.0.0"
)
"""As docs/install.md has it."""
_OF_SERVING: Final = "uvicorn"
"""A package that comes with the extra alone."""


def main() -> None:
    """Run the command line; one that has something to put away says how a signal ends it."""
    if sys.platform != "linux":
        sys.exit(
            f"batchedapi: expected Linux, got {sys.platform}; in WSL 2 it runs as it is, and here"
            f" in a container: {IN_A_CONTAINER}"
        )
    signals_end()
    _open_standard_streams()
    if find_spec(_OF_SERVING) is None:  # a command would find it out only as it runs
        _exit_without(_OF_SERVING)
    try:
        from batchedapi_serving.cli.main import main as run  # noqa: PLC0415 - after the handlers
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("batchedapi_"):
            raise
        _exit_without(error.name.partition(".")[0])
    run()


def _exit_without(package: str) -> NoReturn:
    sys.exit(
        f"batchedapi: the Python package {package!r} is not installed;"
        " what this command needs comes with: pip install 'batchedapi[serving]'"
    )


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
