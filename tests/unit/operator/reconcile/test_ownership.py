"""Messages, and the pace of further looks, while other objects are in the way."""

from dataclasses import replace
from typing import Any, Final

import pytest
from tests.unit.operator.worlds import (
    IMAGE,
    NOW,
    api_body,
    child_body,
    deployment_body,
    owned_by_api,
)

from batchedapi_operator.cluster import JsonObject
from batchedapi_operator.reconcile.ownership import again
from batchedapi_operator.reconcile.plan import Plan, plan
from batchedapi_operator.views import ChildView, DeploymentView, Observed

LATER: Final = "2026-01-02T03:04:25Z"
MUCH_LATER: Final = "2026-01-03T03:04:05Z"
FOREIGN: Final[dict[str, Any]] = {"ownerReferences": [], "managedFields": []}


def world(**metadata: Any) -> Observed:
    """A Deployment of that name with two ready replicas, and our Service."""
    view = DeploymentView.of(deployment_body(**metadata))
    return Observed(status={}, deployment=view, service=ChildView.of(child_body("iris")))


def condition(made: Plan, kind: str) -> JsonObject:
    """One condition of the status."""
    return next(one for one in made.status["conditions"] if one["type"] == kind)


def test_what_is_not_ours_is_looked_at_again_and_less_often_as_time_goes_by() -> None:
    """Nobody tells of a Deployment without our label: it was waited for until a restart."""
    first = plan(api_body(), world(**FOREIGN), IMAGE, NOW)
    told = replace(world(**FOREIGN), status=first.status)

    waits = [plan(api_body(), told, IMAGE, now).retry_after for now in (NOW, LATER, MUCH_LATER)]

    assert [2.0, 2.0, 8.0, 8.0] == [first.retry_after, *waits]
    gone = plan(api_body(), Observed(status=first.status), IMAGE, LATER)
    assert "Accepted" == condition(gone, "SpecValid")["reason"]
    assert 3 == len(gone.apply)


def test_replicas_of_a_foreign_deployment_are_not_told_as_ours() -> None:
    """The API answered nothing, and its status counted two ready replicas."""
    status = plan(api_body(), world(**FOREIGN), IMAGE, NOW).status

    assert (0, 0, "Error") == (status["replicas"], status["readyReplicas"], status["phase"])
    assert "Deployment demo/iris exists and is not controlled" in status["message"]


def test_a_foreign_child_in_deletion_says_who_holds_it() -> None:
    """Its user deleted it, as the message had said, and a finalizer of somebody's keeps it."""
    metadata = {**FOREIGN, "deletionTimestamp": NOW, "finalizers": ["example.com/keep"]}

    made = plan(api_body(), world(**metadata), IMAGE, NOW)

    told = condition(made, "SpecValid")
    assert ("False", "NotOwned") == (told["status"], told["reason"])
    assert "being deleted, and held by example.com/keep" in told["message"]
    assert 2.0 == made.retry_after


@pytest.mark.parametrize(
    ("metadata", "words", "later"),
    [
        pytest.param(
            {"deletionTimestamp": NOW, "finalizers": ["foregroundDeletion", "example.com/keep"]},
            "being deleted, and made anew once it is gone, and held by example.com/keep:",
            8.0,
            id="ours",
        ),
        pytest.param(
            {"ownerReferences": owned_by_api("former"), "deletionTimestamp": NOW},
            "being deleted, and made anew once it is gone",
            8.0,
            id="of a former API, in deletion",
        ),
        pytest.param(
            {"ownerReferences": owned_by_api("former")},
            "belongs to a deleted BatchedAPI of this name",
            2.0,
            id="of a former API",
        ),
    ],
)
def test_a_child_that_has_to_go_first_is_waited_for_with_a_word(
    metadata: dict[str, Any], words: str, later: float
) -> None:
    """The status said that all was well, and nothing ever happened."""
    made = plan(api_body(), world(**metadata), IMAGE, LATER)

    told = condition(made, "Progressing")
    assert ("False", "WaitingForDeletion") == (told["status"], told["reason"])
    assert words in told["message"]
    assert told["message"] == made.status["message"]
    assert ((), later) == (made.apply, made.retry_after)


def test_a_child_of_a_former_api_is_looked_at_less_often_as_time_goes_by() -> None:
    """It does not tell since when; what is kept by hand was looked at every two seconds."""
    left = world(ownerReferences=owned_by_api("former"))
    told = replace(left, status=plan(api_body(), left, IMAGE, NOW).status)

    waits = [plan(api_body(), told, IMAGE, now).retry_after for now in (NOW, LATER, MUCH_LATER)]

    assert [2.0, 8.0, 8.0] == waits


def deleted(*finalizers: str, **spec: Any) -> JsonObject:
    """An API in deletion."""
    body = api_body(**spec)
    body["metadata"] |= {"deletionTimestamp": NOW, "finalizers": list(finalizers)}
    return body


@pytest.mark.parametrize("paused", [False, True])
def test_an_api_held_in_deletion_says_by_whom(*, paused: bool) -> None:
    """It looked alive, and took no change any more."""
    body = deleted("foregroundDeletion", "example.com/keep", paused=paused)
    made = plan(body, world(), IMAGE, NOW)

    assert "Deleting" == made.status["phase"] == condition(made, "Progressing")["reason"]
    assert f"being deleted since {NOW}, and held by example.com/keep" in made.status["message"]
    assert ((), None, (), None) == (made.apply, made.replicas, made.delete, made.retry_after)


@pytest.mark.parametrize("since", ["", "yesterday", "2026-01-02T03:04:05"])
def test_a_time_that_nobody_can_read_is_a_short_wait(since: str) -> None:
    """A status may be edited by hand."""
    assert 2.0 == again(since, NOW)
