"""The way back of a rollout that does not move: whether it is taken, and what is written then.

An annotation of the Deployment is all that is remembered. It is in the same apply as the pods of
the earlier revision, so neither is there without the other, however late the status is.
"""

from batchedapi_core import contract
from batchedapi_operator.cluster import JsonObject, section
from batchedapi_operator.reconcile.conditions import is_stuck
from batchedapi_operator.resources.configmap import Revision
from batchedapi_operator.resources.revised import GivenUp
from batchedapi_operator.views import EarlierView, Observed


def given_up(revision: Revision, observed: Observed) -> GivenUp | None:
    """That the rollout to `revision` was given up; None: it goes on, or is complete."""
    there = None if observed.deployment is None else observed.deployment.given_up
    if there is None or observed.earlier is None:
        return None
    return there if there.revision == revision.name else None


def to_give_up(revision: Revision, observed: Observed, why: str) -> GivenUp | None:
    """That it is to be given up, and what for; None: it is not, or that was done already."""
    there, earlier = observed.deployment, observed.earlier
    if there is None or earlier is None or there.revision != revision.digest:
        return None
    # its controller tells of the rollout before until it has made a pod of this one
    begun = there.settled and (there.updated > 0 or there.refusal(observed.pods) is not None)
    if not (begun and is_stuck(there)) or earlier.revision == revision.digest:
        return None
    return GivenUp(revision.name, earlier.name, why)


def gone_back(body: JsonObject, earlier: EarlierView, given_up: GivenUp) -> JsonObject:
    """The Deployment with the very pods of that ReplicaSet, so that none of them starts anew.

    What it says of its revision is said of the earlier one, since its controller copies that.
    """
    metadata, said = body["metadata"], section(body["metadata"], "annotations")
    of_revision = (contract.ANNOTATION_SPEC, contract.ANNOTATION_POD)
    annotations = {
        **{name: one for name, one in said.items() if name not in of_revision},
        **{name: one for name, one in earlier.annotations.items() if name in of_revision},
        **given_up.noted(),
    }
    return {
        **body,
        "metadata": {**metadata, "annotations": annotations},
        "spec": {**body["spec"], "template": earlier.template},
    }
