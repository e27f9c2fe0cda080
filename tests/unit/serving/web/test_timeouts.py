"""How long a connection waits for its client, without a connection."""

import pytest

from batchedapi_serving.web.limits import ACTIVE, EXPIRY_GRACE, LAST_CALL, Limits
from batchedapi_serving.web.parser import BODY, HEADERS
from batchedapi_serving.web.timeouts import Timeouts, Verdict

LIMITS = Limits(body=1 << 30, idle=75.0, age=300.0)


def nothing() -> int:
    """All answers are read."""
    return 0


def of_sender(part: str) -> Timeouts:
    """A request has begun at 0.0 s."""
    timeouts = Timeouts(LIMITS, 0.0)
    timeouts.part_awaited(part, 0.0, busy=False)
    return timeouts


@pytest.mark.parametrize(
    ("part", "now", "arrived", "expected"),
    [
        (HEADERS, 9.9, 0, Verdict.WAIT),
        (HEADERS, 10.0, 60_000, Verdict.REFUSE),
        (BODY, 9.9, 0, Verdict.WAIT),
        (BODY, 10.0, 10_239, Verdict.REFUSE),
        (BODY, 10.0, 10_300, Verdict.WAIT),
        (BODY, 29.0, 30_000, Verdict.WAIT),
        (BODY, 30.0, 1 << 29, Verdict.REFUSE),
    ],
)
def test_a_request_must_arrive(part: str, now: float, arrived: int, expected: Verdict) -> None:
    """S7: headers in 10 s; a body at 1024 bytes a second from then on, and all of it in 30 s."""
    assert expected is of_sender(part).verdict(now, arrived, nothing)


def test_a_body_is_looked_at_again_when_it_could_have_become_too_slow() -> None:
    """Twelve kilobytes are enough until the twelfth second, and no longer."""
    timeouts = of_sender(BODY)
    arrived = 12 * LIMITS.least_rate

    verdicts = [timeouts.verdict(now, arrived, nothing) for now in (10.5, 11.9, 12.0)]

    assert [Verdict.WAIT, Verdict.WAIT, Verdict.REFUSE] == verdicts


@pytest.mark.parametrize(("part", "words"), [(HEADERS, "10 s"), (BODY, "1024 bytes a second")])
def test_the_limit_is_named(part: str, words: str) -> None:
    """Who meets it must know what to change."""
    assert words in str(of_sender(part).refusal())


def test_an_answer_that_is_read_makes_the_connection_idle() -> None:
    """S26: for longer than load balancers keep theirs."""
    timeouts = Timeouts(LIMITS, 0.0)
    timeouts.answering(more=False)
    timeouts.answered(100.0, draining=False)

    verdicts = [timeouts.verdict(now, 0, nothing) for now in (104.0, 105.0, 174.0, 175.0)]

    assert [Verdict.WAIT, Verdict.WAIT, Verdict.WAIT, Verdict.CLOSE] == verdicts


@pytest.mark.parametrize(
    ("left", "expected"), [(50_000, Verdict.ABORT), (49_000, Verdict.ABORT), (44_000, Verdict.WAIT)]
)
def test_an_answer_must_be_taken_at_the_least_rate(left: int, expected: Verdict) -> None:
    """S28: 5 kB in five seconds, as for a request."""
    timeouts = Timeouts(LIMITS, 0.0)
    timeouts.answered(0.0, draining=False)
    first = timeouts.verdict(5.0, 0, lambda: 50_000)

    assert (Verdict.WAIT, expected) == (first, timeouts.verdict(10.0, 0, lambda: left))


def test_while_a_request_is_answered_nothing_is_asked_of_its_client() -> None:
    """However long the predictor takes."""
    timeouts = of_sender(BODY)
    timeouts.answering(more=False)

    assert Verdict.WAIT is timeouts.verdict(1e6, 0, nothing)


def test_the_limit_of_a_pipelined_request_goes_on_while_the_one_before_is_answered() -> None:
    """It began to come, and does not go on."""
    timeouts = Timeouts(LIMITS, 0.0)
    timeouts.answering(more=False)
    timeouts.part_awaited(HEADERS, 1.0, busy=True)
    timeouts.answered(2.0, draining=False)

    assert Verdict.WAIT is timeouts.verdict(10.9, 0, nothing)
    assert Verdict.REFUSE is timeouts.verdict(11.0, 0, nothing)


@pytest.mark.parametrize(("luck", "age"), [(0.0, 270.0), (0.5, 300.0), (1.0, 330.0)])
def test_connections_of_one_time_leave_within_a_fifth_of_the_age(luck: float, age: float) -> None:
    """Else a fleet that was started together would reconnect together for ever."""
    timeouts = Timeouts(LIMITS, 50.0, luck)

    assert (False, True) == (timeouts.is_old(49.9 + age), timeouts.is_old(50.1 + age))


def test_without_an_age_nobody_is_sent_away() -> None:
    """`maxConnectionAge: 0s`."""
    assert not Timeouts(Limits(body=1), 0.0, 0.0).is_old(1e9)


@pytest.mark.parametrize("ago", [0.0, ACTIVE - 0.1])
def test_a_stop_gives_active_clients_a_moment(ago: float) -> None:
    """Their next request is on its way already."""
    timeouts = Timeouts(LIMITS, 0.0)
    timeouts.answered(100.0, draining=False)

    assert not timeouts.may_stop(100.0 + ago)
    assert Verdict.CLOSE is timeouts.verdict(100.0 + ago + LAST_CALL, 0, nothing)


def test_a_stop_closes_who_is_idle_at_once() -> None:
    """Pools keep connections for minutes."""
    timeouts = Timeouts(LIMITS, 0.0)
    timeouts.answering(more=False)
    timeouts.answered(100.0, draining=False)

    assert timeouts.may_stop(100.0 + ACTIVE)


def test_what_does_not_end_after_its_close_is_dropped() -> None:
    """The client does not read the last bytes."""
    timeouts = Timeouts(LIMITS, 0.0)
    timeouts.closing(50.0, 100)

    assert Verdict.WAIT is timeouts.verdict(50.0 + EXPIRY_GRACE - 0.1, 0, nothing)
    assert Verdict.ABORT is timeouts.verdict(50.0 + EXPIRY_GRACE, 0, nothing)


def test_the_last_answer_of_a_connection_may_take_as_long_as_any_other() -> None:
    """A large one that is read is not cut off because the connection ends with it."""
    timeouts = Timeouts(LIMITS, 0.0)
    timeouts.closing(50.0, 50_000_000)
    left = {55.0: 40_000_000, 60.0: 20_000_000, 65.0: 10_000_000, 70.0: 9_999_000}

    verdicts = [timeouts.verdict(now, 0, lambda now=now: left[now]) for now in left]

    assert [Verdict.WAIT, Verdict.WAIT, Verdict.WAIT, Verdict.ABORT] == verdicts


def test_a_refused_client_gets_no_more_time_for_reading_slowly() -> None:
    """Of it nothing more is taken, and it was told why at once."""
    timeouts = Timeouts(LIMITS, 0.0)
    timeouts.refused(50.0)

    assert Verdict.ABORT is timeouts.verdict(50.0 + EXPIRY_GRACE, 0, lambda: 100)


def test_a_request_behind_an_answer_that_is_not_read_is_not_blamed_for_the_wait() -> None:
    """Nothing is read of it meanwhile; but who takes no answers for ten seconds is dropped."""
    timeouts = Timeouts(LIMITS, 0.0)
    timeouts.answering(more=False)
    timeouts.part_awaited(BODY, 1.0, busy=True)
    timeouts.stuck(2.0)
    first = timeouts.verdict(7.0, 0, lambda: 100_000)
    timeouts.unstuck(11.0)
    timeouts.answering(more=True)

    assert [Verdict.WAIT] * 2 == [first, timeouts.verdict(19.9, 0, nothing)]
    assert Verdict.REFUSE is timeouts.verdict(20.0, 0, nothing)


def test_a_client_that_is_stuck_and_stays_so_is_dropped_whatever_it_sends() -> None:
    """A part of a next request, or its refusal, is no reason to wait longer."""
    timeouts = Timeouts(LIMITS, 0.0)
    timeouts.answering(more=False)
    timeouts.part_awaited(BODY, 1.0, busy=True)
    timeouts.stuck(2.0)
    timeouts.part_over()
    timeouts.stuck(5.0)

    assert Verdict.WAIT is timeouts.verdict(7.0, 0, lambda: 100_000)
    assert Verdict.ABORT is timeouts.verdict(12.0, 0, lambda: 100_000)
