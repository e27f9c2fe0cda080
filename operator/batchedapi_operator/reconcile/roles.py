"""How far an API is on its way to one queue for all replicas, or back. Pure.

Pods of both shapes are there meanwhile, and nothing that a client has sent may be lost: whoever
answers stays until those that take its place answer, and workers stay while somebody fills the
queue. The Deployment's own controller replaces pods; what is decided here is whether it may.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, ScalingMode
from batchedapi_operator.reconcile.views import Observed, PodView, WebView
from batchedapi_operator.resources.configmap import Revision


@dataclass(frozen=True, slots=True)
class Stage:
    """What follows for the children."""

    roles: bool = False
    """Not every pod answers: the Service selects those that do."""
    web: bool = False
    """NAME-web is to be there."""
    held: bool = False
    """New pods of the Deployment do not yet take the place of those before."""
    retire: bool = False
    """NAME-web is to go: replicas answer in its place."""


def stage_of(api: BatchedAPI, revision: Revision, observed: Observed) -> Stage:
    """From what is there.

    To a queue: workers start beside the replicas, and tell what the methods are like; so web pods
    become ready, and join the replicas behind the Service; then replicas go as workers come. A new
    revision goes the same way: rows of the one before need its workers until its web pods have
    ended. Back: as many replicas as workers start beside them and join the web pods behind the
    Service; the web pods go, and when the last has ended the workers do.
    """
    if api.spec.server_side_batching.queue is not None:
        before = any(one.revision != revision.digest and not one.gone for one in observed.pods)
        return Stage(
            roles=True, web=True, held=before and not web_is_current(api, revision, observed)
        )
    filling = web_is_there(observed.web)
    workers = any(one.role == contract.ROLE_WORKER for one in _running(observed.pods))
    return Stage(
        roles=filling or workers,
        held=filling,
        retire=web_is_asked_for(observed.web) and _replicas_answer(api, revision, observed),
    )


def web_is_asked_for(web: WebView) -> bool:
    """Whether there are to be web pods; NAME-web stays behind without any when a queue goes."""
    return web.deployment is not None and web.deployment.replicas > 0


def web_is_there(web: WebView) -> bool:
    """Whether a web pod may still put rows into the queue."""
    return web_is_asked_for(web) or any(_running(web.pods))


def web_is_current(api: BatchedAPI, revision: Revision, observed: Observed) -> bool:
    """Whether web pods of the revision answer, and none of another one is left."""
    web, queue = observed.web.deployment, api.spec.server_side_batching.queue
    if web is None or queue is None or web.revision != revision.digest:
        return False
    enough = web.ready >= min(queue.web.min_replicas, web.replicas) > 0
    others = any(one.revision != revision.digest for one in _running(observed.web.pods))
    return web.settled and enough and web.existing <= web.updated and not others


def _replicas_answer(api: BatchedAPI, revision: Revision, observed: Observed) -> bool:
    """Whether as many as are asked for do, or all that the cluster has room for beside workers."""
    deployment = observed.deployment
    if deployment is None or deployment.revision != revision.digest:
        return False
    if deployment.replicas == 0:  # nobody is to answer, by whoever chooses the number
        return api.spec.autoscaling.mode is not ScalingMode.NATIVE
    made = [one for one in observed.pods if one.revision == revision.digest and not one.gone]
    ready = sum(one.ready for one in made)
    homeless = sum(bool(one.unschedulable) for one in made)
    return ready > 0 and ready + homeless >= deployment.replicas


def _running(pods: Iterable[PodView]) -> Iterable[PodView]:
    """Those that have not ended; of those that are being deleted, processes still run."""
    return (one for one in pods if one.ending or not one.gone)
