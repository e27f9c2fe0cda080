"""Every five seconds, for every API: scrape, decide (in core), scale, report."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, ScalingMode
from batchedapi_core.placement import Advice, AdviceReason
from batchedapi_core.scaling import (
    Observation,
    ScalingDecision,
    ScalingPolicy,
    ScalingState,
    decide,
    explain,
    observe,
)
from batchedapi_operator.autoscaling import report
from batchedapi_operator.autoscaling.advice import (
    advice_seen,
    advice_unseen,
    notes_of_advice,
    standing_in,
)
from batchedapi_operator.autoscaling.in_effect import (
    effective_of,
    policy_of,
    processes_of,
    samples_of,
)
from batchedapi_operator.autoscaling.metrics_page import MetricsPage
from batchedapi_operator.autoscaling.scrape import Outcome, Scrapes
from batchedapi_operator.cluster import Cluster, micro_time, rfc3339, utc_now
from batchedapi_operator.errors import ApplyError, InvalidSpecError
from batchedapi_operator.events import Note, build_event
from batchedapi_operator.keys import DEPLOYMENTS, JsonObject, ObjectKey
from batchedapi_operator.metrics import Metrics
from batchedapi_operator.reconcile.plan import parsed
from batchedapi_operator.reconcile.views import DeploymentView
from batchedapi_operator.store import Store

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 5.0
SECONDS_PER_WRITE: Final = 10.0
"""Between two reports on one API that scaled nothing."""
LOOKS_BEFORE_HOLD: Final = 3
"""In a row without knowledge before the status says so: the first look after a start has nothing
to compare with, and one missed scrape is no news."""
AT_ONCE: Final = 16


@dataclass(slots=True)
class _Watched:
    """What the autoscaler remembers of one API. Owned by the loop."""

    uid: str
    state: ScalingState
    reported: float = float("-inf")
    held: int = 0
    """Looks in a row that ended in a hold."""
    advised: frozenset[AdviceReason] = frozenset()
    """What the status says at present."""


class Autoscaler:
    """The loop. Everything that is decided is decided in core."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        scrapes: Scrapes,
        metrics: Metrics,
        *,
        wall: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._scrapes = scrapes
        self._metrics = metrics
        self._wall = wall
        self._monotonic = monotonic
        self._watched: dict[ObjectKey, _Watched] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.last_round = monotonic()
        """When the last round ended, monotonic seconds; liveness goes by it."""

    async def run(self) -> None:
        """Look every TICK_SECONDS until cancelled; a slow round delays the next, never overlaps."""
        while True:
            started = self._monotonic()
            await self.round()
            self.last_round = self._monotonic()
            await asyncio.sleep(max(0.0, started + TICK_SECONDS - self.last_round))

    async def round(self) -> None:
        """One look at every API."""
        await asyncio.gather(*map(self._guarded, self._store.apis()))

    def forget(self, key: ObjectKey) -> None:
        """The API is gone."""
        self._watched.pop(key, None)
        self._metrics.forget(key)

    async def _guarded(self, key: ObjectKey) -> None:
        async with self._slots:
            try:
                await self._look(key)
            except ApplyError as error:
                log.warning("autoscaling failed", extra={"api": str(key), "error": error.message})
            except Exception:  # the autoscaler's loop: one bad API must not stop the others
                if self._store.api(key) is not None:
                    self._metrics.scraped(key, "error")
                log.exception("autoscaling failed unexpectedly", extra={"api": str(key)})

    async def _look(self, key: ObjectKey) -> None:
        document, deployment = self._store.api(key), self._store.deployment(key)
        if document is None or deployment is None:
            return
        uid = document["metadata"]["uid"]
        if deployment.child.owner_uid != uid:
            return
        try:
            api = parsed(document)
        except InvalidSpecError:
            return  # the reconciler has said so; the replicas stay as they are
        if api.spec.autoscaling.mode is not ScalingMode.NATIVE:
            await self._stand_aside(key, document, api)
            return
        watched = self._watched.get(key)
        if watched is None or watched.uid != uid:
            said = standing_in(document.get("status") or {})
            watched = self._watched[key] = _Watched(uid, _restored(document), advised=said)
        await self._decide(key, document, api, deployment, watched)

    async def _decide(
        self,
        key: ObjectKey,
        document: JsonObject,
        api: BatchedAPI,
        deployment: DeploymentView,
        watched: _Watched,
    ) -> None:
        pods = [pod for pod in self._store.owned_pods(key) if pod.ready and not pod.deleting]
        outcomes = await self._scrapes.scrape(pods)
        if self._watched.get(key) is not watched:
            return  # deleted meanwhile: its series were dropped and must not come back
        pages, now = self._counted(key, outcomes), self._monotonic()
        policy = policy_of(api, pages, watched.state, now)
        seen = Observation(
            samples=samples_of(api, pages),
            ready=len(pods),
            current=deployment.replicas,
            revision=deployment.revision,
        )
        load, state = observe(policy, watched.state, seen, now)
        decision, watched.state = decide(policy, load, state, now)
        self._metrics.decided(
            key,
            decision.reason,
            desired=decision.desired,
            ready=len(pods),
            base=decision.terms.base,
            capacity=decision.terms.capacity,
        )
        scaled = await self._scale(key, document, deployment, policy, decision)
        watched.held = watched.held + 1 if decision.reason.is_hold else 0
        learned = watched.state.to_saved()
        advice = advice_seen(
            api, processes_of(api, pages), pages, policy, load, standing=watched.advised
        )
        effective = effective_of(api, pages)
        look = report.Look(
            policy, load, decision, learned, len(pods), len(pages), effective, advice
        )
        await self._report(key, document, watched, look, scaled=scaled)

    def _counted(self, key: ObjectKey, outcomes: list[Outcome]) -> list[MetricsPage]:
        pages = []
        for outcome in outcomes:
            if isinstance(outcome, MetricsPage):
                self._metrics.scraped(key, "success")
                pages.append(outcome)
            else:
                self._metrics.scraped(key, outcome.result)
                log.debug("scrape failed", extra={"api": str(key), "error": str(outcome)})
        return pages

    async def _scale(
        self,
        key: ObjectKey,
        document: JsonObject,
        deployment: DeploymentView,
        policy: ScalingPolicy,
        decision: ScalingDecision,
    ) -> bool:
        if decision.desired == deployment.replicas:
            return False
        body = await self._cluster.get(DEPLOYMENTS, key)
        live = DeploymentView.of(body) if body is not None else None
        if live is None or (live.child.uid, live.replicas) != (
            deployment.child.uid,
            deployment.replicas,
        ):
            # Decided on what is no longer so: the watch is behind, the next look will know.
            return False
        await self._cluster.scale(key, decision.desired)
        text = explain(policy, decision)
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
        note = Note("Normal", "ScaledUp" if up else "ScaledDown", "Scale", text)
        await self._record(key, document["metadata"]["uid"], note)
        return True

    async def _report(
        self,
        key: ObjectKey,
        document: JsonObject,
        watched: _Watched,
        look: report.Look,
        *,
        scaled: bool,
    ) -> None:
        now = self._monotonic()
        due = now - watched.reported >= SECONDS_PER_WRITE
        unsure = 0 < watched.held < LOOKS_BEFORE_HOLD
        if not scaled and (unsure or not due):
            return
        before = document.get("status") or {}
        generation = document["metadata"].get("generation", 0)
        after = report.build_report(look, before, generation, rfc3339(self._wall()), scaled=scaled)
        # of several pieces of advice the condition's reason is that of the first alone
        advised = frozenset(one.reason for one in look.advice)
        if scaled or advised != watched.advised or report.news(before, after):
            await self._write(key, watched.uid, after)
            watched.reported = now
            await self._tell(key, watched.uid, look.advice, watched.advised)
            watched.advised = advised

    async def _stand_aside(self, key: ObjectKey, document: JsonObject, api: BatchedAPI) -> None:
        mode = api.spec.autoscaling.mode
        if key in self._watched:
            self.forget(key)
        before = document.get("status") or {}
        generation = document["metadata"].get("generation", 0)
        advice, now = advice_unseen(api, processes_of(api)), rfc3339(self._wall())
        after = report.inactive_report(mode.value, advice, before, generation, now)
        if report.news(before, after):
            uid = document["metadata"]["uid"]
            await self._write(key, uid, after)
            await self._tell(key, uid, advice, standing_in(before))

    async def _tell(
        self,
        key: ObjectKey,
        uid: str,
        advice: tuple[Advice, ...],
        standing: frozenset[AdviceReason],
    ) -> None:
        for note in notes_of_advice(advice, standing):
            await self._record(key, uid, note)

    async def _record(self, key: ObjectKey, uid: str, note: Note) -> None:
        event = build_event(note, key, uid, micro_time(self._wall()), uuid.uuid4().hex[:16])
        try:
            await self._cluster.create_event(event)
        except ApplyError as error:  # the status says the same: it must be written all the same
            log.warning("event not written", extra={"api": str(key), "error": error.message})

    async def _write(self, key: ObjectKey, uid: str, status: JsonObject) -> None:
        await self._cluster.apply_status(key, uid, status, contract.AUTOSCALER_FIELD_MANAGER)


def _restored(document: Mapping[str, Any]) -> ScalingState:
    """What an earlier operator learned; checked by core, since anybody may edit a status."""
    saved = ((document.get("status") or {}).get("autoscaling") or {}).get("learned")
    return ScalingState.restored(saved)
