"""Writes: carries out a plan, and leaves out what the cluster already has."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    Cluster,
    JsonObject,
    ObjectKey,
    Resource,
)
from batchedapi_operator.errors import NotOwnedError, RefusedError
from batchedapi_operator.events import record
from batchedapi_operator.outbox import Send
from batchedapi_operator.reconcile.ownership import owned
from batchedapi_operator.reconcile.plan import Apply, Plan
from batchedapi_operator.reconcile.views import ChildView, DeploymentView
from batchedapi_operator.reconcile.ways import cleared
from batchedapi_operator.resources import web_name

_DATA: Final[tuple[str, ...]] = ("data", "binaryData", "immutable")
"""Of a ConfigMap."""


class Executor:
    """Carries out plans. It remembers what it last applied, so that nothing is sent twice."""

    def __init__(self, cluster: Cluster, wall: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._wall = wall
        self._applied: dict[tuple[Resource, ObjectKey], tuple[str, str]] = {}

    async def write_children(self, key: ObjectKey, plan: Plan) -> dict[ObjectKey, DeploymentView]:
        """Apply, scale and delete, in the plan's order.

        Returns:
            The Deployments as they were applied, by name; not those that are as they were.

        Raises:
            RefusedError: The apiserver will not have one of the children.
            NotOwnedError: A revision's name is taken.
            ApplyError: A write failed; the plan is to be made anew.
        """
        uids, deployed = dict[ObjectKey, str](), dict[ObjectKey, DeploymentView]()
        for apply in plan.apply:
            uid, body = await self._apply(apply)
            if apply.resource is DEPLOYMENTS:
                uids[ObjectKey.of(apply.body)] = uid
                if body is not None:
                    deployed[ObjectKey.of(body)] = DeploymentView.of(body)
        web = ObjectKey(key.namespace, web_name(key.name))
        for name, replicas in ((key, plan.replicas), (web, plan.web_replicas)):
            if replicas is not None:
                await self._cluster.scale(name, replicas, uid=uids[name])
        if plan.retire is not None:  # without a right to delete it, which a mistake could use
            await self._cluster.scale(web, 0, uid=plan.retire.uid)
        for child in plan.delete:
            name = ObjectKey(key.namespace, child.name)
            await self._cluster.delete(CONFIG_MAPS, name, child.uid)
            self._applied.pop((CONFIG_MAPS, name), None)
        for apply in plan.give_back:
            found = await self._cluster.get(CONFIG_MAPS, ObjectKey.of(apply.body))
            if found is not None:
                data = {part: found[part] for part in _DATA if part in found}
                await self._apply(replace(apply, body={**apply.body, **data}))
        return deployed

    async def write_status(self, key: ObjectKey, uid: str, plan: Plan) -> None:
        """The reconciler's part of the status."""
        await self._cluster.apply_status(key, uid, plan.status, contract.FIELD_MANAGER)

    def events(self, key: ObjectKey, uid: str, plan: Plan) -> Send:
        """What records those that tell of the status, with the time of now."""
        return partial(record, self._cluster, plan.notes, key, uid, self._wall())

    def forget(self, key: ObjectKey) -> None:
        """The API `key` is gone, and its children with it."""
        prefix = f"{key.name}-"
        for resource, child in tuple(self._applied):
            named = child.name in {key.name, web_name(key.name)}
            same = named or (resource is CONFIG_MAPS and child.name.startswith(prefix))
            if same and child.namespace == key.namespace:
                del self._applied[resource, child]

    async def _apply(self, apply: Apply) -> tuple[str, JsonObject | None]:
        """Returns the child's uid, and its body if there was something to apply."""
        key = ObjectKey.of(apply.body)
        digest = hashlib.sha256(json.dumps(apply.body, sort_keys=True).encode()).hexdigest()
        existing = apply.existing
        if existing is None and apply.resource is CONFIG_MAPS:
            # a revision is found by its label; one without it may be there under the same name
            found = await self._cluster.get_metadata(CONFIG_MAPS, key)
            if found is not None:
                child, (owner,) = ChildView.of(found), apply.body["metadata"]["ownerReferences"]
                if child.owner_uid not in {"", owner["uid"]}:
                    api = f"{key.namespace}/{owner['name']}"
                    raise NotOwnedError("ConfigMap", str(key), api)
                existing = child if owned(owner["uid"], child) else None
        if existing is not None:
            if self._applied.get((apply.resource, key)) == (digest, _seen(existing)):
                return existing.uid, None
            # with the uid, an object that was replaced in between is not written to
            metadata = {**apply.body["metadata"], "uid": existing.uid}
            answer = await self._put_right(apply.resource, {**apply.body, "metadata": metadata})
        else:
            # without force: against somebody who was quicker to take the name
            answer = await self._cluster.apply(apply.resource, apply.body, force=False)
        deployed = apply.resource is DEPLOYMENTS
        child = DeploymentView.of(answer).child if deployed else ChildView.of(answer)
        self._applied[apply.resource, key] = (digest, _seen(child))
        return child.uid, answer

    async def _put_right(self, resource: Resource, body: JsonObject) -> JsonObject:
        """Apply to a child that is there; foreign fields that exclude ours go."""
        try:
            return await self._cluster.apply(resource, body, force=True)
        except RefusedError as error:
            live = await self._cluster.get(resource, ObjectKey.of(body))
            managed = cleared(live, body, error.fields) if live is not None else None
            if live is None or managed is None:
                raise
            await self._cluster.set_managers(resource, live, managed)
        return await self._cluster.apply(resource, body, force=True)


def _seen(child: ChildView) -> str:
    """What tells that an apply is due again; a Deployment that was scaled is as it was applied."""
    return child.asked or child.fingerprint
