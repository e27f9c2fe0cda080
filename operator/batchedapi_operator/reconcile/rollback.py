"""The way back of a rollout that does not move: whether it is taken, and what is written then.

An annotation of the Deployment is all that is remembered. It is in the same apply as the pods of
the earlier revision, so neither is there without the other, however late the status is.
"""

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI
from batchedapi_operator.cluster import JsonObject, section
from batchedapi_operator.reconcile.conditions import is_stuck
from batchedapi_operator.resources import annotate
from batchedapi_operator.resources.configmap import Revision
from batchedapi_operator.resources.revised import GivenUp, revised
from batchedapi_operator.resources.setting import digest_of
from batchedapi_operator.views import EarlierView, Observed


def asked_for(api: BatchedAPI, revision: Revision) -> str:
    """Digest of all that decides whether pods of `revision` start, and may replace others.

    Its name is not enough: a secret to pull its image with, or what a comparison allows, has no
    part in it. Defaults of the schema have none here, so an upgrade that brings some tries nothing.
    """
    asked = api.with_pod_defaults(revision.defaults).spec
    spec = asked.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    files = [dict(revision.data), dict(revision.binary_data)]
    return digest_of([revised(spec), spec.get("updateStrategy"), files])


def given_up(api: BatchedAPI, revision: Revision, observed: Observed) -> GivenUp | None:
    """That the rollout to `revision` was given up; None: it goes on, or is complete.

    A note that was left over says nothing: the Deployment has no pods of that ReplicaSet.
    """
    there, earlier = observed.deployment, observed.earlier
    noted = None if there is None else there.given_up
    if there is None or noted is None or earlier is None or there.revision != earlier.revision:
        return None
    return noted if noted.asked == asked_for(api, revision) else None


def to_give_up(api: BatchedAPI, revision: Revision, observed: Observed, why: str) -> GivenUp | None:
    """That it is to be given up, and what for; None: it is not, or that was done already.

    A revision of which a pod answers, or has answered, is known to start: what it lacks is room.
    While there are canaries, it is one of them that was promoted.
    """
    there, earlier, canary = observed.deployment, observed.earlier, observed.canary
    if there is None or earlier is None or there.revision != revision.digest:
        return None
    if not api.spec.update_strategy.auto_rollback:
        return None
    # its controller tells of the rollout before until it has made a pod of this one
    begun = there.settled and there.updated > 0
    new = (*observed.pods, *canary.pods)
    pods = (one for one in new if one.revision == revision.digest and not one.gone)
    if not (begun and is_stuck(there)) or earlier.revision == revision.digest:
        return None
    tried = None if canary.deployment is None else canary.deployment.revision
    promoted = tried == revision.digest and api.spec.update_strategy.canary is not None
    if promoted or any(one.was_ready for one in pods):
        return None
    return GivenUp(revision.name, earlier.name, why, asked_for(api, revision))


def decided(
    body: JsonObject, observed: Observed, back: GivenUp | None, *, tried: bool = False
) -> JsonObject:
    """The Deployment as it is to be applied: with the pods to go back to, where there are any.

    While another revision is `tried` in a canary, they are those that answer.

    Any other note becomes ours by being empty, and the next apply takes it away: kubectl copies it
    from a ReplicaSet, and an apply leaves alone what others own.
    """
    there, earlier = observed.deployment, observed.earlier
    if back is None and there is not None and there.given_up is not None:
        annotate(body, {contract.ANNOTATION_GIVEN_UP: ""})
    if earlier is None or not (back or tried):
        return body
    return gone_back(body, earlier, back)


def gone_back(body: JsonObject, earlier: EarlierView, given_up: GivenUp | None) -> JsonObject:
    """The Deployment with the very pods of that ReplicaSet, so that none of them starts anew.

    What it says of its revision is said of the earlier one, since its controller copies that.
    """
    metadata, said = body["metadata"], section(body["metadata"], "annotations")
    of_revision = (contract.ANNOTATION_SPEC, contract.ANNOTATION_POD)
    annotations = {
        **{name: one for name, one in said.items() if name not in of_revision},
        **{name: one for name, one in earlier.annotations.items() if name in of_revision},
        **({} if given_up is None else given_up.noted()),
    }
    return {
        **body,
        "metadata": {**metadata, "annotations": annotations},
        "spec": {**body["spec"], "template": earlier.template},
    }
