"""Which replica does the work: it holds the Lease of its release, and no other release objects."""

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from batchedapi_operator.claims import Claims
from batchedapi_operator.cluster import LEASES, Namespaces, ObjectKey, micro_time, utc_now
from batchedapi_operator.election import ALL, LEADER_SECONDS, Clock, Permit, clock
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.events import Note, build_event
from batchedapi_operator.kube import Kube
from batchedapi_operator.lease import LeaseLock

log = logging.getLogger(__name__)

RENEW_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 0.5
"""Between two looks of a replica that does not lead, or tries of one that could not renew."""
LOOK_SECONDS: Final = 5.0
"""Between two looks for other releases."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who takes part in an election, and for what."""

    process: str
    """Of this process alone: a restarted one is another."""
    release: ObjectKey
    """The Lease that the replicas of a release share."""
    namespaces: Namespaces


class Elector:
    """Leads or stands by. One per process."""

    def __init__(self, kube: Kube, identity: Identity, permit: Permit, now: Clock = clock) -> None:
        self._kube = kube
        self._identity = identity
        self._permit = permit
        self._now = now
        self._lease = LeaseLock(
            kube,
            identity.release,
            identity=identity.process,
            seconds=LEADER_SECONDS,
            namespaces=",".join(identity.namespaces.named) or ALL,
            now=now,
        )
        self._claims = Claims(kube, identity.namespaces, self._lease, now)
        self._look_at = float("-inf")
        """When other releases are to be looked for."""
        self._stand_by_at = float("-inf")
        """When a replica that does not lead is to look at the claims of the one that does."""
        self._term: tuple[int, int] | None = None
        """In which this replica does the work."""
        self._round = asyncio.Lock()
        self._resigned = False
        self._unheard = "it is not known yet which replica leads"

    @property
    def leads(self) -> bool:
        """Whether this replica does the work. Whether it may write now is its permit's to say."""
        return self._term is not None

    @property
    def trouble(self) -> str:
        """Why this replica is of no use: another release is in the way, or nobody says who leads.

        Empty: it leads, or stands by.
        """
        return self._claims.refusal or self._unheard

    async def run(
        self,
        begin: Callable[[], None],
        go_on: Callable[[], None],
        end: Callable[[], Awaitable[None]],
        beat: Callable[[], None],
    ) -> None:
        """Take part until cancelled.

        Args:
            begin: Called when this replica is to do the work.
            go_on: It may write again, and nobody else has since it might not.
            end: Awaited when somebody else does the work, or may.
            beat: Called once a round.
        """
        while not self._resigned:
            beat()
            async with self._round:
                await self._go_round(begin, go_on, end)
            rest = RENEW_SECONDS if self._permit.valid else RETRY_SECONDS
            await asyncio.sleep(rest * random.uniform(0.9, 1.0))  # noqa: S311 - jitter

    async def _go_round(
        self,
        begin: Callable[[], None],
        go_on: Callable[[], None],
        end: Callable[[], Awaitable[None]],
    ) -> None:
        if self._resigned:
            return
        ours: bool | None = None  # the apiserver does not say
        try:
            ours = await self._lease.hold()
            self._unheard = ""
        except ApplyError as error:
            log.warning("lease not renewed", extra={"error": error.message})
            self._unheard = f"which replica leads cannot be read or written: {error.message}"
        if ours and self._now() >= self._look_at:
            await self._look()
        elif ours is False and self._now() >= self._stand_by_at:
            self._stand_by_at = self._now() + LOOK_SECONDS
            try:
                await self._claims.stand_by()
            except ApplyError as error:
                log.warning("claims not looked at", extra={"error": error.message})
        if ours is False or self._claims.refusal or self._term not in {None, self._number()}:
            await self._ended(end)
        if ours and not self._claims.refusal:
            self._allow(begin, go_on)

    async def resign(self) -> None:
        """Give the Lease back, so that another replica need not wait for it to run out.

        Nothing of ours may be under way any more.
        """
        async with self._round:
            self._resigned = True
            try:
                await self._lease.release(self._lease.state)
            except ApplyError as error:
                log.warning("lease not given back", extra={"error": error.message})

    def _number(self) -> tuple[int, int]:
        held = self._lease.held
        return (-1 if held is None else held.transitions, self._claims.began)

    async def _look(self) -> None:
        told, now = self._claims.refusal, self._now()
        try:
            await self._claims.look()
        except ApplyError as error:
            log.warning("other operators not looked for", extra={"error": error.message})
            return
        refusal = self._claims.refusal
        if refusal and refusal != told:
            log.error("refused", extra={"refusal": refusal})
            # told in an event about the release's Lease, too, if it can be written
            note, release = Note("Warning", "Refused", "Lead", refusal), self._identity.release
            event = build_event(note, release, "", micro_time(utc_now()), uuid.uuid4().hex[:16])
            event["regarding"] = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "name": release.name,
                "namespace": release.namespace,
            }
            try:
                await self._kube.create_event(event)
            except ApplyError as error:
                log.warning("event not written", extra={"error": error.message})
        # two that refuse each other must not look again at the same time
        some = random.uniform(1.0, 2.0) if refusal else 1.0  # noqa: S311 - jitter
        self._look_at = now + (some * LOOK_SECONDS if self._claims.settled else RETRY_SECONDS)

    def _allow(self, begin: Callable[[], None], go_on: Callable[[], None]) -> None:
        lapsed = self._term is not None and not self._permit.valid
        self._permit.extend(min(self._lease.until, self._claims.until))
        if not self._permit.valid:
            return
        if self._term is None:
            self._term = self._number()
            log.info("leading", extra={"lease": str(self._identity.release)})
            begin()
        elif lapsed:
            log.info("leading again, and nobody else did meanwhile")
            go_on()

    async def _ended(self, end: Callable[[], Awaitable[None]]) -> None:
        self._permit.extend(float("-inf"))
        if self._term is not None:
            self._term = None
            holder = "" if self._lease.held is None else self._lease.held.holder
            log.warning("leading no more", extra={"holder": holder})
            await end()
        if not self._lease.ours:
            self._look_at = float("-inf")
            self._claims.forget()
