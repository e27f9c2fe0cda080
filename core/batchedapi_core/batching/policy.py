"""How the batches of a method are formed: what users chose, and what is in effect of it.

In effect is the user's policy, as Adaptive and the memory that ran out have made it.

Strategy Adaptive sets size and interval from t(n) and the latency target, by the rule with which
the operator counts replicas (`lane_capacity`): of the sizes up to the user's, the one at which a
lane serves most within the target. Holding rows back for no longer than that batch takes costs
nothing by the same rule, as a row may have to wait that long for the batch in progress anyway. So
the effective interval is t(size), and never more than the user's. A target that no size meets
changes nothing: smaller batches would lose throughput and still be late, and admission sheds what
cannot be answered in time.

What it changed it takes back if that made latency worse: an epoch after a change in which twice as
many batches as 1 % took over 10 % longer than 99 % did before, at no more load, and the setting
before stands for some epochs. Load that rose is no fault of a setting, so it is not judged by.

It is for a largest batch that the target has no time for. Where bursts of 128 to 256 rows come to
batches of up to 256 that would take 257 ms, 50 % of them are answered within 100 ms, and 33 % under
Window; docs/decisions/0002 says what it costs where the largest batch fits.
"""

import enum
import math
from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from batchedapi_core.service_model import ServiceTime, ServiceTimeSamples, lane_capacity

QUANTILE: Final = 0.99  # of the rows, to be within the target; the operator's
TUNE_EVERY: Final = 16  # batches; one calculation takes some 20 microseconds
EPOCH: Final = 512  # batches; what was seen counts for one to two of these
PROBE: Final = 1.25  # times the largest size seen: how far beyond it a batch may go to learn
WORSE: Final = 1.1  # times the p99 before, which a change must not make of it
SURELY: Final = 2.0  # times as many batches beyond that as there would be by chance
_MOMENT: Final = 1e-9  # seconds: a clock too coarse to see batches says nothing of their rate
ALIKE: Final = 0.1  # share by which settings, or loads, differ that are taken for the same
SHORTEST_REST, LONGEST_REST = 2, 16
"""Epochs for which nothing is tried after a change was taken back; twice as many each time."""
MOST_SHAPES: Final = 256
"""Shapes whose limits are remembered; of more, the one limited longest ago is forgotten, and
learned again from its next failure."""


class Strategy(enum.StrEnum):
    """When a batch that is not full is released.

    Under each of them at once while requests of another shape wait too, and while draining.
    """

    WINDOW = "Window"
    """At the interval, or earlier when waiting is not expected to help."""
    FIXED = "Fixed"
    """At the interval, counted from the oldest request, and never earlier."""
    IMMEDIATE = "Immediate"
    """Whatever waits, as soon as a lane is free."""
    ADAPTIVE = "Adaptive"
    """Window, with size and interval that follow from t(n) and the latency target."""


class SizeUnit(enum.StrEnum):
    """The unit of `max_batch_size`."""

    ROWS = "Rows"
    REQUESTS = "Requests"


class QueueOrder(enum.StrEnum):
    """The order in which requests have their turn."""

    FIFO = "FIFO"
    DEADLINE = "Deadline"
    """The earliest deadline first; requests without one last, in order of arrival."""


class LaneChoice(enum.StrEnum):
    """The rule by which a free lane gets the next batch."""

    RANDOM = "Random"
    LEAST_LOADED = "LeastLoaded"
    """A lane of the process with the fewest lanes busy."""


class ItemErrorPolicy(enum.StrEnum):
    """Treatment of the neighbours of an input that makes a batch fail."""

    ISOLATE = "Isolate"
    """The batch is run again in halves until only the culprit fails."""
    FAIL_BATCH = "FailBatch"
    """All of them fail, and nothing is run twice."""


class Receipts(enum.StrEnum):
    """Whether answers say which batch they rode in."""

    OFF = "Off"
    HEADERS = "Headers"
    ALL = "All"
    """In headers, and in `parameters` of the Open Inference Protocol."""


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """The batching of one method.

    Raises:
        ValueError: A value is out of range.
    """

    max_batch_size: int  # >= 1, in the size unit: rows, requests, or the method's own cost
    batch_interval: float
    """Seconds >= 0. Window: the longest a request is held back while a lane is free, 0 = never;
    a ceiling, not a target. Fixed: counted from the oldest request."""
    strategy: Strategy = Strategy.WINDOW
    latency_target: float | None = None  # seconds > 0, from arrival to answer
    queue_order: QueueOrder = QueueOrder.FIFO
    pads_to: int = 0
    """Length up to which rows of all lengths may share a batch, padded to its longest; longer rows
    share it with those of about their own. 0: rows of different shapes never do."""

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise ValueError(f"max_batch_size: expected at least 1, got {self.max_batch_size}")
        if not 0.0 <= self.batch_interval < math.inf:
            raise ValueError(
                f"batch_interval: expected finite seconds >= 0, got {self.batch_interval}"
            )
        if self.latency_target is not None and not 0.0 < self.latency_target < math.inf:
            raise ValueError(
                f"latency_target: expected finite seconds > 0 or None, got {self.latency_target}"
            )
        if self.strategy is Strategy.ADAPTIVE and self.latency_target is None:
            raise ValueError(
                "latency_target: expected seconds under the Adaptive strategy, got None"
            )


class Effective(NamedTuple):
    """Limits that batches are formed by; never above the user's."""

    max_batch_size: int
    batch_interval: float  # seconds


@dataclass(frozen=True, slots=True)
class Epoch:
    """A summary of `EPOCH` batches under a setting."""

    setting: Effective
    latencies: tuple[float, ...]
    """Seconds from arrival to answer of the first request of each batch, ascending."""
    load: float
    """Rows a second while batches ran: the mean over equal numbers of batches, not over time, as
    an hour without rows must not hide the minute in which all came."""

    @property
    def p99(self) -> float:
        """Seconds."""
        return self.latencies[int(QUANTILE * len(self.latencies))]


def made_worse(before: Epoch, after: Epoch) -> bool:
    """Whether a change of the setting, rather than of the load or chance, made latency worse."""
    if alike(before.setting, after.setting) or after.load > (1.0 + ALIKE) * before.load:
        return False
    seen = after.latencies
    late = len(seen) - bisect_right(seen, WORSE * before.p99)
    return late > SURELY * (1.0 - QUANTILE) * len(seen)


def alike(one: Effective, other: Effective) -> bool:
    """Whether two settings differ by no more than what is learned of t(n) does by chance."""
    return all(abs(a - b) <= ALIKE * max(a, b) for a, b in zip(one, other, strict=True))


class Adaptive:
    """Finds the effective limits of one method; O(1) a batch, in constant memory.

    A size that was never exceeded is no proof that a larger one would be worse: t(n) learned from
    batches of one and two rows may be so wrong that the best size seems to be one, and then nothing
    larger would ever be seen. So unless a larger batch than the best was seen within the last
    epochs the limit is above it, until one batch was. And what was learned from larger sizes than
    an epoch of full batches had is forgotten: the model may have been slower then.

    The setting to go back to is the last one that stood for a whole epoch and made nothing worse.
    """

    __slots__ = (
        "_batches",
        "_began",
        "_best",
        "_earlier",
        "_good",
        "_in_effect",
        "_largest",
        "_latencies",
        "_policy",
        "_rates",
        "_rest",
        "_resting",
        "_rows",
        "_since",
    )

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._batches = 0
        self._best = policy.max_batch_size
        self._largest = self._earlier = 0  # sizes seen in this epoch, and in the one before
        # Now, and as this epoch began.
        self._in_effect = self._began = Effective(policy.max_batch_size, policy.batch_interval)
        self._good: Epoch | None = None  # the one to go back to
        self._rest = SHORTEST_REST  # epochs, after the next change that is taken back
        self._resting = 0  # epochs for which nothing is tried
        self._latencies: list[float] = []  # of this epoch
        self._rates = 0.0  # rows a second, summed over every TUNE_EVERY batches of this epoch
        self._rows, self._since = 0, -math.inf  # of these batches, and when the ones before ended

    def executed(
        self, size: int, samples: ServiceTimeSamples, *, latency: float, now: float
    ) -> Effective | None:
        """A batch of `size` was executed and observed; the limits from now on, if it is time.

        Args:
            size: Of the batch.
            samples: That have observed it.
            latency: Seconds from arrival to answer of its first request.
            now: Seconds.
        """
        if not self._latencies:
            self._began = self._in_effect
        self._batches += 1
        self._latencies.append(latency)
        self._rows += size
        news = size > max(self._best, self._largest, self._earlier)
        self._largest = max(self._largest, size)
        in_time = self._batches % TUNE_EVERY == 0
        if in_time:
            self._rates += self._rows / max(now - self._since, _MOMENT)
            self._rows, self._since = 0, now
        back = None
        if self._batches % EPOCH == 0:
            if self._largest >= self._best:  # else it is not the limit that keeps batches small
                samples.forget_above(self._largest)
            self._earlier, self._largest = self._largest, 0
            back = self._judged()
        if back is None and not self._resting and (news or in_time):
            self._in_effect = self._tuned(samples.line)
            return self._in_effect
        return back

    def _judged(self) -> Effective | None:
        """At the end of an epoch: the setting to go back to; None: there is no reason to."""
        load = self._rates / (EPOCH / TUNE_EVERY)
        epoch, good = Epoch(self._in_effect, tuple(sorted(self._latencies)), load), self._good
        stood = alike(self._began, self._in_effect)
        self._latencies.clear()
        self._rates = 0.0
        self._resting = max(0, self._resting - 1)
        if good is not None and made_worse(good, epoch):
            self._resting, self._rest = self._rest, min(LONGEST_REST, 2 * self._rest)
            self._in_effect = good.setting
            return good.setting
        if stood:
            if good is not None and not alike(good.setting, epoch.setting):
                self._rest = SHORTEST_REST
            self._good = epoch
        return None

    def _tuned(self, line: ServiceTime) -> Effective:
        policy, largest = self._policy, self._policy.max_batch_size
        unchanged = Effective(largest, policy.batch_interval)
        if line.seconds(largest) <= 0.0:
            return unchanged
        capacity = lane_capacity(
            line,
            largest_batch=largest,
            batch_interval=0.0,
            latency_target=policy.latency_target,
            quantile=QUANTILE,
        )
        if not capacity.feasible:
            return unchanged
        self._best = size = capacity.batch_size
        interval = min(policy.batch_interval, line.seconds(size))
        seen = max(self._largest, self._earlier)
        if seen <= size:
            size = min(largest, max(size, math.ceil(PROBE * seen), seen + 1))
        return Effective(size, interval)


class PolicyInEffect:
    """Policies by shape; `base` is that of every shape without a limit of its own.

    `adaptive` is None unless the strategy is Adaptive; `executed` need not be called then.
    """

    __slots__ = ("_limited", "_limits", "_user", "adaptive", "base")

    def __init__(self, policy: BatchPolicy) -> None:
        self.base = self._user = policy
        self.adaptive = Adaptive(policy) if policy.strategy is Strategy.ADAPTIVE else None
        self._limits: dict[Hashable, int] = {}  # longest ago first
        self._limited: dict[Hashable, BatchPolicy] = {}  # made when asked for

    def of(self, shape: Hashable) -> BatchPolicy:
        """The policy by which batches of a shape are formed."""
        limit = self._limits.get(shape)
        if limit is None:
            return self.base
        policy = self._limited.get(shape)
        if policy is None:
            policy = self._limited[shape] = self._at_most(self.base, limit)
        return policy

    def largest(self, shape: Hashable) -> int:
        """Size of a full batch of a shape."""
        return self.of(shape).max_batch_size

    def limit_of(self, shape: Hashable) -> int:
        """Largest size that a shape may have at all, whatever is best for latency."""
        return self._limits.get(shape, self._user.max_batch_size)

    def limit(self, shape: Hashable, size: int) -> None:
        """Batches of a shape have at most `size` from now on; a larger limit changes nothing."""
        if size < 1:
            raise ValueError(f"limit of shape {shape}: expected a size of at least 1, got {size}")
        if size >= self.limit_of(shape):
            return
        self._limits.pop(shape, None)
        self._limited.pop(shape, None)
        if len(self._limits) == MOST_SHAPES:
            forgotten = next(iter(self._limits))
            del self._limits[forgotten]
            self._limited.pop(forgotten, None)
        self._limits[shape] = size

    def executed(
        self, size: int, samples: ServiceTimeSamples, *, latency: float, now: float
    ) -> bool:
        """Learn from a batch that was observed; whether any policy is another than before."""
        tuning = self.adaptive and self.adaptive.executed(size, samples, latency=latency, now=now)
        if not tuning:
            return False
        max_batch_size, batch_interval = tuning
        tuned = replace(self._at_most(self._user, max_batch_size), batch_interval=batch_interval)
        if tuned == self.base:
            return False
        self.base = tuned
        self._limited.clear()
        return True

    def _at_most(self, policy: BatchPolicy, size: int) -> BatchPolicy:
        """With less size, and as much less time to fill it."""
        if size >= policy.max_batch_size:
            return policy
        return replace(
            policy,
            max_batch_size=size,
            batch_interval=policy.batch_interval * size / policy.max_batch_size,
        )
