"""Writes of the autoscaler: replicas, its part of the status, events, the record of minutes."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI
from batchedapi_core.scaling.decision import ScalingDecision
from batchedapi_core.scaling.minutes import Minute, Minutes
from batchedapi_operator.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JsonObject,
    ObjectKey,
    listed,
    section,
)
from batchedapi_operator.errors import ConflictError
from batchedapi_operator.events import Note, record
from batchedapi_operator.kube import Kube
from batchedapi_operator.outbox import Send
from batchedapi_operator.resources.configmap import build_record
from batchedapi_operator.views import DeploymentView

log = logging.getLogger(__name__)


class Writes:
    """Each is sent by the outbox and may raise ApplyError, but for events."""

    def __init__(self, cluster: Kube, wall: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._wall = wall

    async def scale(
        self,
        key: ObjectKey,
        deployment: DeploymentView,
        decision: ScalingDecision,
        text: str,
    ) -> Note | None:
        """Carry out a decision.

        Returns:
            The event that it is worth; None where there is nothing to do, or nothing must be done.
        """
        return await self.scale_to(key, deployment, decision.desired, decision.reason.value, text)

    async def scale_to(
        self, key: ObjectKey, deployment: DeploymentView, desired: int, reason: str, text: str
    ) -> Note | None:
        """The same of the Deployment with the name of `key`; `reason` is for the log."""
        if desired == deployment.replicas:
            return None
        try:
            await self._scale(key, deployment, desired)
        except ConflictError:  # its status alone may have changed since the watch told of it
            body = await self._cluster.get(DEPLOYMENTS, key)
            live = DeploymentView.of(body) if body is not None else None
            if live is None or (live.child.uid, live.replicas) != (
                deployment.child.uid,
                deployment.replicas,
            ):
                # Decided on what is no longer so: the watch is behind, the next look will know.
                return None
            await self._scale(key, live, desired)
        log.info(
            "replicas changed",
            extra={
                "api": str(key),
                "current": deployment.replicas,
                "desired": desired,
                "reason": reason,
                "why": text,
            },
        )
        up = desired > deployment.replicas
        return Note("Normal", "ScaledUp" if up else "ScaledDown", "Scale", text)

    async def _scale(self, key: ObjectKey, deployment: DeploymentView, replicas: int) -> None:
        """Scale that very version: one that anybody else has scaled since is left alone."""
        uid, version = deployment.child.uid, deployment.version
        await self._cluster.scale(key, replicas, uid=uid, version=version)

    async def watch_is_behind(self, key: ObjectKey, uid: str) -> bool:
        """Whether the API with that uid has a Deployment that the watch has not brought."""
        body = await self._cluster.get(DEPLOYMENTS, key)
        return body is not None and DeploymentView.of(body).child.owner_uid == uid

    async def status(self, key: ObjectKey, uid: str, status: JsonObject) -> None:
        """The autoscaler's part."""
        await self._cluster.apply_status(key, uid, status, contract.AUTOSCALER_FIELD_MANAGER)

    def events(self, key: ObjectKey, uid: str, notes: Iterable[Note]) -> Send:
        """A function that records events, with the time of this call."""
        return partial(record, self._cluster, tuple(notes), key, uid, self._wall())

    async def record(self, api: BatchedAPI, minutes: Iterable[Minute]) -> None:
        """Add minutes to the record, which is nowhere else: lost or damaged, it begins anew."""
        body = build_record(api)
        key, facts = ObjectKey.of(body), {"api": f"{api.metadata.namespace}/{api.metadata.name}"}
        found, known = await self._cluster.get(CONFIG_MAPS, key), None
        if found is None:
            log.info("record of minutes begun", extra=facts)
        else:
            owners = [one["uid"] for one in listed(found["metadata"], "ownerReferences")]
            known = Minutes.restored(section(found, "data").get(contract.RECORD_KEY))
            orphaned = known is not None and not owners  # its API was deleted, and is back
            if api.metadata.uid not in owners and not orphaned:
                log.warning(
                    "minutes not recorded: the name of their ConfigMap is somebody else's",
                    extra=facts | {"configmap": str(key)},
                )
                return
            if known is None:
                log.warning("record of minutes damaged, a new one is begun", extra=facts)
            body["metadata"] |= {one: found["metadata"][one] for one in ("uid", "resourceVersion")}
        grown = (known or Minutes()).plus(minutes)
        text = await asyncio.to_thread(grown.to_saved)  # up to half a second of ten noisy days
        body["data"] = {contract.RECORD_KEY: text}
        await self._cluster.apply(CONFIG_MAPS, body, force=found is not None)
