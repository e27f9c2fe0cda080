"""Writes about APIs to the apiserver: statuses, replicas, events. One owner, one pace.

Whoever decides puts in what is to be sent and goes on. Of one kind about one API the newest is
sent and no other, never two at once. What failed is tried again with back-off, unless it was
withdrawn; something newer takes its place, and its rest. Statuses share a pace: of all no more than
ten in any second, changed conditions first, and for the others a token bucket for each API and
writer (one token in 10 s, a few saved up, so that a rollout's few states are seen at once).
Replicas, events and statuses have places of their own among what is under way: replicas wait for no
event and no status.
"""

import asyncio
import enum
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from batchedapi_core import contract
from batchedapi_operator.cluster import ObjectKey
from batchedapi_operator.errors import ApplyError, ConflictError
from batchedapi_operator.queue import rest_after

log = logging.getLogger(__name__)

STATUS_WRITES_PER_SECOND: Final = 10
"""Limit for all APIs, in whichever second, and at whatever pace the apiserver gets to them."""
SECONDS_PER_STATUS_WRITE: Final = 10.0
SAVED_STATUS_WRITES: Final = 6.0
"""Burst of one API and writer."""
FIGURES_GIVE_WAY: Final = 30.0
"""Seconds for which states of whichever API go before a write that has new figures alone."""
AT_ONCE: Final = 16
"""Writes of replicas under way: a flood of decisions must not become one of requests."""
EVENTS_AT_ONCE: Final = 4
"""An apiserver that is caught up with has better to do."""
LONGEST_SLEEP: Final = 5.0
_NEXT_TO_NOTHING: Final = 1e-6
"""A token or a second that lacks so little, by rounding, is not waited for. A timer for it is over
before the clock shows it, again and again."""

RECONCILER_STATUS: Final = f"status of {contract.FIELD_MANAGER}"
AUTOSCALER_STATUS: Final = f"status of {contract.AUTOSCALER_FIELD_MANAGER}"
REPLICAS: Final = "replicas"
WEB_REPLICAS: Final = "replicas of web pods"
STATE_EVENTS: Final = "events of states"
METRICS_EVENT: Final = "event of metrics"
SCALE_EVENT: Final = "event of replicas"
ADVICE_EVENTS: Final = "events of advice"
"""Events of one kind take the place of earlier ones that still wait, and of no others."""
MINUTES: Final = "record of minutes"


class News(enum.IntEnum):
    """Kind of change in a status; turns go in this order."""

    CONDITION = 0
    """Something broke or was mended: it waits for nothing but the pace of all."""
    STATE = 1
    FIGURES = 2
    """It gives way to states of other APIs for a while."""


class _Lane(enum.IntEnum):
    """Kinds that share places; whose turn it is together goes in this order."""

    REPLICAS = 0
    EVENTS = 1
    STATUSES = 2


_LANES: Final = {
    REPLICAS: _Lane.REPLICAS,
    WEB_REPLICAS: _Lane.REPLICAS,
    STATE_EVENTS: _Lane.EVENTS,
    METRICS_EVENT: _Lane.EVENTS,
    SCALE_EVENT: _Lane.EVENTS,
    ADVICE_EVENTS: _Lane.EVENTS,
    MINUTES: _Lane.EVENTS,
    RECONCILER_STATUS: _Lane.STATUSES,
    AUTOSCALER_STATUS: _Lane.STATUSES,
}
_PLACES: Final = {
    _Lane.REPLICAS: AT_ONCE,
    _Lane.EVENTS: EVENTS_AT_ONCE,
    _Lane.STATUSES: STATUS_WRITES_PER_SECOND,
}
_GONE: Final = 404
"""Not a 409: that says that somebody else wrote in between."""

Send = Callable[[], Awaitable[object]]
"""May raise ApplyError; then it is called again."""
Address = tuple[ObjectKey, str]
"""About which API, and of which kind."""


@dataclass(slots=True)
class _Bucket:
    """Token bucket of one API and writer."""

    tokens: float
    time: float

    def missing(self, now: float) -> float:
        """Seconds until there is a token; fills the bucket on the way."""
        came = (now - self.time) / SECONDS_PER_STATUS_WRITE
        self.tokens, self.time = min(SAVED_STATUS_WRITES, self.tokens + came), now
        lacking = 1.0 - self.tokens
        return lacking * SECONDS_PER_STATUS_WRITE if lacking > _NEXT_TO_NOTHING else 0.0


class _Window:
    """Statuses of all APIs: no more under way, or ended within a second, than may be sent in one.

    When the apiserver gets a write is known to nobody here, but it is between begin and end. So of
    those that it gets within a second none ended longer than that before the last of them began.
    """

    def __init__(self) -> None:
        self._ends: deque[float] = deque()

    def ended(self, now: float) -> None:
        """One did."""
        self._ends.append(now)

    def missing(self, now: float, under_way: int) -> float:
        """Seconds until one more may begin, as far as that can be told; forgets on the way."""
        while self._ends and self._ends[0] + 1.0 - now <= _NEXT_TO_NOTHING:
            self._ends.popleft()
        if under_way + len(self._ends) < STATUS_WRITES_PER_SECOND:
            return 0.0
        return self._ends[0] + 1.0 - now if self._ends else LONGEST_SLEEP


@dataclass(slots=True)
class _Box:
    """Write to one address, and its failures."""

    bucket: _Bucket
    send: Send | None = None
    """None: nothing."""
    due: float = 0.0
    """The write that is due first goes first, among those with conditions, then among others."""
    news: News = News.STATE
    sending: bool = False
    again: Send | None = None
    """The write under way, if it is to be sent again should it fail."""
    failures: int = 0
    rests_until: float = float("-inf")
    unheard: bool = False
    """It rests because the apiserver did not answer."""
    error: str = ""
    """Why what was sent last is still to be sent."""
    forgotten: bool = False
    """The API is gone: the box goes, too, once nothing is under way. Whoever sends what was taken
    needs it, and of one kind about one name there are never two at once."""


class Outbox:
    """Owned by its loop; `put` and `withdraw` may be called from anywhere on that event loop."""

    def __init__(
        self,
        *,
        beat: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._beat = beat
        self._monotonic = monotonic
        self._boxes: dict[Address, _Box] = {}
        self._waiting: dict[Address, _Box] = {}
        self._under_way = dict.fromkeys(_Lane, 0)
        self._all = _Window()
        self._returned = float("-inf")
        """When the apiserver answered again."""
        self._changed = asyncio.Event()

    def put(self, key: ObjectKey, kind: str, send: Send, news: News = News.STATE) -> None:
        """Have `send` called soon, in place of what waits there.

        Args:
            news: Of a status; what it takes the place of is in it, too, and waits no longer for it.
        """
        now, address = self._monotonic(), (key, kind)
        box = self._boxes.get(address)
        if box is None:
            box = self._boxes[address] = _Box(_Bucket(SAVED_STATUS_WRITES, now))
        box.forgotten = False
        due = now + (FIGURES_GIVE_WAY if news is News.FIGURES else 0.0)
        box.due = due if box.send is None else min(box.due, due)
        box.news = news if box.send is None else min(box.news, news)
        box.send, box.again = send, None
        self._waiting[address] = box
        self._changed.set()

    def withdraw(self, key: ObjectKey, kind: str) -> None:
        """Drop the write that waits there; one under way is not held back, nor sent again."""
        self._waiting.pop((key, kind), None)
        box = self._boxes.get((key, kind))
        if box is not None:
            box.send, box.again, box.error = None, None, ""

    def failure(self, key: ObjectKey, kind: str) -> str:
        """The apiserver's answer to a write that is still to be sent; empty without a failure."""
        box = self._boxes.get((key, kind))
        return "" if box is None else box.error

    def sending(self, key: ObjectKey, kind: str) -> bool:
        """Whether something is under way there, which may arrive after whatever was read."""
        box = self._boxes.get((key, kind))
        return box is not None and box.sending

    def forget(self, key: ObjectKey) -> None:
        """The API is gone."""
        for kind in _LANES:
            self.withdraw(key, kind)
            box = self._boxes.get((key, kind))
            if box is not None and box.sending:
                box.forgotten = True
            else:
                self._boxes.pop((key, kind), None)

    def clear(self) -> None:
        """Somebody else tells the apiserver from now on."""
        for key in {key for key, _ in self._boxes}:
            self.forget(key)

    def go_on(self) -> None:
        """End the rests of what the apiserver did not answer: it does again. The pace stays.

        What is under way may still fail of that it did not, and does not rest either.
        """
        self._returned = self._monotonic()
        for box in self._waiting.values():
            if box.unheard:
                box.rests_until = float("-inf")
        self._changed.set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._beat()
                self._changed.clear()
                now = self._monotonic()
                while (address := self.take(now)) is not None:
                    tasks.create_task(self.deliver(address), name=f"{address[1]} of {address[0]}")
                waits = (self._seconds_until(*waiting, now) for waiting in self._waiting.items())
                try:
                    async with asyncio.timeout(min(LONGEST_SLEEP, *waits, LONGEST_SLEEP)):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def take(self, now: float) -> Address | None:
        """The next write, and when it is due; None: none waits."""
        ready = [
            (_LANES[address[1]], box.news is not News.CONDITION, box.due, address)
            for address, box in self._waiting.items()
            if self._seconds_until(address, box, now) <= 0.0
        ]
        if not ready:
            return None
        lane, _, _, address = min(ready)
        box = self._boxes[address]
        if lane is _Lane.STATUSES:
            box.bucket.tokens = max(0.0, box.bucket.tokens - 1.0)
        box.sending = True
        self._under_way[lane] += 1
        return address

    async def deliver(self, address: Address) -> None:
        """Send what was taken."""
        box = self._boxes[address]
        send = box.send
        try:
            if send is not None:
                box.send, box.again = None, send
                self._waiting.pop(address, None)
                await self._send(address, box, send)
        finally:
            box.sending = False
            if box.forgotten:
                del self._boxes[address]
            lane = _LANES[address[1]]
            self._under_way[lane] -= 1
            if lane is _Lane.STATUSES:
                self._all.ended(self._monotonic())
            self._changed.set()

    async def _send(self, address: Address, box: _Box, send: Send) -> None:
        facts, began = {"api": str(address[0]), "kind": address[1]}, self._monotonic()
        try:
            await send()
        except ApplyError as error:
            late = error.status == _GONE or error.final
            # an API that its user has deleted or changed meanwhile is nothing to look into
            level = logging.INFO if late or isinstance(error, ConflictError) else logging.WARNING
            log.log(level, "write failed", extra={**facts, "error": error.message})
            if late:
                box.again, box.error = None, ""
                return
            failed: Exception = error
        except Exception as error:  # the outbox's loop: one bad API must not stop the others
            log.exception("write failed unexpectedly", extra=facts)
            failed = error
        else:
            box.failures, box.again, box.error = 0, None, ""  # it holds whole documents
            return
        box.failures += 1
        box.error = str(failed)
        box.unheard = isinstance(failed, ApplyError) and failed.unheard
        if not (box.unheard and began < self._returned):
            box.rests_until = self._monotonic() + rest_after(box.failures, failed)
        if box.again is not None:
            box.send = box.again
            self._waiting[address] = box

    def _seconds_until(self, address: Address, box: _Box, now: float) -> float:
        """Until it may be sent, as far as that can be told; 0 is now."""
        lane = _LANES[address[1]]
        if box.sending or self._under_way[lane] >= _PLACES[lane]:
            return LONGEST_SLEEP  # its end is told
        wait = box.rests_until - now
        if lane is _Lane.STATUSES:
            saved = box.bucket.missing(now)
            wait = max(wait, self._all.missing(now, self._under_way[lane]))
            if box.news is not News.CONDITION:
                wait = max(wait, saved)
        return wait if wait > _NEXT_TO_NOTHING else 0.0
