"""What a canary and the pods beside it have counted so far, and what that has come to.

Kept in memory alone: an operator that starts anew counts anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from batchedapi_core.canary import LONGEST, Allowed, Counts, GiveUp, Judged, Verdict, Wait, judge
from batchedapi_core.manifest import BatchedAPI
from batchedapi_core.scaling.policy import WARM_UP_BATCHES
from batchedapi_core.scaling.samples import change
from batchedapi_core.service_model import BatchSums
from batchedapi_operator.autoscaling.metrics_page import MetricsPage
from batchedapi_operator.cluster import ObjectKey
from batchedapi_operator.resources.deployment import deadline_of

GAP_SECONDS: Final = 60.0
"""Between two looks at one trial; after more, it is another one of the same revision."""


@dataclass(slots=True)
class _Trial:
    """One revision, from the first look at its canary; times are monotonic seconds."""

    revision: str
    looked: float
    seen: float
    """When a pod of the canary answered last; until one does, the first look."""
    began: float | None = None
    """When one did first; nothing before counts."""
    pages: dict[str, MetricsPage] = field(default_factory=dict)
    """The last of each pod, by uid."""
    old: Counts = field(default_factory=Counts)
    new: Counts = field(default_factory=Counts)
    verdict: Verdict = field(default_factory=Wait)

    def count(self, former: str, pages: Sequence[MetricsPage]) -> None:
        """Add what pages of it, and of the `former` revision, say since those before."""
        for page in pages:
            counted = _since(self.pages.get(page.sample.pod), page)
            self.pages[page.sample.pod] = page
            if counted is None:
                continue
            if page.sample.revision == self.revision:
                self.new = self.new.plus(*counted)
            elif page.sample.revision == former:
                self.old = self.old.plus(*counted)


class Trials:
    """Canaries of all APIs; owned by the loop."""

    def __init__(self, decided: Callable[[ObjectKey], object]) -> None:
        """`decided` is called with an API of which the canary is to end."""
        self._decided = decided
        self.known: dict[ObjectKey, _Trial] = {}
        """What was counted so far."""

    def judged(self, key: ObjectKey) -> Judged | None:
        """The verdict so far; None: nothing was seen."""
        trial = self.known.get(key)
        return None if trial is None else Judged(trial.revision, trial.verdict)

    def forget(self, key: ObjectKey) -> None:
        """The API has no canary, or is gone."""
        self.known.pop(key, None)

    def clear(self) -> None:
        """Another replica of the operator looks from now on."""
        self.known.clear()

    def look(
        self,
        key: ObjectKey,
        api: BatchedAPI,
        revisions: tuple[str, str],
        pages: Sequence[MetricsPage],
        now: float,
    ) -> None:
        """Count what is new in the pages of all pods at `now`.

        Args:
            key: The API.
            api: Its manifest.
            revisions: Digests of the one that answers, and of the one that is tried.
            pages: Of pods of both, of those that answered.
            now: Monotonic seconds.
        """
        asked, (former, canary) = api.spec.update_strategy, revisions
        trial, here = self.known.get(key), any(one.sample.revision == canary for one in pages)
        if trial is None or trial.revision != canary or now - trial.looked > GAP_SECONDS:
            trial = self.known[key] = _Trial(canary, now, now)
        trial.looked = now
        if here:
            trial.seen = now
            trial.began = now if trial.began is None else trial.began
        if trial.began is not None:
            trial.count(former, pages)
        if asked.canary is not None and isinstance(trial.verdict, Wait):
            unseen = now - trial.seen
            if here and trial.began is not None:
                allowed = Allowed(asked.canary.for_, asked.compare.shares[0])
                trial.verdict = judge(trial.old, trial.new, trial.began, now, allowed)
            elif unseen >= LONGEST * asked.canary.for_ + deadline_of(api):
                trial.verdict = GiveUp(f"no pod of it has answered for {unseen:.0f} s")
            if not isinstance(trial.verdict, Wait):
                self._decided(key)


def _since(
    before: MetricsPage | None, after: MetricsPage
) -> tuple[float, float, float, BatchSums] | None:
    """Requests, failed and refused ones, and batches since the page before; None: not known."""
    if before is None or before.sample.process_start != after.sample.process_start:
        return None
    was, now = before.sample, after.sample
    risen = change(was, now, window=0.0, since_full_look=None, warm_up_batches=WARM_UP_BATCHES)
    if risen is None:
        return None
    sums = BatchSums() if risen.warming_up else risen.sums
    if before.failed is None or after.failed is None:
        return 0.0, 0.0, 0.0, sums
    failed, refused = after.failed - before.failed, after.refused - before.refused
    return (
        max(0.0, now.answered - was.answered),
        max(0.0, failed),
        max(0.0, refused),
        sums,
    )
