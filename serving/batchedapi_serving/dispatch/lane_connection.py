"""Lanes: connections from model processes, on each of which one batch runs at a time.

Another may be on its way meanwhile, which the model process reads when it has answered the first.
Each has shared memory of its own: the rows of the one that runs lie in it, or its answer does.

A model process opens them all to one socket; what a connection says in its hello makes it a lane,
or the channel of its process, on which calls of async methods run side by side.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from batchedapi_core.batching import Batch
from batchedapi_serving.dispatch.channel import ModelChannel
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.dispatch.executor import Done
from batchedapi_serving.ipc import MEMORIES, BrokenFrameError, FrameReader, Meta, SharedMemory
from batchedapi_serving.processes import ends_with_peer, nothing

log = logging.getLogger(__name__)


class LaneConnection(asyncio.Protocol):
    """The dispatcher's end of a connection; one whose hello says `channel` passes frames on."""

    def __init__(self, owner: Dispatcher) -> None:
        self._owner = owner
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._memories = [SharedMemory.open(0, None)] * MEMORIES
        self._memory = 0
        """Index of the one that the batch that runs has."""
        self._channel: ModelChannel | None = None
        self._batch: Batch | None = None
        """Runs now."""
        self._ahead: Batch | None = None
        """Runs next."""
        self._done: Done | None = None
        self._unwatch: Callable[[], None] = nothing
        self.worker_index = 0
        self.pid = 0
        self.ready = False

    def connection_made(self, transport: Any) -> None:
        """A model process connected; it is of use once it has said hello."""
        self._transport = transport
        self._unwatch = ends_with_peer(transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of hellos and results."""
        try:
            for meta, payload in self._reader.feed(data):
                if self.ready:
                    if "shared" in meta:
                        payload = self._memories[self._memory].take(meta, payload)  # noqa: PLW2901 - where it really is
                    batch, self._batch, self._ahead = self._batch, self._ahead, None
                    self._memory = 0 if self._batch is None else 1 - self._memory
                    if batch is None or self._done is None:
                        raise AssertionError("a result without a batch")
                    self._done(self, batch, meta, payload)
                elif self._channel is not None:
                    self._channel.received(meta, payload)
                else:
                    hello = meta["hello"]
                    self.worker_index, self.pid = hello["worker_index"], hello["pid"]
                    if hello.get("channel") and self._transport is not None:
                        self._channel = self._owner.channel_ready(self._transport, hello)
                        continue
                    announced = hello.get("memories", [None] * MEMORIES)
                    self._memories = [SharedMemory.open(self.pid, one) for one in announced]
                    self.ready = True
                    self._owner.lane_ready(self, hello)
        except BrokenFrameError as error:
            log.error("lane sent a broken frame", extra={"pid": self.pid, "error": str(error)})  # noqa: TRY400 - the connection is the fact, not the stack
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why makes no difference
        """The model process ended or was replaced."""
        self._transport = None
        self._unwatch()
        if self._channel is not None:
            self._owner.channel_lost(self._channel)
            self._channel.closed()
            self._channel = None
        if self.ready:
            self.ready = False
            for memory in self._memories:
                memory.close()
            self._owner.lane_lost(self)

    def run(self, batch: Batch, meta: Meta, payload: Sequence[bytes], done: Done) -> None:
        """See Runner."""
        memory, self._done = self._memory, done
        if self._batch is None:
            self._batch = batch
        else:
            self._ahead, memory = batch, 1 - memory
        if memory:
            meta = {**meta, "memory": memory}
        if self._transport is not None:
            self._transport.write(self._memories[memory].encode(meta, payload))

    def close(self) -> None:
        """See Runner; `lane_lost` follows."""
        if self._transport is not None:
            self._transport.abort()
