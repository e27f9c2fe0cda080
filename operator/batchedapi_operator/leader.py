"""Election of the replica that works: it holds its release's Lease, no other release claims it.

Two releases never serve one namespace: whoever comes second waits, and says so. A claim is a
ConfigMap, as those are what an operator may read and write where it serves. An operator of named
namespaces has one in each, `contract.CLAIM`, as that is all it may read. An operator of all
namespaces has one of its own name beside its Lease, reads those of every release, and alone sees
both kinds: it takes away claims that are not acted on yet, and stands back from those that are.
"""

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from batchedapi_core import contract
from batchedapi_operator import election
from batchedapi_operator.cluster import (
    CONFIG_MAPS,
    LEASES,
    SYSTEM_NAMESPACE,
    Namespaces,
    ObjectKey,
    micro_time,
    utc_now,
)
from batchedapi_operator.election import (
    ACTING,
    ALL,
    CLAIM_SECONDS,
    LEADER_SECONDS,
    Clock,
    Held,
    Other,
    Permit,
    SeenLease,
    clock,
    refusal_of,
    seen,
)
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.events import Note, build_event
from batchedapi_operator.kube import Kube
from batchedapi_operator.lease import REQUEST_SECONDS, ResourceLock

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 12.0
"""For which a look that found no other release is good enough to act on."""
QUIET_SECONDS: Final = 15.0
"""For which a claim to a namespace stands before anybody acts on it: longer than `FRESH_SECONDS`,
so that an operator of all namespaces has objected by then."""
_NO_CLAIM: Final = (403, 404, 422)
"""No right yet, no namespace yet, and a policy of the namespace that refuses the ConfigMap."""
_CLAIM_OF_SYSTEM: Final = ObjectKey(SYSTEM_NAMESPACE, contract.CLAIM)


class Claims:
    """Whether the namespaces are nobody else's. Asked by the replica that leads its release."""

    def __init__(
        self, kube: Kube, namespaces: Namespaces, release: ObjectKey, now: Clock = clock
    ) -> None:
        self._kube = kube
        self._release = str(release)
        self._now = now
        self._own = self._claim(release, ALL)
        """Of an operator of all namespaces."""
        self._named = tuple(
            self._claim(ObjectKey(one, contract.CLAIM), one) for one in namespaces.named
        )
        self._stands: dict[ObjectKey, tuple[int, float]] = {}
        """Claims that are not acted on yet: which term of ours, and since when it was seen."""
        self._others: dict[ObjectKey, SeenLease] = {}
        self._looked = float("-inf")
        self.until = float("-inf")
        """When what was seen of other releases is too old to act on."""
        self.began = 0
        """How often this replica was free to act, having not been so before."""
        self.refusal = ""

    async def look(self) -> None:
        """Claim what is to be claimed; sets `until`, or `refusal`.

        Raises:
            ApplyError: The apiserver does not say.
        """
        found = await (self._look_at_named() if self._named else self._look_at_all())
        if found:
            self.refusal, self.until = found, float("-inf")
        elif self.until > float("-inf"):
            self.refusal = ""  # and not before: a claim that stands may be taken away again

    @property
    def settled(self) -> bool:
        """Whether it is free to act, or refused: nothing is about to come of the next look."""
        return bool(self.refusal) or self.until > float("-inf")

    def forget(self) -> None:
        """This replica leads no more."""
        self.until, self.refusal = float("-inf"), ""

    async def stand_by(self) -> None:
        """See since when our claims stand, should the replica that leads die before it acts.

        One that is not there is made: the replica that leads may have died before that.

        Raises:
            ApplyError: The apiserver does not say.
        """
        for claim in self._named:
            if claim.state != ACTING:
                await claim.read()
                if claim.held is None:
                    await self._held(claim)
                self._stood(claim, self._now())

    def _stood(self, claim: ResourceLock, now: float) -> float:
        """Seconds for which a claim has been ours in one go, as far as this process saw."""
        if claim.held is None or not claim.ours:
            self._stands.pop(claim.key, None)
            return 0.0
        term, since = self._stands.get(claim.key, (-1, now))
        if term != claim.held.transitions:
            since = now
        self._stands[claim.key] = claim.held.transitions, since
        return now - since

    async def _look_at_named(self) -> str:
        """Hold a claim to each namespace; the sentence where one is another's."""
        ours = await asyncio.gather(*map(self._held, self._named))
        held = [claim for claim, mine in zip(self._named, ours, strict=True) if mine]
        if False in ours:
            for claim in held:
                await claim.release("")
            self._stands.clear()
            other = self._named[ours.index(False)]
            holder = "unknown" if other.held is None else other.held.holder
            return refusal_of(f"namespace {other.key.namespace}", holder)
        now = self._now()
        new = [claim for claim in held if claim.state != ACTING]
        stood = [self._stood(claim, now) for claim in new]
        if min(stood, default=QUIET_SECONDS) < QUIET_SECONDS:
            self.until = float("-inf")
            return ""
        for claim in new:
            if not await claim.mark(ACTING):
                self.until = float("-inf")
                return ""
        self._stands.clear()
        self.began += bool(new)
        self.until = min((claim.until for claim in held), default=now + FRESH_SECONDS)
        return ""

    async def _held(self, claim: ResourceLock) -> bool | None:
        """Whether it is ours; None where nobody can have one."""
        try:
            return await claim.hold()
        except ApplyError as error:
            if error.status in _NO_CLAIM:
                return None
            raise

    async def _look_at_all(self) -> str:
        """Read the claims of all releases; the sentence where another acts."""
        own = self._own
        await own.read()
        acting = own.ours and own.state == ACTING
        refusal, began = await self._surveyed(acting=acting)
        if not refusal and not acting:
            # First say so, then look again: of two that do so at once, one sees the other at least.
            if not await own.hold():
                return ""
            refusal, began = await self._surveyed(acting=False)
            self.began += not refusal
        if not refusal and not await own.mark(ACTING):
            return ""  # whoever has changed it may have acted
        if refusal and own.state:
            await own.mark("")
        self.until = began + FRESH_SECONDS
        return refusal

    async def _surveyed(self, *, acting: bool) -> tuple[str, float]:
        """Ask, and make sure that nobody goes on from an old claim; and when that began."""
        began = self._now()
        bodies = await self._kube.claims(contract.LABEL_LEASE, seconds=REQUEST_SECONDS)
        now, seen_now = self._now(), dict[ObjectKey, SeenLease]()
        known = self._others if now - self._looked <= CLAIM_SECONDS else {}
        self._looked = now
        for body in bodies:
            key, held = ObjectKey.of(body), Held.of(body)
            if key == self._own.key or held.holder == self._release:
                continue
            if key == _CLAIM_OF_SYSTEM:
                continue  # it is in none of `all namespaces`
            seen_now[key] = seen(known.get(key), held, now)
        self._others = seen_now
        others = (
            Other(key, one.held, alive=now < one.since + CLAIM_SECONDS)
            for key, one in seen_now.items()
        )
        found = election.survey(tuple(others), acting=acting)
        if found.in_the_way is not None:
            other = found.in_the_way
            what = f"namespace {other.key.namespace}" if other.is_claim else "all namespaces"
            return refusal_of(what, other.held.holder if other.is_claim else str(other.key)), began
        for other in found.disarmed:
            holder = self._release if other.is_claim else other.held.holder
            namespaces = other.held.namespaces
            await self._claim(other.key, namespaces).seize(other.held, holder)
        return "", began

    def _claim(self, key: ObjectKey, namespaces: str) -> ResourceLock:
        return ResourceLock(
            self._kube,
            CONFIG_MAPS,
            key,
            identity=self._release,
            seconds=CLAIM_SECONDS,
            namespaces=namespaces,
            now=self._now,
        )


RENEW_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 0.5
"""Between two looks of a replica that does not lead, or tries of one that could not renew."""
LOOK_SECONDS: Final = 5.0
"""Between two looks for other releases."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A participant in an election, and its namespaces."""

    process: str
    """Name of this process alone: a restarted one is another."""
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
        self._lease = ResourceLock(
            kube,
            LEASES,
            identity.release,
            identity=identity.process,
            seconds=LEADER_SECONDS,
            namespaces=",".join(identity.namespaces.named) or ALL,
            now=now,
        )
        self._claims = Claims(kube, identity.namespaces, identity.release, now)
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
