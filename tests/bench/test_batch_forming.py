"""How regret is counted, and that simulated clients do what they say."""

import math
from dataclasses import replace
from functools import partial

import pytest
from batch_forming import ADDRESS, INTERVALS, OURS, SERVICES, at_least, cells, regrets
from harness.clients import Outcome, Server, World, closed, on_and_off, poisson

from batchedapi_core.batching import BatchPolicy, Strategy

REPLICA = Server(BatchPolicy(64, 0.005), lambda rows: 0.010 + 0.0002 * rows, noise=0.0)


def outcome_of(server: Server, keeps: float = math.inf) -> Outcome:
    """What four clients get that think for a millisecond."""
    return World(server, closed(4, 0.001, keeps=keeps), 7, one_address=False).until(400)


def test_the_set_is_that_of_the_decision() -> None:
    """Decision 2 counts 1,420 cells."""
    assert 1420 == sum(len(cells(service)) for service in SERVICES) * len(INTERVALS)


def test_regret_is_what_the_best_does_better() -> None:
    """By address more is known of the clients: no rule is compared with that."""
    assert {OURS: 0.25, "other": 0.0, ADDRESS: 0.0} == regrets(
        {OURS: 80, "other": 100, ADDRESS: 200}
    )


def test_the_same_seed_gives_the_same_figures() -> None:
    """Else a difference of one percent would say nothing."""
    assert outcome_of(REPLICA) == outcome_of(REPLICA)


def test_clients_that_return_share_a_batch_and_strangers_are_served_at_once() -> None:
    """As the product does it: this is its Scheduler."""
    returning, strangers = outcome_of(REPLICA), outcome_of(REPLICA, keeps=0)

    assert returning.throughput > 1.4 * strangers.throughput


def test_connections_that_close_are_one_client_by_address() -> None:
    """What may be learned of them then is learned."""
    load = closed(4, 0.001, keeps=0)

    known = World(REPLICA, load, 7, one_address=True).until(400)

    assert known.throughput > 1.4 * outcome_of(REPLICA, keeps=0).throughput


def test_a_rule_takes_the_place_of_ours() -> None:
    """And only for its own run."""
    ours = outcome_of(REPLICA, keeps=0)

    other = outcome_of(replace(REPLICA, rule=partial(at_least, 4)), keeps=0)

    assert other.throughput > 1.4 * ours.throughput
    assert ours == outcome_of(REPLICA, keeps=0)


def test_a_batch_ahead_saves_the_time_between_two() -> None:
    """There is a full batch behind each."""
    policy = BatchPolicy(2, 0.0, Strategy.IMMEDIATE)
    ahead = Server(policy, lambda _: 0.01, handover=0.01, noise=0.0)
    alone = Server(policy, lambda _: 0.01, handover=0.01, noise=0.0, sends_ahead=False)

    assert pytest.approx(200, rel=0.02) == outcome_of(ahead).throughput
    assert pytest.approx(100, rel=0.02) == outcome_of(alone).throughput


def test_a_load_comes_at_its_rate() -> None:
    """In steady and in changing traffic."""
    quick = Server(BatchPolicy(64, 0.0), lambda _: 1e-6)
    for load in (poisson(1000), poisson(500, burst=(2, 2)), on_and_off(2000, 0, 0.05, 0.05)):
        found = World(quick, load, 7, one_address=False).until(20_000)
        assert pytest.approx(1000, rel=0.1) == found.throughput


def test_requests_over_their_timeout_are_not_in_time() -> None:
    """They are told, and are no answers."""
    load = poisson(1000, timeouts=(0.05,))
    found = World(Server(BatchPolicy(1, 0.0), lambda _: 0.01), load, 7, one_address=False).until(
        2000
    )

    assert found.expired > 0.8 * 1800
    assert 0.2 > found.in_time
