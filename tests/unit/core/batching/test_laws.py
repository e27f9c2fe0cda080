"""Laws that hold for any traffic: random histories, checked after every step."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.batching.history import MAX_SIZE, History

from batchedapi_core.batching import BatchPolicy, QueueOrder, Strategy
from batchedapi_core.batching.traffic import TICK

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=250)
WITH_TARGET = st.sampled_from([0.02, 0.2])


def policies(strategy: Strategy) -> st.SearchStrategy[BatchPolicy]:
    """Any that this strategy can be chosen with."""
    return st.builds(
        BatchPolicy,
        max_batch_size=st.just(MAX_SIZE),
        batch_interval=st.sampled_from([0.0, 0.004, 0.05]),
        strategy=st.just(strategy),
        latency_target=(
            WITH_TARGET if strategy is Strategy.ADAPTIVE else st.one_of(st.none(), WITH_TARGET)
        ),
        queue_order=st.sampled_from(QueueOrder),
    )


POLICIES = st.sampled_from(Strategy).flatmap(policies)
CLIENT = st.integers(0, 5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), CLIENT, st.integers(1, MAX_SIZE)),
        st.tuples(st.just("arrive"), CLIENT, st.just(1)),
        st.tuples(st.just("other shape"), CLIENT, st.integers(1, MAX_SIZE)),
        st.tuples(st.just("limit"), st.integers(0, 1), st.integers(1, MAX_SIZE)),
        st.tuples(st.just("oversize"), CLIENT, st.integers(1, MAX_SIZE)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("disconnect"), CLIENT, st.just(0)),
        st.tuples(st.just("pass"), st.sampled_from([0, 1, 1, 3, 10, 100]), st.just(0)),  # ms
        st.tuples(st.just("finish"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("finish"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("fail"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("lane"), st.just(0), st.just(0)),
        st.tuples(st.just("lane dies"), st.just(0), st.just(0)),
    ),
    min_size=40,  # else most are of a few steps: nobody waits or comes too late
    max_size=120,
)


@SETTINGS
@given(policy=POLICIES, steps=STEPS)
def test_any_history_keeps_every_promise(
    policy: BatchPolicy, steps: list[tuple[str, int, int]]
) -> None:
    """No request is lost, run twice, overtaken, run late or for nobody.

    No batch is too large or of two shapes, no wait outlasts the interval, reasons are true, and
    sizes are those of the live requests.
    """
    history = History(policy)

    for step in steps:
        history.play(*step)
    history.drain()

    left = history.dispatched + history.expired
    assert sorted(left) == sorted(set(range(history.arrived)) - history.cancelled)


def asking_again(pauses: list[float], interval: float) -> History:
    """Six clients under Window, one of which asks again after each of `pauses`, in seconds.

    A batch takes 20 ms: long enough for it to pay to wait for those who were just answered.
    """
    history = History(BatchPolicy(MAX_SIZE, interval))
    coming = [(0.001 * number, number) for number in range(len(history.clients))]
    left = iter(pauses)
    while coming or history.running:
        ends = history.running[0][0] + 0.020 if history.running else inf
        arrival, number = min(coming, default=(inf, 0))
        if arrival < ends:
            coming.remove((arrival, number))
            history.pass_time(max(history.now, arrival))
            history.play("arrive", number, 1)
        else:
            answered = [history.clients.index(request.client) for request in history.running[0][1]]
            history.pass_time(max(history.now, ends))
            history.finish(0)
            coming += [(history.now + pause, n) for n, pause in zip(answered, left, strict=False)]
        if not coming and not history.running:
            history.pass_time(history.now + interval + TICK)
    return history


@SETTINGS
@given(
    pauses=st.lists(st.floats(0.0, 0.006), min_size=40, max_size=80),
    interval=st.floats(0.0, 0.02),
)
def test_no_traffic_makes_window_hold_a_request_beyond_the_interval(
    pauses: list[float], interval: float
) -> None:
    """By a tick at most; measured here, from arrival or free lane to dispatch, in virtual time."""
    history = asking_again(pauses, interval)

    assert not history.live
    assert max(history.held) <= interval + TICK + 1e-12


def test_window_does_hold_requests_for_clients_that_come_back() -> None:
    """Or the law above would be kept by never waiting."""
    held = asking_again([0.001, 0.002, 0.003, 0.004, 0.005, 0.006] * 10, 0.02).held

    assert max(held) > 0.002
