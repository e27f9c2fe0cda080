"""The operator's process: its parts, brought up together and stopped together."""

import asyncio
import gc
import logging
import platform
import random
import signal
import time
import uuid
from asyncio import sslproto
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from batchedapi_core import contract
from batchedapi_core.manifest import SPREAD, Pod
from batchedapi_operator.admin import (
    FleetCollector,
    Heartbeats,
    OperatorMetrics,
    admin_server,
    decisions_server,
)
from batchedapi_operator.autoscaling.loop import Autoscaler
from batchedapi_operator.autoscaling.scrape import Scraper
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    SERVICES,
    Namespaces,
    ObjectKey,
    Resource,
)
from batchedapi_operator.election import LEADER_SECONDS, Permit
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.handlers import WATCH_SECONDS, SourceWatch, WatchScope, watch_cluster
from batchedapi_operator.kube import CONNECTIONS, Kube
from batchedapi_operator.leader import Elector, Identity
from batchedapi_operator.logs import LogFormat
from batchedapi_operator.outbox import Outbox
from batchedapi_operator.queue import LARGEST_UNHEARD, WorkQueue, backoff, first_of
from batchedapi_operator.reconcile.reconciler import Reconciler
from batchedapi_operator.resources.policies import Policies
from batchedapi_operator.store import Store

log = logging.getLogger(__name__)

TLS_BUFFER: Final = 32 * 1024
"""Bytes of each connection to the apiserver, of which there are two dozen: two records of TLS.
With asyncio's quarter of a MiB they had 6 MiB, and what OpenSSL keeps grows with it."""
COLLECTIONS: Final = (700, 10, 2)
"""When garbage in circles is looked for. kopf leaves some with each event, with the whole object in
it: 2 MiB in the first 20 s with 100 APIs, by CPython's (700, 10, 10). What was imported is left out
of it, and of the rule that waits for new objects to be a quarter of all."""
RELIST_SECONDS: Final = 30.0
"""Between two lists of APIs and children: what was deleted while a watch was cut off comes back."""
RESYNC_SECONDS: Final = 600.0
"""Between two looks at every API, whatever lists and watches say."""
SECONDS_TO_WATCH_AGAIN: Final = 6.0
"""After an apiserver that did not answer does, all watches are open again; what was deleted before
they were is told by none of them."""
LISTED: Final = (BATCHED_APIS, DEPLOYMENTS, SERVICES, CONFIG_MAPS)
CONNECTIONS_OF_LEASES: Final = 4
"""At most: an operator of many named namespaces has many claims to renew."""
WRITES_END_SECONDS: Final = float(LEADER_SECONDS)
"""For which writes under way are waited for at the end, before another replica may lead: none has
more time than the Lease, which would run out by then."""
STUCK_SECONDS: Final = 60.0
"""Within which each loop goes round, whether or not the apiserver answers."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a user may set on the operator: by a flag, else the environment, else so."""

    serving_image: str
    """For APIs whose manifest names none; an unchanged revision keeps the image it has."""
    namespaces: Namespaces = field(default_factory=Namespaces)
    policies: Policies = field(default_factory=Policies)
    log_level: str = "info"
    log_format: LogFormat = LogFormat.JSON
    admin_host: str = ""
    """Empty: every interface, IPv4 and IPv6."""
    admin_port: int = contract.OPERATOR_ADMIN_PORT
    decisions_port: int = contract.OPERATOR_DECISIONS_PORT
    """Always on loopback."""
    pod_defaults: Pod = SPREAD
    """Under the settings of the pods of every API, from its next revision on."""
    image_volumes: bool = False
    """Images of models are mounted by Kubernetes, and not pulled by replicas."""
    lease_name: str = contract.MANAGED_BY
    """Name of the Lease that the replicas of a release share: its holder acts."""
    lease_namespace: str = "default"
    pod_name: str = field(default_factory=platform.node)
    """Holder's name in the Lease, before the part that makes each process another."""


async def run(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    sslproto.SSLProtocol.max_size = TLS_BUFFER
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTIONS)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    permit = Permit()
    process = f"{settings.pod_name}_{uuid.uuid4()}"
    release = ObjectKey(settings.lease_namespace, settings.lease_name)
    identity = Identity(process, release, settings.namespaces)
    async with (
        Kube.connected(permit, CONNECTIONS + len(settings.namespaces.lists)) as kube,
        # connections of its own: whatever the other ones wait for, the Lease is renewed
        Kube.connected(connections=CONNECTIONS_OF_LEASES) as kube_of_leases,
        Scraper.opened() as scraper,
    ):
        elector = Elector(kube_of_leases, identity, permit)
        operator = _Operator(settings, kube, scraper, elector, permit)
        work = asyncio.create_task(operator.run(), name="operator")
        stopped = asyncio.create_task(stop.wait(), name="stop signal")
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        permit.end()
        deadline = time.monotonic() + WRITES_END_SECONDS
        while permit.under_way and time.monotonic() < deadline:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.02)
        # else the Lease is left to run out: the apiserver may carry out what it was sent
        if not permit.under_way:
            await elector.resign()
        for task in (work, stopped):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await work
    log.info("operator stopped")


class _Operator:
    """The parts of the process. They work while the elector says that this replica leads."""

    def __init__(
        self, settings: Settings, kube: Kube, scraper: Scraper, elector: Elector, permit: Permit
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._elector = elector
        self._beats = Heartbeats()
        self._store = Store()
        self._metrics = OperatorMetrics(lambda: elector.leads and permit.valid)
        self._outbox = Outbox(beat=self._beats.of("outbox", STUCK_SECONDS))
        self._autoscaler = Autoscaler(
            kube,
            self._store,
            scraper,
            self._metrics,
            self._outbox,
            decided=self._enqueue,
            beat=self._beats.of("autoscaler", STUCK_SECONDS),
            leads=self._leads,
        )
        self._fleet = FleetCollector(self._store, scraper.whole_pages)
        reconciler = Reconciler(
            kube,
            self._store,
            self._outbox,
            settings.serving_image,
            policies=settings.policies,
            pod_defaults=settings.pod_defaults,
            image_volumes=settings.image_volumes,
            forget=self._autoscaler.forget,
            judged=self._autoscaler.trials.judged,
        )
        self._queue = WorkQueue(reconciler.reconcile, self._metrics.reconciled)
        self._watched = WatchScope(settings.namespaces, settings.policies.kinds)
        self._watching = asyncio.Event()
        self._returned = asyncio.Event()
        self._sources = [
            self._source_watch(one, f"watch of ConfigMaps in {one or settings.namespaces}")
            for one in settings.namespaces.lists
        ]

    def _source_watch(self, namespace: str | None, name: str) -> SourceWatch:
        beat = self._beats.of(name, WATCH_SECONDS + STUCK_SECONDS)
        return SourceWatch(self._kube, self._store, self._queue, namespace, beat)

    def _enqueue(self, key: ObjectKey) -> None:
        self._queue.enqueue(key)

    def _leads(self) -> bool:
        return self._elector.leads

    async def run(self) -> None:
        """Serve the ports and work until cancelled."""
        settings = self._settings
        await self._queue.close()  # until this replica leads
        self._kube.answering.tell(self._go_on)
        async with (
            admin_server(
                settings.admin_host,
                settings.admin_port,
                live=self._beats.all_live,
                ready=self._missing,
                registry=self._metrics.registry,
            ),
            decisions_server(
                settings.decisions_port, self._autoscaler.decisions.last, self._fleet.look
            ),
        ):
            facts = {"image": settings.serving_image, "namespaces": str(settings.namespaces)}
            log.info("operator started", extra=facts)
            try:
                await self._tasks()
            finally:
                await self._queue.close()

    async def _tasks(self) -> None:
        kube, store, queue, watched = self._kube, self._store, self._queue, self._watched
        of_election = self._beats.of("election", STUCK_SECONDS)
        of_watches = self._beats.of("watches", STUCK_SECONDS)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._elector.run(self._begin, self._go_on, self._end, of_election))
            tasks.create_task(self._outbox.run())
            tasks.create_task(self._autoscaler.run())
            tasks.create_task(
                _watch(kube, store, queue, watched, watching=self._watching, beat=of_watches)
            )
            for one in self._sources:
                tasks.create_task(one.run())
            tasks.create_task(
                _resync(kube, store, queue, watched, self._returned, leads=self._leads)
            )

    def _missing(self) -> str:
        """Why this process is not ready; empty if it is."""
        # a namespace that is not there yet holds nobody up
        watched = self._watching.is_set() and any(one.connected for one in self._sources)
        return self._elector.trouble or ("" if watched else "the watches are not open yet")

    def _begin(self) -> None:
        """Work: this replica leads from now on."""
        self._queue.open()
        for key in self._store.apis():
            self._queue.enqueue(key)
        self._returned.set()

    def _go_on(self) -> None:
        """Try again at once what failed: the apiserver answers, or this replica leads again."""
        self._outbox.go_on()
        self._queue.go_on()
        self._returned.set()

    async def _end(self) -> None:
        """Drop all work: another replica may lead."""
        await self._queue.close()
        self._outbox.clear()
        self._autoscaler.clear()


async def _watch(
    kube: Kube,
    store: Store,
    queue: WorkQueue,
    watched: WatchScope,
    *,
    watching: asyncio.Event,
    beat: Callable[[], None],
) -> None:
    """kopf, started again whenever a watch of its ends it, or it can watch one namespace more."""
    failures = 0
    while True:
        readable = await _readable(kube, watched, beat)
        started = time.monotonic()
        watches = asyncio.create_task(watch_cluster(store, queue, readable, watching, beat))
        more = asyncio.create_task(_another_readable(kube, watched, readable))
        try:
            await asyncio.wait((watches, more), return_when=asyncio.FIRST_COMPLETED)
            if watches.done() and (error := watches.exception()) is not None:
                # the boundary to kopf: a broken watch must not end the other parts
                log.error("watches failed", exc_info=error)
        finally:
            watches.cancel()
            more.cancel()
        failures = 1 if time.monotonic() - started > STUCK_SECONDS else failures + 1
        watching.clear()
        beat()
        await asyncio.sleep(backoff(failures, largest=LARGEST_UNHEARD))


async def _readable(kube: Kube, watched: WatchScope, beat: Callable[[], None]) -> WatchScope:
    """The namespaces of which everything can be listed; waits until there are any.

    kopf looks for the CRD once, when it starts, and one watch that is refused ends all of them.
    """
    failures = 0
    while True:
        beat()
        found = [one for one in watched.namespaces.lists if await _listed(kube, one, watched)]
        if found:
            named = tuple(one for one in found if one is not None)
            return replace(watched, namespaces=Namespaces(named))
        failures += 1
        await asyncio.sleep(backoff(failures, largest=LARGEST_UNHEARD))


async def _another_readable(kube: Kube, watched: WatchScope, readable: WatchScope) -> None:
    """Return once there is one more: it was made, or the right to it was granted."""
    while True:
        await asyncio.sleep(RELIST_SECONDS)
        for one in watched.namespaces.named:
            if one not in readable.namespaces.named and await _listed(kube, one, watched):
                return


async def _listed(kube: Kube, namespace: str | None, watched: WatchScope) -> bool:
    """Whether everything that is watched can be listed there; the log says what cannot."""
    for resource in watched.kinds:
        try:
            await kube.check_list(resource, namespace)
        except ApplyError as error:
            facts = {"resource": resource.plural, "namespace": namespace, "error": error.message}
            log.warning("waiting to be able to watch", extra=facts)
            return False
    return True


async def _resync(
    cluster: Kube,
    store: Store,
    queue: WorkQueue,
    watched: WatchScope,
    returned: asyncio.Event,
    *,
    leads: Callable[[], bool] = lambda: True,
) -> None:
    """Queue the APIs that are not as the watches said, and now and then all of them.

    A watch that is opened again lists what there is, and tells of nothing that is gone. `returned`
    is set when the apiserver answers again: then lists are due at once, and after the watches.
    """
    clock = asyncio.get_running_loop().time
    longest, all_due = RELIST_SECONDS, clock() + RESYNC_SECONDS
    while True:
        await first_of(returned, seconds=longest * random.uniform(0.8, 1.0))  # noqa: S311 - jitter
        longest = SECONDS_TO_WATCH_AGAIN if returned.is_set() else RELIST_SECONDS
        returned.clear()
        if not leads():
            continue  # whoever begins to lead queues all of them
        if clock() >= all_due:
            all_due = clock() + RESYNC_SECONDS
            for key in store.apis():
                queue.enqueue(key)
        for namespace, resource in product(watched.namespaces.lists, (*LISTED, *watched.policies)):
            try:
                wanted = await stale(cluster, store, namespace, resource)
            except ApplyError as error:
                log.warning("resync failed", extra={"error": error.message})
                continue
            for key in wanted:
                queue.enqueue(key)


async def stale(
    cluster: Kube, store: Store, namespace: str | None, resource: Resource
) -> set[ObjectKey]:
    """APIs not known, changed or gone; of a child's kind, those that the store has otherwise."""
    if resource is BATCHED_APIS:
        found, _ = await cluster.list_metadata(BATCHED_APIS, namespace)
        return store.changed(found, namespace)
    found, _ = await cluster.list_metadata(resource, namespace, contract.LABEL_API)
    return store.differing(resource, found, namespace)
