"""One connection from a model process: a lane, on which one batch runs at a time."""

import asyncio
import logging
from typing import Any, Protocol

from batchedapi_serving.dispatch.frames import BrokenFrameError, FrameReader, Meta, encode_frame
from batchedapi_serving.dispatch.jobs import Batch

log = logging.getLogger(__name__)


class LaneOwner(Protocol):
    """The dispatcher, as a lane sees it."""

    def lane_ready(self, lane: "Lane", hello: Meta) -> None:
        """The model is loaded and warm; the lane can take batches."""

    def lane_finished(self, lane: "Lane", meta: Meta, payload: bytes) -> None:
        """The lane's batch is answered."""

    def lane_lost(self, lane: "Lane") -> None:
        """The lane is gone; what it ran is not answered."""


class Lane(asyncio.Protocol):
    """The dispatcher's end of the connection."""

    def __init__(self, owner: LaneOwner) -> None:
        self._owner = owner
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self.batch: Batch | None = None
        self.started = 0.0
        self.worker_index = 0
        self.pid = 0
        self.ready = False

    def connection_made(self, transport: Any) -> None:
        """A model process connected; it is of use once it has said hello."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes of hellos and results."""
        try:
            for meta, payload in self._reader.feed(data):
                if self.ready:
                    self._owner.lane_finished(self, meta, payload)
                else:
                    self._said_hello(meta["hello"])
        except BrokenFrameError as error:
            log.error("lane sent a broken frame", extra={"pid": self.pid, "error": str(error)})  # noqa: TRY400 - the connection is the fact, not the stack
            self.close()

    def _said_hello(self, hello: Meta) -> None:
        self.worker_index = hello["worker_index"]
        self.pid = hello["pid"]
        self.ready = True
        self._owner.lane_ready(self, hello)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why makes no difference
        """The model process ended or was replaced."""
        self._transport = None
        if self.ready:
            self.ready = False
            self._owner.lane_lost(self)

    def run(self, meta: Meta, payload: Any) -> None:
        """Send a batch."""
        if self._transport is not None:
            self._transport.write(encode_frame(meta, payload))

    def close(self) -> None:
        """Give the connection up; `lane_lost` follows."""
        if self._transport is not None:
            self._transport.abort()
