"""kopf, and nothing but translation: a watch event becomes a stored object and a queued key.

Only `on.event` is used: kopf's other handlers write annotations or finalizers to the objects.
kopf has a thread and an event loop of its own, since it takes every task of its loop for one of
its own when it ends, waits for them and cancels them; it takes over the signals, too.
"""

import asyncio
import dataclasses
import logging
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import kopf

from batchedapi_core import contract
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    OUTSIDE_SYSTEM,
    PODS,
    REPLICA_SETS,
    SERVICES,
    JsonObject,
    Namespaces,
    ObjectKey,
    Resource,
)
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.kube import Kube
from batchedapi_operator.queue import WorkQueue, rest_after
from batchedapi_operator.store import Store

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 40
"""Length of one stream. It ends with a bookmark, the next goes on from there without a list."""
SILENT_SECONDS: Final = 45
"""Without even the end of a stream: its connection is open at our end alone."""
LARGEST_BACKOFF: Final = 5.0
"""Seconds; what changed while the apiserver did not answer is known that soon after it does."""
SECONDS_PER_BEAT: Final = 5.0
OBJECTS_AT_ONCE: Final = 5
"""In a page of a list, which is memory until its objects were handed on."""
IDLE_SECONDS: Final = 0.005
"""For which an object that was handed on is kept, in case there is news of it. By default it is
5 s: at a start all objects of the cluster would be there at once, and the memory for them is never
given back. With 0 kopf would wait for nothing and take nothing."""
_Put = Callable[[ObjectKey, JsonObject], bool]
_Remove = Callable[[ObjectKey, str], None]


@dataclass(frozen=True, slots=True)
class WatchScope:
    """Kinds and namespaces that are watched."""

    namespaces: Namespaces = field(default_factory=Namespaces)
    policies: tuple[Resource, ...] = ()
    """Kinds of `Policies`: of children that not every API has."""

    @property
    def children(self) -> tuple[Resource, ...]:
        """Kinds of which those with an API's label are watched."""
        return (DEPLOYMENTS, REPLICA_SETS, PODS, SERVICES, *self.policies)

    @property
    def kinds(self) -> tuple[Resource, ...]:
        """All of them."""
        return (BATCHED_APIS, *self.children)


class EndlessBackoff:
    """Seconds between tries of a watch: doubling, capped, jittered, never giving up.

    kopf iterates it anew for each request; its default ends after a minute and with it the watch.
    """

    def __iter__(self) -> Iterator[float]:
        wait = 0.5
        while True:
            yield wait * random.uniform(0.75, 1.0)  # noqa: S311 - jitter
            wait = min(LARGEST_BACKOFF, wait * 2)


def kopf_settings(watched: WatchScope) -> kopf.OperatorSettings:
    """Nothing posted, no scanning for namespaces and CRDs, watches that never give up, in pages."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = OBJECTS_AT_ONCE
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.inactivity_timeout = SILENT_SECONDS
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.networking.error_backoffs = EndlessBackoff()
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    for kind in watched.children:
        settings.watching.label_selectors[kind.group, kind.plural] = contract.LABEL_API
    if not watched.namespaces.named:
        for kind in watched.kinds:
            settings.watching.field_selectors[kind.group, kind.plural] = OUTSIDE_SYSTEM
    return settings


class Relay:
    """Takes events from kopf's thread to the loop that owns the store and the queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: Store, queue: WorkQueue) -> None:
        self._loop = loop
        self._store = store
        self._queue = queue

    def hand_on(self, event: kopf.RawEvent, take: Callable[..., None], *arguments: Any) -> None:
        """Have `take` called there: with the object, whether it was deleted, and `arguments`."""
        self._call(take, dict(event["object"]), event["type"] == "DELETED", *arguments)

    def ready(self, event: asyncio.Event) -> None:
        """The watches are being opened."""
        self._call(event.set)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is stopping
            self._loop.call_soon_threadsafe(function, *arguments)

    def api(self, body: JsonObject, deleted: bool) -> None:  # noqa: FBT001 - from hand_on
        """A BatchedAPI was seen, changed or deleted."""
        key = ObjectKey.of(body)
        if deleted:
            self._store.remove_api(key)
            self._queue.enqueue(key)
        elif self._store.put_api(body):  # and not for a status, most of which we wrote ourselves
            self._queue.enqueue_fresh(key)

    def child(
        self,
        body: JsonObject,
        deleted: bool,  # noqa: FBT001 - from hand_on
        resource: Resource,
        put: _Put,
        remove: _Remove,
    ) -> None:
        """A labelled child was seen, changed or deleted; it may have lost its label, too."""
        for key in self._store.concerned(resource, body):
            if deleted:
                remove(key, body["metadata"]["name"])
            elif not put(key, body):
                continue  # as it was read last, by a reconcile that acted on it
            self._queue.enqueue(key)


def registry_of(relay: Relay, store: Store, watched: WatchScope) -> kopf.OperatorRegistry:
    """Handlers that hand every event to `relay`."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_login)

    @kopf.on.event(contract.GROUP, contract.VERSION, contract.PLURAL, registry=registry)
    async def on_api(event: kopf.RawEvent, **_: Any) -> None:
        relay.hand_on(event, relay.api)

    def watch(kind: Resource, put: _Put, remove: _Remove) -> None:
        @kopf.on.event(kind.group, "v1", kind.plural, registry=registry)
        async def on_child(event: kopf.RawEvent, **_: Any) -> None:
            relay.hand_on(event, relay.child, kind, put, remove)

    watch(DEPLOYMENTS, store.put_deployment, store.remove_deployment)
    watch(REPLICA_SETS, store.put_replica_set, store.remove_replica_set)
    watch(PODS, store.put_pod, store.remove_pod)
    for kind in (SERVICES, *watched.policies):
        watch(kind, partial(store.put_named, kind), partial(store.remove_named, kind))
    return registry


def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    in_cluster = kopf.login_with_service_account(**kwargs)
    if in_cluster is None:
        return kopf.login_with_kubeconfig(**kwargs)
    # kopf names the apiserver by its DNS name; the address works without a cluster DNS too.
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return dataclasses.replace(in_cluster, server=server)


async def watch_cluster(
    store: Store,
    queue: WorkQueue,
    watched: WatchScope,
    ready: asyncio.Event,
    beat: Callable[[], None],
) -> None:
    """Run kopf until cancelled; sets `ready` once its watches are being opened.

    `beat` is called from kopf's thread as long as its event loop goes round.

    Raises:
        Exception: Whatever ended kopf.
    """
    loop = asyncio.get_running_loop()
    relay = Relay(loop, store, queue)
    stop: Future[None] = Future()
    opened: Future[None] = Future()
    ended: Future[None] = Future()
    opened.add_done_callback(lambda _: relay.ready(ready))

    def serve() -> None:
        try:
            asyncio.run(_kopf(registry_of(relay, store, watched), watched, stop, opened, beat))
        except BaseException as error:  # noqa: BLE001 - handed on to whoever awaits, not hidden
            ended.set_exception(error)
        else:
            ended.set_result(None)

    threading.Thread(target=serve, name="kopf", daemon=True).start()
    try:
        await asyncio.shield(asyncio.wrap_future(ended))
    finally:
        if not stop.done():
            stop.set_result(None)


async def _kopf(
    registry: kopf.OperatorRegistry,
    watched: WatchScope,
    stop: "Future[None]",
    opened: "Future[None]",
    beat: Callable[[], None],
) -> None:
    def beat_again() -> None:  # no task: kopf takes those of its loop for its own
        beat()
        asyncio.get_running_loop().call_later(SECONDS_PER_BEAT, beat_again)

    beat_again()
    await kopf.operator(
        registry=registry,
        settings=kopf_settings(watched),
        standalone=True,
        clusterwide=not watched.namespaces.named,
        namespaces=watched.namespaces.named,
        stop_flag=stop,
        ready_flag=opened,
    )


# ConfigMaps by their metadata alone: revisions of ours, and users' sources.
#
# Users' ConfigMaps carry no label of ours, so the apiserver cannot filter for them. One stream of
# metadata (no data is sent) costs less than a watch for every source, and an edit becomes a new
# revision at once rather than at the next poll.


class SourceWatch:
    """Queues the APIs that a changed ConfigMap concerns."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        queue: WorkQueue,
        namespace: str | None,
        beat: Callable[[], None],
    ) -> None:
        self._kube = kube
        self._store = store
        self._queue = queue
        self._namespace = namespace
        self._beat = beat
        self.connected = False
        """Whether the apiserver answers; also what the operator's readiness goes by."""

    async def run(self) -> None:
        """Watch until cancelled."""
        failures = 0
        while True:
            self._beat()
            try:
                await self._list_and_watch()
                failures = 0
            except ApplyError as error:
                failures = 1 if self.connected else failures + 1
                self.connected = False
                log.warning("configmap watch interrupted", extra={"error": error.message})
                await asyncio.sleep(rest_after(failures, error))

    async def _list_and_watch(self) -> None:
        """List, then follow; ends when the apiserver wants a fresh list."""
        found, version = await self._kube.list_metadata(CONFIG_MAPS, self._namespace)
        self.connected = True
        for body in found:
            self._concerned(body)
        for key in self._store.without_source(self._namespace, map(ObjectKey.of, found)):
            self._queue.enqueue(key)  # it may have been deleted while nobody watched
        while version:
            self._beat()
            stream = self._kube.watch_metadata(
                CONFIG_MAPS, self._namespace, version, WATCH_SECONDS, silent=SILENT_SECONDS
            )
            async for event in stream:
                if event["type"] == "ERROR":
                    return  # the version is too old to go on from
                body = event["object"]
                version = body["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self._concerned(body, deleted=event["type"] == "DELETED")

    def _concerned(self, body: JsonObject, *, deleted: bool = False) -> None:
        for owner in self._store.concerned(CONFIG_MAPS, body):
            if deleted:
                self._store.remove_revision(owner, body["metadata"]["name"])
                self._queue.enqueue(owner)
            elif self._store.put_revision(owner, body):
                self._queue.enqueue(owner)
        for key in self._store.users_of_config_map(ObjectKey.of(body)):
            self._queue.enqueue(key)
