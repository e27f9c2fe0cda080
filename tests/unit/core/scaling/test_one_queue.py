"""An API with one queue for all replicas: its demand is from web pods, it goes to zero and back."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.core.scaling.evidence import POLICY, evidence_of, worth

from batchedapi_core.scaling.decide import conclude, step
from batchedapi_core.scaling.decision import Cause, Evidence, ScalingDecision
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy
from batchedapi_core.scaling.record import explain, record, replay
from batchedapi_core.scaling.samples import Observation, PodSample, QueueLook
from batchedapi_core.scaling.state import ScalingState
from batchedapi_core.service_model import ServiceTime

TO_ZERO = replace(POLICY, min_replicas=0, idle_timeout=60.0)


def seen(rate: float | None = 0.0, *, idle_for: float = 0.0, **evidence: Any) -> Evidence:
    """The evidence of an API with one queue."""
    plain = {name: evidence.pop(name) for name in ("oldest", "told") if name in evidence}
    return replace(evidence_of(rate, **evidence), idle_for=idle_for, **plain)


def test_the_last_replica_goes_when_no_row_has_come_for_as_long_as_was_asked_for() -> None:
    """Not a second before, and of however many there are."""
    assert 1 == conclude(TO_ZERO, seen(idle_for=59.9, ready=1, current=1)).desired
    decision = conclude(TO_ZERO, seen(idle_for=60.0, ready=1, current=1))
    assert (0, Cause.SCALE_DOWN) == (decision.desired, decision.reason)
    assert "no rows for 60 s, idleTimeout is 60 s" in explain(TO_ZERO, decision)
    one = replace(TO_ZERO, min_replicas=1)
    assert 1 == conclude(one, seen(idle_for=900.0, ready=1, current=1)).desired


def test_a_few_rows_that_taught_nothing_do_not_keep_the_last_replica() -> None:
    """None is needed where none comes: what it would serve need not be known for that."""
    policy = replace(TO_ZERO, idle_timeout=5.0)
    lone = seen(0.0, idle_for=5.0, ready=1, current=1, service=None)
    lone = replace(lone, arrival_window=0.02)

    decision = conclude(policy, lone)
    assert (0, Cause.SCALE_DOWN) == (decision.desired, decision.reason)
    assert "no rows for 5 s, idleTimeout is 5 s" in explain(policy, decision)
    sooner = conclude(policy, replace(lone, idle_for=4.9))
    assert (1, Cause.MODEL_UNKNOWN) == (sooner.desired, sooner.reason)


def test_an_api_at_zero_stays_there_while_there_are_no_rows() -> None:
    """Also for an operator that has just started: it has watched for no time at all."""
    decision = conclude(TO_ZERO, seen(idle_for=0.0, ready=0, current=0))

    assert (0, Cause.IDLE) == (decision.desired, decision.reason)
    assert not decision.is_hold


@pytest.mark.parametrize(("rows", "expected"), [(1.0, 1), (worth(15.0), 3), (worth(200.0), 10)])
def test_the_first_rows_order_what_clears_them_in_time(rows: float, expected: int) -> None:
    """One row one replica, and a backlog as many as it needs at once, within the bounds."""
    policy = replace(TO_ZERO, up=replace(TO_ZERO.up, policies=()))
    evidence = seen(ready=0, current=0, queue_rows=rows, waiting_rows=rows)
    decision = conclude(policy, replace(evidence, grown_from=()))

    assert expected == decision.desired
    assert 1.0 == decision.terms.boost


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (seen(5.0, ready=0, current=0, queue_rows=3.0, service=None), 1),
        (seen(None, ready=0, current=0, coverage=0.0, told=False), 1),
        (seen(None, ready=0, current=0, coverage=0.0), 0),
        (seen(ready=0, current=0, told=False), 1),
        (seen(None, ready=2, current=4, coverage=0.0, told=False), 4),
    ],
    ids=["how long batches take", "no web pod answers", "not seen", "a new revision", "running"],
)
def test_what_is_not_known_keeps_nobody_waiting(evidence: Evidence, expected: int) -> None:
    """One replica is started for rows, and where web pods cannot tell what methods are like."""
    assert expected == conclude(TO_ZERO, evidence).desired


def test_a_first_replica_is_told_with_its_reason() -> None:
    """`why` says what an order is for which no figure calls."""
    rows = conclude(TO_ZERO, seen(5.0, ready=0, current=0, queue_rows=3.0, service=None))
    told = conclude(TO_ZERO, seen(ready=0, current=0, told=False))

    assert "rows wait, and no replica runs" in explain(TO_ZERO, rows)
    assert Cause.FIRST_REPLICA is told.reason
    assert "to know what the methods are like" in explain(TO_ZERO, told)


def test_rows_that_wait_are_told_where_nothing_is_known_of_batches() -> None:
    """Else the sentence would say that none wait."""
    policy = replace(TO_ZERO, kind=PolicyKind.CAPACITY_SLO)
    decision = conclude(policy, seen(ready=0, current=1, queue_rows=3.0, service=None))
    terms = replace(decision.terms, service=None)

    assert "3 rows wait in the queue" in explain(
        policy, ScalingDecision(1, Cause.DEMAND, terms, (), "")
    )
    terms = replace(terms, queue_rows=0.0)
    assert "none wait" in explain(policy, ScalingDecision(1, Cause.DEMAND, terms, (), ""))


def test_a_record_of_one_queue_replays_and_one_without_says_nothing_of_it() -> None:
    """A record written before there were queues is read, and is written as it was."""
    with_queue = conclude(TO_ZERO, seen(idle_for=60.0, ready=1, current=1, oldest=0.5))
    without = conclude(POLICY, evidence_of(worth(2.0)))

    assert 0 == replay(record(TO_ZERO, with_queue))
    assert 0.5 == record(TO_ZERO, with_queue)["terms"]["oldest"]
    plain = record(POLICY, without)
    assert not {"idle_for", "oldest", "told", "idle_timeout"} & {*plain["terms"], *plain["policy"]}
    assert without.desired == replay(plain)


# From scrapes on: who counts what arrives are others than those that run it.


def web_pod(name: str, now: float, rows: float, in_flight: float = 0.0) -> PodSample:
    """A web pod that has been up for an hour before the first look."""
    return PodSample(
        name, now, 0.0, 3600.0 + now, rows, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0,
        in_flight=in_flight, answered=rows,
    )  # fmt: skip


def worker(name: str, now: float, rows: float) -> PodSample:
    """A worker that ran the rows eight at a time, in 11.6 ms."""
    batches = rows / 8
    return PodSample(
        name, now, 0.0, 3600.0 + now, 0, 0, batches, rows, batches, batches * 0.0116, rows * 8,
        rows * 0.0116, 0.0, 1.0, sizes=rows, requests=rows,
    )  # fmt: skip


class Fleet:
    """Two web pods, workers that run what comes, and a clock."""

    def __init__(self, policy: ScalingPolicy, *, workers: int = 1) -> None:
        self.policy, self.workers, self.current = policy, workers, workers
        self.now = self.came = self.ran = 0.0
        self.state = ScalingState.empty()

    def look(
        self,
        rate: float = 0.0,
        *,
        waiting: float = 0.0,
        oldest: float = 0.0,
        answering: int = 2,
        in_flight: float = 0.0,
    ) -> ScalingDecision:
        """After two seconds of `rate` rows/s."""
        self.now += 2.0
        self.came += 2.0 * rate
        self.ran += 2.0 * rate if self.workers else 0.0
        samples = tuple(
            worker(f"w{n}", self.now, self.ran / self.workers) for n in range(self.workers)
        )
        web = tuple(
            web_pod(f"web{n}", self.now, self.came / 2, in_flight) for n in range(answering)
        )
        queue = QueueLook(web, 2, waiting, oldest, told=True)
        observation = Observation(samples, self.workers, self.current, "", queue=queue)
        decision, self.state = step(self.policy, self.state, observation, self.now)
        return decision


def settled(policy: ScalingPolicy = TO_ZERO, rate: float = 400.0, **fleet: Any) -> Fleet:
    """A fleet that has served for a minute."""
    made = Fleet(policy, **fleet)
    for _ in range(30):
        made.look(rate)
    return made


def test_demand_is_what_web_pods_received_and_capacity_what_workers_ran() -> None:
    """A worker receives nothing, and a web pod runs nothing."""
    decision = settled(workers=2).look(400.0)

    assert 400.0 == pytest.approx(decision.terms.arrival_now or 0.0)
    assert isinstance(decision.terms.service, ServiceTime)
    assert decision.terms.capacity > 0.0
    assert 1.0 == decision.terms.imbalance


@pytest.mark.parametrize(("answering", "held"), [(2, False), (1, False), (0, True)])
def test_too_few_web_pods_say_nothing_of_demand(answering: int, *, held: bool) -> None:
    """Nothing is removed, and nothing is concluded, on the word of nobody."""
    fleet = settled()

    assert held == fleet.look(400.0, answering=answering).is_hold


def test_what_waits_in_one_queue_is_ordinary_for_all_replicas_together() -> None:
    """Four rows at each of two replicas are eight in the queue; late ones are a backlog anyway."""
    fleet = settled(workers=2)
    calm = fleet.look(400.0, waiting=8.0)
    crowded = fleet.look(400.0, waiting=5000.0)
    late = fleet.look(400.0, waiting=8.0, oldest=30.0)

    assert 0.0 == calm.terms.waiting_rows
    assert 4000.0 < crowded.terms.waiting_rows < 5000.0
    assert 8.0 == late.terms.waiting_rows


def test_time_without_rows_begins_anew_with_each_sign_of_one() -> None:
    """A row on its way, one that waits, one that came, and a look that saw nothing."""
    fleet = settled()
    for _ in range(10):
        fleet.look()
    for sign in ({"in_flight": 1.0}, {"waiting": 1.0}, {"rate": 1.0}, {"answering": 0}):
        fleet.look(**sign)  # type: ignore[arg-type]
        quiet = fleet.look()
        assert quiet.terms.idle_for in (0.0, 2.0)

    assert 4.0 <= (fleet.look().terms.idle_for or 0.0)


def test_a_fleet_goes_to_zero_and_comes_back_with_the_first_row() -> None:
    """At zero nobody runs batches, and what was learned of them still counts."""
    fleet = settled()
    decision = fleet.look()
    for _ in range(40):
        decision = fleet.look()
    assert 0 == decision.desired
    fleet.workers = fleet.current = 0

    assert 0 == fleet.look().desired
    assert 1 == fleet.look(0.5, waiting=1.0, in_flight=1.0).desired


def test_requests_in_flight_are_those_of_web_pods() -> None:
    """By policy Concurrency, too, replicas are for what is asked, and not for what is taken."""
    policy = replace(TO_ZERO, kind=PolicyKind.CONCURRENCY, target_concurrency=10.0)
    fleet = Fleet(policy)
    for _ in range(60):
        decision = fleet.look(100.0, in_flight=25.0)

    assert 50.0 == pytest.approx(decision.terms.in_flight or 0.0)
    assert decision.desired > 1
