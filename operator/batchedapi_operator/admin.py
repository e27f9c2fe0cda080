"""The operator's two ports: health and metrics for everybody; the rest on loopback alone."""

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import prometheus_client
from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from batchedapi_core import contract, ui
from batchedapi_operator.cluster import JsonObject, ObjectKey, section
from batchedapi_operator.store import Store
from batchedapi_operator.views import PodView

log = logging.getLogger(__name__)

# The operator's own metrics; names in contract.py.

_OBJECT: Final = ("namespace", "name")
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class _Figures(NamedTuple):
    """Figures of the last decision about an API."""

    desired: float
    ready: float
    base: float
    capacity: float


_GAUGES: Final = (
    (contract.OPERATOR_DESIRED_REPLICAS, "Replicas decided on."),
    (contract.OPERATOR_READY_REPLICAS, "Pods that are ready."),
    (contract.OPERATOR_DEMAND, "Rows/s arriving, planned for."),
    (contract.OPERATOR_CAPACITY, "Rows/s of one replica within the latency target."),
)
"""In the order of `_Figures`."""


class OperatorMetrics(Collector):
    """All of them, in a registry of their own. Written by the queue and the autoscaler.

    Those of single APIs are numbers until somebody asks: a metric object for each series has 5 KiB
    an API.
    """

    def __init__(self, leads: Callable[[], bool] = lambda: True) -> None:
        self._leads = leads
        self.registry = CollectorRegistry()
        self._figures: dict[ObjectKey, _Figures] = {}
        self._decisions: Counter[tuple[ObjectKey, str]] = Counter()
        self._scrapes: Counter[tuple[ObjectKey, str]] = Counter()
        self.registry.register(self)
        self._reconciles = prometheus_client.Counter(
            contract.OPERATOR_RECONCILES, "Reconcile runs.", ("result",), registry=self.registry
        )
        self._seconds = Histogram(
            contract.OPERATOR_RECONCILE_SECONDS, "Seconds of a reconcile run.", buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip

    def reconciled(self, result: str, seconds: float) -> None:
        """One run of the queue: `success` or `error`."""
        self._reconciles.labels(result).inc()
        self._seconds.observe(seconds)

    def scraped(self, key: ObjectKey, result: str) -> None:
        """One scrape of one pod."""
        self._scrapes[key, result] += 1

    def decided(
        self, key: ObjectKey, reason: str, *, desired: int, ready: int, base: float, capacity: float
    ) -> None:
        """One decision; rates in rows/s."""
        self._decisions[key, reason] += 1
        self._figures[key] = _Figures(desired, ready, base, capacity)

    def forget(self, key: ObjectKey) -> None:
        """Drop the series of an API that is gone or no longer scaled by us."""
        self._figures.pop(key, None)
        for counts in (self._decisions, self._scrapes):
            for one in [one for one in counts if one[0] == key]:
                del counts[one]

    def collect(self) -> Iterator[Metric]:
        """The series of all APIs, and whether this replica leads."""
        leader = "1 of the replica that acts, 0 of one that stands by or is refused."
        yield GaugeMetricFamily(contract.OPERATOR_LEADER, leader, value=float(self._leads()))
        for place, (name, text) in enumerate(_GAUGES):
            gauge = GaugeMetricFamily(name, text, labels=_OBJECT)
            for key, figures in self._figures.items():
                gauge.add_metric((key.namespace, key.name), figures[place])
            yield gauge
        for name, text, label, counts in (
            (contract.OPERATOR_DECISIONS, "Scaling decisions.", "reason", self._decisions),
            (contract.OPERATOR_SCRAPES, "Scrapes of pods.", "result", self._scrapes),
        ):
            counter = CounterMetricFamily(name, text, labels=(*_OBJECT, label))
            for (key, value), count in counts.items():
                counter.add_metric((key.namespace, key.name, value), count)
            yield counter


# Whether the loops of the process go round; what liveness goes by.
#
# A loop that waits for an apiserver that does not answer goes round all the same: its requests
# end after a time. A restart would not help it, and would forget what was seen of every load.


@dataclass(slots=True)
class _Loop:
    longest: float
    """Seconds that a round takes at most."""
    last: float


@dataclass(slots=True)
class Heartbeats:
    """Written by each loop, also of another thread; read by the admin port."""

    monotonic: Callable[[], float] = time.monotonic
    _loops: dict[str, _Loop] = field(default_factory=dict)

    def of(self, name: str, longest: float) -> Callable[[], None]:
        """A function that the loop calls once a round; a round takes `longest` seconds."""
        loop = self._loops[name] = _Loop(longest, self.monotonic())

        def beat() -> None:
            loop.last = self.monotonic()

        return beat

    def all_live(self) -> bool:
        """Whether no loop is overdue; says which one is."""
        now = self.monotonic()
        stuck = [name for name, one in self._loops.items() if now - one.last > one.longest]
        if stuck:
            log.error("loops are stuck", extra={"loops": ", ".join(stuck)})
        return not stuck


DEFAULT_LAST: Final = 10
"""Decisions that are answered with where nobody says how many."""
MOST_LAST: Final = 1000
_DIGITS: Final = len(str(MOST_LAST))  # longer ones are no number: int() refuses thousands of digits

LOOPBACK: Final = "127.0.0.1"
"""Where a port-forward to the pod arrives, and nothing else from outside it."""

Decisions = Callable[[ObjectKey, int], list[JsonObject]]
"""At most so many decisions about an API, the newest first."""
Look = Callable[[str], Awaitable[JsonObject]]
"""All APIs, and the replicas of one: `Fleet.look`."""


@asynccontextmanager
async def admin_server(
    host: str,
    port: int,
    *,
    live: Callable[[], bool],
    ready: Callable[[], str],
    registry: CollectorRegistry,
) -> AsyncIterator[None]:
    """Serve health and metrics until the block ends.

    Args:
        host: To listen on; empty is every interface.
        live: False: the process is stuck and is to be restarted.
        ready: What is missing: the apiserver does not answer, the watches are not open yet, another
            release is in the way. Empty: nothing.
    """

    def health(trouble: str) -> web.Response:
        return web.Response(status=503 if trouble else 200, text=f"{trouble or 'ok'}\n")

    async def on_live(_: web.Request) -> web.Response:
        return health("" if live() else "not ok")

    async def on_ready(_: web.Request) -> web.Response:
        return health(ready())

    async def on_metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app = web.Application()
    app.router.add_get(contract.PATH_LIVE, on_live)
    app.router.add_get(contract.PATH_READY, on_ready)
    app.router.add_get(contract.PATH_METRICS, on_metrics)
    async with _served(app, host or None, port):
        yield


@asynccontextmanager
async def decisions_server(port: int, decisions: Decisions, look: Look) -> AsyncIterator[None]:
    """Serve /decisions/NAMESPACE/NAME, and the page about all APIs, until the block ends.

    It tells of the load of every namespace and asks for no credentials, so it listens on loopback:
    the API server asks for them before it forwards anything there.
    """

    async def on_decisions(request: web.Request) -> web.Response:
        asked = request.query.get("last", str(DEFAULT_LAST))
        number = (
            int(asked) if asked.isascii() and asked.isdecimal() and len(asked) <= _DIGITS else 0
        )
        if not 1 <= number <= MOST_LAST:
            text = f"last: expected a number within 1..{MOST_LAST}, got {asked:.20}"
            return web.json_response({"error": text}, status=400)
        key = ObjectKey(request.match_info["namespace"], request.match_info["name"])
        found = decisions(key, number)
        if not found:
            text = (
                f"no decision about BatchedAPI {key} since this operator began to lead: it decides"
                " every few seconds in mode Native, once a replica is asked for"
            )
            return web.json_response({"error": text}, status=404)
        return web.json_response({"namespace": key.namespace, "name": key.name, "decisions": found})

    async def on_fleet(request: web.Request) -> web.Response:
        return web.json_response(await look(request.query.get("api", "")))

    async def on_page(request: web.Request) -> web.Response:
        found = ui.read(request.path, ui.Mode.FLEET)
        if found is None:
            raise web.HTTPNotFound
        return web.Response(body=found[1], headers={"Content-Type": found[0]})

    app = web.Application()
    app.router.add_get(contract.PATH_FLEET, on_fleet)
    for path in ui.PATHS:
        app.router.add_get(path, on_page)
    app.router.add_get(f"{contract.PATH_DECISIONS}/{{namespace}}/{{name}}", on_decisions)
    async with _served(app, LOOPBACK, port):
        yield


@asynccontextmanager
async def _served(app: web.Application, host: str | None, port: int) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()


# The page about all APIs: a line of each, and the newest pages of one's replicas.

MOST_APIS: Final = 200
"""Lines; whoever has more names one in the address, or uses kubectl."""
MOST_REPLICAS: Final = 32
"""Read for one look of one person; figures are of these, and the page says how many are not."""


Pages = Callable[[Sequence[PodView]], Awaitable[list[str | None]]]
"""The text of each pod's page, in order; None: it was not had."""


class FleetCollector:
    """Reads the store that the watches fill."""

    def __init__(self, store: Store, pages: Pages) -> None:
        self._store = store
        self._pages = pages

    async def look(self, chosen: str) -> JsonObject:
        """All APIs, and the replicas of the one that is `chosen`, as namespace/name.

        Returns:
            `apis`: a line of each, by name; `more`: those that are left out. Where the chosen one
            is known, `pages`: texts by pod, and `missing`: its replicas that are not among them.
        """
        namespace, _, name = chosen.partition("/")
        key = ObjectKey(namespace, name)
        known = sorted(self._store.apis(), key=lambda one: (one != key, str(one)))
        shown = sorted(known[:MOST_APIS], key=str)
        apis: list[JsonObject] = []
        for one in shown:
            view = self._store.api(one)
            status: dict[str, Any] = {} if view is None else view.status
            batching = section(status, "batching")
            decision = section(section(status, "autoscaling"), "lastDecision")
            why = [decision.get("text"), status.get("message"), batching.get("advice")]
            apis.append(
                {
                    "api": str(one),
                    "phase": status.get("phase"),
                    "ready": status.get("readyReplicas"),
                    "wanted": status.get("desiredReplicas"),
                    "why": "; ".join(filter(None, why)),
                }
            )
        lines = {"apis": apis, "more": len(known) - len(shown)}
        if self._store.api(key) is None:
            return lines
        running = [pod for pod in self._store.owned_pods(key) if pod.ip and not pod.gone]
        asked = running[:MOST_REPLICAS]
        texts = await self._pages(asked)
        pages = {pod.name: text for pod, text in zip(asked, texts, strict=True) if text is not None}
        return {**lines, "pages": pages, "missing": len(running) - len(pages)}
