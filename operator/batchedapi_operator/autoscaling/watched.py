"""Memory of the autoscaler between looks, and events about lost metrics."""

import itertools
import re
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_core.bottleneck import Told, Verdict
from batchedapi_core.manifest import BatchedAPI, ConditionType
from batchedapi_core.placement import AdviceReason
from batchedapi_core.scaling.decision import Cause, ClampName, ScalingDecision
from batchedapi_core.scaling.forecast import Points
from batchedapi_core.scaling.minutes import MINUTES_A_DAY, Filling, Minute
from batchedapi_core.scaling.observe import LoadWindow
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.state import ScalingState
from batchedapi_operator.autoscaling.advice import standing_in
from batchedapi_operator.autoscaling.bottleneck import Tally
from batchedapi_operator.autoscaling.report import decision_json, is_inactive
from batchedapi_operator.cluster import JsonObject, ObjectKey, listed, rfc3339, section
from batchedapi_operator.events import Note
from batchedapi_operator.reconcile.plan import parsed
from batchedapi_operator.store import ApiView
from batchedapi_operator.views import PodView

SECONDS_BEFORE_HOLD: Final = 4.0
"""Without knowledge before anybody is told: the first look after a start has nothing to compare
with, and one missed scrape is no news."""
SECONDS_PER_HOLD_EVENT: Final = 300.0
"""Pods that come and go must not become a stream of events."""
MINUTES_PER_RECORD: Final = 10
"""Between two writes of what minutes brought, which are up to 60 KiB."""
_FULL: Final = re.compile(r"\bInsufficient |\bToo many pods|\bcannot allocate all claims")
"""In the scheduler's words: a pod that goes leaves room. Of any other reason none does."""
LONGEST_WAIT: Final = 600.0
"""Seconds for which others give way: who still waits then asks for what no node has."""


@dataclass(slots=True)
class Watched:
    """Owned by the loop."""

    uid: str
    state: ScalingState
    tally: Tally = field(default_factory=Tally)
    verdict: Verdict | None = None
    target: Told | None = None
    filling: Told | None = None
    reported: float = float("-inf")
    written: float = float("-inf")
    """When a report was last put into the outbox, monotonic seconds."""
    held_since: float | None = None
    """Monotonic seconds since when every look ended in a hold; None: the last did not."""
    advised: frozenset[AdviceReason] = frozenset()
    """Reasons that the status has at present."""
    blind_since: float | None = None
    """Since when metrics are missing; None: they are not."""
    missing: bool = False
    """Users were told that metrics are missing, and not yet that they are back."""
    told: float = float("-inf")
    """When users were last told that they are missing, monotonic seconds."""
    last_scale: str | None = None
    """RFC 3339, when this operator changed the replicas last; None: what the status says stands."""
    waits: bool = False
    """It has no replica, and one of its web pods is asked to wait for rows."""
    scale_untold: bool = False
    """No report was written since: one that failed must not lose the time."""
    minute: Filling = field(default_factory=Filling)
    minutes: tuple[Minute, ...] = ()
    """Minutes that are yet to be written."""
    listed: bool = False
    """The watch has brought as many ready pods as the Deployment counted, at least once."""

    @classmethod
    def restored(cls, uid: str, status: Mapping[str, Any]) -> "Watched":
        """From an earlier operator's status; core checks it, since anybody may edit it."""
        saved = section(status, "autoscaling").get("learned")
        last = section(section(status, "autoscaling"), "lastDecision")
        missing = last.get("reason") == Cause.NO_METRICS and any(
            one["type"] == ConditionType.AUTOSCALING_ACTIVE and one["reason"] == "MetricsMissing"
            for one in listed(status, "conditions")
        )
        state = ScalingState.restored(saved)
        if is_inactive(status):
            # It stood aside, for days maybe. The service model, start-up times, margin and trust
            # hold. What counts from the time of the save does not: replicas were others' to choose,
            # and to have watched then is not to have watched now. So nothing is removed until the
            # stabilization window has been watched anew.
            state = replace(
                state,
                watched=0.0,
                recommendations=(),
                lows=(),
                sizes=(),
                ready_sizes=(),
                node_wait=None,
                bursts=(),
                foresight=replace(state.foresight, highs=Points()),
            )
        return cls(uid, state, advised=standing_in(status), missing=missing)

    def ready_pods(self, known: int, counted: int) -> int:
        """How many ready pods there are.

        Args:
            known: Ready pods that the watch has brought.
            counted: By the Deployment. After a start the watch brings one pod after the other, and
                the first few must not be taken for all: their load would seem to be the whole. Once
                complete, the watch of the pods is the more recent of the two.
        """
        self.listed = self.listed or known >= counted
        return known if self.listed else counted

    def brought(self, load: LoadWindow, replicas: int, lanes: int) -> bool:
        """Take a look into the minutes; see Filling. Returns whether they are to be written.

        That is the same minute of ten, also after a restart, and not that of other APIs.
        """
        self.minute, ended = self.minute.looked(load, replicas, lanes)
        if ended is None:
            return False
        self.minutes = (*self.minutes, ended)[-MINUTES_A_DAY:]
        return (ended.time + zlib.crc32(self.uid.encode())) % MINUTES_PER_RECORD == 0

    def scaled(self, time: str) -> None:
        """The replicas were changed at `time` (RFC 3339)."""
        self.last_scale, self.scale_untold = time, True

    def seen(self) -> JsonObject:
        """Fields of `status.autoscaling` that may be newer than in the status."""
        scale = {} if self.last_scale is None else {"lastScaleTime": self.last_scale}
        return {"learned": self.state.to_saved(), **scale}

    def note_of_hold(
        self, decision: ScalingDecision, why: Callable[[], str], now: float
    ) -> Note | None:
        """The event that a decision is worth: that a hold begins, or that it ends."""
        held_by = {clamp.name for clamp in decision.clamps}
        if ClampName.NO_METRICS in held_by:
            if self.blind_since is None:
                self.blind_since = now
            sure = now - self.blind_since >= SECONDS_BEFORE_HOLD
            rested = now - self.told >= SECONDS_PER_HOLD_EVENT
            if self.missing or not sure or not rested:
                return None
            self.missing, self.told = True, now
            return Note("Warning", "MetricsMissing", "Scale", why())
        if ClampName.NO_READY_PODS in held_by:
            return None
        self.blind_since = None
        if not self.missing:
            return None
        self.missing = False
        return Note("Normal", "MetricsBack", "Scale", why())


class Manifests:
    """Manifests as models; parsed again only when their users have changed them."""

    def __init__(self) -> None:
        self._known: dict[ObjectKey, tuple[tuple[str, int], BatchedAPI]] = {}

    def of(self, key: ObjectKey, view: ApiView) -> BatchedAPI:
        """The model of what was watched last.

        Raises:
            InvalidSpecError: It cannot be used.
        """
        known = self._known.get(key)
        if known is not None and known[0] == view.spec_version:
            return known[1]
        api = parsed(view.document)
        self._known[key] = (view.spec_version, api)
        return api

    def forget(self, key: ObjectKey) -> None:
        """The API is gone."""
        self._known.pop(key, None)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Decisions in a row with the same replicas, reason and binding limit.

    A quiet hour is one of them, not 720.
    """

    since: datetime
    time: datetime
    """When the latest was taken."""
    count: int
    policy: ScalingPolicy
    decision: ScalingDecision
    """The latest: its figures are those of `time`."""

    def goes_on(self, decision: ScalingDecision) -> bool:
        """Whether `decision` came to the same."""
        mine = (self.decision.desired, self.decision.reason, self.decision.bound)
        return mine == (decision.desired, decision.reason, decision.bound)

    def to_json(self) -> JsonObject:
        """As `status.autoscaling.lastDecision`, and since when and how often it was taken."""
        return {
            "since": rfc3339(self.since),
            "count": self.count,
            **decision_json(self.policy, self.decision, rfc3339(self.time)),
        }


class DecisionRing:
    """The last decisions about each API; the status has the newest alone.

    Bounded: the oldest entry of an API makes room.
    """

    def __init__(self) -> None:
        self._known: defaultdict[ObjectKey, deque[Stretch]] = defaultdict(
            lambda: deque(maxlen=contract.DECISIONS_KEPT)
        )

    def add(
        self, key: ObjectKey, time: datetime, policy: ScalingPolicy, decision: ScalingDecision
    ) -> None:
        """Remember a decision."""
        known, since, count = self._known[key], time, 1
        if known and known[-1].goes_on(decision):
            last = known.pop()
            since, count = last.since, last.count + 1
        known.append(Stretch(since, time, count, policy, decision))

    def last(self, key: ObjectKey, count: int) -> list[JsonObject]:
        """At most `count` entries, the newest first; none for an API that nothing is known of."""
        known = reversed(self._known.get(key, ()))
        return [one.to_json() for one in itertools.islice(known, count)]

    def forget(self, key: ObjectKey) -> None:
        """The API is gone."""
        self._known.pop(key, None)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Pods of one API that would have a place if others went."""

    count: int
    priority: int
    """The highest of theirs."""
    gpu: bool
    """They ask for GPUs."""


class FullCluster:
    """Pods of all APIs that wait for a place, as of the last look at each; owned by the loop."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: dict[ObjectKey, _Waiting] = {}

    def look(self, key: ObjectKey, pods: Iterable[PodView], now: datetime, *, gpu: bool) -> None:
        """Take in `pods`, all those of the API `key`, at `now` (with a zone)."""
        found = [
            pod.priority
            for pod in pods
            if not pod.gone
            and _FULL.search(pod.unschedulable)
            and pod.created is not None
            and (now - pod.created).total_seconds() <= LONGEST_WAIT
        ]
        self.forget(key)
        if found:
            self._waiting[key] = _Waiting(len(found), max(found), gpu)

    def forget(self, key: ObjectKey) -> None:
        """The API is gone, or cannot be read."""
        self._waiting.pop(key, None)

    def wanted(self, key: ObjectKey, pods: Iterable[PodView], *, gpu: bool) -> int:
        """Places of `pods`, those of the API `key`, that pods of other APIs wait for.

        A pod without GPUs leaves no place for one with them, and nobody gives way to a lower
        priority.
        """
        own = max((pod.priority for pod in pods), default=0)
        return sum(
            one.count
            for other, one in self._waiting.items()
            if other != key and one.priority >= own and gpu >= one.gpu
        )
