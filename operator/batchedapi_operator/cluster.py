"""What the reconciler and the autoscaler ask of a cluster; `kube.Kube` is the real one."""

from datetime import UTC, datetime
from typing import Protocol

from batchedapi_operator.keys import JsonObject, ObjectKey, Resource


class Cluster(Protocol):
    """Reads and writes; every method may raise ApplyError."""

    async def get(self, resource: Resource, key: ObjectKey) -> JsonObject | None:
        """The object as it is now; None if there is none."""

    async def get_metadata(self, resource: Resource, key: ObjectKey) -> JsonObject | None:
        """The object's metadata alone."""

    async def find(
        self, resource: Resource, namespace: str | None, selector: str = ""
    ) -> list[JsonObject]:
        """Objects as they are now."""

    async def list_metadata(
        self, resource: Resource, namespace: str | None, selector: str = ""
    ) -> tuple[list[JsonObject], str]:
        """Metadata of objects, and the resource version of the list."""

    async def apply(self, resource: Resource, body: JsonObject, *, force: bool) -> JsonObject:
        """Server-side apply of a child."""

    async def apply_status(self, key: ObjectKey, status: JsonObject, manager: str) -> None:
        """Server-side apply of one writer's part of an API's status, whichever API has the name."""

    async def scale(
        self, key: ObjectKey, replicas: int, *, uid: str, version: str | None = None
    ) -> None:
        """Set the replicas of the Deployment with that uid, and version, through /scale."""

    async def delete(self, resource: Resource, key: ObjectKey, uid: str) -> None:
        """Delete the object with that uid."""

    async def create_event(self, body: JsonObject) -> None:
        """Record an event."""


def utc_now() -> datetime:
    """The wall clock: for dates that people read, never for decisions."""
    return datetime.now(UTC)


def rfc3339(time: datetime) -> str:
    """As in `lastTransitionTime`: whole seconds, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(time: datetime) -> str:
    """As in `eventTime`: microseconds, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
