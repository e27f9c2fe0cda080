"""Whether a new revision may take over from the one before, by recent batches that it ran again.

Whatever else runs on a node makes batches slower and never faster, so the times of both are judged
by their lower quartile: in each power of two of rows, weighted by how many batches were recorded.
The first run of a batch is left out: a model may compile or tune for a shape that is new to it.
"""

import enum
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from batchedapi_core import contract
from batchedapi_core.service_model import BatchSums, fit

FEWEST: Final = 4
"""Batches below which times say nothing."""
LEAST_SECONDS: Final = 0.0002
"""A batch that takes so much longer is as fast: what a request costs beside its model."""
SURE: Final = 2.0
"""Standard deviations that the number of failures must be above what is expected."""


class ComparisonReason(enum.StrEnum):
    """The outcome of a comparison; all but the first hold a rollout."""

    COMPARED = "Compared"
    MORE_ERRORS = "MoreErrors"
    ANSWERS_DIFFER = "AnswersDiffer"
    SLOWER = "Slower"


@dataclass(frozen=True, slots=True)
class Allowed:
    """Shares by which a new revision may be worse: 0.3 is 30 %."""

    slower: float
    differ: float


@dataclass(frozen=True, slots=True)
class ComparedBatch:
    """One recorded batch, and what became of it when the new revision ran it."""

    rows: int
    before: float
    """Seconds that it took when it was recorded."""
    after: tuple[float, ...]
    """Seconds of each run by the new revision, the first of which is no time; at least one."""
    failed_before: int = 0
    """Rows that were answered with an error, NaN or Infinity."""
    failed: int = 0
    """The same, in all runs together."""
    moved: int = 0
    """Rows, in all runs together, that both answered, and not alike."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome for one method, with the sentence that says why."""

    reason: ComparisonReason
    sentence: str


class _SizeClass(NamedTuple):
    """Recorded batches with rows in one power of two."""

    batches: int
    rows: float
    """Of the mean batch."""
    before: float
    """Lower quartile of the seconds with the revision before."""
    after: float
    """The same of the runs by the new one."""


def judge(method: str, batches: Sequence[ComparedBatch], allowed: Allowed) -> Comparison:
    """Judge by the errors first, then by the answers, then by the times; at least one batch."""
    classes = _size_classes([batch for batch in batches if len(batch.after) > 1])
    after = _shown([(one.batches, one.rows, one.after) for one in classes])
    before = _shown([(one.batches, one.rows, one.before) for one in classes])
    reason, text = (
        _worse_answers(batches, allowed)
        or _slower(classes, allowed)
        or (ComparisonReason.COMPARED, f"no worse in {len(batches)} recent batches")
    )
    return Comparison(reason, f"{method}: {text}; t(n) is {after}, and was {before}")


def _worse_answers(
    batches: Sequence[ComparedBatch], allowed: Allowed
) -> tuple[ComparisonReason, str] | None:
    rows = sum(batch.rows * len(batch.after) for batch in batches)
    failed = sum(batch.failed for batch in batches)
    expected = sum(batch.failed_before * len(batch.after) for batch in batches)
    if failed > expected + SURE * math.sqrt(expected):
        text = f"{failed} of {rows} recent rows failed, and {expected} with the revision before"
        return ComparisonReason.MORE_ERRORS, text
    moved = sum(batch.moved for batch in batches)
    if moved > allowed.differ * rows:
        text = (
            f"{moved} of {rows} recent rows ({contract.percent(moved / rows)}) are answered"
            " otherwise than by the revision before, and spec.updateStrategy.compare.differ allows"
            f" {contract.percent(allowed.differ)}"
        )
        return ComparisonReason.ANSWERS_DIFFER, text
    return None


def _slower(classes: Sequence[_SizeClass], allowed: Allowed) -> tuple[ComparisonReason, str] | None:
    count = sum(one.batches for one in classes)
    if count < FEWEST:
        return None
    before = sum(one.batches * one.before for one in classes) / count
    after = sum(one.batches * one.after for one in classes) / count
    at_most = max(before * (1 + allowed.slower), before + LEAST_SECONDS)
    if after <= at_most:
        return None
    mean = sum(one.batches * one.rows for one in classes) / count
    text = (
        f"a batch of {mean:.0f} rows on average takes {contract.ms(after)}, and took"
        f" {contract.ms(before)} (+{contract.percent(after / before - 1)}), and"
        f" spec.updateStrategy.compare.slower allows {contract.percent(allowed.slower)}"
    )
    return ComparisonReason.SLOWER, text


def _size_classes(batches: Sequence[ComparedBatch]) -> list[_SizeClass]:
    found: defaultdict[int, list[ComparedBatch]] = defaultdict(list)
    for batch in batches:
        found[batch.rows.bit_length()].append(batch)
    return [
        _SizeClass(
            len(of_size),
            sum(batch.rows for batch in of_size) / len(of_size),
            _quartile([batch.before for batch in of_size]),
            _quartile([seconds for batch in of_size for seconds in batch.after[1:]]),
        )
        for of_size in found.values()
    ]


def _quartile(seconds: Collection[float]) -> float:
    return sorted(seconds)[len(seconds) // 4]


def _shown(classes: Sequence[tuple[int, float, float]]) -> str:
    """t(n) through size classes: their counts, mean rows and seconds."""
    sums = BatchSums()
    for count, rows, seconds in classes:
        sums = sums.plus(BatchSums(1.0, rows, rows**2, seconds, rows * seconds).scaled(count))
    line = fit(sums)
    if line is None:
        return "not known"
    return f"{contract.ms(line.fixed)} + {contract.ms(line.per_row)} a row"
