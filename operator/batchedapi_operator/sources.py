"""Watches ConfigMaps by their metadata alone: revisions of ours, and users' sources.

Users' ConfigMaps carry no label of ours, so the apiserver cannot filter for them. One stream of
metadata (no data is sent) costs less than a watch for every source, and an edit becomes a new
revision at once rather than at the next poll.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from batchedapi_operator.cluster import CONFIG_MAPS, JsonObject, ObjectKey
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.kube import Kube
from batchedapi_operator.queue import WorkQueue, rest_after
from batchedapi_operator.store import Store

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 290
"""Of one stream; a new one goes on from where it ended."""


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
        while version:
            self._beat()
            stream = self._kube.watch_metadata(CONFIG_MAPS, self._namespace, version, WATCH_SECONDS)
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
