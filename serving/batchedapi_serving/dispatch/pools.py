"""What batches run on: the lanes of all processes, or the channels of all processes."""

import math
import random
from collections import Counter
from collections.abc import Iterable
from typing import Final, Protocol

from batchedapi_core.batching import LaneChoice
from batchedapi_serving.dispatch.lanes import Channel, Lane, Runner

_CANCEL_SECONDS: Final = 1.0
"""That a call gets to end after its clients have had their 504; see dispatch.channel."""


class Pool(Protocol):
    """Runners, and which of them are free."""

    def take(self) -> Runner:
        """One that is free; how many are is counted in core's `Lanes`."""

    def release(self, runner: Runner, now: float) -> None:
        """Its batch is done."""

    def hanging(self, now: float, timeout: float) -> set[int]:
        """Pids of the processes that have had one batch for the whole `timeout`, in seconds.

        That every row in it is too late is not enough: in an overload rows are late when they are
        dispatched, and their process is as healthy as can be.
        """

    def next_hang(self, now: float, timeout: float) -> float:
        """When the first running batch will have had the whole `timeout`; inf: none will."""


class LanePool:
    """The lanes of a replica."""

    def __init__(self, choice: LaneChoice) -> None:
        self._all: set[Lane] = set()
        self._free: list[Lane] = []
        self._least_loaded: Final = choice is LaneChoice.LEAST_LOADED

    def __len__(self) -> int:
        return len(self._all)

    def add(self, lane: Lane) -> None:
        """A free lane more."""
        self._all.add(lane)
        self._free.append(lane)

    def of_process(self, pid: int) -> list[Lane]:
        """All lanes of one."""
        return [lane for lane in self._all if lane.pid == pid]

    def remove(self, lane: Lane) -> None:
        """A lane less, free or busy."""
        self._all.discard(lane)
        if lane in self._free:
            self._free.remove(lane)

    def release(self, runner: Runner, now: float) -> None:  # noqa: ARG002 - of interest on channels
        """See Pool."""
        if isinstance(runner, Lane) and runner in self._all:
            self._free.append(runner)

    def take(self) -> Lane:
        """A random free lane, as BentoML does it: batches get slightly larger than in turn.

        Under LeastLoaded: of the process with the fewest lanes busy; among equals the one that has
        been free for longest.
        """
        free = self._free
        if len(free) > 1:
            if self._least_loaded:
                return free.pop(self._least())
            chosen = random.randrange(len(free))  # noqa: S311 - no cryptography
            free[chosen], free[-1] = free[-1], free[chosen]
        return free.pop()

    def _least(self) -> int:
        busy = Counter(lane.pid for lane in self._all if lane.batch is not None)
        free = self._free
        return min(range(len(free)), key=lambda i: busy[free[i].pid])

    def hanging(self, now: float, timeout: float) -> set[int]:
        """See Pool."""
        return {
            lane.pid
            for lane in self._all
            if lane.batch is not None and lane.started + timeout <= now
        }

    def next_hang(self, now: float, timeout: float) -> float:
        """See Pool."""
        return _first_end(self._all, now, timeout)


class CallPool:
    """The channels of a replica, for the calls of one async method."""

    def __init__(self, choice: LaneChoice, at_once: int) -> None:
        """`at_once` is how many calls of this method one process runs side by side."""
        self.at_once: Final = at_once
        self._calls: dict[Channel, set[Runner]] = {}
        self._channels: dict[Runner, Channel] = {}
        self._answered: dict[Channel, float] = {}
        self._least_loaded: Final = choice is LaneChoice.LEAST_LOADED

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, channel: Channel) -> None:
        """A process more."""
        self._calls[channel] = set()
        self._answered[channel] = -math.inf

    def remove_process(self, pid: int) -> list[Runner]:
        """A process less; the calls that ran on it."""
        lost: list[Runner] = []
        for channel in [channel for channel in self._calls if channel.pid == pid]:
            del self._answered[channel]
            lost.extend(self._calls.pop(channel))
        for call in lost:
            del self._channels[call]
        return lost

    def take(self) -> Runner:
        """A slot for one call: on a random process, or on the one with the fewest calls."""
        open_channels = [c for c, calls in self._calls.items() if len(calls) < self.at_once]
        if self._least_loaded:
            channel = min(open_channels, key=lambda c: len(self._calls[c]))
        else:
            channel = random.choice(open_channels)  # noqa: S311 - no cryptography
        slot = channel.slot()
        self._calls[channel].add(slot)
        self._channels[slot] = channel
        return slot

    def release(self, runner: Runner, now: float) -> None:
        """See Pool."""
        channel = self._channels.pop(runner, None)
        if channel is not None:
            self._calls[channel].discard(runner)
            self._answered[channel] = now

    def hanging(self, now: float, timeout: float) -> set[int]:
        """See Pool; a process that has answered another call since is not to blame for this one.

        It awaits something that does not come; its clients get their 504, and then it is cancelled.
        """
        begun_by = now - timeout - _CANCEL_SECONDS
        return {
            call.pid
            for channel, calls in self._calls.items()
            for call in calls
            if call.started <= begun_by and self._answered[channel] < call.started
        }

    def next_hang(self, now: float, timeout: float) -> float:
        """See Pool."""
        return _first_end(self._channels, now, timeout + _CANCEL_SECONDS)


def _first_end(runners: Iterable[Runner], now: float, timeout: float) -> float:
    ends = [runner.started + timeout for runner in runners if runner.batch is not None]
    return min((end for end in ends if now < end), default=math.inf)
