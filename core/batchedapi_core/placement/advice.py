"""Advice about a manifest that is valid and may still be a mistake. It blocks nothing."""

import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

PROCESSES_PER_CPU: Final = 3
"""More compete for the CPU without serving more."""
CALM: Final = 0.9
"""What was said stands until its figure is below this share of the limit: a figure that wanders
around the limit must not be news every time."""


class AdviceReason(enum.StrEnum):
    """Reasons of the condition SpecAdvice, the most urgent first."""

    MEMORY = "MemoryMayNotHoldCopies"
    INTERVAL = "IntervalExceedsLatency"
    PROCESSES = "TooManyProcesses"
    ONE_BY_ONE = "BatchedOneByOne"


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece; the text names fields, figures and the remedy."""

    reason: AdviceReason
    text: str


@dataclass(frozen=True, slots=True)
class Situation:
    """What one replica was asked to be, and what is known of it."""

    processes: int
    cpus: float  # requested
    memory: float | None  # bytes; None: no limit
    process_memory: float | None  # bytes of the largest model process; None: not seen yet
    max_batch_size: int  # rows
    full_batch_seconds: float | None  # learned t(max); None: not known yet
    latency_target: float | None  # seconds; None: no target
    one_by_one: bool = False  # batches of some method are run request by request


def advise(situation: Situation, standing: Collection[AdviceReason] = ()) -> tuple[Advice, ...]:
    """What should be said of `situation`; `standing` is what was said of it last."""
    found = (
        _memory(situation, CALM if AdviceReason.MEMORY in standing else 1.0),
        _interval(situation, CALM if AdviceReason.INTERVAL in standing else 1.0),
        _processes(situation),
        _one_by_one(situation),
    )
    return tuple(one for one in found if one is not None)


def _memory(s: Situation, share: float) -> Advice | None:
    if s.memory is None or s.process_memory is None:
        return None
    copies = s.processes * s.process_memory
    if copies <= share * s.memory:
        return None
    return Advice(
        AdviceReason.MEMORY,
        f"spec.compute.mem is {_size(s.memory)}, and {s.processes} processes of"
        f" {_size(s.process_memory)} need {_size(copies)}: raise it, or lower"
        " spec.predictor.processesPerReplica",
    )


def _interval(s: Situation, share: float) -> Advice | None:
    if s.latency_target is None or s.full_batch_seconds is None:
        return None
    if s.full_batch_seconds <= share * s.latency_target:
        return None
    return Advice(
        AdviceReason.INTERVAL,
        f"a batch of {s.max_batch_size} rows takes {1e3 * s.full_batch_seconds:.0f}ms, and"
        f" spec.serverSideBatching.maxLatency is {1e3 * s.latency_target:.0f}ms: lower"
        " spec.serverSideBatching.maxBatchSize, or raise maxLatency",
    )


def _processes(s: Situation) -> Advice | None:
    if s.processes <= max(1.0, PROCESSES_PER_CPU * s.cpus):
        return None
    return Advice(
        AdviceReason.PROCESSES,
        f"spec.predictor.processesPerReplica is {s.processes} on {s.cpus:g} CPUs: more than"
        f" {PROCESSES_PER_CPU} for each CPU compete without serving more; lower it, or raise"
        " spec.compute.cpu",
    )


def _one_by_one(s: Situation) -> Advice | None:
    if not s.one_by_one:
        return None
    return Advice(
        AdviceReason.ONE_BY_ONE,
        "spec.serverSideBatching.maxBatchSize is above 1, and a method takes one request at a time:"
        " what waited together is run request by request, and nothing is gained; mark the method"
        " with @batched, or leave maxBatchSize out",
    )


def _size(number: float) -> str:
    return f"{number / 2**20:.0f}Mi"
