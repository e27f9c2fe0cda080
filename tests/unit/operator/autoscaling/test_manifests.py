"""Manifests as the autoscaler keeps them."""

import pytest
from tests.unit.operator.worlds import KEY, api_body

from batchedapi_operator.autoscaling.watched import Manifests
from batchedapi_operator.cluster import JsonObject, ObjectKey
from batchedapi_operator.errors import InvalidSpecError
from batchedapi_operator.reconcile.plan import parsed
from batchedapi_operator.store import ApiView

OTHER = ObjectKey(KEY.namespace, "other")


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


def test_sections_that_say_the_same_are_there_once() -> None:
    """What was said and what was left out stay apart, though both have the same value."""
    manifests = Manifests()
    body = api_body(autoscaling={"maxReplicas": 3}, compute={"cpu": "1"})
    said = api_body(autoscaling={"maxReplicas": 3, "minReplicas": 1}, compute={"cpu": "1"})

    one, two = (manifests.of(*it) for it in ((KEY, ApiView.of(body)), (OTHER, ApiView.of(said))))

    assert (parsed(body), parsed(said)) == (one, two)
    assert one.spec.compute is two.spec.compute
    assert one.spec.networking is two.spec.networking
    assert one.spec.autoscaling is not two.spec.autoscaling
    assert one.spec.model_fields_set == {"predictor", "autoscaling", "compute"}
    assert two.spec.autoscaling.model_fields_set == {"max_replicas", "min_replicas"}


def test_a_manifest_that_cannot_be_used_is_refused_again_and_again() -> None:
    """Nothing of it is kept."""
    manifests, view = Manifests(), ApiView.of(api_body(predictor={"path": 3}))

    for _ in range(2):
        with pytest.raises(InvalidSpecError, match=r"predictor\.path"):
            manifests.of(KEY, view)
