"""What the autoscaler writes: replicas, its part of the status, events."""

import logging
from collections.abc import Callable
from datetime import datetime

from batchedapi_core import contract
from batchedapi_core.placement import Advice, AdviceReason
from batchedapi_core.scaling import ScalingDecision
from batchedapi_operator.autoscaling.advice import notes_of_advice
from batchedapi_operator.cluster import Cluster
from batchedapi_operator.events import Note, record
from batchedapi_operator.keys import DEPLOYMENTS, JsonObject, ObjectKey
from batchedapi_operator.reconcile.views import DeploymentView

log = logging.getLogger(__name__)


class Writes:
    """Each is sent by the outbox and may raise ApplyError, but for events."""

    def __init__(self, cluster: Cluster, wall: Callable[[], datetime]) -> None:
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
        if decision.desired == deployment.replicas:
            return None
        body = await self._cluster.get(DEPLOYMENTS, key)
        live = DeploymentView.of(body) if body is not None else None
        if live is None or (live.child.uid, live.replicas) != (
            deployment.child.uid,
            deployment.replicas,
        ):
            # Decided on what is no longer so: the watch is behind, the next look will know.
            return None
        await self._cluster.scale(key, decision.desired)
        log.info(
            "replicas changed",
            extra={
                "api": str(key),
                "current": deployment.replicas,
                "desired": decision.desired,
                "reason": decision.reason.value,
                "why": text,
            },
        )
        up = decision.desired > deployment.replicas
        return Note("Normal", "ScaledUp" if up else "ScaledDown", "Scale", text)

    async def watch_is_behind(self, key: ObjectKey, uid: str) -> bool:
        """Whether the API with that uid has a Deployment that the watch has not brought."""
        body = await self._cluster.get(DEPLOYMENTS, key)
        return body is not None and DeploymentView.of(body).child.owner_uid == uid

    async def status(self, key: ObjectKey, uid: str, status: JsonObject) -> None:
        """The autoscaler's part."""
        await self._cluster.apply_status(key, uid, status, contract.AUTOSCALER_FIELD_MANAGER)

    async def advice(
        self,
        key: ObjectKey,
        uid: str,
        advice: tuple[Advice, ...],
        standing: frozenset[AdviceReason],
    ) -> None:
        """An event for each piece that is new."""
        for note in notes_of_advice(advice, standing):
            await self.event(key, uid, note)

    async def event(self, key: ObjectKey, uid: str, note: Note) -> None:
        """Record it."""
        await record(self._cluster, note, key, uid, self._wall())
