"""Messages of a web process to the supervisor: one JSON object a line."""

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Final

from batchedapi_serving.predictor.api import MethodSpec
from batchedapi_serving.web.schemas import example_of

_SHOWN_EXAMPLE: Final = 2048
"""Characters; a longer example is not worth showing on a terminal."""


class ControlLine:
    """See dispatch's Supervision; `known` is set once the methods are."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self.known = asyncio.Event()

    def replace(self, pid: int) -> None:
        """The model process with that pid hangs: kill it."""
        self._say({"replace": pid})

    def ready(self, methods: Sequence[MethodSpec], default: str | None) -> None:
        """The first model process is ready; the line has an example of the default method's row."""
        self.known.set()
        by_name = {method.name: method for method in methods}
        example = None if default is None else example_of(by_name[default])
        small = len(json.dumps(example)) <= _SHOWN_EXAMPLE
        self._say(
            {
                "ready": example if small else None,
                "methods": [[method.name, method.max_batch_size] for method in methods],
            }
        )

    def _say(self, message: dict[str, object]) -> None:
        self._control.send(json.dumps(message).encode() + b"\n")
