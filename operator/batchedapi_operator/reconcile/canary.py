"""A revision that is tried beside another: whether it is, how that ends, and how many pods it has.

Nothing is remembered but by what is there. NAME-canary has pods of the revision, so it is tried;
NAME has its template, so it was promoted; NAME has the note that autoRollback writes, so it was
given up.
"""

import math

from batchedapi_core import contract
from batchedapi_core.canary import GiveUp, Judged, Promote, Verdict, Wait
from batchedapi_core.manifest import BatchedAPI, ConditionType
from batchedapi_operator.cluster import JsonObject, listed, section
from batchedapi_operator.reconcile.conditions import is_stuck, load_failure, rolled_out
from batchedapi_operator.resources.configmap import Revision
from batchedapi_operator.views import DeploymentView, Observed

BY_HAND = Promote("it was promoted by hand")


def is_tried(api: BatchedAPI, revision: Revision, observed: Observed) -> bool:
    """Whether pods of `revision` are to be beside those that answer, and not yet in their place.

    To begin, it takes some that are ready: else the new ones can but mend something.
    """
    there, earlier, canary = observed.deployment, observed.earlier, observed.canary
    if api.spec.update_strategy.canary is None or there is None or earlier is None:
        return False
    if revision.digest in {there.revision, earlier.revision}:
        return False
    if not there.revision or there.replicas <= 0:  # somebody took its label; nobody is to answer
        return False
    begun = canary.deployment is not None and canary.deployment.revision == revision.digest
    return (begun and canary.is_wanted) or there.ready > 0


def began(revision: str, status: JsonObject) -> str | None:
    """When the canary of that name began, RFC 3339; None: the status tells of none."""
    told = section(status, "revision")
    return told.get("canarySince") if told.get("canary") == revision else None


def promotion(revision: str, status: JsonObject) -> str | None:
    """The annotation that promotes the canary of that name; None: as above."""
    since = began(revision, status)
    return since and f"{revision}@{since}"


def promoted(
    document: JsonObject, revision: Revision, judged: Judged | None, status: JsonObject
) -> Promote | None:
    """Why `revision` takes over; None: it does not, or nobody knows any more."""
    asked = section(document["metadata"], "annotations").get(contract.ANNOTATION_PROMOTE)
    if asked and asked == promotion(revision.name, status):
        return BY_HAND
    verdict = None if judged is None or judged.revision != revision.digest else judged.verdict
    return verdict if isinstance(verdict, Promote) else None


def verdict_on(
    revision: Revision, observed: Observed, judged: Judged | None, status: JsonObject
) -> Verdict:
    """How the canary of `revision` ends that was not promoted.

    `status` tells why it does not start.

    As autoRollback has it, one that cannot start has until its deadline, and one of which no pod
    can be created holds nothing.
    """
    canary, there = observed.canary.of(revision.digest), observed.canary.deployment
    if there is None or there.revision != revision.digest or not there.settled:
        return Wait()
    for pod in canary:
        # of one that runs, what is told of an end is of an earlier start
        failure = load_failure(pod) if pod.was_ready and not pod.started else None
        if failure is not None:
            return GiveUp(failure[1])
    if is_stuck(there) and there.updated > 0 and not any(one.was_ready for one in canary):
        return GiveUp(_why_stuck(there, status))
    if judged is None or judged.revision != revision.digest:
        return Wait()
    return judged.verdict


def _why_stuck(canary: DeploymentView, status: JsonObject) -> str:
    """What the status tells first; where nothing has failed, advice to wait is no reason."""
    told = str(status["message"])
    loads = any(
        (one["type"], one["reason"], one["message"]) == (ConditionType.READY, "ModelLoading", told)
        for one in listed(status, "conditions")
    )
    return canary.conditions["Progressing"].message if loads else told


def canary_count(
    api: BatchedAPI, revision: Revision, observed: Observed, *, tried: bool, given_up: bool
) -> int | None:
    """The replicas of NAME-canary; None leaves it as it is, or there is none.

    Its pods answer until NAME has all of theirs in their place, or needs the places that they have.
    """
    there, canary = observed.deployment, api.spec.update_strategy.canary
    if tried and canary is not None and there is not None:
        return math.ceil(canary.percent * there.replicas / 100)
    if not observed.canary.is_wanted or there is None:
        return None
    pods = [one for one in observed.pods if one.revision == revision.digest and not one.gone]
    full = any(one.unschedulable for one in pods) or there.refusal(observed.pods) is not None
    over = there.settled and (rolled_out(there) or is_stuck(there) or full)
    return 0 if given_up or (there.revision == revision.digest and over) else None
