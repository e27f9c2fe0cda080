"""One lock in the apiserver, a Lease or a claim: taken, renewed, given back."""

from typing import Final

from batchedapi_core import contract
from batchedapi_operator.cluster import LEASES, JsonObject, ObjectKey, Resource, micro_time, utc_now
from batchedapi_operator.election import WANTED, Clock, Held, SeenLease, clock, seen
from batchedapi_operator.errors import ConflictError
from batchedapi_operator.kube import Kube

REQUEST_SECONDS: Final = 3.0
"""Limit of one request about a lock: three of them fit into the time of a Lease."""


class ResourceLock:
    """One lock, held or not, from one task."""

    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        key: ObjectKey,
        *,
        identity: str,
        seconds: int,
        namespaces: str,
        now: Clock = clock,
    ) -> None:
        self.key = key
        self._kube = kube
        self._resource = resource
        self._identity = identity
        self._seconds = seconds
        self._namespaces = namespaces
        self._now = now
        self._current = False
        """What was seen is what the apiserver has, unless somebody else has written it since."""
        self._seen: SeenLease | None = None
        self._read_at = float("-inf")
        self.until = float("-inf")
        """When somebody else may have it."""

    def __str__(self) -> str:
        return f"{self._resource.kind} {self.key}"

    @property
    def held(self) -> Held | None:
        """As it was read or written last."""
        return None if self._seen is None else self._seen.held

    @property
    def state(self) -> str:
        """State that the holder wrote."""
        return "" if self.held is None else self.held.state

    @property
    def ours(self) -> bool:
        """Whether we held it when it was read or written last."""
        return self.held is not None and self.held.holder == self._identity

    async def hold(self) -> bool:
        """Take or renew it; False: it is somebody else's.

        Its state stays: whoever acts after us, and is no replica of ours, will have removed it.

        Raises:
            ApplyError: What became of it is not known.
        """
        for _ in range(2):  # a conflict says that what is known of it is old
            if not (self._current and self.ours):
                await self.read()
            if self._seen is not None and not self.ours and not self._seen.free(self._now()):
                return False
            if await self._write(self._identity, self.state or WANTED):
                return True
        raise ConflictError(f"{self} changes again and again", 409)

    async def mark(self, state: str) -> bool:
        """Renew it with that state; False: somebody else has changed it.

        Raises:
            ApplyError: What became of it is not known.
        """
        return self.ours and await self._write(self._identity, state)

    async def seize(self, held: Held, holder: str) -> None:
        """Remove the state of what was read, and name another holder.

        Raises:
            ApplyError: It is no longer so, or what became of it is not known.
        """
        await self.read()
        if self.held is None or self.held.version != held.version:
            raise ConflictError(f"{self} has changed", 409)
        if not await self._write(holder, ""):
            raise ConflictError(f"{self} has changed", 409)

    async def release(self, state: str) -> None:
        """Give it back; with that state to those who hold it after us.

        Raises:
            ApplyError: What became of it is not known.
        """
        if not self._current:
            await self.read()
        if self.ours:
            await self._write("", state)
        self.until = float("-inf")

    async def read(self) -> None:
        """Look who has it.

        Raises:
            ApplyError: The apiserver does not say.
        """
        body = await self._kube.read_lock(self._resource, self.key, seconds=REQUEST_SECONDS)
        now = self._now()
        if now - self._read_at > self._seconds / 2:
            self._seen = None  # it was not looked at: the apiserver was silent to its holder, too
        self._current, self._read_at = True, now
        self._seen = None if body is None else seen(self._seen, Held.of(body), now)

    async def _write(self, holder: str, state: str) -> bool:
        began, before = self._now(), self.held if self._current else None
        now, taken = micro_time(utc_now()), holder != (before.holder if before else "")
        terms = before.transitions if before else 0
        wanted: JsonObject = {
            "apiVersion": self._resource.api_version,
            "kind": self._resource.kind,
            "metadata": {
                "name": self.key.name,
                "namespace": self.key.namespace,
                "labels": {contract.LABEL_LEASE: "true"},
                "annotations": {
                    contract.ANNOTATION_CLAIM: state,
                    contract.ANNOTATION_NAMESPACES: self._namespaces,
                },
                **({"resourceVersion": before.version} if before else {}),
            },
        }
        told = {
            "holderIdentity": holder,
            "leaseDurationSeconds": self._seconds,
            **({"acquireTime": now} if taken else {}),
            "renewTime": now,
            "leaseTransitions": terms + (taken and bool(holder)),
        }
        if self._resource is LEASES:
            wanted["spec"] = told
        else:
            wanted["data"] = {name: str(value) for name, value in told.items()}
        self._current = False  # whatever comes of it, unless the answer says so
        write = self._kube.change_lock if before else self._kube.create_lock
        try:
            body = await write(self._resource, wanted, seconds=REQUEST_SECONDS)
        except ConflictError:
            return False
        self._current, self._seen = True, seen(self._seen, Held.of(body), self._now())
        if holder == self._identity:
            self.until = began + self._seconds
        return True
