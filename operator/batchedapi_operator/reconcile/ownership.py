"""Ownership of objects with the names of an API's children, and deletions to wait for. Pure.

Nobody tells of objects that do not carry the API's label, so they are looked at again: soon at
first, and less often the longer it lasts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from batchedapi_core.manifest import ConditionType
from batchedapi_operator.cluster import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    SERVICES,
    ObjectKey,
    Resource,
    listed,
)
from batchedapi_operator.errors import NotOwnedError
from batchedapi_operator.reconcile.conditions import DELETING, WAITING, NewCondition
from batchedapi_operator.views import CanaryView, ChildView, Observed, WebView

SOONEST_SECONDS: Final = 2.0
LATEST_SECONDS: Final = 8.0
"""A user who does what a condition says sees it cleared within 10 s."""
_COLLECTORS: Final = frozenset({"foregroundDeletion", "orphan"})
"""Finalizers of Kubernetes' own, which it takes away itself."""


def owned(uid: str, child: ChildView) -> bool:
    """Controlled by the API with that uid, or applied by us and robbed of its owner since."""
    if child.owner_uid:
        return child.owner_uid == uid
    return child.applied_by_us


def without_others(uid: str, observed: Observed) -> Observed:
    """A Deployment of somebody else's says nothing about our replicas."""
    deployment, web = observed.deployment, observed.web.deployment
    canary = observed.canary.deployment
    if canary is not None and not owned(uid, canary.child):
        observed = replace(observed, canary=CanaryView())
    if deployment is not None and not owned(uid, deployment.child):
        observed = replace(observed, deployment=None)
    if web is not None and not owned(uid, web.child):
        observed = replace(observed, web=WebView())
    return observed


def refuse_foreign(key: ObjectKey, uid: str, observed: Observed) -> None:
    """Leave alone what others control.

    Raises:
        NotOwnedError: A child's name is taken, and will be until its owner gives it up.
    """
    for resource, child in _named(observed):
        if not owned(uid, child) and child.owner_api != key.name:
            going = f"; it is being deleted{_held(child.finalizers)}" if child.deleting else ""
            raise NotOwnedError(resource.kind, f"{key.namespace}/{child.name}", str(key), going)


def leaving(key: ObjectKey, uid: str, observed: Observed) -> tuple[NewCondition, str] | None:
    """A child that goes, or whose API is gone: its name is needed. None: there is no such child.

    Adopting it would see it vanish.

    Returns:
        What is said of it, and since when it has been waited for: RFC 3339, empty where the child
        does not tell.
    """
    for resource, child in _named(observed):
        name = f"{resource.kind} {key.namespace}/{child.name}"
        if child.deleting:
            text = f"{name} is being deleted, and made anew once it is gone"
            return _waiting(text + _held(child.finalizers)), child.deleting
        if not owned(uid, child):  # foreign ones were refused
            text = f"{name} belongs to a deleted BatchedAPI of this name; it has to be collected"
            return _waiting(text), ""
    return None


def deletion(metadata: Mapping[str, Any]) -> NewCondition | None:
    """The condition of an API that a finalizer holds in deletion; None: it is not, or by us."""
    holders = _others(listed(metadata, "finalizers"))
    if "deletionTimestamp" not in metadata or not holders:
        return None
    since = metadata["deletionTimestamp"]
    text = f"it is being deleted since {since}{_held(holders)}; until then its replicas stay"
    return NewCondition(ConditionType.PROGRESSING, "False", DELETING, text)


def again(since: str, now: str) -> float:
    """Seconds until the next look at what has lasted since then; both are RFC 3339."""
    try:
        lasted = datetime.fromisoformat(now) - datetime.fromisoformat(since)
    except (ValueError, TypeError):  # not told, or edited by hand
        return SOONEST_SECONDS
    return min(LATEST_SECONDS, max(SOONEST_SECONDS, lasted.total_seconds()))


def _named(observed: Observed) -> tuple[tuple[Resource, ChildView], ...]:
    children: list[tuple[Resource, ChildView]] = []
    if observed.deployment is not None:
        children.append((DEPLOYMENTS, observed.deployment.child))
    if observed.service is not None:
        children.append((SERVICES, observed.service))
    if observed.peers is not None:
        children.append((SERVICES, observed.peers))
    children += observed.policies.items()
    if observed.web.deployment is not None:
        children.append((DEPLOYMENTS, observed.web.deployment.child))
    if observed.canary.deployment is not None:
        children.append((DEPLOYMENTS, observed.canary.deployment.child))
    if observed.web.budget is not None:
        children.append((DISRUPTION_BUDGETS, observed.web.budget))
    return tuple(children)


def _others(finalizers: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in finalizers if one not in _COLLECTORS)


def _held(finalizers: Sequence[str]) -> str:
    holders = _others(finalizers)
    if not holders:
        return ""
    return f", and held by {', '.join(holders)}: whoever set that has to remove it"


def _waiting(text: str) -> NewCondition:
    return NewCondition(ConditionType.PROGRESSING, "False", WAITING, text)
