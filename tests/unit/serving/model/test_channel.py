"""The model process's channel while its connection closes."""

import asyncio
from typing import Any

import pytest

from batchedapi_serving.model.worker import ConnectionLostError, _WorkerConnection


class NoRunner:
    """Nothing is called here."""

    async def run_async(self, meta: Any, payload: bytes) -> Any:
        """See AsyncRunner."""
        raise AssertionError((meta, payload))


class Wire:
    """A transport."""

    def __init__(self) -> None:
        self.closing = False

    def get_extra_info(self, name: str) -> "Wire":
        """See asyncio.BaseTransport; it is its own socket."""
        assert name == "socket"
        return self

    def fileno(self) -> int:
        """See socket.socket: it has none."""
        return -1

    def write(self, data: bytes) -> None:
        """Nobody reads it."""

    def is_closing(self) -> bool:
        """See asyncio.Transport."""
        return self.closing


async def test_a_submit_after_the_connection_was_lost_is_told_so() -> None:
    """A call that is cancelled with its connection may still submit, and would wait for ever."""
    connection = _WorkerConnection(NoRunner(), {})
    connection.connection_made(Wire())
    connection.connection_lost(None)

    with pytest.raises(ConnectionLostError, match="restarted"):
        async with asyncio.timeout(5):
            await connection.submit({"method": "embed"}, [])


async def test_a_submit_while_the_connection_closes_ends_with_it() -> None:
    """It was begun before the end was known."""
    connection, wire = _WorkerConnection(NoRunner(), {}), Wire()
    connection.connection_made(wire)
    wire.closing = True
    submit = asyncio.create_task(connection.submit({"method": "embed"}, []))
    await asyncio.sleep(0)

    connection.connection_lost(None)

    with pytest.raises(ConnectionLostError, match="restarted"):
        await submit
