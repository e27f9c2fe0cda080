"""When something else is said."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from batchedapi_core.bottleneck import Finding, Kind, Verdict
from batchedapi_core.bottleneck.evidence import PERSISTENCE, REST, settle

IDLE = Finding(Kind.IDLE, "nothing to change")
FULL = Finding(Kind.MAX_BATCH_SIZE, "raise it")
SLOW = Finding(Kind.COMPUTE, "add replicas")
NOTHING = Finding(Kind.UNKNOWN, "no metrics")


def test_the_first_window_is_believed() -> None:
    """There is nothing to hold on to."""
    assert Verdict(Kind.IDLE, "nothing to change") == settle(IDLE, None, 1000.0)


def test_what_is_known_replaces_the_unknown_of_the_start_at_once() -> None:
    """An operator that has just started has said nothing yet."""
    first = settle(NOTHING, None, 0.0)

    assert Verdict(Kind.COMPUTE, "add replicas") == settle(SLOW, first, 5.0)


def test_the_same_kind_brings_the_numbers_of_now_and_ends_a_rivalry() -> None:
    """A rival must be found without interruption."""
    before = Verdict(Kind.IDLE, "old numbers", changed=3.0, rival=Kind.COMPUTE, rival_since=7.0)

    assert Verdict(Kind.IDLE, "nothing to change", changed=3.0) == settle(IDLE, before, 50.0)


def test_another_kind_must_be_found_for_a_window() -> None:
    """The window still holds the load of before."""
    first = settle(IDLE, None, 0.0)
    rival = settle(FULL, first, 100.0)

    assert replace(first, rival=Kind.MAX_BATCH_SIZE, rival_since=100.0) == rival
    assert rival == settle(FULL, rival, 100.0 + PERSISTENCE - 1.0)
    assert Verdict(Kind.MAX_BATCH_SIZE, "raise it", changed=160.0) == settle(
        FULL, rival, 100.0 + PERSISTENCE
    )


def test_a_third_kind_starts_its_own_time() -> None:
    """Time found is not inherited from another rival."""
    rival = settle(FULL, settle(IDLE, None, 0.0), 100.0)

    other = settle(SLOW, rival, 155.0)

    assert (Kind.COMPUTE, 155.0) == (other.rival, other.rival_since)
    assert Kind.IDLE is settle(SLOW, other, 170.0).kind


def test_a_change_rests_before_the_next() -> None:
    """The Unknown of later, too: only that of the start gives way at once."""
    before = Verdict(Kind.UNKNOWN, "no metrics", changed=0.0, rival=Kind.IDLE, rival_since=5.0)

    assert Kind.UNKNOWN is settle(IDLE, before, REST - 1.0).kind
    assert Kind.IDLE is settle(IDLE, before, REST).kind


@given(
    st.lists(
        st.tuples(st.sampled_from([IDLE, FULL, SLOW, NOTHING]), st.floats(0.1, 120.0)),
        min_size=20,
        max_size=200,
    )
)
def test_whatever_is_found_changes_are_five_minutes_apart(
    looks: list[tuple[Finding, float]],
) -> None:
    """F6, as a law: no noise is exempt."""
    verdict: Verdict | None = None
    now = 0.0
    flips: list[float] = []
    for found, seconds in looks:
        now += seconds
        before, verdict = verdict, settle(found, verdict, now)
        if before is not None and verdict.kind is not before.kind and verdict.changed is not None:
            flips.append(now)

    assert all(300.0 <= b - a for a, b in itertools.pairwise(flips))
