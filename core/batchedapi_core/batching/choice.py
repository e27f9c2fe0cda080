"""Which of the methods that share the lanes of a replica gets the next one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from batchedapi_core.batching.actions import Action, Dispatch, WaitUntil
from batchedapi_core.batching.batcher import Batcher
from batchedapi_core.batching.decision import IDLE


class Choice(NamedTuple):
    """What to do next with the lanes.

    The caller acts on `action`:

    - Dispatch: give a free lane a batch of `batcher`; while lanes are free, choose again.
    - WaitUntil: choose again at `action.at`, and on arrivals as below.
    - Idle: choose again on an arrival, or when a lane is free.

    On an arrival at `batchers[i]` while a lane is free, choose again if `waits[i]` is None, or the
    queued size has reached `waits[i].size`, or `several_shapes` is true of it (`wait_is_over` says
    so). Hand in the choice itself as `standing` then, and when its time comes: other methods' waits
    that are not over are not thought over. When a batch ended or a lane came, choose without.
    """

    action: Action
    batcher: Batcher[Any] | None = None
    """Whose action it is; None: Idle."""
    waits: tuple[WaitUntil | None, ...] = ()
    """Of each Batcher, in the order given; empty: none waits."""


def choose(batchers: Sequence[Batcher[Any]], now: float, standing: Choice | None = None) -> Choice:
    """Of those whose batch may start, the one with the oldest entry; else the earliest wait.

    No method starves: whatever the others bring, its oldest entry becomes the oldest of all, and
    no wait outlasts the interval.
    """
    if len(batchers) == 1:
        batcher = batchers[0]
        action = batcher.next_action(now)
        return Choice(action, batcher, (action,) if isinstance(action, WaitUntil) else ())
    first = earliest = Choice(IDLE)
    oldest = at = float("inf")
    waits: list[WaitUntil | None] = [None] * len(batchers)
    for i, batcher in enumerate(batchers):
        action = _standing_wait(standing, i, batcher, now) or batcher.next_action(now)
        if isinstance(action, Dispatch):
            if first.batcher is None or batcher.oldest_arrival < oldest:
                first, oldest = Choice(action, batcher), batcher.oldest_arrival
        elif isinstance(action, WaitUntil):
            waits[i] = action
            if action.at < at:
                earliest, at = Choice(action, batcher), action.at
    best = earliest if first.batcher is None else first
    return best if at == float("inf") else best._replace(waits=tuple(waits))


def wait_is_over(wait: WaitUntil | None, batcher: Batcher[Any], now: float) -> bool:
    """Whether to choose again because of this Batcher, when a request arrived or time passed."""
    return (
        wait is None or now >= wait.at or batcher.queued_size >= wait.size or batcher.several_shapes
    )


def _standing_wait(
    standing: Choice | None, i: int, batcher: Batcher[Any], now: float
) -> WaitUntil | None:
    if standing is None or not standing.waits:
        return None
    wait = standing.waits[i]
    return None if wait_is_over(wait, batcher, now) else wait
