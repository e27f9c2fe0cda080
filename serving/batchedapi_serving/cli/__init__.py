"""The command line: `batchedapi serve`."""

from batchedapi_serving.cli.main import main

__all__ = ["main"]
