"""What survives an operator restart, and what a status that was tampered with does."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.scaling import ScalingState
from batchedapi_core.scaling.model import LearnedModel
from batchedapi_core.service_model.fit import BatchSums

LEARNED = ScalingState(
    revision="iris-5f6c",
    model=LearnedModel(BatchSums(1000.0, 7100.0, 54321.0, 11.42, 84.5), 7.65, updated=12.0),
)
SAVED = LEARNED.to_saved()


def test_the_service_model_survives_and_is_compact() -> None:
    """It goes through JSON in a status of limited size."""
    text = json.dumps(SAVED)

    restored = ScalingState.restored(json.loads(text))

    assert 200 > len(text)
    assert LEARNED.model.sums == restored.model.sums
    assert 7.65 == restored.model.largest_mean_batch
    assert "iris-5f6c" == restored.revision


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
        {**SAVED, "version": 2},
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
        {"version": st.just(1) | json_values},
        optional={"revision": json_values, "sums": json_values, "largestMeanBatch": json_values},
    )
)
def test_no_status_makes_it_raise(saved: dict[str, object]) -> None:
    """Whoever may edit a status must not be able to stop the operator."""
    ScalingState.restored(saved)
