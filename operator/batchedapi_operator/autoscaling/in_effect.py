"""What replicas are in effect: what they say of themselves, else what the manifest says. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, assert_never

from batchedapi_core import contract
from batchedapi_core.batching import SizeUnit
from batchedapi_core.manifest import BatchedAPI, behaviors_of, parse_quantity
from batchedapi_core.placement import cpu_count
from batchedapi_core.scaling import PodSample, ScalingPolicy, ScalingState, in_rows
from batchedapi_operator.autoscaling.metrics_page import MetricsPage
from batchedapi_operator.autoscaling.report import Effective

_MANY_CPUS: Final = 10**6
"""Stands in for the CPUs of a node, which are not known here; the request is less."""


def processes_of(api: BatchedAPI, pages: Sequence[MetricsPage] = ()) -> int:
    """Model processes of a replica; with `cpu_count` as many as the lanes of a replica tell.

    They do not tell where all methods are calls, of which as many run as requests are let in.
    """
    predictor, calls = api.spec.predictor, api.spec.overload.max_replica_concurrency
    if isinstance(predictor.processes_per_replica, int):
        return predictor.processes_per_replica
    lanes = max((page.sample.lanes for page in pages), default=0.0)
    if predictor.threads_per_process <= lanes < calls:  # fewer: its processes are still starting
        return int(lanes) // predictor.threads_per_process
    return cpu_count((), parse_quantity(api.spec.compute.cpu), _MANY_CPUS)


def effective_of(api: BatchedAPI, pages: Sequence[MetricsPage]) -> Effective | None:
    """For the status; None without a page."""
    if not pages:
        return None
    sizes = [page.max_batch_size for page in pages if page.max_batch_size is not None]
    intervals = [page.batch_interval for page in pages if page.batch_interval is not None]
    processes = processes_of(api, pages)
    return Effective(
        processes=processes,
        lanes=processes * api.spec.predictor.threads_per_process,
        max_batch_size=max(sizes, default=None),
        batch_interval=max(intervals, default=None),
    )


def policy_of(
    api: BatchedAPI, pages: Sequence[MetricsPage], state: ScalingState, now: float
) -> ScalingPolicy:
    """The user's targets, with the batching that is in effect on the replicas where they say so."""
    batching, scaling, predictor = (
        api.spec.server_side_batching,
        api.spec.autoscaling,
        api.spec.predictor,
    )
    sizes = [page.max_batch_size for page in pages if page.max_batch_size is not None]
    intervals = [page.batch_interval for page in pages if page.batch_interval is not None]
    most = api.spec.overload.max_replica_concurrency
    calls = [int(page.sample.lanes) for page in pages if page.sample.lanes >= most]
    written = batching.max_batch_size or contract.DEFAULT_BATCHED_MAX_BATCH_SIZE
    written = written if batching.enabled else 1
    lanes = max(calls, default=processes_of(api, pages) * predictor.threads_per_process)
    size = max(sizes, default=written)
    up, down = behaviors_of(scaling)
    policy = ScalingPolicy(
        kind=scaling.policy,
        paused=api.spec.paused,
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        max_batch_size=size,
        batch_interval=max(intervals, default=batching.batch_interval),
        latency_target=batching.max_latency if scaling.slo.latency is None else scaling.slo.latency,
        quantile=scaling.slo.percentile / 100,
        target_utilization=scaling.target_utilization_percent / 100,
        target_concurrency=_target_concurrency(api, pages, size, lanes),
        lanes=lanes,
        window=scaling.window,
        up=up,
        down=down,
    )
    return in_rows(policy, state, samples_of(api, pages), now)


def _target_concurrency(
    api: BatchedAPI, pages: Sequence[MetricsPage], max_batch_size: int, lanes: int
) -> float:
    """Requests in flight that a replica is to have: what is written, else what fills its lanes.

    Without batching those are its threads, also where calls occupy no lane: of them a replica may
    have as many as it lets in, and would then have to refuse the next before there is another.
    """
    written = api.spec.autoscaling.target_replica_concurrency
    if written is not None:
        return parse_quantity(written)
    if max_batch_size == 1:
        return float(processes_of(api, pages) * api.spec.predictor.threads_per_process)
    return float(max_batch_size * lanes)


def samples_of(api: BatchedAPI, pages: Sequence[MetricsPage]) -> tuple[PodSample, ...]:
    """With sizes also of replicas too old to export them: what `sizeUnit` says, as they ran it."""
    return tuple(
        page.sample if page.sample.sizes > 0 else replace(page.sample, sizes=_sizes(api, page))
        for page in pages
    )


def _sizes(api: BatchedAPI, page: MetricsPage) -> float:
    match unit := api.spec.server_side_batching.size_unit:
        case SizeUnit.ROWS:
            return page.sample.rows
        case SizeUnit.REQUESTS:
            return page.sample.requests
        case _:
            assert_never(unit)
