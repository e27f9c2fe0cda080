"""Several methods share the lanes of a replica."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.batching import (
    Batcher,
    BatchPolicy,
    Choice,
    Client,
    Dispatch,
    Entry,
    Idle,
    Lanes,
    Strategy,
    WaitUntil,
    choose,
    wait_is_over,
)

Methods = list[Batcher[None]]


def methods_of(*intervals: float, lanes: int = 1) -> Methods:
    """Fixed, 4 rows a batch; one method for each interval."""
    shared = Lanes()
    for _ in range(lanes):
        shared.added(0.0)
    return [Batcher(BatchPolicy(4, interval, Strategy.FIXED), shared) for interval in intervals]


def arrive(batcher: Batcher[None], rows: int, at: float) -> None:
    """Single rows."""
    for _ in range(rows):
        batcher.arrive(Entry(None, 1, 1, Client(), at, inf), at)


def test_one_method_is_asked_and_nothing_else() -> None:
    """The usual replica has one."""
    (only,) = methods = methods_of(1.0)
    idle = choose(methods, 0.0)
    arrive(only, 1, 0.0)
    waiting = choose(methods, 0.0)
    wait = WaitUntil(1.0, 4)

    assert Choice(Idle(), only) == idle
    assert Choice(wait, only, (wait,)) == waiting
    assert Choice(Dispatch(1, "interval"), only) == choose(methods, 1.0)


def test_of_those_that_may_start_the_oldest_goes_first() -> None:
    """Neither the order of the methods nor the size of their batches decides."""
    first, second, third = methods = methods_of(0.0, 0.0, 9.0)
    arrive(third, 1, 0.0)
    arrive(first, 4, 0.2)
    arrive(second, 1, 0.1)

    choice = choose(methods, 0.3)

    assert (Dispatch(1, "interval"), second) == choice[:2]


def test_nobody_who_may_start_is_the_earliest_wait() -> None:
    """One timer is enough; the others are asked when it fires, or at their arrivals."""
    first, second, third = methods = methods_of(3.0, 1.0, 1.0)
    arrive(first, 1, 0.0)
    arrive(second, 1, 0.5)

    choice = choose(methods, 0.5)

    assert (WaitUntil(1.5, 4), second) == choice[:2]
    assert (WaitUntil(3.0, 4), WaitUntil(1.5, 4), None) == choice.waits
    assert [False, False, True] == [
        wait_is_over(wait, batcher, 0.5)
        for wait, batcher in zip(choice.waits, (first, second, third), strict=True)
    ]


def test_without_anything_queued_it_is_idle() -> None:
    """An arrival anywhere asks again."""
    assert Choice(Idle()) == choose(methods_of(1.0, 1.0), 0.0)


def test_a_wait_of_another_method_is_not_thought_over() -> None:
    """It is for all its clients; asking in between would give up on the last ones."""
    first, second = methods = methods_of(3.0, 1.0)
    arrive(first, 1, 0.0)
    arrive(second, 1, 0.0)
    standing = choose(methods, 0.0)
    first.draining = True  # a changed mind, if it were asked

    kept = choose(methods, 0.5, standing)

    assert standing == kept
    assert (Dispatch(1, "drain"), first) == choose(methods, 0.5)[:2]


def test_a_wait_that_is_over_is_asked_again() -> None:
    """Its size is there, its time has come, or another shape waits too."""
    first, second = methods = methods_of(3.0, 1.0)
    arrive(first, 1, 0.0)
    arrive(second, 1, 0.0)
    standing = choose(methods, 0.0)

    arrive(first, 3, 0.1)
    full = choose(methods, 0.1, standing)
    first.take(4, 0.1)
    first.arrive(Entry(None, 1, 1, Client(), 0.1, inf, "a"), 0.1)
    standing = choose(methods, 0.1)
    first.arrive(Entry(None, 1, 1, Client(), 0.2, inf, "b"), 0.2)
    mixed = choose(methods, 0.2, standing)
    first.take(1, 0.1, "a")
    first.take(1, 0.1, "b")

    assert (Dispatch(4, "full"), first) == full[:2]
    assert (Dispatch(1, "shape", "a"), first) == mixed[:2]
    assert (Dispatch(1, "interval"), second) == choose(methods, 1.0, standing)[:2]


def test_a_choice_that_was_no_wait_holds_nobody() -> None:
    """After a dispatch everybody is asked again."""
    first, second = methods = methods_of(0.0, 1.0)
    arrive(first, 1, 0.0)
    arrive(second, 1, 0.0)
    dispatched = choose(methods, 0.0)
    first.take(1, 0.0)

    assert (Dispatch(1, "interval"), first) == dispatched[:2]
    assert (WaitUntil(1.0, 4), second) == choose(methods, 0.0, Choice(Idle()))[:2]


@settings(derandomize=True, database=None, deadline=None, max_examples=100)
@given(
    ticks=st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=60),
    strategy=st.sampled_from([Strategy.WINDOW, Strategy.FIXED, Strategy.IMMEDIATE]),
    lanes=st.integers(1, 2),
)
def test_no_method_starves(ticks: list[tuple[int, ...]], strategy: Strategy, lanes: int) -> None:
    """After its interval the oldest entry of all is in the next batch that starts.

    Up to 15 rows arrive each 5 ms for lanes that run at most four rows each in that time.
    """
    interval, now = 0.020, 0.0
    shared = Lanes()
    methods: Methods = [Batcher(BatchPolicy(4, interval, strategy), shared) for _ in range(3)]
    running: list[tuple[Batcher[None], list[Entry[None]]]] = []
    for _ in range(lanes):
        shared.added(now)
    for arrivals in [*ticks, *[(0, 0, 0)] * 30 * len(ticks)]:
        for batcher, rows in zip(methods, arrivals, strict=True):
            arrive(batcher, rows, now)
        while running:
            batcher, entries = running.pop()
            batcher.finished(entries, 0.005, now)
        while isinstance((choice := choose(methods, now)).action, Dispatch):
            batcher = choice.batcher or methods[0]
            oldest = min(method.oldest_arrival for method in methods)
            # Window counts from the free lane, so one more batch may have gone before.
            entries, _ = batcher.take(choice.action.size, now)
            assert now <= oldest + 2 * interval or entries[0].arrived == oldest
            batcher.started(len(entries), now)
            running.append((batcher, entries))
        now += 0.005

    assert [0, 0, 0] == [method.queued_size for method in methods]
