"""Lanes: connections from model processes, on each of which one batch runs at a time."""

import asyncio
import logging
import math
import random
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


class LanePool:
    """The lanes of a replica, and which of them are free."""

    def __init__(self) -> None:
        self._all: set[Lane] = set()
        self._free: list[Lane] = []

    def __len__(self) -> int:
        return len(self._all)

    def add(self, lane: Lane) -> None:
        """A free lane more."""
        self._all.add(lane)
        self._free.append(lane)

    def remove(self, lane: Lane) -> None:
        """A lane less, free or busy."""
        self._all.discard(lane)
        if lane in self._free:
            self._free.remove(lane)

    def release(self, lane: Lane) -> None:
        """Its batch is done."""
        self._free.append(lane)

    def take(self) -> Lane:
        """A random free lane, as BentoML does it: batches get slightly larger than in turn."""
        free = self._free
        if len(free) > 1:
            chosen = random.randrange(len(free))  # noqa: S311 - no cryptography
            free[chosen], free[-1] = free[-1], free[chosen]
        return free.pop()

    def hanging(self, now: float, timeout: float) -> set[int]:
        """Pids of the processes that have had one batch for the whole `timeout`.

        That every row in it is too late is not enough: in an overload rows are late when they are
        dispatched, and their process is as healthy as can be.
        """
        return {
            lane.pid
            for lane in self._all
            if lane.batch is not None and lane.started + timeout <= now
        }

    def next_hang(self, now: float, timeout: float) -> float | None:
        """When the first running batch will have had the whole `timeout`."""
        ends = [lane.started + timeout for lane in self._all if lane.batch]
        return min((end for end in ends if now < end < math.inf), default=None)
