"""Whether a revision of which some pods take traffic may take over, by what they and others count.

Shares of requests are compared by the two-proportion test (NIST/SEMATECH e-Handbook of Statistical
Methods, 7.3.3), at every look. Times are compared between batches of equal size: a revision that is
slower has larger ones, and a larger batch takes longer anyway.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from batchedapi_core import contract
from batchedapi_core.comparison import LEAST_SECONDS
from batchedapi_core.service_model import BatchSums, fit

SURE: Final = 3.5
"""Standard deviations. Looks are many: with these, fewer than one in a hundred of equal revisions
is given up (tests/unit/core/test_canary.py); for a single look 2.3 would do."""
FEWEST_FAILED: Final = 5
"""Requests; of fewer the share is not near enough to normal for the test."""
FEWEST_REQUESTS: Final = 100
FEWEST_BATCHES: Final = 20
"""Of the new revision, for a verdict that rests on enough; of the old one a quarter, in a class."""
LONGEST: Final = 3.0
"""Times `seconds` for which it is waited for so many."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of the pods of one revision, since its canary was ready."""

    requests: float = 0.0
    """That ended, in pods that tell how."""
    failed: float = 0.0
    refused: float = 0.0
    sizes: Mapping[int, BatchSums] = field(default_factory=dict)
    """Batches by the power of two of their rows; those of one look of one pod are one class."""

    def plus(self, requests: float, failed: float, refused: float, sums: BatchSums) -> "Counts":
        """With what one pod has counted between two looks."""
        sizes = dict(self.sizes)
        if sums.batches >= 1 and sums.possible():
            power = int(sums.rows / sums.batches).bit_length()
            sizes[power] = sizes.get(power, BatchSums()).plus(sums)
        return Counts(self.requests + requests, self.failed + failed, self.refused + refused, sizes)


@dataclass(frozen=True, slots=True)
class Allowed:
    """`updateStrategy.canary.for`, in seconds, and `compare.slower` as a share: 0.3 is 30 %."""

    seconds: float
    slower: float


@dataclass(frozen=True, slots=True)
class Wait:
    """More is to be seen."""


@dataclass(frozen=True, slots=True)
class Promote:
    """It takes over."""

    why: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It goes."""

    why: str


Verdict = Wait | Promote | GiveUp


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, and the digest of the revision that it is about."""

    revision: str
    verdict: Verdict


def judge(old: Counts, new: Counts, began: float, now: float, allowed: Allowed) -> Verdict:
    """Judge the shares at every look, and the times once `allowed.seconds` are over.

    Args:
        old: Of the pods that the canary is beside.
        new: Of those of the canary.
        began: When it was ready; `now` is in the same seconds.
        now: Of this look.
        allowed: Of the manifest.
    """
    more = _more(new.failed, old.failed, old, new, "failed")
    if more is None and new.refused * old.requests > 2 * old.refused * new.requests:
        # an overload comes in bursts, of which the test knows nothing
        more = _more(new.refused, old.refused, old, new, "were refused")
    if more is not None:
        return GiveUp(more)
    if now - began < allowed.seconds:
        return Wait()
    batches, took, expected, rows = _at_equal_sizes(old, new)
    enough = batches >= FEWEST_BATCHES
    if enough and took > max(expected * (1 + allowed.slower), expected + batches * LEAST_SECONDS):
        return GiveUp(
            f"a batch of {rows / batches:.0f} rows on average takes {contract.ms(took / batches)},"
            f" and {contract.ms(expected / batches)} with the revision before"
            f" (+{contract.percent(took / expected - 1)}), and spec.updateStrategy.compare.slower"
            f" allows {contract.percent(allowed.slower)}"
        )
    seen = f"{new.requests:.0f} requests and {batches:.0f} batches"
    if enough and min(old.requests, new.requests) >= FEWEST_REQUESTS:
        return Promote(f"no worse in {seen}")
    if now - began < LONGEST * allowed.seconds:
        return Wait()
    return _with_little(old, new, f"{now - began:.0f} s to tell whether it is worse: {seen}")


def _with_little(old: Counts, new: Counts, seen: str) -> Promote | GiveUp:
    """Of too few requests to tell more from noise: half of them, and twice the share, is none."""
    most = 0 < new.requests <= 2 * new.failed
    if most and new.failed * old.requests >= 2 * old.failed * new.requests:
        return GiveUp(_shares(new.failed, old.failed, old, new, "failed"))
    return Promote(f"too little was seen in {seen}, and {new.failed:.0f} requests failed")


def _more(worse: float, before: float, old: Counts, new: Counts, what: str) -> str | None:
    """The sentence that more of the new one's requests ended so, beyond noise; else None."""
    if worse < FEWEST_FAILED or min(old.requests, new.requests) <= 0:
        return None
    pooled = min(1.0, (worse + before) / (old.requests + new.requests))
    deviation = math.sqrt(pooled * (1 - pooled) * (1 / old.requests + 1 / new.requests))
    if worse / new.requests - before / old.requests <= SURE * deviation:
        return None
    return _shares(worse, before, old, new, what)


def _shares(worse: float, before: float, old: Counts, new: Counts, what: str) -> str:
    """Both shares; of the old one's `what` none is known where it had no requests."""
    told = f"{worse:.0f} of {new.requests:.0f} requests {what}"
    if old.requests <= 0:
        return f"{told}, and none came to the revision before that tells of them"
    return (
        f"{told} ({100 * worse / new.requests:.1f} %), and {before:.0f} of {old.requests:.0f} with"
        f" the revision before ({100 * before / old.requests:.1f} %)"
    )


def _at_equal_sizes(old: Counts, new: Counts) -> tuple[float, float, float, float]:
    """Batches of the new one, their seconds, what the old one takes for such, and their rows.

    Classes below all that the old one ran are left out. Above them its line goes on, which is
    pessimistic: a share of t(n) that it has not shown to be fixed grows with the rows.
    """
    known = {power: sums for power, sums in old.sizes.items() if sums.batches * 4 >= FEWEST_BATCHES}
    total = BatchSums()
    for sums in known.values():
        total = total.plus(sums)
    line = fit(total)
    batches = took = expected = rows = 0.0
    for power, sums in new.sizes.items():
        if line is None or power < min(known):
            continue
        # the largest class up to this one
        near = known[max(one for one in known if one <= power)]
        mean, larger = near.rows / near.batches, sums.rows / sums.batches
        each = near.seconds / near.batches + line.per_row * max(0.0, larger - mean)
        batches, took, rows = batches + sums.batches, took + sums.seconds, rows + sums.rows
        expected += sums.batches * each
    return batches, took, expected, rows
