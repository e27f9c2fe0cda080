"""With a latency target: refuse at the door what would be answered too late.

By expected completion, never by the worst case, and at admission: dropping late rows only at
dispatch leaves every batch full of rows that are nearly late, and goodput collapses. Nobody is
refused on a guess: a batch larger than any that was seen is expected to take as long as that one.
"""

from math import exp
from typing import Final, Protocol

from batchedapi_core.batching.adaptive import Effective
from batchedapi_core.service_model.service_time import ServiceTimeSamples

MARGIN: Final = 1.05  # on the expected time to an answer


class Backlog(Protocol):
    """What stands before a new request. Sizes in the policy's unit, times in seconds."""

    effective: Effective
    running_size: int
    service: ServiceTimeSamples

    @property
    def lanes(self) -> int:
        """Lanes, free or busy."""

    @property
    def free_lanes(self) -> int:
        """Lanes that run no batch."""

    @property
    def queued_size(self) -> int:
        """Size of the live requests in the queue, of all shapes."""

    @property
    def next_free(self) -> float:
        """When a busy lane is expected to be free, on the caller's clock; inf: none is busy."""


class Admission:
    """Accepts a request if it is expected to be answered within `target` seconds."""

    __slots__ = ("_asked_at", "_offered", "_target")

    def __init__(self, target: float) -> None:
        self._target = target
        self._offered = 0.0  # size a second that asked for service, accepted or not
        self._asked_at = 0.0

    def accepts(self, backlog: Backlog, size: int, now: float) -> bool:
        """Whether to take a request of `size`; ask once for every request, before it queues."""
        target, service = self._target, backlog.service
        elapsed, self._asked_at = now - self._asked_at, now
        self._offered = self._offered * exp(-elapsed / target) + size / target
        if not service.known or (backlog.free_lanes > 0 and not backlog.queued_size):
            return True  # an idle server always tries, else a bad estimate could never be corrected
        max_size = backlog.effective.max_batch_size
        full, rest = divmod(backlog.queued_size, max_size)
        wait = full * service.at_least(max_size) / max(1, backlog.lanes)
        if backlog.free_lanes <= 0 < backlog.lanes:
            wait += max(0.0, backlog.next_free - now)
        batch = min(
            max_size, rest + size + self._offered * wait
        )  # who comes until then rides along
        return MARGIN * (wait + service.at_least(batch)) <= target


def retry_after(backlog: Backlog) -> float:
    """Seconds in which the lanes can work off what is queued and running: backlog over capacity."""
    max_size = backlog.effective.max_batch_size
    seconds_per_size = backlog.service.seconds(max_size) / max_size / max(1, backlog.lanes)
    return (backlog.queued_size + backlog.running_size) * seconds_per_size
