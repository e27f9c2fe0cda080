"""The simulator is the product: the same traffic, the same batches, the same answers."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from batchedapi_core import COMPILED
from batchedapi_core.batching import ItemErrorPolicy, LaneChoice, QueueOrder, SizeUnit, Strategy
from batchedapi_core.simulation.virtual_replica import End
from batchedapi_serving.dispatch import dispatcher
from batchedapi_serving.predictor import MethodSpec
from dispatching import replica_settings
from thorough import examples
from twice import (
    Arrival,
    Drain,
    Event,
    ExactClock,
    Kill,
    Leaves,
    Script,
    Seen,
    plan_of,
    served,
    simulated,
)

# Not shrunk: an example takes long enough.
SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=examples(30),
    phases=[Phase.explicit, Phase.generate],
)
METHODS = [
    MethodSpec("predict", batched=True, max_batch_size=8),
    MethodSpec("embed", batched=True, max_batch_size=5),
]
WHAT = st.sampled_from(
    ["good"] * 30 + ["raise", "raise", "refuse", "refuse", "die", "killed", "hang"]
)


pytestmark = pytest.mark.skipif(
    COMPILED, reason="a clock takes the place of another, which a compiled module does not allow"
)


@pytest.fixture(autouse=True)
def exact_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uvloop's timers are late by up to a millisecond, and a simulation's are not."""
    monkeypatch.setattr(dispatcher, "Clock", ExactClock)


def both(
    script: tuple[float, float, int],
    events: list[Event],
    methods: list[MethodSpec] | None = None,
    **changes: Any,
) -> tuple[Seen, Seen]:
    """The product's and the simulator's."""
    methods = methods or METHODS
    configured = replica_settings(max_batch_size=None, **changes)
    return (
        served(configured, methods, Script(*script), events),
        simulated(plan_of(configured, methods), Script(*script), events),
    )


def assert_alike(product: Seen, simulator: Seen) -> None:
    """Batch by batch, request by request."""
    assert product.batches == simulator.batches
    assert product.ended == simulator.ended
    assert product.refused == simulator.refused


@st.composite
def traffic(draw: st.DrawFn) -> list[Event]:
    """Bursts and pauses of many kinds of requests; no two events at the same time."""
    events: list[Event] = []
    now = 0.0
    for number in range(draw(st.integers(5, 60))):
        now += draw(st.sampled_from([0.0001, 0.001, 0.004, 0.02, 0.3])) * draw(st.floats(0.5, 1.5))
        now += 1e-7
        kind = draw(st.sampled_from(["ask"] * 20 + ["leave", "leave", "kill"]))
        if kind == "leave":
            events.append(Leaves(now, draw(st.integers(0, number))))
        elif kind == "kill":
            events.append(Kill(now, draw(st.integers(0, 1))))
        else:
            events.append(draw(arrivals(now)))
    if draw(st.booleans()):
        events.append(Drain(now + 0.00123))
    return events


@st.composite
def arrivals(draw: st.DrawFn, at: float) -> Arrival:
    """One request."""
    rows = tuple(draw(st.lists(WHAT, min_size=1, max_size=draw(st.sampled_from([1, 1, 3, 20])))))
    every = st.just(None)
    # Never the interval's 20 ms: of two timers at one time either may be first.
    timeouts = st.floats(0.01, 2.0).map(lambda seconds: seconds + 0.3e-6)
    return Arrival(
        at,
        rows,
        draw(st.sampled_from([method.name for method in METHODS])),
        draw(st.one_of(every, st.integers(0, 3))),
        draw(st.one_of(every, every, timeouts)),
        draw(st.one_of(every, st.tuples(*[st.integers(1, 3) for _ in rows]))),
        draw(st.one_of(every, st.tuples(*[st.sampled_from("ab") for _ in rows]))),
    )


@SETTINGS
@given(
    events=traffic(),
    script=st.tuples(
        st.sampled_from([0.0101, 0.1003]),
        st.sampled_from([0.000207, 0.00503]),
        st.sampled_from([4, 1000]),
    ),
    strategy=st.sampled_from([Strategy.WINDOW, Strategy.FIXED, Strategy.IMMEDIATE]),
    max_latency=st.sampled_from([None, None, 0.2003]),
    queue_order=st.sampled_from(QueueOrder),
    size_unit=st.sampled_from(SizeUnit),
    item_errors=st.sampled_from(ItemErrorPolicy),
    lane_choice=st.sampled_from(LaneChoice),
    processes=st.integers(1, 2),
    threads=st.integers(1, 2),
    timeout=st.sampled_from([0.6007, 3.0011]),
    max_concurrency=st.sampled_from([6, 1024]),
)
def test_whatever_happens_the_simulated_replica_does_as_the_product(
    events: list[Event], script: tuple[float, float, int], **changes: Any
) -> None:
    """Arrivals, timeouts, cancellations, failures and deaths: the same batches and answers."""
    assert_alike(*both(script, events, **changes))


def test_an_overload_is_answered_in_the_simulator_as_in_the_product() -> None:
    """One and a half times what it can serve, for 20 s, and a timeout of 1 s.

    A queue in order of arrival runs rows that are about to expire, unless those are left out: the
    simulator once had 97 % of them too late.
    """
    draw = random.Random(5)
    fixed, per_row, size = 0.1003, 0.01009, 8
    rate, now = 1.5 * size / (fixed + size * per_row), 0.0
    events: list[Event] = []
    while now < 20.0:
        now += draw.expovariate(rate)
        events.append(Arrival(now, ("good",)))

    product, simulator = both(
        (fixed, per_row, 1000), events, METHODS[:1], strategy=Strategy.WINDOW, timeout=1.0
    )

    assert_alike(product, simulator)
    ends = Counter(how for how, _ in simulator.ended.values())
    assert ends[End.ANSWERED] > 0.9 * len(events) / 1.5
    assert ends[End.ANSWERED] + ends[End.EXPIRED] == len(events)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("processes", [1, 2])
def test_full_lanes_are_alike_whatever_becomes_of_what_is_ahead(
    processes: int, threads: int
) -> None:
    """More than they can serve for 30 s: deaths, hangs, failures, and clients that leave."""
    draw = random.Random(7)
    fixed, per_row, size = 0.1003, 0.01009, 8
    rate = 1.3 * processes * threads * size / (fixed + size * per_row)
    kinds = ["good"] * 400 + ["raise", "refuse", "die", "killed", "hang"]
    events: list[Event] = []
    now, asked = 0.0, 0
    while now < 30.0:
        now, asked = now + draw.expovariate(rate), asked + 1
        rows = tuple(draw.choices(kinds, k=draw.choice([1, 1, 1, 3])))
        events.append(Arrival(now, rows, timeout=draw.choice([None, None, 0.5])))
        if draw.random() < 0.05:
            events.append(Leaves(now + 1e-6, max(0, asked - draw.randrange(1, 30))))
        if draw.random() < 0.004:
            events.append(Kill(now + 2e-6, draw.randrange(processes)))
    changes = {"processes": processes, "threads": threads, "timeout": 2.0}

    product, simulator = both((fixed, per_row, 1000), events, METHODS[:1], **changes)

    assert_alike(product, simulator)
    ends = Counter(how for how, _ in simulator.ended.values())
    assert min(ends[End.ANSWERED], ends[End.EXPIRED]) > 50
