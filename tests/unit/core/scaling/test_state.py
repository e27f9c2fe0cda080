"""The state that survives an operator restart, and a status that was tampered with."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.scaling.forecast import Burst, Foresight, Point, Points
from batchedapi_core.scaling.learned import LearnedModel
from batchedapi_core.scaling.state import Recommendation, ScalingState, Size
from batchedapi_core.service_model import BatchSums

LEARNED = ScalingState(
    model=LearnedModel(
        "iris-5f6c", BatchSums(1000.0, 7100.0, 54321.0, 11.42, 84.5), 7.65, updated=12.0
    ),
)
SAVED = LEARNED.to_saved()


def test_the_service_model_survives_and_is_compact() -> None:
    """It goes through JSON in a status of limited size."""
    text = json.dumps(SAVED)

    restored = ScalingState.restored(json.loads(text))

    assert 400 > len(text)
    assert LEARNED.model.sums == restored.model.sums
    assert 7.65 == restored.model.largest_mean_batch
    assert "iris-5f6c" == restored.model.revision


def test_what_binds_survives_for_all_the_time_that_was_left() -> None:
    """How long the operator was away is not known; to keep it too long costs little."""
    before = replace(
        LEARNED,
        started=0.0,
        opened=0.0,
        seen=500.0,
        recommendations=(Recommendation(4, 620.0), Recommendation(7, 530.0)),
        lows=(Recommendation(2, 510.0),),
        sizes=(Size(470.0, 8), Size(500.0, 4)),
        ready_sizes=(Size(500.0, 3),),
        start_ups=(42.0, 31.5),
        bursts=(Burst(300.0, 310.0, 900.0), Burst(480.0, 490.0, 950.0)),
        foresight=Foresight(
            highs=Points.of([Point(310.0, 1000.0), Point(490.0, 950.0)]),
            errors=Points.of([Point(400.0, 0.2), Point(500.0, 0.2)]),
        ),
        trust=0.8,
    )

    after = ScalingState.restored(json.loads(json.dumps(before.to_saved()))).at(90_000.0)

    assert (Recommendation(4, 90_120.0), Recommendation(7, 90_030.0)) == after.recommendations
    assert (Recommendation(2, 90_010.0),) == after.lows
    assert (Size(89_970.0, 8), Size(90_000.0, 4)) == after.sizes
    assert (Size(90_000.0, 3),) == after.ready_sizes
    assert (89_500.0, 90_000.0) == (after.started, after.opened)
    assert ((42.0, 31.5), 0.8, 0.2) == (after.start_ups, after.trust, after.foresight.margin)
    assert (Burst(89_800.0, 89_810.0, 900.0), Burst(89_980.0, 89_990.0, 950.0)) == after.bursts
    assert [Point(89_810.0, 1000.0), Point(89_990.0, 950.0)] == list(after.foresight.highs)
    assert before.to_saved() == {**after.to_saved(), "watched": 500.0}


def test_a_state_that_was_restored_and_never_used_is_saved_as_it_was() -> None:
    """The operator may be stopped again before its first look."""
    saved = {**SAVED, "high": [[4, 120.0]], "low": [[2, 9.0]], "sizes": [[5, -3.0]], "watched": 99}
    saved |= {"readySizes": [[4, -3.0]], "startUps": [31.5], "bursts": [[-9.0, -4.0, 900.0]]}
    saved |= {"margin": 0.25, "highs": [[900.0, -4.0]], "trust": 0.7}

    assert saved == ScalingState.restored(saved).to_saved()


def test_times_do_not_survive() -> None:
    """The monotonic clock of another process means nothing here."""
    assert ScalingState.restored(SAVED).model.updated is None


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        [],
        "state",
        {},
        {**SAVED, "version": 1},
        {**SAVED, "revision": 7},
        {**SAVED, "sums": "12345"},
        {**SAVED, "sums": [1, 2, 3, 4]},
        {**SAVED, "sums": [1, 2, 3, 4, -1]},
        {**SAVED, "sums": [1, 2, 3, 4, float("nan")]},
        {**SAVED, "sums": [1, 2, 3, 4, 1e300]},
        {**SAVED, "sums": [1, 2, 3, 4, True]},
        {**SAVED, "largestMeanBatch": 0.5},
        {**SAVED, "largestMeanBatch": 1e9},
        {**SAVED, "largestMeanBatch": "7"},
        {**SAVED, "watched": "long"},
        {**SAVED, "startUps": None},
        {**SAVED, "startUps": [-1]},
        {**SAVED, "startUps": [1.0] * 17},
        {**SAVED, "bursts": [[-1.0, -2.0, 3.0]]},
        {**SAVED, "bursts": [[-2.0, -1.0]]},
        {**SAVED, "bursts": [[-2.0, -1.0, "3"]]},
        {**SAVED, "bursts": [[-2.0, -1.0, 3.0]] * 17},
        {**SAVED, "margin": 2.0},
        {**SAVED, "highs": None},
        {**SAVED, "highs": [[1.0]]},
        {**SAVED, "highs": [[1.0, 5.0]]},
        {**SAVED, "trust": 1.5},
        {**SAVED, "readySizes": 3},
        {**SAVED, "high": [[1, 1e9]]},
        {**SAVED, "low": None},
        {**SAVED, "sizes": [[1, 5.0]]},
    ],
)
def test_anything_else_is_an_empty_state(garbage: object) -> None:
    """Learning anew costs minutes; a wrong model costs an outage."""
    assert ScalingState.empty() == ScalingState.restored(garbage)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {"version": st.just(2) | json_values},
        optional=dict.fromkeys(
            (
                *("revision", "sums", "largestMeanBatch", "watched"),
                *("high", "low", "sizes", "readySizes", "startUps"),
                *("bursts", "margin", "highs", "trust"),
            ),
            json_values,
        ),
    )
)
def test_no_status_makes_it_raise(saved: dict[str, object]) -> None:
    """Whoever may edit a status must not be able to stop the operator."""
    ScalingState.restored(saved)
