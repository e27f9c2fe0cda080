"""Advice about the manifest of an API. Pure.

It owns the condition SpecAdvice, since it alone sees what batches take and what processes need; in
modes in which it sees nothing, what can be told from the manifest is left. And it recommends a
batching, in `status.recommendation`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from batchedapi_core.batching import Strategy
from batchedapi_core.contract import MAX_BATCH_SIZE_LIMIT
from batchedapi_core.manifest import BatchedAPI, ConditionType, parse_quantity
from batchedapi_core.placement import AdviceReason, Situation, SpecAdvice, advise
from batchedapi_core.scaling.learned import LearnedModel
from batchedapi_core.scaling.observe import LoadWindow
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.recommendation import (
    Batching,
    BatchingRecommendation,
    NoRecommendation,
    recommend,
)
from batchedapi_operator.autoscaling.metrics_page import MetricsPage
from batchedapi_operator.cluster import listed
from batchedapi_operator.events import Note
from batchedapi_operator.reconcile.conditions import NewCondition, told


def advice_unseen(api: BatchedAPI, processes: int) -> tuple[SpecAdvice, ...]:
    """Advice that needs no page of a replica."""
    return (*advise(_situation(api, processes)), *_of_removed(api))


def advice_seen(
    api: BatchedAPI,
    processes: int,
    pages: Sequence[MetricsPage],
    policy: ScalingPolicy,
    load: LoadWindow,
    *,
    standing: frozenset[AdviceReason],
) -> tuple[SpecAdvice, ...]:
    """Advice about replicas under `policy`; `standing` is the advice of the last look."""
    memory = [page.process_memory for page in pages if page.process_memory is not None]
    seconds = None if load.service is None else load.service.seconds(policy.max_batch_size)
    seen = _situation(
        api,
        processes,
        process_memory=max(memory, default=None),
        max_batch_size=policy.max_batch_size,
        full_batch_seconds=seconds,
        one_by_one=any(page.one_by_one for page in pages),
    )
    return (*advise(seen, standing), *_of_removed(api))


def _of_removed(api: BatchedAPI) -> tuple[SpecAdvice, ...]:
    """One piece for all removed fields that the manifest has."""
    if not api.warnings:
        return ()
    return (SpecAdvice(AdviceReason.REMOVED, "; ".join(api.warnings)),)


def is_tuned(api: BatchedAPI) -> bool:
    """Whether the operator is to recommend a batching; under Adaptive replicas find it."""
    return api.spec.server_side_batching.strategy is not Strategy.ADAPTIVE


def batching_seen(
    api: BatchedAPI,
    pages: Sequence[MetricsPage],
    policy: ScalingPolicy,
    load: LoadWindow,
    learned: LearnedModel,
    *,
    standing: bool,
) -> BatchingRecommendation:
    """The batching to recommend, by what was seen of replicas under `policy`.

    Args:
        api: Its manifest is what would be changed.
        pages: Of the ready pods that answered.
        policy: With what is in effect there.
        load: Of the last window.
        learned: What their batches took.
        standing: Whether something is recommended already.
    """
    batching = api.spec.server_side_batching
    several = max((page.methods for page in pages), default=1) > 1
    if several or any(one.server_side_batching for one in api.spec.predictor.methods):
        return BatchingRecommendation(NoRecommendation.SEVERAL_METHODS.effect)
    size, written = Batching.in_effect(policy).max_batch_size, batching.max_batch_size
    return recommend(
        policy,
        learned,
        requests=load.came,
        arrival=load.demand.arrival_window if load.demand is not None else 0.0,
        # replicas have less than what is written where memory did not hold it
        most=MAX_BATCH_SIZE_LIMIT if written is None or written <= size else size,
        standing=standing,
    )


def _situation(
    api: BatchedAPI,
    processes: int,
    *,
    process_memory: float | None = None,
    max_batch_size: int = 1,
    full_batch_seconds: float | None = None,
    one_by_one: bool = False,
) -> Situation:
    compute = api.spec.compute
    return Situation(
        processes=processes,
        cpus=parse_quantity(compute.cpu),
        memory=None if compute.mem is None else parse_quantity(compute.mem),
        process_memory=process_memory,
        max_batch_size=max_batch_size,
        full_batch_seconds=full_batch_seconds,
        one_by_one=one_by_one,
        latency_target=api.spec.server_side_batching.max_latency,
    )


def spec_advice(advice: Sequence[SpecAdvice]) -> NewCondition:
    """The condition: True when there is something to say; the reason is the most urgent."""
    kind = ConditionType.SPEC_ADVICE
    if not advice:
        return told(kind, "False", "NothingToSay")
    return told(kind, "True", advice[0].reason.value, "; ".join(one.text for one in advice))


def notes_of_advice(advice: Sequence[SpecAdvice], standing: frozenset[AdviceReason]) -> list[Note]:
    """An event for each piece that is new."""
    return [
        Note("Warning", one.reason.value, "Advise", one.text)
        for one in advice
        if one.reason not in standing
    ]


def standing_in(status: Mapping[str, Any]) -> frozenset[AdviceReason]:
    """Advice of an earlier operator; a condition keeps the most urgent alone."""
    known = {reason.value for reason in AdviceReason}
    return frozenset(
        AdviceReason(one["reason"])
        for one in listed(status, "conditions")
        if one["type"] == ConditionType.SPEC_ADVICE and one["reason"] in known
    )
