"""When a free lane starts a batch with what is queued, and when it waits for more.

Waiting d seconds for m more rows saves the fixed cost of a batch once for each of them, and delays
each of the q rows already queued by d. So: wait only while m * fixed > q * d. Rows are expected
only from clients that were just answered and have come back soon after earlier answers, or from a
burst that has just begun. Nobody expected: dispatch at once, which for Poisson arrivals is within
1 % of the exact optimum. docs/decisions/0002 has the evidence.
"""

from collections.abc import Hashable
from math import inf
from typing import Final, Protocol, assert_never

from batchedapi_core.batching.actions import (
    DEADLINE,
    DRAIN,
    EARLY,
    FULL,
    INTERVAL,
    Action,
    Idle,
    Release,
    WaitUntil,
)
from batchedapi_core.batching.bursts import Bursts
from batchedapi_core.batching.choices import Strategy
from batchedapi_core.batching.lanes import Lanes
from batchedapi_core.batching.policy import BatchPolicy
from batchedapi_core.batching.preferred import preferred
from batchedapi_core.batching.returning import ReturningClients
from batchedapi_core.service_model.service_time import ServiceTimeSamples

IDLE: Final = Idle()
LATENCY_MARGIN: Final = 1.2  # on t(q) when a wait is cut short for the latency target


class View(Protocol):
    """What a decision sees and does not change; sizes in the policy's unit, times in seconds."""

    shape: Hashable  # of everything that is queued
    replica_lanes: Lanes
    running_size: int  # in batches now executing
    draining: bool
    service: ServiceTimeSamples
    returning: ReturningClients
    bursts: Bursts

    @property
    def queued_size(self) -> int:
        """Size of the live requests in the queue."""

    @property
    def oldest_arrival(self) -> float:
        """When the oldest queued request arrived; inf if none is."""


def next_action(view: View, policy: BatchPolicy, now: float) -> Action:
    """Decide what to do with a queue of one shape; the same question twice gets the same answer.

    Ask when a lane becomes free and, while one is, when an arrival or the clock satisfies the
    last `WaitUntil`. `policy` is the one in effect.
    """
    queued = view.queued_size
    if queued == 0 or view.replica_lanes.free <= 0:
        return IDLE
    if queued >= policy.max_batch_size:
        return Release(policy.max_batch_size, FULL, view.shape)
    if view.draining:
        return Release(queued, DRAIN, view.shape)
    match policy.strategy:
        case Strategy.WINDOW | Strategy.ADAPTIVE:
            return _window(view, policy, queued, now)
        case Strategy.FIXED:
            return _fixed(view, policy, queued, now)
        case Strategy.IMMEDIATE:
            return _early(view, policy, queued)
        case _:
            assert_never(policy.strategy)


def _early(view: View, policy: BatchPolicy, queued: int) -> Release:
    return Release(preferred(policy, queued), EARLY, view.shape)


def _fixed(view: View, policy: BatchPolicy, queued: int, now: float) -> Action:
    """The rule of most batching servers: full, or the interval since the oldest request."""
    release = view.oldest_arrival + policy.batch_interval
    if now >= release:
        return Release(queued, INTERVAL, view.shape)
    return WaitUntil(release, policy.max_batch_size)


def _window(view: View, policy: BatchPolicy, queued: int, now: float) -> Action:
    """Wait while it is expected to pay, within the interval and the latency target."""
    oldest = view.oldest_arrival
    # From the free lane on: what queued during a batch has otherwise used the interval up.
    release, reason = max(oldest, view.replica_lanes.free_since) + policy.batch_interval, INTERVAL
    if policy.latency_target is not None:
        late = oldest + policy.latency_target - LATENCY_MARGIN * view.service.seconds(queued)
        if late < release:
            release, reason = late, DEADLINE
    if now >= release:
        return Release(queued, reason, view.shape)
    until = _worth_waiting_for_clients(view, policy, now)
    if until < inf:
        return WaitUntil(min(until, release), _size_to_ask_again(view, policy, now))
    until = _worth_waiting_for_burst(view, now)
    if until < inf:
        return WaitUntil(min(until, release))
    if policy.preferred_sizes:
        return _early(view, policy, queued)
    return Release(queued, EARLY, view.shape)


def _worth_waiting_for_clients(view: View, policy: BatchPolicy, now: float) -> float:
    """Time to which waiting for returning clients pays; inf: it does not."""
    groups = view.returning.groups
    if not groups:
        return inf
    queued, lanes = view.queued_size, view.replica_lanes.total
    total: float = queued + view.running_size
    back = []
    for group in groups:
        if group.end > now and group.away > 0:
            size = group.expected(now)
            total += size
            back.append((group, size))
    need = min(policy.max_batch_size, total / lanes) - queued  # to one lane's fair share
    saved = view.service.line.fixed / lanes  # seconds of the whole server that one row saves
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


def _size_to_ask_again(view: View, policy: BatchPolicy, now: float) -> int:
    """Queued size at which a wait for returning clients is over or to be thought over.

    Everybody who is known, so that a wait for sixty does not give up on the last two. But coming
    at r a second each row delays the q before it by 1/r and saves one fixed cost, which pays only
    while q < r * fixed: where that is less than everybody, the rest is decided on there.
    With several lanes nobody knows on which of them the others will meet: at every arrival.
    """
    if view.replica_lanes.total > 1:
        return 0
    queued, away, duration = view.queued_size, 0, 0.0
    for group in view.returning.groups:
        if group.end > now and group.away > 0:
            away += group.away
            duration = max(duration, group.mostly_back - max(now, group.start))
    everybody = min(policy.max_batch_size, queued + view.running_size + away)
    if duration > 0.0:
        worthwhile = view.service.line.fixed * away / duration
        if worthwhile < everybody:
            return max(queued + 1, int(worthwhile))
    return everybody


def _worth_waiting_for_burst(view: View, now: float) -> float:
    """Time to which waiting for the rest of a burst pays; inf: it does not."""
    bursts, queued = view.bursts, view.queued_size
    end = bursts.end
    if now >= end or queued > bursts.seen:  # over, or not the burst alone is queued
        return inf
    return end if bursts.expected * view.service.line.fixed > queued * (end - now) else inf
