"""How long a connection waits for its client, without a connection."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_serving.web.lifecycle import TABLE, Action, Event, Intake, Lifecycle, Turn
from batchedapi_serving.web.limits import ACTIVE, EXPIRY_GRACE, LAST_CALL, Limits
from batchedapi_serving.web.parser import BODY, HEADERS

LIMITS = Limits(body=1 << 30, idle=75.0, age=300.0)
SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=300)


def nothing() -> int:
    """All answers are read."""
    return 0


def of_sender(part: str) -> Lifecycle:
    """A request has begun at 0.0 s."""
    life = Lifecycle(LIMITS, 0.0)
    life.part_awaited(part, 0.0)
    return life


@pytest.mark.parametrize(
    ("part", "now", "arrived", "expected"),
    [
        (HEADERS, 9.9, 0, Action.WAIT),
        (HEADERS, 10.0, 60_000, Action.REFUSE),
        (BODY, 9.9, 0, Action.WAIT),
        (BODY, 10.0, 10_239, Action.REFUSE),
        (BODY, 10.0, 10_300, Action.WAIT),
        (BODY, 29.0, 30_000, Action.WAIT),
        (BODY, 30.0, 1 << 29, Action.REFUSE),
    ],
)
def test_a_request_must_arrive(part: str, now: float, arrived: int, expected: Action) -> None:
    """S7: headers in 10 s; a body at 1024 bytes a second from then on, and all of it in 30 s."""
    assert expected is of_sender(part).look(now, arrived, nothing)


def test_a_body_is_looked_at_again_when_it_could_have_become_too_slow() -> None:
    """Twelve kilobytes are enough until the twelfth second, and no longer."""
    life = of_sender(BODY)
    arrived = 12 * LIMITS.least_rate

    actions = [life.look(now, arrived, nothing) for now in (10.5, 11.9, 12.0)]

    assert [Action.WAIT, Action.WAIT, Action.REFUSE] == actions


@pytest.mark.parametrize(("part", "words"), [(HEADERS, "10 s"), (BODY, "1024 bytes a second")])
def test_the_limit_is_named(part: str, words: str) -> None:
    """A client that meets the limit must know which setting to change."""
    assert words in str(of_sender(part).too_slow())


def test_an_answer_that_is_read_makes_the_connection_idle() -> None:
    """S26: for longer than load balancers keep theirs."""
    life = Lifecycle(LIMITS, 0.0)
    life.begun(more=False)
    life.answered(100.0, draining=False)

    actions = [life.look(now, 0, nothing) for now in (104.0, 105.0, 174.0, 175.0)]

    assert [Action.WAIT, Action.WAIT, Action.WAIT, Action.CLOSE] == actions


@pytest.mark.parametrize(
    ("left", "expected"), [(50_000, Action.ABORT), (49_000, Action.ABORT), (44_000, Action.WAIT)]
)
def test_an_answer_must_be_taken_at_the_least_rate(left: int, expected: Action) -> None:
    """S28: 5 kB in five seconds, as for a request."""
    life = Lifecycle(LIMITS, 0.0)
    life.answered(0.0, draining=False)
    first = life.look(5.0, 0, lambda: 50_000)

    assert (Action.WAIT, expected) == (first, life.look(10.0, 0, lambda: left))


def test_while_a_request_is_answered_nothing_is_asked_of_its_client() -> None:
    """However long the predictor takes."""
    life = of_sender(BODY)
    life.begun(more=False)

    assert Action.WAIT is life.look(1e6, 0, nothing)


def test_the_limit_of_a_pipelined_request_goes_on_while_the_one_before_is_answered() -> None:
    """It began to come, and does not go on."""
    life = Lifecycle(LIMITS, 0.0)
    life.begun(more=False)
    life.part_awaited(HEADERS, 1.0)
    life.answered(2.0, draining=False)

    assert Action.WAIT is life.look(10.9, 0, nothing)
    assert Action.REFUSE is life.look(11.0, 0, nothing)


@pytest.mark.parametrize(("luck", "age"), [(0.0, 270.0), (0.5, 300.0), (1.0, 330.0)])
def test_connections_of_one_time_leave_within_a_fifth_of_the_age(luck: float, age: float) -> None:
    """Else a fleet that was started together would reconnect together for ever."""
    life = Lifecycle(LIMITS, 50.0, luck)

    life.look(49.9 + age, 0, nothing)
    before = life.intake
    life.look(50.1 + age, 0, nothing)

    assert (Intake.OPEN, Intake.LEAVING) == (before, life.intake)


def test_without_an_age_nobody_is_sent_away() -> None:
    """`maxConnectionAge: 0s`."""
    life = Lifecycle(Limits(body=1), 0.0, 0.0)
    life.look(1e9, 0, nothing)

    assert Intake.OPEN is life.intake


@pytest.mark.parametrize("ago", [0.0, ACTIVE - 0.1])
def test_a_stop_gives_active_clients_a_moment(ago: float) -> None:
    """Their next request is on its way already."""
    life = Lifecycle(LIMITS, 0.0)
    life.answered(100.0, draining=False)

    assert not life.may_stop(100.0 + ago)
    assert Action.CLOSE is life.look(100.0 + ago + LAST_CALL, 0, nothing)


def test_a_stop_closes_who_is_idle_at_once() -> None:
    """Pools keep connections for minutes."""
    life = Lifecycle(LIMITS, 0.0)
    life.begun(more=False)
    life.answered(100.0, draining=False)

    assert life.may_stop(100.0 + ACTIVE)


def test_what_does_not_end_after_its_close_is_dropped() -> None:
    """The client does not read the last bytes."""
    life = Lifecycle(LIMITS, 0.0)
    life.closed(50.0, 100)

    assert Action.WAIT is life.look(50.0 + EXPIRY_GRACE - 0.1, 0, nothing)
    assert Action.ABORT is life.look(50.0 + EXPIRY_GRACE, 0, nothing)


def test_the_last_answer_of_a_connection_may_take_as_long_as_any_other() -> None:
    """A large one that is read is not cut off because the connection ends with it."""
    life = Lifecycle(LIMITS, 0.0)
    life.closed(50.0, 50_000_000)
    left = {55.0: 40_000_000, 60.0: 20_000_000, 65.0: 10_000_000, 70.0: 9_999_000}

    actions = [life.look(now, 0, lambda now=now: left[now]) for now in left]

    assert [Action.WAIT, Action.WAIT, Action.WAIT, Action.ABORT] == actions


def test_a_refused_client_gets_no_more_time_for_reading_slowly() -> None:
    """The client got the reason at once, and the server takes nothing more from it."""
    life = Lifecycle(LIMITS, 0.0)
    life.refused(50.0, lingers=False)

    assert Action.ABORT is life.look(50.0 + EXPIRY_GRACE, 0, lambda: 100)


def test_a_request_behind_an_answer_that_is_not_read_is_not_blamed_for_the_wait() -> None:
    """Nothing is read of it meanwhile; but who takes no answers for ten seconds is dropped."""
    life = Lifecycle(LIMITS, 0.0)
    life.begun(more=False)
    life.part_awaited(BODY, 1.0)
    life.stuck(2.0)
    first = life.look(7.0, 0, lambda: 100_000)
    life.unstuck(11.0)
    life.begun(more=True)

    assert [Action.WAIT] * 2 == [first, life.look(19.9, 0, nothing)]
    assert Action.REFUSE is life.look(20.0, 0, nothing)


def test_a_client_that_is_stuck_and_stays_so_is_dropped_whatever_it_sends() -> None:
    """A part of a next request, or its refusal, is no reason to wait longer."""
    life = Lifecycle(LIMITS, 0.0)
    life.begun(more=False)
    life.part_awaited(BODY, 1.0)
    life.stuck(2.0)
    life.part_over()
    life.stuck(5.0)

    assert Action.WAIT is life.look(7.0, 0, lambda: 100_000)
    assert Action.ABORT is life.look(12.0, 0, lambda: 100_000)


@pytest.mark.parametrize(
    ("draining", "sending", "event"),
    [
        (False, False, Event.ANSWERED),
        (True, False, Event.ANSWERED_LAST),
        (False, True, Event.ANSWERED_AHEAD),
        (True, True, Event.ANSWERED_AHEAD),
    ],
)
@pytest.mark.parametrize("turn", list(Turn))
def test_the_turns_of_every_request_are_those_of_the_table(
    turn: Turn,
    draining: bool,  # noqa: FBT001 - a parameter of pytest's
    sending: bool,  # noqa: FBT001 - a parameter of pytest's
    event: Event,
) -> None:
    """They are written without it, which is faster."""
    if turn is Turn.CLOSING:
        return
    life = Lifecycle(LIMITS, 0.0)
    if sending:
        life.part_awaited(BODY, 0.0)
    life.turn = turn
    life.begun(more=sending)
    begun, life.turn = life.turn, turn
    life.answered(1.0, draining=draining)

    assert (TABLE[Event.BEGUN][turn], TABLE[event][turn]) == (begun, life.turn)


def test_nothing_follows_the_end() -> None:
    """Whatever happens to a connection that is closing."""
    assert [] == [event for event, turns in TABLE.items() if Turn.CLOSING in turns]


STEPS: dict[str, Callable[[Lifecycle, float, int], object]] = {
    "headers": lambda life, now, _: life.deaf or life.part_awaited(HEADERS, now),
    "body": lambda life, now, _: life.deaf or life.part_awaited(BODY, now),
    "over": lambda life, _, __: life.part_over(),
    "begun": lambda life, _, __: over(life) or life.begun(more=False),
    "ahead": lambda life, _, __: over(life) or life.begun(more=True),
    "answered": lambda life, now, _: over(life) or life.answered(now, draining=False),
    "draining": lambda life, now, _: over(life) or life.answered(now, draining=True),
    "stuck": lambda life, now, _: life.stuck(now),
    "unstuck": lambda life, now, _: life.unstuck(now),
    "half": lambda life, _, __: life.busy and not over(life) and life.half_closed(),
    "refuse": lambda life, _, __: life.deaf or life.refuses(life.too_slow()),
    "refused": lambda life, now, size: life.refusal and life.refused(now, lingers=size > 1500),
    "closed": lambda life, now, size: life.closed(now, size),
    "end": lambda life, now, size: over(life) or life.end(now, size % 2, size),
    "stop": lambda life, now, _: life.busy or life.may_stop(now),
    "look": lambda life, now, size: life.look(now, size, lambda: size),
}
"""Everything that can happen, where it can."""
PLAN = st.lists(
    st.tuples(
        st.sampled_from([*STEPS, "look"]),
        st.sampled_from([0.0, 0.1, 1.0, 4.0, 6.0, 11.0, 31.0, 400.0]),
        st.integers(0, 3000),
    ),
    max_size=30,
)


def over(life: Lifecycle) -> bool:
    """The connection is closing."""
    return life.turn is Turn.CLOSING


def lived(plan: list[tuple[str, float, int]]) -> tuple[Lifecycle, float]:
    """A connection after all of that, and when."""
    life, now = Lifecycle(LIMITS, 0.0), 0.0
    for step, seconds, size in plan:
        now += seconds
        STEPS[step](life, now, size)
    return life, now


@SETTINGS
@given(PLAN)
def test_no_connection_comes_back_from_its_end(plan: list[tuple[str, float, int]]) -> None:
    """The intake of a client only ever shrinks, and a closing connection closes."""
    life, now, order = Lifecycle(LIMITS, 0.0), 0.0, list(Intake)
    for step, seconds, size in plan:
        now += seconds
        before = life.intake, life.turn
        STEPS[step](life, now, size)

        assert order.index(life.intake) >= order.index(before[0])
        assert before[1] is not Turn.CLOSING or life.turn is Turn.CLOSING
        assert life.deaf == (order.index(life.intake) >= order.index(Intake.HALF_CLOSED))


@SETTINGS
@given(PLAN)
def test_a_client_that_does_nothing_is_not_waited_for_without_end(
    plan: list[tuple[str, float, int]],
) -> None:
    """Whatever came before; but while it is answered nothing is asked of it."""
    life, now = lived(plan)
    busy = life.busy and not over(life)
    actions = [life.look(now + 1000.0 * number, 0, nothing) for number in range(1, 4)]

    assert busy or {Action.WAIT} != set(actions)


@SETTINGS
@given(PLAN)
def test_a_client_that_takes_its_answers_is_not_dropped_while_it_is_answered(
    plan: list[tuple[str, float, int]],
) -> None:
    """However long that takes."""
    life, now = lived(plan)
    if not over(life):
        life.begun(more=False)
        life.stuck(now)

        assert {Action.WAIT} == {life.look(now + 1e4 * n, 0, nothing) for n in range(1, 4)}
