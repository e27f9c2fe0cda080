"""Manifests as the autoscaler keeps them."""

import pytest
from tests.unit.operator.worlds import KEY, api_body

from batchedapi_operator.autoscaling.watched import Manifests
from batchedapi_operator.cluster import JsonObject
from batchedapi_operator.errors import InvalidSpecError
from batchedapi_operator.store import ApiView


def with_generation(body: JsonObject, generation: int) -> ApiView:
    """As the watch brings it after so many changes."""
    return ApiView.of({**body, "metadata": {**body["metadata"], "generation": generation}})


def test_a_manifest_is_parsed_again_when_its_user_has_changed_it_alone() -> None:
    """Looks come every two seconds, changes now and then."""
    manifests = Manifests()
    first = manifests.of(KEY, with_generation(api_body(), 1))

    again = manifests.of(KEY, with_generation({**api_body(), "status": {"phase": "Live"}}, 1))
    later = manifests.of(KEY, with_generation(api_body(paused=True), 2))

    assert first is again
    assert (False, True) == (first.spec.paused, later.spec.paused)
    manifests.forget(KEY)
    assert first is not manifests.of(KEY, with_generation(api_body(), 1))


def test_a_manifest_that_cannot_be_used_is_refused_again_and_again() -> None:
    """Nothing of it is kept."""
    manifests, view = Manifests(), ApiView.of(api_body(predictor={"path": 3}))

    for _ in range(2):
        with pytest.raises(InvalidSpecError, match=r"predictor\.path"):
            manifests.of(KEY, view)
