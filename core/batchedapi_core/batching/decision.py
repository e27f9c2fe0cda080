"""When a free lane starts a batch with what is queued, and when it waits for more.

Waiting d seconds for m more rows saves the fixed cost of a batch once for each of them, and delays
each of the q rows already queued by d. So: wait only while m * fixed > q * d. Rows are expected
only from clients that were just answered and have come back soon after earlier answers, or from a
burst that has just begun. Nobody expected: dispatch at once, which for Poisson arrivals is within
1 % of the exact optimum. docs/decisions/0002 has the evidence.
"""

from collections.abc import Hashable, Sequence
from math import inf
from typing import Final, NamedTuple, TypeAlias, assert_never

from batchedapi_core.batching.batcher import Batcher
from batchedapi_core.batching.policy import BatchPolicy, Strategy
from batchedapi_core.batching.queue import Buckets
from batchedapi_core.batching.request import Request
from batchedapi_core.batching.traffic import TICK

FULL: Final = "full"
INTERVAL: Final = "interval"
EARLY: Final = "early"
SHAPE: Final = "shape"
DEADLINE: Final = "deadline"
DRAIN: Final = "drain"


class Release(NamedTuple):
    """Give a free lane a batch of at most `size`: `take(size, now, shape)`.

    `group` rides together for its lengths; None: those whose turn it is.
    """

    size: int
    reason: str  # one of contract.RELEASE_REASONS
    shape: Hashable = None  # of the requests
    group: Sequence[Request] | None = None


class WaitUntil(NamedTuple):
    """Ask again at `at`, or as soon as the queued size reaches `size`; 0: at every arrival.

    Do not ask in between: a wait once begun is mostly for everybody who is known, and giving up on
    the last two after waiting for sixty costs the wait and the rows.
    An arrival of another shape is the exception: it ends the wait.
    """

    at: float  # seconds, always later than the time of the question
    size: int = 0


class Idle(NamedTuple):
    """Ask again when something arrives or a lane becomes free."""


Action: TypeAlias = Release | WaitUntil | Idle

IDLE: Final = Idle()
LATENCY_MARGIN: Final = 1.2
"""On t(q) when a wait is cut short for the latency target. Four clients that think for 8 ms are all
answered within 24 ms, and 85 % of them otherwise; eight that think for 3 ms, of a target of 17 ms,
are split into two groups by it: 58 % instead of 76 %."""


def next_action(batcher: Batcher, now: float, *, ahead: bool = False) -> Action:
    """Decide what to do with what is queued; the same question twice gets the same answer.

    Ask when a lane becomes free and, while one is, when an arrival or the clock satisfies the
    last `WaitUntil`. `ahead`: while none is free, for a batch that waits at one; only a full one is
    released. Changes nothing.
    """
    queued, shape, policy = batcher.queue.size, batcher.shape, batcher.policy_in_effect
    if queued == 0 or (batcher.lanes.free <= 0 and not ahead):
        return IDLE
    if policy.pads_to or isinstance(batcher.queue, Buckets):
        apart = _apart(batcher, now)
        if apart is not None:
            return IDLE if ahead and apart.reason != FULL else apart
    if queued >= policy.max_batch_size:
        return Release(policy.max_batch_size, FULL, shape)
    if ahead:
        return IDLE
    if batcher.draining:
        return Release(queued, DRAIN, shape)
    action: Action
    match policy.strategy:
        case Strategy.WINDOW | Strategy.ADAPTIVE:
            action = _window(batcher, policy, queued, now)
        case Strategy.FIXED:
            # as most batching servers: full, or the interval since the oldest request
            release = batcher.queue.oldest_arrival + policy.batch_interval
            action = (
                Release(queued, INTERVAL, batcher.shape)
                if now >= release
                else WaitUntil(release, policy.max_batch_size)
            )
        case Strategy.IMMEDIATE:
            action = Release(queued, EARLY, batcher.shape)
        case _:
            assert_never(policy.strategy)
    return action


def _apart(batcher: Batcher, now: float) -> Release | None:
    """A batch while others wait that are of another shape, or that it is better without.

    Nobody waits for company then: the others would be delayed, and cannot ride along. None: all
    that is queued may be one batch.
    """
    queue, shape, policy = batcher.queue, batcher.shape, batcher.policy_in_effect
    if isinstance(queue, Buckets):
        shape = queue.next(now, batcher.policy.batch_interval)
        queued, policy = queue.queues[shape].size, batcher.policies.of(shape)
    elif (
        policy.strategy is Strategy.FIXED
        and queue.size < policy.max_batch_size
        and now < queue.oldest_arrival + policy.batch_interval
        and not batcher.draining
    ):
        return None  # it never releases earlier
    most, reason = policy.max_batch_size, DRAIN if batcher.draining else SHAPE
    group = batcher.group(shape, most) if policy.pads_to else None
    if group is not None:
        size = sum([request.size for request in group])
        full = size + group[-1].size > most  # another like its longest has no room
        return Release(min(size, most), FULL if full else reason, shape, group)
    if not isinstance(queue, Buckets):
        return None
    if queued >= most:
        return Release(most, FULL, shape)
    return Release(queued, reason, shape)


def _window(batcher: Batcher, policy: BatchPolicy, queued: int, now: float) -> Action:
    """Wait while it is expected to pay, within the interval and the latency target."""
    oldest = batcher.queue.oldest_arrival
    # From the free lane on: what queued during a batch has otherwise used the interval up.
    release, reason = max(oldest, batcher.lanes.free_since) + policy.batch_interval, INTERVAL
    # An interval that ends as clients come would split them for ever: 64 clients that think for
    # 1 ms +- 1 % get 2,191 rows/s of an interval of 1 ms, and 2,693 so.
    at_most = release + TICK
    if policy.latency_target is not None:
        late = oldest + policy.latency_target - LATENCY_MARGIN * batcher.seconds_queued()
        if late < release:
            release, reason = late, DEADLINE
        at_most = min(at_most, late)
    if now >= release:
        return Release(queued, reason, batcher.shape)
    until = _worth_waiting_for_clients(batcher, policy, now)
    if until < inf:
        return WaitUntil(min(until, at_most), _size_to_ask_again(batcher, policy, now))
    bursts = batcher.bursts
    left = bursts.end - now
    if (
        left > 0.0
        and queued <= bursts.seen  # the burst alone is queued
        and bursts.expected * batcher.fixed > queued * left
    ):
        return WaitUntil(min(bursts.end, release))
    return Release(queued, EARLY, batcher.shape)


def _worth_waiting_for_clients(batcher: Batcher, policy: BatchPolicy, now: float) -> float:
    """Time to which waiting for returning clients pays; inf: it does not."""
    groups = batcher.returning.groups
    if not groups:
        return inf
    queued, lanes = batcher.queue.size, batcher.lanes.total
    total = float(queued + batcher.running_size)
    back = []
    for group in groups:
        if group.end > now and group.away > 0:
            size = group.expected(now)
            total += size
            back.append((group, size))
    need = min(policy.max_batch_size, total / lanes) - queued  # to one lane's fair share
    saved = batcher.fixed / lanes  # seconds of the whole server that one row saves
    expected = 0.0
    for group, size in back:
        if need <= expected:
            break
        end = group.end
        if expected + size > need:  # full before all of them are back
            start = max(now, group.start)
            end = start + (end - start) * (need - expected) / size
            expected = need
        else:
            expected += size
        if expected * saved > queued * (end - now) and end > now:
            return end
    return inf


def _size_to_ask_again(batcher: Batcher, policy: BatchPolicy, now: float) -> int:
    """Queued size at which a wait for returning clients is over or to be thought over.

    Everybody who is known, so that a wait for sixty does not give up on the last two. But coming
    at r a second each row delays the q before it by 1/r and saves one fixed cost, which pays only
    while q < r * fixed: where that is less than everybody, the rest is decided on there.
    With several lanes nobody knows on which of them the others will meet: at every arrival.

    Decided on at every arrival 8 clients get 425 rows/s of one lane, and 523 so. For everybody,
    however slowly they come, independent requests through a pool take 1.6 ms instead of 1.0 ms.
    """
    if batcher.lanes.total > 1:
        return 0
    queued, away, duration = batcher.queue.size, 0, 0.0
    for group in batcher.returning.groups:
        if group.end > now and group.away > 0:
            away += group.away
            duration = max(duration, group.mostly_back - max(now, group.start))
    everybody = min(policy.max_batch_size, queued + batcher.running_size + away)
    if duration > 0.0:
        worthwhile = batcher.fixed * away / duration
        if worthwhile < everybody:
            return max(queued + 1, int(worthwhile))
    return everybody
