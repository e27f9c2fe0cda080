"""A canary is judged by its counts and those of the others: shares, and times at equal sizes."""

import random
from typing import Final

import pytest

from batchedapi_core.canary import (
    LONGEST,
    Allowed,
    Counts,
    GiveUp,
    Promote,
    Verdict,
    Wait,
    judge,
)
from batchedapi_core.service_model import BatchSums

ALLOWED: Final = Allowed(seconds=120.0, slower=0.3)


def batches(rows: int, seconds: float, count: int = 40) -> BatchSums:
    """So many batches, all alike."""
    return BatchSums(1.0, rows, rows**2, seconds, rows * seconds).scaled(count)


def counted(
    *sums: BatchSums, requests: float = 1000, failed: float = 0, refused: float = 0
) -> Counts:
    """Counts of one revision."""
    found = Counts(requests, failed, refused)
    for one in sums:
        found = found.plus(0, 0, 0, one)
    return found


SMALL: Final = batches(2, 0.012)
LARGE: Final = batches(16, 0.040)
"""t(n) = 8 ms + 2 ms a row."""
OLD: Final = counted(SMALL, LARGE, requests=4000)


def judged(new: Counts, old: Counts = OLD, seconds: float = 120.0) -> Verdict:
    """So many seconds after the canary was ready."""
    return judge(old, new, 50.0, 50.0 + seconds, ALLOWED)


def why(verdict: Verdict) -> str:
    """The sentence of one that was given up."""
    assert isinstance(verdict, GiveUp), verdict
    return verdict.why


def test_one_that_is_as_good_is_promoted_once_it_was_watched_for_long_enough() -> None:
    """And not before; the sentence says how much it rests on."""
    new = counted(SMALL, LARGE)

    assert Wait() == judged(new, seconds=119.0)
    assert Promote("no worse in 1000 requests and 80 batches") == judged(new)


def test_more_errors_than_noise_give_it_up_at_once() -> None:
    """2 % of a few hundred requests are enough, where the others have none."""
    new = counted(SMALL, LARGE, requests=300, failed=6)

    assert (
        "6 of 300 requests failed (2.0 %), and 0 of 4000 with the revision before (0.0 %)"
    ) == why(judged(new, seconds=10.0))


@pytest.mark.parametrize("failed", [4, 60])
def test_a_few_errors_and_those_that_the_others_have_too_are_noise(failed: int) -> None:
    """Errors of what both ask give no revision up."""
    old = counted(SMALL, LARGE, requests=4000, failed=200)

    assert isinstance(judged(counted(SMALL, LARGE, failed=failed), old), Promote)


def test_more_refusals_count_from_twice_the_share_on() -> None:
    """They come in bursts: a share that is a little larger is none of the revision's doing."""
    old = counted(SMALL, LARGE, requests=4000, refused=200)

    assert isinstance(judged(counted(SMALL, LARGE, refused=99), old), Promote)
    assert why(judged(counted(SMALL, LARGE, refused=150), old, 20.0)).startswith(
        "150 of 1000 requests were refused (15.0 %), and 200 of 4000"
    )


def test_fewer_than_one_in_a_hundred_of_equal_revisions_is_given_up() -> None:
    """Though each look of two minutes is a test of its own."""
    chance, given_up, share = random.Random(7), 0, 0.05

    def failures(requests: int) -> float:
        return sum(chance.random() < share for _ in range(requests))

    for _ in range(200):
        old, new = Counts(), Counts()
        for look in range(60):
            old = old.plus(80, failures(80), 0, BatchSums())
            new = new.plus(40, failures(40), 0, BatchSums())
            if judged(new, old, 2.0 * look) != Wait():
                given_up += 1
                break

    assert given_up < 2


def test_times_are_compared_at_equal_sizes() -> None:
    """A slower one has larger batches, and these take longer anyway."""
    larger = counted(batches(2, 0.012, 20), batches(16, 0.040, 200))
    slower = counted(batches(2, 0.012, 20), batches(16, 0.040 * 1.6, 200))

    assert isinstance(judged(larger), Promote)
    assert Wait() == judged(slower, seconds=119.0)
    assert (
        "a batch of 15 rows on average takes 59.3 ms, and 37.5 ms with the revision before"
        " (+58 %), and spec.updateStrategy.compare.slower allows 30 %"
    ) == why(judged(slower))


def test_what_is_slower_under_load_alone_is_found_there() -> None:
    """Rows cost 60 % more where there are many; with few it takes as long."""
    new = counted(SMALL, batches(16, 0.008 + 1.6 * 16 * 0.002, 100))

    assert "takes 45.7 ms, and 32 ms" in why(judged(new))


def test_one_that_is_so_slow_that_it_never_has_small_batches_is_slower_all_the_same() -> None:
    """The line of the old one goes on above its sizes."""
    linear = counted(batches(64, 0.008 + 64 * 0.002))
    slow = counted(batches(64, 2 * (0.008 + 64 * 0.002)))

    assert isinstance(judged(linear), Promote)
    assert "(+94 %)" in why(judged(slow))


def test_below_all_sizes_of_the_old_one_nothing_is_compared() -> None:
    """With one size alone nobody knows which share of t(n) is fixed."""
    old = counted(batches(16, 0.066), requests=4000)

    assert Wait() == judged(counted(batches(4, 0.054)), old)


@pytest.mark.parametrize(
    "new",
    [Counts(), counted(SMALL, requests=99), counted(batches(2, 0.1, 19))],
    ids=["nothing", "few requests", "few batches"],
)
def test_with_little_seen_it_is_waited_for_more_and_then_promoted_with_a_word(new: Counts) -> None:
    """Nobody asks at night, and a rollout must end."""
    longest = LONGEST * ALLOWED.seconds

    assert Wait() == judged(new, seconds=longest - 1)
    verdict = judged(new, seconds=longest)
    assert isinstance(verdict, Promote)
    assert verdict.why.startswith("too little was seen in 360 s to tell whether it is worse: ")


@pytest.mark.parametrize(
    ("old", "failed", "told"),
    [
        (OLD, 4, "4 of 4 requests failed (100.0 %), and 0 of 4000 with the revision before (0.0"),
        (OLD, 2, "2 of 4 requests failed (50.0 %)"),
        (OLD, 1, None),
        (Counts(), 4, "4 of 4 requests failed, and none came to the revision before"),
        (Counts(), 1, None),
        (counted(requests=50, failed=30), 4, None),
    ],
)
def test_one_of_which_most_requests_fail_is_given_up_however_few_they_are(
    old: Counts, failed: int, told: str | None
) -> None:
    """At night there are too few for the test; unless as many fail with the others."""
    new = Counts(requests=4, failed=failed)

    verdict = judged(new, old, LONGEST * ALLOWED.seconds)

    assert Wait() == judged(new, old, LONGEST * ALLOWED.seconds - 1)
    if told is not None:
        assert why(verdict).startswith(told)
    else:
        assert isinstance(verdict, Promote)
        assert verdict.why.endswith(f"4 requests and 0 batches, and {failed} requests failed")


def test_a_replica_that_tells_no_codes_is_no_reason_to_give_up() -> None:
    """An older image counts requests of all codes in one, so that errors are not known."""
    old = counted(SMALL, LARGE, requests=0)

    assert Wait() == judged(counted(SMALL, LARGE, failed=500), old)


def test_batches_of_a_tenth_of_a_millisecond_are_not_slower_by_what_a_clock_sees() -> None:
    """What a request costs beside its model is more."""
    old, new = counted(batches(1, 0.0001), requests=4000), counted(batches(1, 0.0002))

    assert isinstance(judged(new, old), Promote)
