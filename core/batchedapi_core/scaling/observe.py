"""From scrapes to load: what rose, what was learned, how much arrives.

Nothing here chooses a replica count; `decide` does, from the `LoadWindow` that comes out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from batchedapi_core.contract import MAX_BATCH_SIZE_LIMIT
from batchedapi_core.scaling.forecast import trend
from batchedapi_core.scaling.learned import (
    RATIO_SECONDS,
    placements_of,
    slowdown,
    start_ups_of,
)
from batchedapi_core.scaling.load import (
    BatchingWindow,
    LoadInterval,
    arrival_rate,
    batching_window,
    came_in,
    came_within,
    imbalance,
    level,
    mean_arrival,
    mean_in_flight,
    ratio,
    recent,
    rows_per_size,
    shares_of,
    totals_of,
)
from batchedapi_core.scaling.policy import LEVEL_SECONDS, ScalingPolicy
from batchedapi_core.scaling.samples import (
    RETENTION,
    Observation,
    PodChange,
    PodSample,
    QueueLook,
    Unready,
    change,
    fell,
    usable,
)
from batchedapi_core.scaling.state import ScalingState, of_model, of_revision, taught, teaches
from batchedapi_core.service_model import ONE_ROW, BatchSums, RequestRows, ServiceTime


@dataclass(frozen=True, slots=True)
class Demand:
    """Rows per second that arrive at all ready pods."""

    arrival_now: float  # over the last interval
    arrival_window: float  # over the window
    interval: float  # seconds
    level: float = 0.0  # at present, beyond doubt
    trend: float = 0.0  # rows/s each second by which demand rises; 0: may not rise
    in_flight: float = 0.0  # requests, over the window


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """The load of an API as seen at one look."""

    ready: int  # pods
    current: int  # replicas asked for so far
    changes: tuple[PodChange, ...]  # of the ready pods whose counters could be compared
    coverage: float  # of the ready pods, 0..1
    demand: Demand | None  # None: too few pods seen
    queue_rows: float  # in all ready pods, estimated from those seen
    service: ServiceTime | None  # None: too few batches seen
    batching: BatchingWindow
    came: RequestRows = ONE_ROW  # over the window, but for the last interval
    imbalance: float = 1.0  # factor on the need, for the hottest replica
    slowdown: float = 1.0  # times longer than learned that batches take
    latency: float | None = None  # mean seconds from arrival to answer since the last look
    unready: Unready = Unready()  # noqa: RUF009 - a frozen value, safe to share
    wanted: int = 0  # places for which pods of other APIs wait
    queue: QueueLook | None = None  # one for all replicas; None: each has its own
    idle_for: float = 0.0  # seconds since there may have been rows, with one queue
    wall: float | None = None  # Unix seconds


def observe(
    policy: ScalingPolicy, state: ScalingState, observation: Observation, now: float
) -> tuple[LoadWindow, ScalingState]:
    """Compare a look with the last one.

    Args:
        policy: Windows and effective batching of the API.
        state: As returned by the previous step.
        observation: The scrapes; pods that did not answer are simply not among them.
        now: Monotonic seconds, later than at the previous look.

    Returns:
        The load, and the state with the look taken in.
    """
    state = of_revision(state.at(now), observation.revision)
    ready, queue = max(0, observation.ready), observation.queue
    samples = usable(observation.samples)
    front = () if queue is None else usable(queue.samples)
    seen = _compare(policy, state, observation, samples, front, now=now)
    complete = bool(ready) and len(samples) >= ready
    over = complete and all(map(state.runs, samples))
    state = taught(policy, state, seen.changes, now, over=over)
    intervals = recent(state.intervals, now, policy.window)
    latest, shares = None, state.shares  # too few pods seen do not say who has more load
    if seen.came and seen.coverage >= policy.hold_coverage:
        latest = _interval(policy, state, seen, now)
        intervals = (*intervals, latest)
        if queue is None:
            service = state.in_use.service(policy)
            shares = shares_of(policy, shares, seen.changes, service, latest.seconds, ready=ready)
    row_seen = _row_seen(state, queue, latest, seen.changes, now)
    load = _load(policy, state, observation, seen, intervals, latest=latest, now=now)
    return replace(load, idle_for=now - row_seen), replace(
        state,
        samples=_remembered(state.samples, samples, now),
        intervals=intervals,
        looked=None if latest is None else now,
        complete=complete,
        shares=shares,
        start_ups=start_ups_of(state.start_ups, state.samples, samples),
        placements=placements_of(state.placements, state.samples, samples),
        node_wait=now if observation.unready.unschedulable else state.node_wait,
        front=_remembered(state.front, front, now) if queue is not None else (),
        row_seen=row_seen,
    )


class _Comparison(NamedTuple):
    """The counters of a look beside those of the last one."""

    changes: list[PodChange]  # of the pods that run batches
    coverage: float  # 0..1, of the ready pods
    came: list[PodChange]  # of the pods that count arrivals: of one queue those are others
    came_coverage: float  # 0..1, of the ready pods of those


def _compare(
    policy: ScalingPolicy,
    state: ScalingState,
    look: Observation,
    samples: Sequence[PodSample],
    front: Sequence[PodSample],
    *,
    now: float,
) -> _Comparison:
    ready, queue = max(0, look.ready), look.queue
    full_look = state.looked if state.complete else None
    since = None if full_look is None else max(1e-3, now - full_look)
    changes = _compared(policy, state.samples, samples, since)
    coverage = min(1.0, len(changes) / ready) if ready else 0.0
    if queue is None:
        return _Comparison(changes, coverage, changes, coverage)
    came = _compared(policy, state.front, front, None)
    of_came = min(1.0, len(came) / queue.ready) if queue.ready > 0 else 0.0
    return _Comparison(changes, min(of_came, coverage) if ready else of_came, came, of_came)


def _load(
    policy: ScalingPolicy,
    state: ScalingState,
    observation: Observation,
    seen: _Comparison,
    intervals: Sequence[LoadInterval],
    *,
    latest: LoadInterval | None,
    now: float,
) -> LoadWindow:
    """The load, from what was learned before this look and from `intervals` with it."""
    service, queue = state.in_use.service(policy), observation.queue
    in_queues = sum(one.queue_rows for one in seen.changes) / seen.coverage if seen.coverage else 0
    lately = of_model(recent(intervals, now, RATIO_SECONDS), state.in_use)
    return LoadWindow(
        ready=max(0, observation.ready),
        current=max(0, observation.current),
        changes=tuple(seen.changes),
        coverage=seen.coverage,
        demand=_demand(policy, intervals, latest),
        queue_rows=in_queues if queue is None else queue.rows,
        service=service,
        batching=batching_window(intervals, policy),
        came=came_within(intervals if latest is None else intervals[:-1]),
        imbalance=imbalance(policy, state.shares) if queue is None else 1.0,
        slowdown=slowdown(lately, service),
        latency=_latency(latest, service),
        unready=observation.unready,
        wanted=observation.wanted,
        queue=queue,
        wall=observation.wall,
    )


def _row_seen(
    state: ScalingState,
    queue: QueueLook | None,
    latest: LoadInterval | None,
    changes: Sequence[PodChange],
    now: float,
) -> float:
    """When there may have been rows last; not to have seen is not to know that there are none.

    Rows that an app of one's own has handed in arrive at no web pod, and may have been taken out of
    the queue between two looks: those are seen at the workers, which `changes` are of.
    """
    if queue is None or latest is None or state.row_seen is None:
        return now
    taken = (max(one.sums.rows, one.in_flight) for one in changes)
    quiet = max(latest.arrival, latest.in_flight, queue.rows, *taken) <= 0.0
    return state.row_seen if quiet else now


def in_rows(
    policy: ScalingPolicy, state: ScalingState, samples: Sequence[PodSample], now: float
) -> ScalingPolicy:
    """The policy for replicas whose `max_batch_size` counts what `PodSample.sizes` does.

    Demand, service times and capacity are in rows, so the largest batch is given in rows, too: as
    many as batches of that size have at present. While nothing has run, a row is taken for one.

    Args:
        policy: With `max_batch_size` as replicas export it: in rows, requests or cost.
        state: As returned by the previous step.
        samples: The scrapes of this look.
        now: Monotonic seconds.
    """
    size = policy.max_batch_size
    each = rows_per_size(recent(state.intervals, now, policy.window), usable(samples))
    rows = size if each is None else math.ceil(min(size * each, MAX_BATCH_SIZE_LIMIT))
    return replace(policy, max_batch_size=max(1, rows), max_size=size)


def _compared(
    policy: ScalingPolicy,
    remembered: Sequence[PodSample],
    samples: Sequence[PodSample],
    since: float | None,
) -> list[PodChange]:
    """Counters that rose; `since`: seconds since a look that saw every pod, if the last one did."""
    before = {sample.pod: sample for sample in remembered}
    changes = (
        change(
            before.get(sample.pod),
            sample,
            window=policy.window,
            since_full_look=since,
            warm_up_batches=policy.warm_up_batches,
        )
        for sample in samples
    )
    return [one for one in changes if one is not None]


def _interval(
    policy: ScalingPolicy, state: ScalingState, seen: _Comparison, now: float
) -> LoadInterval:
    """After a look that saw too little, the longest rise says how far back this one reaches."""
    changes, came, coverage = seen.changes, seen.came, seen.came_coverage
    if state.looked is None:
        seconds = max(one.seconds for one in came)
    else:
        seconds = max(1e-3, now - state.looked)
    totals, warm = totals_of(changes, policy.lanes), BatchSums()
    for one in changes:
        if one.tells_service_time and teaches(state, one, state.in_use):
            warm = warm.plus(one.sums)
    in_flight = sum(one.in_flight for one in came) / coverage
    arrival = arrival_rate(came, seconds, coverage)
    return LoadInterval.of(
        now,
        seconds,
        arrival,
        totals,
        in_flight=in_flight,
        warm=warm,
        came=came_in(came, seconds),
        revision=state.in_use.revision,
    )


def _demand(
    policy: ScalingPolicy, intervals: Sequence[LoadInterval], latest: LoadInterval | None
) -> Demand | None:
    if latest is None:
        return None
    return Demand(
        arrival_now=latest.arrival,
        arrival_window=mean_arrival(intervals),
        interval=latest.seconds,
        level=level(
            recent(intervals, latest.time, LEVEL_SECONDS * policy.pace),
            shortest=LEVEL_SECONDS * (policy.pace - 1.0),
        ),
        trend=trend(intervals),
        in_flight=mean_in_flight(intervals),
    )


def _latency(latest: LoadInterval | None, service: ServiceTime | None) -> float | None:
    """As measured in the queue, and from there on as modelled: batches come with their rows."""
    if latest is None or service is None:
        return None
    totals = latest.totals
    wait, rows = ratio(totals.wait_seconds, totals.requests), ratio(totals.rows, totals.batches)
    return None if wait is None or rows is None else wait + service.seconds(rows)


def _remembered(
    before: Sequence[PodSample], latest: Sequence[PodSample], now: float
) -> tuple[PodSample, ...]:
    """Samples to compare the next ones with, for as long as a comparison makes sense.

    A sample whose counters fell is not: the way back up would look like a demand of everything that
    was ever counted. The one before stands, until it is too old.
    """
    kept = {one.pod: one for one in before if now - one.time < RETENTION}
    for sample in latest:
        known = kept.get(sample.pod)
        if known is None or not fell(known, sample):
            kept[sample.pod] = sample
    return tuple(kept.values())
