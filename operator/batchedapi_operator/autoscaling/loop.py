"""Every two seconds, for every API: scrape, decide (in core), scale, report."""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from batchedapi_core.bottleneck import (
    SHORTEST_WINDOW,
    batches_fill,
    diagnose,
    target_met,
)
from batchedapi_core.manifest import BatchedAPI, ScalingMode, has_gpus
from batchedapi_core.placement import AdviceReason, SpecAdvice
from batchedapi_core.scaling.decide import decide
from batchedapi_core.scaling.observe import observe
from batchedapi_core.scaling.policy import SECONDS_BETWEEN_LOOKS
from batchedapi_core.scaling.recommendation import Batching
from batchedapi_core.scaling.samples import Observation
from batchedapi_operator.admin import OperatorMetrics
from batchedapi_operator.autoscaling import report
from batchedapi_operator.autoscaling.advice import (
    advice_seen,
    advice_unseen,
    batching_seen,
    is_tuned,
    notes_of_advice,
    standing_in,
)
from batchedapi_operator.autoscaling.bottleneck import evidence_of, padding_percent, release_percent
from batchedapi_operator.autoscaling.canary import Trials
from batchedapi_operator.autoscaling.in_effect import (
    effective_of,
    policy_of,
    processes_of,
    refusal_of,
    samples_of,
    unready_of,
    with_replicas,
)
from batchedapi_operator.autoscaling.metrics_page import MetricsPage
from batchedapi_operator.autoscaling.report import (
    BROKEN_OR_MENDED,
    conditions_differ,
    is_old,
    news,
    states_differ,
)
from batchedapi_operator.autoscaling.scrape import Outcome, Scraper
from batchedapi_operator.autoscaling.watched import (
    SECONDS_BEFORE_HOLD,
    DecisionRing,
    FullCluster,
    Manifests,
    Watched,
)
from batchedapi_operator.autoscaling.web import WebLook, WebSide
from batchedapi_operator.autoscaling.writes import Writes
from batchedapi_operator.cluster import JsonObject, ObjectKey, rfc3339, utc_now
from batchedapi_operator.errors import InvalidSpecError
from batchedapi_operator.kube import Kube
from batchedapi_operator.outbox import (
    ADVICE_EVENTS,
    AUTOSCALER_STATUS,
    METRICS_EVENT,
    MINUTES,
    REPLICAS,
    SCALE_EVENT,
    WEB_REPLICAS,
    News,
    Outbox,
)
from batchedapi_operator.store import ApiView, Store
from batchedapi_operator.views import DeploymentView, PodView

log = logging.getLogger(__name__)

SECONDS_PER_REPORT: Final = 3.0
"""At least, between two reports on one API that scaled nothing: at every other look. A changed
condition is found that soon."""
SHORTEST_LOOK_SECONDS: Final = 0.5
"""Between two looks at one API: of less time it cannot be told how much arrives."""
SECONDS_PER_WRITE: Final = 10.0
"""Between two writes on one API in which no condition changed."""


def _answering(pods: Sequence[PodView]) -> tuple[PodView, ...]:
    return tuple(one for one in pods if one.ready and not one.gone)


@dataclass(frozen=True, slots=True)
class _Subject:
    """The API that is looked at, as the watches brought it."""

    key: ObjectKey
    view: ApiView
    api: BatchedAPI
    deployment: DeploymentView
    watched: Watched
    front: WebLook | None = None
    """Web pods; None without one queue for all replicas."""
    tried: tuple[PodView, ...] = ()
    """Ready pods of a canary."""


class Autoscaler:
    """The loop. Everything that is decided is decided in core."""

    def __init__(
        self,
        cluster: Kube,
        store: Store,
        scraper: Scraper,
        metrics: OperatorMetrics,
        outbox: Outbox,
        *,
        decided: Callable[[ObjectKey], object] = lambda _: None,
        beat: Callable[[], None] = lambda: None,
        leads: Callable[[], bool] = lambda: True,
        wall: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writes = Writes(cluster, wall)
        self._store = store
        self._scraper = scraper
        self._metrics = metrics
        self._outbox = outbox
        self._beat = beat
        self._leads = leads
        self._wall = wall
        self._monotonic = monotonic
        self._manifests = Manifests()
        self._watched: dict[ObjectKey, Watched] = {}
        self._looking: set[ObjectKey] = set()
        """APIs at which a look is under way; a slow one delays its next, and no other's."""
        self._web = WebSide(store, scraper, metrics, self._writes, outbox=outbox, clock=monotonic)
        self._full = FullCluster()
        self.trials = Trials(decided)
        self._tasks: asyncio.TaskGroup | None = None
        self.decisions = DecisionRing()

    async def run(self) -> None:
        """Look again and again until cancelled, while this replica leads.

        Looks of a round begin evenly: all at once would take the memory of all pages at once.
        """
        async with asyncio.TaskGroup() as looks:
            self._tasks = looks
            while True:
                started = self._monotonic()
                keys = self._store.apis() if self._leads() else ()
                self._beat()
                for number, key in enumerate(keys, 1):
                    if key not in self._looking:
                        looks.create_task(self._guarded(key), name=f"look at {key}")
                    await self._until(started + SECONDS_BETWEEN_LOOKS * number / len(keys))
                await self._until(started + SECONDS_BETWEEN_LOOKS)

    async def _until(self, time: float) -> None:
        await asyncio.sleep(max(0.0, time - self._monotonic()))

    async def round(self) -> None:
        """One look at every API."""
        await asyncio.gather(*map(self._guarded, self._store.apis()))

    def forget(self, key: ObjectKey) -> None:
        """The API is gone."""
        self._stop_watching(key)
        self.trials.forget(key)
        self._manifests.forget(key)
        self._full.forget(key)
        self.decisions.forget(key)

    def clear(self) -> None:
        """Another replica looks from now on: what was learned is in the statuses."""
        for key in tuple(self._watched):
            self.forget(key)
        self._full = FullCluster()
        self.trials.clear()

    def _stop_watching(self, key: ObjectKey) -> None:
        self._outbox.withdraw(key, REPLICAS)
        self._web.forget(key)
        self._watched.pop(key, None)
        self._metrics.forget(key)

    async def _guarded(self, key: ObjectKey) -> None:
        self._looking.add(key)
        try:
            await self._look(key)
        except Exception:  # the autoscaler's loop: one bad API must not stop the others
            if self._store.api(key) is not None:
                self._metrics.scraped(key, "error")
            log.exception("autoscaling failed unexpectedly", extra={"api": str(key)})
        finally:
            self._looking.discard(key)

    async def _look(self, key: ObjectKey) -> None:
        view, deployment = self._store.api(key), self._store.deployment(key)
        if view is None:
            return
        if deployment is not None and deployment.child.owner_uid != view.uid:
            deployment = None
        try:
            api = self._manifests.of(key, view)
        except InvalidSpecError:
            self._outbox.withdraw(key, REPLICAS)  # decided for an earlier spec
            self._full.forget(key)
            return  # the reconciler has said so; the replicas stay as they are
        owned, gpu = self._store.owned_pods(key), has_gpus(api)
        self._full.look(key, owned, self._wall(), gpu=gpu)
        native = api.spec.autoscaling.mode is ScalingMode.NATIVE
        front = None
        if api.spec.server_side_batching.queue is None:
            if key in self._web.told:
                self._web.forget(key)
        else:
            front = await self._web.look(key, view, api, deployment)
            if native and front is None:
                return  # its web pods are yet to be made, or to be brought by the watch
        tried = self._tried(key, view)
        if deployment is not None and native:
            watched = self._remembered(key, view)
            await self._scraped(_Subject(key, view, api, deployment, watched, front, tried))
        elif deployment is not None or api.spec.paused:
            outcomes = list[Outcome]()
            if tried:
                outcomes = await self._scraper.scrape((*_answering(owned), *tried))
            pages = [one for one in outcomes if isinstance(one, MetricsPage)]
            self._measure(key, api, deployment, pages)
            self._stand_aside(key, view, api, front)

    def _tried(self, key: ObjectKey, view: ApiView) -> tuple[PodView, ...]:
        """Ready pods of a canary beside the API's own; what it has shown goes with it.

        They answer, and so count, until they go, whatever the manifest says meanwhile.
        """
        if self._canary(key, view.uid) is None:
            if key in self.trials.known:
                self.trials.forget(key)
            return ()
        return _answering(self._store.canary_pods(key))

    def _canary(self, key: ObjectKey, uid: str) -> DeploymentView | None:
        """NAME-canary of the API with that uid, where it is to have pods."""
        canary = self._store.canary(key)
        ours = canary is not None and canary.child.owner_uid == uid and canary.replicas > 0
        return canary if ours else None

    def _measure(
        self,
        key: ObjectKey,
        api: BatchedAPI,
        beside: DeploymentView | None,
        pages: Sequence[MetricsPage],
    ) -> None:
        """Compare the canary with the pods that it is beside, also where none of it answers."""
        canary = None if beside is None else self._canary(key, beside.child.owner_uid)
        if canary is not None and beside is not None and canary.revision != beside.revision:
            self.trials.look(key, api, (beside.revision, canary.revision), pages, self._monotonic())

    def _remembered(self, key: ObjectKey, view: ApiView) -> Watched:
        watched = self._watched.get(key)
        if watched is not None and watched.uid == view.uid:
            return watched
        if watched is not None:
            self.decisions.forget(key)  # they are about a deleted API of the same name
        watched = self._watched[key] = Watched.restored(view.uid, view.status)
        return watched

    async def _scraped(self, subject: _Subject) -> None:
        """Read the pages of the ready pods, and act on them."""
        key, watched, front = subject.key, subject.watched, subject.front
        pods = [*_answering(self._store.owned_pods(key)), *subject.tried]
        outcomes = await self._scraper.scrape(pods)
        if self._watched.get(key) is not watched:
            return  # deleted meanwhile: its series were dropped and must not come back
        decided = self._decide(subject, pods, outcomes)
        self._act(subject, decided)
        self._record(subject, decided)
        self._measure(key, subject.api, subject.deployment, decided.pages)
        if front is not None and subject.deployment.replicas == decided.decision.desired == 0:
            self._wait_for_rows(key, front.pods, watched)

    def _wait_for_rows(self, key: ObjectKey, pods: Sequence[PodView], watched: Watched) -> None:
        """Look again at once when there are any: each second counts for who sent the first."""
        if self._tasks is None or watched.waits or not pods:
            return

        async def wait() -> None:
            try:
                if not await self._scraper.rows_come(random.choice(pods)):  # noqa: S311 - any of them
                    return
                seen = watched.state.seen or 0.0
                await self._until(seen + SHORTEST_LOOK_SECONDS)
                if self._watched.get(key) is watched and key not in self._looking and self._leads():
                    await self._guarded(key)
            finally:
                watched.waits = False

        watched.waits = True
        self._tasks.create_task(wait(), name=f"wait for rows of {key}")

    def _decide(
        self, subject: _Subject, pods: list[PodView], outcomes: list[Outcome]
    ) -> report.Decided:
        key, watched, deployment = subject.key, subject.watched, subject.deployment
        pages, now = self._believed(subject, pods, outcomes), self._monotonic()
        found, names = tuple(pages), {pod.uid: pod.name for pod in pods}
        owned, gpu = self._store.owned_pods(key), has_gpus(subject.api)
        policy = policy_of(subject.api, found, watched.state, now, self._another(subject))
        front = subject.front
        samples, beside = samples_of(subject.api, found), len(subject.tried)
        seen = Observation(
            samples=samples,
            ready=watched.ready_pods(len(pods) - beside, deployment.ready) + beside,
            current=deployment.replicas,
            revision=deployment.revision,
            unready=unready_of(deployment, owned, self._wall()),
            wanted=self._full.wanted(key, owned, gpu=gpu),
            queue=None if front is None else with_replicas(front.queue, pods, samples),
            wall=self._wall().timestamp(),
        )
        load, state = observe(policy, watched.state, seen, now)
        decision, watched.state = decide(policy, load, state, now)
        watched.tally = watched.tally.looked(load.changes, names, now, policy.window)
        if not decision.is_hold:
            watched.held_since = None
        elif watched.held_since is None:
            watched.held_since = now
        self.decisions.add(key, self._wall(), policy, decision)
        self._metrics.decided(
            key,
            decision.reason,
            desired=decision.desired,
            ready=seen.ready,
            base=decision.terms.base,
            capacity=decision.terms.capacity,
        )
        return report.Decided(policy, load, decision, seen.ready, found, front)

    def _another(self, subject: _Subject) -> str | None:
        """Digest of what the replicas run; None: it is the manifest's, or will be."""
        canary, revision = self._canary(subject.key, subject.view.uid), subject.deployment.revision
        beside = canary is not None and canary.revision != revision
        return revision if beside or subject.deployment.given_up is not None else None

    def _believed(
        self, subject: _Subject, pods: list[PodView], outcomes: list[Outcome]
    ) -> list[MetricsPage]:
        """Pages that came and can be true after those before."""
        key = subject.key
        pages: list[MetricsPage] = []
        before = {sample.pod: sample for sample in subject.watched.state.samples}
        for pod, outcome in zip(pods, outcomes, strict=True):
            if isinstance(outcome, MetricsPage):
                refusal = refusal_of(subject.api, pod.name, outcome, before.get(pod.uid))
            else:
                refusal = outcome
            if isinstance(outcome, MetricsPage) and refusal is None:
                pages.append(outcome)
            self._metrics.scraped(key, "success" if refusal is None else refusal.result)
            if refusal is not None:
                log.debug("scrape failed", extra={"api": str(key), "error": str(refusal)})
        return pages

    def _act(self, subject: _Subject, decided: report.Decided) -> None:
        key, watched, deployment = subject.key, subject.watched, subject.deployment
        decision, now = decided.decision, self._monotonic()
        newest = self._store.api(key)  # paused, or taken over by others, since the look began?
        changed = newest is None or newest.spec_version != subject.view.spec_version
        paused = subject.api.spec.paused or changed
        if paused or decision.desired == deployment.replicas:
            self._outbox.withdraw(key, REPLICAS)
        else:
            self._outbox.put(key, REPLICAS, partial(self._scale, subject, decided))
        note = watched.note_of_hold(decision, decided.sentence, now)
        if note is not None:
            self._outbox.put(key, METRICS_EVENT, self._writes.events(key, watched.uid, (note,)))
        due = now - watched.reported >= SECONDS_PER_REPORT
        held = watched.held_since
        unsure = held is not None and now - held < SECONDS_BEFORE_HOLD
        if watched.scale_untold or (due and not unsure):
            watched.reported = now
            self._report(subject, decided)

    def _record(self, subject: _Subject, decided: report.Decided) -> None:
        """Keep what the look brought; of some minutes together it is written."""
        key = subject.key
        pods = (*self._store.owned_pods(key), *self._store.canary_pods(key))
        there = (one for one in pods if one.ending or not one.gone)
        placed = sum(one.ready or one.placed is not None for one in there)
        if subject.watched.brought(decided.load, placed, decided.policy.lanes):
            self._outbox.put(key, MINUTES, partial(self._send_minutes, subject))

    async def _send_minutes(self, subject: _Subject) -> None:
        watched, sent = subject.watched, subject.watched.minutes
        await self._writes.record(subject.api, sent)
        written = set(sent)  # of a whole day meanwhile the first may have gone
        watched.minutes = tuple(one for one in watched.minutes if one not in written)

    async def _scale(self, subject: _Subject, decided: report.Decided) -> None:
        key, watched, why = subject.key, subject.watched, decided.sentence()
        note = await self._writes.scale(key, subject.deployment, decided.decision, why)
        if note is None:
            return
        watched.scaled(rfc3339(self._wall()))
        if self._watched.get(key) is watched:
            self._report(subject, decided)
            self._outbox.put(key, SCALE_EVENT, self._writes.events(key, watched.uid, (note,)))

    def _report(self, subject: _Subject, decided: report.Decided) -> None:
        key, watched, look = subject.key, subject.watched, self._judged(subject, decided)
        newest, now, wall = self._store.api(key), self._monotonic(), self._wall()
        before = {} if newest is None else newest.status
        after = report.build_report(
            look, before, subject.view.generation, rfc3339(wall), last_scale=watched.last_scale
        )
        told = look.advised == watched.advised and not states_differ(before, after)
        old = decided.has_load() and is_old(before, watched.uid, wall)
        if not (watched.scale_untold or not told or old or news(before, after)):
            self._outbox.withdraw(key, AUTOSCALER_STATUS)
            return
        changed = conditions_differ(before, after)
        if not (watched.scale_untold or changed or now - watched.written >= SECONDS_PER_WRITE):
            return  # soon enough, and what waits to be sent is hardly older
        watched.written = now
        kind = News.FIGURES if told and not watched.scale_untold else News.STATE
        if conditions_differ(before, after, BROKEN_OR_MENDED):
            kind = News.CONDITION
        recommended = partial(self._recommended, subject, decided, before, wall)
        send = partial(self._send_report, subject, look, after, watched.last_scale, recommended)
        self._outbox.put(key, AUTOSCALER_STATUS, send, kind)

    async def _send_report(
        self,
        subject: _Subject,
        look: report.Look,
        after: JsonObject,
        scaled: str | None,
        recommended: Callable[[], JsonObject],
    ) -> None:
        key, watched = subject.key, subject.watched
        if look.tuned:  # only of what is sent: it takes 0.3 ms
            after["recommendation"] = recommended()
        await self._writes.status(key, watched.uid, after)
        watched.scale_untold = watched.last_scale != scaled
        self._tell_advice(key, watched.uid, look.advice, watched.advised)
        watched.advised = look.advised

    def _unwritten(self, key: ObjectKey) -> str:
        """The apiserver's answer to replicas that are still to be set; empty without one."""
        return self._outbox.failure(key, REPLICAS) or self._outbox.failure(key, WEB_REPLICAS)

    def _recommended(
        self,
        subject: _Subject,
        decided: report.Decided,
        before: Mapping[str, Any],
        wall: datetime,
    ) -> JsonObject:
        policy = decided.policy
        found = batching_seen(
            subject.api,
            decided.pages,
            policy,
            decided.load,
            subject.watched.state.in_use,
            standing=report.recommended(before) is not None,
        )
        return report.recommendation(found, Batching.in_effect(policy), before, wall)

    def _tell_advice(
        self,
        key: ObjectKey,
        uid: str,
        advice: tuple[SpecAdvice, ...],
        standing: frozenset[AdviceReason],
    ) -> None:
        """An event for each piece that is new."""
        notes = notes_of_advice(advice, standing)
        if notes and self._store.api(key) is not None:
            self._outbox.put(key, ADVICE_EVENTS, self._writes.events(key, uid, notes))

    def _judged(self, subject: _Subject, decided: report.Decided) -> report.Look:
        """The look with its verdict: what limits the API, and what to change."""
        api, watched, pages = subject.api, subject.watched, decided.pages
        pods, seconds = watched.tally.by_pod(), watched.tally.seconds
        if watched.verdict is not None or seconds >= SHORTEST_WINDOW:  # else the status stands
            evidence = evidence_of(api, decided.policy, decided.load, pods, seconds)
            now = self._monotonic()
            watched.verdict = diagnose(evidence, watched.verdict, now)
            watched.target = target_met(evidence, watched.target, now)
            watched.filling = batches_fill(evidence, watched.verdict, watched.filling, now)
        return report.Look(
            decided,
            watched.state.to_saved(),
            effective_of(api, pages),
            advice_seen(
                api,
                processes_of(api, pages),
                pages,
                decided.policy,
                decided.load,
                standing=watched.advised,
            ),
            watched.verdict,
            release_percent(pods),
            padding_percent(pods),
            watched.target,
            watched.filling,
            is_tuned(api),
            self._unwritten(subject.key),
        )

    def _stand_aside(
        self, key: ObjectKey, view: ApiView, api: BatchedAPI, front: WebLook | None
    ) -> None:
        before, uid, generation = view.status, view.uid, view.generation
        advice, now = advice_unseen(api, processes_of(api)), rfc3339(self._wall())
        watched = self._watched.get(key)
        seen = watched.seen() if watched is not None and watched.uid == uid else {}
        after = report.inactive_report(
            api, advice, before, generation, now,
            seen=seen, front=front, unwritten=self._unwritten(key),
        )  # fmt: skip

        async def tell() -> None:
            native = api.spec.autoscaling.mode is ScalingMode.NATIVE
            if native and await self._writes.watch_is_behind(key, uid):
                return  # paused, and there are replicas to look at as soon as the watch brings them
            await self._writes.status(key, uid, after)
            self._tell_advice(key, uid, advice, standing_in(before))

        if news(before, {**after, "queue": before.get("queue")}):
            self._outbox.withdraw(key, REPLICAS)
            self._outbox.put(key, AUTOSCALER_STATUS, tell, News.CONDITION)
            return
        if watched is not None:  # only now: a write that failed is tried with what was seen
            self._stop_watching(key)
        if not news(before, after):
            self._outbox.withdraw(key, AUTOSCALER_STATUS)
        elif self._monotonic() - self._web.told.get(key, -math.inf) >= SECONDS_PER_WRITE:
            if front is not None:
                self._web.told[key] = self._monotonic()
            self._outbox.put(key, AUTOSCALER_STATUS, tell, News.FIGURES)
