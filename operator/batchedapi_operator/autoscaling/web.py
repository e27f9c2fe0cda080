"""Web pods of an API with one queue: what they tell, and how many of them there are.

Whatever the mode of the API, these are the operator's to scale, on the CPU that their own pages
report; nothing of Redis is asked, and no Secret is read.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from batchedapi_core.manifest import BatchedAPI, parse_quantity
from batchedapi_core.manifest.batching import QueueSpec
from batchedapi_core.scaling.samples import QueueLook
from batchedapi_core.scaling.web import (
    CpuSample,
    WebDecision,
    WebPolicy,
    WebState,
    decide_web,
)
from batchedapi_operator.admin import OperatorMetrics
from batchedapi_operator.autoscaling.metrics_page import WebPage
from batchedapi_operator.autoscaling.scrape import Scraper
from batchedapi_operator.autoscaling.writes import Writes
from batchedapi_operator.cluster import ObjectKey
from batchedapi_operator.errors import MetricsUnavailableError
from batchedapi_operator.outbox import SCALE_EVENT, WEB_REPLICAS, Outbox
from batchedapi_operator.resources import web_name
from batchedapi_operator.store import ApiView, Store
from batchedapi_operator.views import DeploymentView, PodView


@dataclass(frozen=True, slots=True)
class WebLook:
    """One look at the web pods of an API."""

    queue: QueueLook
    pods: tuple[PodView, ...]
    """Ready, and one of them can be asked to wait for rows."""
    text: str
    """Why there are as many of them."""

    @property
    def answered(self) -> int:
        """Number of ready pods that answered."""
        return len(self.queue.samples)


@dataclass(slots=True)
class _Remembered:
    uid: str
    state: WebState


class WebSide:
    """Looks at web pods for the autoscaler's loop."""

    def __init__(
        self,
        store: Store,
        scraper: Scraper,
        metrics: OperatorMetrics,
        writes: Writes,
        *,
        outbox: Outbox,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._scraper = scraper
        self._metrics = metrics
        self._outbox = outbox
        self._writes = writes
        self._clock = clock
        self._known: dict[ObjectKey, _Remembered] = {}
        self.told: dict[ObjectKey, float] = {}
        """APIs with a queue, and when a status had news of that alone last, monotonic seconds."""

    def forget(self, key: ObjectKey) -> None:
        """The API is gone, or has no queue any more."""
        self._outbox.withdraw(key, WEB_REPLICAS)
        self._known.pop(key, None)
        self.told.pop(key, None)

    async def look(
        self, key: ObjectKey, view: ApiView, api: BatchedAPI, workers: DeploymentView | None
    ) -> WebLook | None:
        """Read the web pods of `api`, and have as many as are needed.

        Returns:
            None where there are none to be looked at: it has no queue, or they are yet to be made.
        """
        queue, web = api.spec.server_side_batching.queue, self._store.web(key)
        known = self._known.get(key)
        self.told.setdefault(key, -math.inf)
        if queue is None or workers is None or web is None or web.child.owner_uid != view.uid:
            if known is not None:
                self.forget(key)
            return None
        pods = tuple(one for one in self._store.web_pods(key) if one.ready and not one.gone)
        pages = []
        for outcome in await self._scraper.scrape_web(pods):
            if isinstance(outcome, MetricsUnavailableError):
                self._metrics.scraped(key, outcome.result)
            else:
                self._metrics.scraped(key, "success")
                pages.append(outcome)
        if known is None or known.uid != view.uid:
            known = self._known[key] = _Remembered(view.uid, WebState())
        text = self._scale(key, web, queue, known, pages=None if api.spec.paused else pages)
        told = web.revision == workers.revision and web.settled and web.ready > 0
        look = QueueLook(
            samples=tuple(page.sample for page in pages),
            ready=max(len(pods), web.ready),
            rows=max((page.rows for page in pages), default=0.0),
            oldest=max((page.oldest for page in pages), default=0.0),
            told=told and web.existing <= web.updated,
        )
        return WebLook(look, pods, text)

    def _scale(
        self,
        key: ObjectKey,
        web: DeploymentView,
        queue: QueueSpec,
        known: _Remembered,
        *,
        pages: Sequence[WebPage] | None,
    ) -> str:
        """Have as many as are needed, and say why; None for `pages`: the API is paused."""
        bounds = queue.web
        decision, known.state = decide_web(
            WebPolicy(bounds.min_replicas, bounds.max_replicas, parse_quantity(bounds.cpu)),
            known.state,
            [CpuSample(one.sample.pod, one.sample.time, one.cpu) for one in pages or ()],
            ready=web.ready,
            current=web.replicas,
            now=self._clock(),
        )
        if pages is None or decision.desired == web.replicas:
            self._outbox.withdraw(key, WEB_REPLICAS)
        else:
            send = partial(self._send, key, known.uid, web, decision)
            self._outbox.put(key, WEB_REPLICAS, send)
        return f"{decision.desired} web pods: {decision.text}"

    async def _send(
        self, key: ObjectKey, uid: str, web: DeploymentView, decision: WebDecision
    ) -> None:
        own = ObjectKey(key.namespace, web_name(key.name))
        text = f"{decision.desired} web pods: {decision.text}"
        note = await self._writes.scale_to(own, web, decision.desired, "web pods", text)
        if note is not None:
            self._outbox.put(key, SCALE_EVENT, self._writes.events(key, uid, (note,)))
