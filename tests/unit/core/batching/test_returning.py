"""Facts learned about clients that come back."""

import gc

import pytest

from batchedapi_core.batching import Client
from batchedapi_core.batching.traffic import MAX_GROUPS, ReturningClients


def returning_of(*gaps: float, rounds: int = 30) -> tuple[ReturningClients, list[Client], float]:
    """Clients answered together at 0, 1, 2, ... s, each back after its gap; the last answer."""
    returning = ReturningClients()
    returning.horizon = 0.5
    clients = [Client() for _ in gaps]
    for now in range(rounds):
        returning.answered([(client, 1) for client in clients], float(now))
        for gap, client in sorted(zip(gaps, clients, strict=True), key=lambda pair: pair[0]):
            returning.returned(client, now + gap)
    returning.answered([(client, 1) for client in clients], float(rounds))
    return returning, clients, float(rounds)


def test_a_stranger_was_not_awaited() -> None:
    """The first request of a connection says nothing about the next."""
    returning, client = ReturningClients(), Client()

    assert not returning.returned(client, 1.0)
    assert client.gap == 0.0


def test_regulars_are_awaited_about_as_long_as_they_take() -> None:
    """The window of a group must hold its usual returns, or nobody is there when it ends."""
    returning, _, now = returning_of(0.0009, 0.0010, 0.0011)

    (group,) = returning.groups

    assert (3, 3) == (group.size, group.away)
    assert now < group.start < now + 0.0009
    assert now + 0.0011 < group.end < now + 0.003


def test_who_is_back_is_no_longer_expected() -> None:
    """Waiting ends when everybody is here."""
    returning, clients, now = returning_of(0.0009, 0.0011)
    (group,) = returning.groups

    awaited = [returning.returned(client, now + 0.001) for client in clients]

    assert [True, True] == awaited
    assert group.away == 0


def test_the_late_count_as_not_back() -> None:
    """Their return must not make room in the expectation for others that left."""
    returning, clients, now = returning_of(0.0009, 0.0011)
    (group,) = returning.groups

    returning.returned(clients[0], group.end + 0.1)

    assert group.away == 2
    assert now < group.end


def test_clients_of_unlike_think_times_are_awaited_apart() -> None:
    """Four clients that think for 20 ms must not keep sixty waiting that come back in 0.1 ms."""
    returning, _, _ = returning_of(*[0.0001] * 6, *[0.020] * 4)

    assert [6, 4] == [group.size for group in returning.groups]
    assert returning.groups[0].end < returning.groups[1].start


def test_fewer_are_expected_the_later_it_is() -> None:
    """A wait must give up on those who left, a little more with every millisecond."""
    returning, _, now = returning_of(*[0.001] * 8, *[0.0012] * 8)
    (group,) = returning.groups
    steps = [now + (group.end - now) * i / 10 for i in range(10)]

    expected = [group.expected(at) for at in steps]

    assert sorted(expected, reverse=True) == expected
    assert 15.0 < expected[0] <= 16.0
    assert expected[-1] < 0.9 * expected[0]


def test_a_group_that_does_not_come_back_is_trusted_less() -> None:
    """Load that ends, or clients of one request each, must cost few waits."""
    returning, clients, now = returning_of(*[0.001] * 8)
    trusted = returning.groups[0].expected(now)

    for later in range(1, 20):
        for client in clients[:2]:
            returning.returned(client, now + later - 0.999)
        returning.answered([(client, 1) for client in clients], now + later)

    assert returning.groups[-1].expected(now + 19) < trusted / 2


def test_a_closed_connection_is_not_awaited() -> None:
    """When a load test ends, the last requests are not held back for clients that closed."""
    returning, clients, now = returning_of(0.001, 0.001)
    stranger = Client()
    returning.answered([(stranger, 1)], now)

    returning.gone(clients[0])
    returning.gone(stranger)

    assert returning.groups[0].away == 1
    assert not clients[0].answers
    assert not stranger.answers


def test_who_was_away_too_long_is_a_stranger() -> None:
    """Beyond a few batches nobody can be waited for, so the gap is not worth learning."""
    returning, (client,), now = returning_of(0.001)

    assert not returning.returned(client, now + 0.6)
    assert client.gap == 0.0


def test_answers_in_flight_are_matched_oldest_first() -> None:
    """An HTTP/2 connection, or a peer that opens one connection a request, has several at once."""
    returning, client = ReturningClients(), Client()
    returning.horizon = 1.0

    for now in (1.0, 1.1, 1.2):
        returning.answered([(client, 1)], now)
    for now in (1.3, 1.4, 1.5):
        returning.returned(client, now)

    assert pytest.approx(0.3) == client.gap
    assert not client.answers


def test_gaps_of_zero_and_equal_gaps_leave_no_zero_spread() -> None:
    """Clockwork clients drive every deviation to nothing: no division by it."""
    returning, _, now = returning_of(0.0, 0.0, rounds=5_000)
    (group,) = returning.groups

    assert now < group.end
    assert group.start < group.end
    assert 0.0 <= group.expected(now) <= 2.0


def test_a_think_time_learned_from_gaps_of_zero_recovers() -> None:
    """Outliers are clipped to a multiple of the mean: a mean of zero must not clip for ever."""
    returning, clients, last = returning_of(0.0, 0.0, rounds=5_000)
    think_time = returning.groups[0].think_time

    for i in range(1, 360):
        now = last + i
        returning.answered([(client, 1) for client in clients], now)
        for client in clients:
            returning.returned(client, now + 0.00009)

    assert pytest.approx(0.00009, rel=0.2) == think_time.mean


def test_clients_that_left_are_not_kept() -> None:
    """A public server sees millions of connections; what it remembers has a fixed size."""
    returning = ReturningClients()
    returning.horizon = 1.0
    gc.collect()
    others = {id(thing) for thing in gc.get_objects() if type(thing) is Client}

    for i in range(2_000):
        client, now = Client(), i * 0.001
        for at in (now, now + (i % 100) * 0.0001):
            returning.returned(client, at)
            returning.answered([(client, 1)], at)
    del client
    gc.collect()

    assert MAX_GROUPS >= len(returning.groups)
    assert len(returning._think_times) < 20
    left = [thing for thing in gc.get_objects() if type(thing) is Client]
    assert not [client for client in left if id(client) not in others]
