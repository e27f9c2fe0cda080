"""What the clock repeats is remembered: expected one start-up ahead, and given up."""

import json
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.unit.core.scaling.evidence import POLICY, evidence_of, worth

from batchedapi_core.scaling.decide import conclude, step
from batchedapi_core.scaling.decision import Cause, Evidence
from batchedapi_core.scaling.forecast import Point, Points
from batchedapi_core.scaling.record import explain, record, replay
from batchedapi_core.scaling.samples import Observation, PodSample
from batchedapi_core.scaling.schedule import DAY, HOUR, MOST_KEPT, OCCASIONS, Expected, Schedule
from batchedapi_core.scaling.state import ScalingState

LEAD = 40.0
NINE = 9 * HOUR


def watched(
    schedule: Schedule,
    begin: float,
    end: float,
    level: Callable[[float], float],
    *,
    every: float = 10.0,
) -> Schedule:
    """After looks from `begin` to `end`."""
    for tick in range(int((end - begin) / every)):
        now = begin + every * tick
        expected = schedule.expected(now, lead=LEAD)
        schedule = schedule.looked(now, level=level(now), least=10.0, expected=expected)
    return schedule


def jumping(*starts: float, to: float = 300.0, seconds: float = 120.0) -> Callable[[float], float]:
    """100 rows/s, and more from each of `starts` on."""
    return lambda now: to if any(0 <= now - start < seconds for start in starts) else 100.0


def after_days(days: int, *, came: Callable[[int], bool] = lambda _: True) -> Schedule:
    """Half an hour of each day was watched, with a jump at nine on those that `came` says."""
    schedule = Schedule().looked(0.0, level=100.0, least=10.0, expected=None)
    for day in range(days):
        nine = day * DAY + NINE
        level = jumping(nine) if came(day) else jumping()
        schedule = watched(schedule, nine - 900, nine + 900, level)
    return schedule


def at_nine(schedule: Schedule, day: int, *, early: float = 50.0) -> Expected | None:
    """What is expected shortly before."""
    nine = day * DAY + NINE
    quiet = watched(replace(schedule, due=None), nine - 900, nine - early, jumping())
    return quiet.expected(nine - early, lead=LEAD)


def test_a_jump_is_remembered_with_its_second_and_its_ratio() -> None:
    """Of the usual demand of the last ten minutes."""
    schedule = after_days(1)

    assert [Point(NINE, 3.0)] == list(schedule.jumps)


def test_what_lasts_for_seconds_is_chance_and_a_step_for_good_is_one_jump() -> None:
    """Else noise and growth would fill the record."""
    start = Schedule().looked(0.0, level=100.0, least=10.0, expected=None)

    spike = watched(start, 10.0, 3600.0, jumping(1800.0, seconds=8.0), every=2.0)
    step = watched(start, 10.0, 7200.0, jumping(1800.0, seconds=9000.0))
    small = watched(start, 10.0, 3600.0, jumping(1800.0, to=155.0))

    assert [0, 1, 0] == [len(one.jumps) for one in (spike, step, small)]


def test_less_than_half_a_replica_is_taken_for_that() -> None:
    """A nightly job of an API that is idle is thousands of times the usual: of next to nothing."""
    schedule = Schedule().looked(0.0, level=0.0, least=50.0, expected=None)
    for now in range(2, 2400, 2):
        level = 400.0 if now > 1800 else 0.01
        schedule = schedule.looked(float(now), level=level, least=50.0, expected=None)

    unknown = schedule.looked(2500.0, level=9e9, least=0.0, expected=None)
    assert [8.0] == list(schedule.jumps.values) == list(unknown.jumps.values)


@pytest.mark.parametrize(("days", "known"), [(2, False), (3, True), (OCCASIONS + 4, True)])
def test_what_most_days_brought_is_expected_one_start_up_ahead(days: int, *, known: bool) -> None:
    """Two may be chance."""
    schedule = after_days(days)

    expected = at_nine(schedule, days)

    assert known == (expected is not None)
    if expected is not None:
        assert (3.0, 100.0, 50.0) == (expected.ratio, expected.usual, expected.after)
        assert min(days, OCCASIONS) == expected.came == expected.occasions
        assert (DAY, False) == (expected.period, expected.given_up)
        assert at_nine(schedule, days, early=90.0) is None
        assert at_nine(schedule, days, early=-90.0) is None


def test_what_half_of_the_days_brought_is_not_expected() -> None:
    """It would be wrong as often as right."""
    assert at_nine(after_days(8, came=lambda day: day % 2 == 0), 8) is None


def test_most_hours_are_as_good_as_most_days() -> None:
    """A cron job of each hour is known on the first day."""
    jumps = [2 * HOUR + 300 + hour * HOUR for hour in range(5)]

    schedule = watched(Schedule(), 0.0, 7 * HOUR + 250, jumping(*jumps))

    expected = schedule.expected(7 * HOUR + 250, lead=LEAD)
    assert expected is not None
    assert (HOUR, 5, 7) == (expected.period, expected.came, expected.occasions)


def test_bursts_by_chance_are_no_schedule_however_long_a_start_takes() -> None:
    """Four an hour: of the windows of 16 min that a lead of 15 min makes, most have one."""
    chance = random.Random(7)
    times = sorted(chance.uniform(0.0, 3 * DAY) for _ in range(4 * 72))
    levels = Points.of(Point(3 * DAY - 600.0 + 5.0 * n, 100.0) for n in range(121))
    jumps = Points.of(Point(time, 3.0) for time in times)

    def share(lead: float) -> float:
        found = [
            Schedule(0.0, before(jumps, now), levels).expected(now, lead=lead)
            for now in (DAY + 600.0 * n for n in range(288))
        ]
        return sum(one is not None for one in found) / len(found)

    assert 0.05 > max(share(900.0), share(300.0), share(40.0))


def test_a_job_of_each_hour_is_known_with_a_lead_of_a_quarter_of_it() -> None:
    """Two of them in an hour are, too."""
    for each in (HOUR, HOUR / 2):
        jumps = Points.of(Point(1000.0 + each * n, 3.0) for n in range(int(2 * DAY / each)))
        levels = Points.of(Point(2 * DAY - 600.0 + 5.0 * n, 100.0) for n in range(121))

        expected = Schedule(0.0, jumps, levels).expected(2 * DAY + 300.0, lead=900.0)

        assert expected is not None
        assert (10, 700.0) == (expected.came, expected.after)


def before(points: Points, end: float) -> Points:
    """Those up to then."""
    return Points.of(one for one in points if one.time <= end)


def test_after_two_misses_it_is_given_up_until_it_comes_again() -> None:
    """One miss is a holiday; a schedule that ended, and clocks that are set, are two."""
    holiday = after_days(6, came=lambda day: day != 5)
    ended = after_days(7, came=lambda day: day < 5)
    back = after_days(8, came=lambda day: day not in {5, 6})

    once, twice, again = at_nine(holiday, 6), at_nine(ended, 7), at_nine(back, 8)

    assert once is not None
    assert not once.given_up
    assert twice is not None
    assert twice.given_up
    assert again is not None
    assert not again.given_up


def test_two_misses_of_one_hour_after_the_other_end_a_job_of_each_hour() -> None:
    """For most days brought it at each of the 24 hours: it would be two days of misses."""

    def level(now: float) -> float:
        return 300.0 if (now - 1800) % HOUR < 120 else 100.0

    schedule = watched(Schedule(), 0.0, 4 * DAY, level)

    schedule = watched(schedule, 4 * DAY, 4 * DAY + 4 * HOUR, jumping())

    expected = schedule.expected(4 * DAY + 3 * HOUR + 1770, lead=LEAD)
    assert [1.0, 1.0] == list(schedule.jumps.values[-2:])
    assert expected is not None
    assert expected.given_up


def test_what_nobody_looked_for_was_not_missed() -> None:
    """Metrics were missing, or the operator was another one."""
    nine = 4 * DAY + NINE
    waiting = watched(after_days(4), nine - 900, nine - 20, jumping())

    away = watched(waiting, nine + 600, nine + 900, jumping())
    there = watched(waiting, nine - 20, nine + 900, jumping())

    assert waiting.due is not None
    assert [3.0, 1.0] == [away.jumps.values[-1], there.jumps.values[-1]]


def test_nothing_is_kept_after_a_schedule_ended() -> None:
    """Less than most days brought it; and the record has an end."""
    ended = after_days(14, came=lambda day: day < 5)
    full = Schedule(
        0.0, Points.of(Point(40.0 * n, 2.0) for n in range(MOST_KEPT)), rising=None, due=5e4
    )

    assert at_nine(ended, 14) is None
    assert MOST_KEPT == len(full.looked(6e4, level=1.0, least=1.0, expected=None).jumps)


def test_a_clock_that_is_set_back_forgets_what_is_later() -> None:
    """A node without a clock of its own begins in another year."""
    schedule = watched(Schedule(), 1e9, 1e9 + 3600, jumping(1e9 + 1800))

    schedule = watched(schedule, 5e8, 5e8 + 3600, jumping(5e8 + 1800))

    assert [5e8 + 1800] == list(schedule.jumps.times)
    assert 5e8 == schedule.since


def test_the_record_survives_a_restart_and_an_upgrade() -> None:
    """In a status of limited size, of which another release may not know the rest."""
    jumps = Points.of(Point(1.8e9 + 1000.0 * n, 1.0 + n % 7) for n in range(MOST_KEPT))
    saved = ScalingState(schedule=Schedule(1.8e9, jumps)).to_saved()

    for seen in (saved, {**saved, "version": 1}, {**saved, "sums": None}):
        restored = ScalingState.restored(json.loads(json.dumps(seen)))
        assert Schedule(1.8e9, jumps) == restored.schedule
    assert 5000 > len(json.dumps(saved))


@pytest.mark.parametrize(
    "garbage",
    [{"jumps": 7}, {"jumps": "?"}, {"jumps": "QUJD"}, {"jumps": "QUJD" * 5000}, {"jumpsSince": -1}],
)
def test_a_record_that_is_lost_is_begun_anew(garbage: dict[str, object]) -> None:
    """Whatever somebody has written there, nothing is expected of it, and the rest stands."""
    saved = {**ScalingState(schedule=after_days(4), trust=0.8).to_saved(), **garbage}

    state = ScalingState.restored(saved)

    assert Schedule() == state.schedule
    assert 0.8 == state.trust
    assert at_nine(state.schedule, 5) is None


def evidence(*, given_up: bool = False, wanted: int = 0, ready: int = 1) -> Evidence:
    """Of one replica's load, where three times as much came on most days."""
    expected = Expected(3.0, worth(0.9), 35.0, 8, 10, DAY, given_up=given_up)
    one = evidence_of(worth(0.9), ready=ready, current=1)
    return replace(one, expected=expected, wanted=wanted)


def test_a_look_asks_the_record_and_adds_to_it() -> None:
    """By the wall clock; without one nothing is known of schedules."""
    state = replace(ScalingState.empty(), schedule=after_days(4))
    began, pod = 4 * DAY + NINE - 120.0, PodSample("p", 0, 0, 60.0, *[0.0] * 9, 1.0)
    found: list[Expected | None] = []
    for look in range(35):
        now = 2.0 * look
        pod = replace(
            pod, time=now, uptime=60.0 + now, rows_received=200.0 * look, batches=40.0 * look,
            rows=200.0 * look, batch_seconds=0.5 * look, rows_squared=1040.0 * look,
            row_seconds=2.6 * look,
        )  # fmt: skip
        seen = Observation((pod,), 1, 1, "a", wall=began + now)
        decision, state = step(POLICY, state, seen, now)
        found.append(decision.terms.expected)

    assert (None, 3.0) == (found[0], found[-1] and found[-1].ratio)
    assert began + 50.0 < state.schedule.levels.times[-1]
    unaware, after = step(POLICY, state, replace(seen, wall=None), now + 2.0)
    assert (None, state.schedule) == (unaware.terms.expected, after.schedule)


def test_no_more_jumps_are_kept_than_fit_the_status() -> None:
    """What is older than the oldest of them was not seen, so that it is no miss."""
    times = [600.0 * n for n in range(MOST_KEPT)]
    levels = Points.of(Point(times[-1] + 5.0 * n, 100.0) for n in range(121))
    full = Schedule(0.0, Points.of(Point(time, 2.0) for time in times), levels)

    schedule = watched(full, times[-1] + 700.0, times[-1] + 800.0, lambda _: 300.0)

    assert (MOST_KEPT, 600.0) == (len(schedule.jumps), schedule.since)


def test_what_is_expected_is_ordered_and_the_sentence_says_why() -> None:
    """It is a floor: not held for longer than it is expected, and not hedged."""
    decision = conclude(POLICY, evidence())

    assert (3, Cause.SCHEDULE) == (decision.desired, decision.reason)
    assert 1 == decision.terms.steady
    assert 1.0 == decision.terms.boost
    expected = "8 of the last 10 days brought about 3.0 times as much in 35 s, so at least"
    assert expected in explain(POLICY, decision)
    assert 3 == replay(json.loads(json.dumps(record(POLICY, decision), allow_nan=False)))


def test_what_was_given_up_and_what_others_wait_for_is_not_ordered() -> None:
    """The one is told; of the other the sentence says that nothing is held."""
    given_up, elsewhere = (
        conclude(POLICY, one) for one in (evidence(given_up=True), evidence(wanted=2))
    )

    assert (1, 1) == (given_up.desired, elsewhere.desired)
    assert "given up after 2 misses in a row" in explain(POLICY, given_up)
    assert "brought" not in explain(POLICY, elsewhere)
