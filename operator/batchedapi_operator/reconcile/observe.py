"""Reads: the children of one API as they are now."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI
from batchedapi_operator.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    SERVICES,
    JsonObject,
    ObjectKey,
    Resource,
    section,
)
from batchedapi_operator.errors import InvalidSpecError
from batchedapi_operator.kube import Kube
from batchedapi_operator.reconcile.conditions import is_stuck
from batchedapi_operator.reconcile.ownership import owned
from batchedapi_operator.reconcile.plan import REVISIONS_KEPT, parsed
from batchedapi_operator.resources import canary_name, peers_name, selector_text, web_name
from batchedapi_operator.resources.configmap import as_made
from batchedapi_operator.views import (
    CanaryView,
    ChildView,
    DeploymentView,
    EarlierView,
    Observed,
    PodView,
    SourceView,
    WebView,
    controller_uid,
)


async def observe(
    cluster: Kube,
    document: JsonObject,
    kinds: Sequence[Resource] = (),
    known: Iterable[str] = (),
    *,
    tried: bool = False,
) -> Observed:
    """Ask the apiserver, not a cache: children are deleted on the strength of this.

    Args:
        cluster: Which is asked.
        document: The API.
        kinds: Of `Policies`: what it has beside what every API has.
        known: Names of revisions; one that has lost its label is in no list of them.
        tried: NAME-canary is known to be there.

    Raises:
        ApplyError: One of the reads failed.
    """
    key = ObjectKey.of(document)
    selector = selector_text(key.name)
    policies = asyncio.gather(*(cluster.get_metadata(kind, key) for kind in kinds))
    api = _usable(document)
    deployment, service, (revisions, _), pods, source, others = await asyncio.gather(
        cluster.get(DEPLOYMENTS, key),
        cluster.get_metadata(SERVICES, key),
        cluster.list_metadata(CONFIG_MAPS, key.namespace, selector),
        cluster.find(PODS, key.namespace, selector),
        _source(cluster, api, key),
        policies,
    )
    uid, all_pods = document["metadata"]["uid"], tuple(map(PodView.of, pods))
    revisions += await _lost(cluster, key, {*known} - set(map(_name_of, revisions)))
    there = DeploymentView.of(deployment) if deployment else None
    ours = tuple(child for child in map(ChildView.of, revisions) if owned(uid, child))
    in_use: frozenset[str] = frozenset()
    if len(ours) > REVISIONS_KEPT:  # only once there is something to delete
        sets, _ = await cluster.list_metadata(REPLICA_SETS, key.namespace, selector)
        in_use = frozenset(ChildView.of(body).revision for body in (*sets, *pods))
    canary = await _canary(cluster, api, document, all_pods, tried=tried)
    return Observed(
        status=section(document, "status"),
        deployment=there,
        service=ChildView.of(service) if service else None,
        peers=await _peers(cluster, api, key),
        policies={
            kind: ChildView.of(body) for kind, body in zip(kinds, others, strict=True) if body
        },
        revisions=ours,
        robbed=frozenset(_name_of(one) for one in revisions if not as_made(one, key.name, uid)),
        source=source,
        pods=tuple(one for one in all_pods if one.role not in _APART),
        web=await _web(cluster, document, kinds, all_pods),
        revisions_in_use=in_use,
        earlier=await _earlier(cluster, api, there, all_pods, canary),
        canary=canary,
    )


_APART: Final = (contract.ROLE_WEB, contract.ROLE_CANARY)
"""Roles of pods that another Deployment has."""


def _name_of(body: JsonObject) -> str:
    return str(body["metadata"]["name"])


async def _lost(cluster: Kube, key: ObjectKey, names: Iterable[str]) -> list[JsonObject]:
    """Revisions of those names that are there."""
    keys = (ObjectKey(key.namespace, name) for name in names)
    found = [await cluster.get_metadata(CONFIG_MAPS, one) for one in keys]
    return [body for body in found if body is not None]


async def _web(
    cluster: Kube, document: JsonObject, kinds: Sequence[Resource], pods: Sequence[PodView]
) -> WebView:
    """The web pods and what is about them; of an API that never had a queue nothing is asked."""
    spec, status = section(document, "spec"), section(document, "status")
    batching = spec.get("serverSideBatching")
    wanted = isinstance(batching, dict) and batching.get("queue") is not None
    roles = {one.role for one in pods} - {contract.ROLE_CANARY, ""}
    if not (wanted or status.get("web") or roles):
        return WebView()
    key = ObjectKey.of(document)
    own = ObjectKey(key.namespace, web_name(key.name))
    deployment = await cluster.get(DEPLOYMENTS, own)
    budget = None
    if DISRUPTION_BUDGETS in kinds:
        budget = await cluster.get_metadata(DISRUPTION_BUDGETS, own)
    return WebView(
        DeploymentView.of(deployment) if deployment else None,
        ChildView.of(budget) if budget else None,
        tuple(one for one in pods if one.role == contract.ROLE_WEB),
    )


def _usable(document: JsonObject) -> BatchedAPI | None:
    """The manifest; None: it cannot be used, and the plan will say what is wrong."""
    try:
        return parsed(document)
    except InvalidSpecError:
        return None


async def _peers(cluster: Kube, api: BatchedAPI | None, key: ObjectKey) -> ChildView | None:
    """NAME-peers of an API that compares revisions; of others nothing is asked."""
    if api is None or not api.spec.update_strategy.compare.is_on:
        return None
    found = await cluster.get_metadata(SERVICES, ObjectKey(key.namespace, peers_name(key.name)))
    return None if found is None else ChildView.of(found)


async def _canary(
    cluster: Kube,
    api: BatchedAPI | None,
    document: JsonObject,
    pods: Sequence[PodView],
    *,
    tried: bool,
) -> CanaryView:
    """The canary of an API that has one, or has had one.

    Where none is asked for, NAME-canary may be of an API of that name, and nothing is in its way.
    """
    ours = tuple(one for one in pods if one.role == contract.ROLE_CANARY)
    wanted = api is not None and api.spec.update_strategy.canary is not None
    if not (wanted or tried or ours):
        return CanaryView()
    key = ObjectKey.of(document)
    body = await cluster.get(DEPLOYMENTS, ObjectKey(key.namespace, canary_name(key.name)))
    found = DeploymentView.of(body) if body else None
    if found is not None and not (wanted or owned(document["metadata"]["uid"], found.child)):
        return CanaryView()
    return CanaryView(found, ours)


async def _earlier(
    cluster: Kube,
    api: BatchedAPI | None,
    there: DeploymentView | None,
    pods: Sequence[PodView],
    canary: CanaryView,
) -> EarlierView | None:
    if api is None or there is None:
        return None
    update = api.spec.update_strategy
    moving = there.given_up is not None or is_stuck(there)
    if update.canary is None and not (update.auto_rollback and moving):
        return None
    key = ObjectKey(api.metadata.namespace, api.metadata.name)
    bodies = await cluster.find(REPLICA_SETS, key.namespace, selector_text(key.name))
    sets = [
        EarlierView.of(one) for one in bodies if controller_uid(one["metadata"]) == there.child.uid
    ]
    return earlier_of(sets, there, pods, canary)


def earlier_of(
    sets: Sequence[EarlierView], there: DeploymentView, pods: Sequence[PodView], canary: CanaryView
) -> EarlierView | None:
    """What a rollout that was given up has gone back to, or one that is stuck can go back to.

    That is the one of another revision of which most pods answer. A canary is beside the one of
    which most do, and while it runs beside the one that it began with.

    Args:
        sets: All ReplicaSets of the Deployment.
        there: The Deployment.
        pods: Those of the API.
        canary: What there is of one.
    """
    noted = None if there.given_up is None else (there.given_up.replica_set, there.revision)
    for one in sets:
        if (one.name, one.revision) == noted:
            return one
    if canary.is_beside(there.revision):
        current = (one for one in sets if one.revision == there.revision)
        return max(current, key=lambda one: one.number, default=None)
    passed_over = there.revision if is_stuck(there) else None
    ready = Counter(one.owner_uid for one in pods if one.ready and not (one.gone or one.role))
    others = (one for one in sets if ready[one.uid] and one.revision != passed_over)
    return max(others, key=lambda one: (ready[one.uid], one.number), default=None)


async def _source(cluster: Kube, api: BatchedAPI | None, key: ObjectKey) -> SourceView | None:
    source = None if api is None else api.spec.predictor.source
    if source is None or source.config_map is None:
        return None
    body = await cluster.get(CONFIG_MAPS, ObjectKey(key.namespace, source.config_map))
    return SourceView.of(body) if body is not None else None
