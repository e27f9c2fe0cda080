"""Whether an answer depends on the company in which its row is asked."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from batchedapi_serving.checking.asking import FailedError, Sample, difference
from batchedapi_serving.codecs import Results

FINDINGS = 5
"""Sentences at most: one mistake mostly shows in every row."""


class Asked(Protocol):
    """A method; see asking.Method."""

    def ask(self, samples: Sequence[Sample]) -> Results:
        """The answers to one batch."""


def findings(method: Asked, samples: Sequence[Sample], max_batch_size: int) -> list[str]:
    """Sentences about answers that differ; empty: batching does not change any.

    Every row is asked alone, twice, then among others: together in batches as full as they may
    be, in reverse, and in batches half as full.
    """
    try:
        alone = [method.ask([sample]) for sample in samples]
        for i, sample in enumerate(samples[:1]):
            text = difference(alone[i], method.ask([sample]), 0)
            if text is not None:
                return [(f"the same row asked twice is answered differently: {text}; is the model"
                        " in evaluation mode, and every seed fixed?")]  # fmt: skip
        found: list[str] = []
        for what, batch in _batches(samples, max_batch_size):
            answers = method.ask([samples[i] for i in batch])
            for row, i in enumerate(batch):
                text = difference(alone[i], answers, row)
                if text is not None:
                    found.append(f"row {i} {what} is answered differently than alone: {text}")
            if len(found) >= FINDINGS:
                return found[:FINDINGS]
    except FailedError as error:
        return [str(error)]
    return found


def _batches(samples: Sequence[Sample], limit: int) -> Iterator[tuple[str, list[int]]]:
    """What is said of a batch, and the samples in it by number."""
    for group in by_shape(samples):
        for batch in _filled(samples, group, limit):
            yield f"in a batch of {len(batch)}", batch
        for batch in _filled(samples, group[::-1], limit):
            yield f"in a batch of {len(batch)} in reverse order", batch
        for batch in _filled(samples, group, max(1, limit // 2)):
            yield f"in a batch of {len(batch)}", batch


def by_shape(samples: Sequence[Sample]) -> list[list[int]]:
    """Numbers of samples that may share a batch, the largest group first."""
    groups: dict[object, list[int]] = {}
    for i, sample in enumerate(samples):
        groups.setdefault(sample.shape, []).append(i)
    return sorted(groups.values(), key=len, reverse=True)


def _filled(samples: Sequence[Sample], group: Sequence[int], limit: int) -> Iterator[list[int]]:
    """The group in batches of at most `limit` in cost; a row above it goes alone."""
    batch: list[int] = []
    cost = 0
    for i in group:
        if batch and cost + samples[i].cost > limit:
            yield batch
            batch, cost = [], 0
        batch.append(i)
        cost += samples[i].cost
    if batch:
        yield batch
