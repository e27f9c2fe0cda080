"""The evidence for the verdict on an API's bottleneck, out of what pods counted. Pure."""

from batchedapi_core import contract
from batchedapi_core.bottleneck import BottleneckEvidence, PodLoad
from batchedapi_core.manifest import BatchedAPI
from batchedapi_core.scaling import LoadWindow, ScalingPolicy
from batchedapi_core.service_model.service_time import BatchSums
from batchedapi_operator.autoscaling.tally import Counts, Rise


def evidence_of(
    api: BatchedAPI,
    policy: ScalingPolicy,
    load: LoadWindow,
    pods: tuple[Rise, ...],
    seconds: float,
) -> BottleneckEvidence:
    """What a window of `seconds` says; `policy` has the batching in effect on the replicas."""
    total = Counts.total(one.counts for one in pods)
    sums = total.sums
    return BottleneckEvidence(
        seconds=seconds,
        coverage=load.coverage,
        received=sums.received,
        rejected=tuple(zip(contract.REJECTION_REASONS, total.rejected, strict=True)),
        released=tuple(zip(contract.RELEASE_REASONS, total.released, strict=True)),
        sums=BatchSums(
            sums.batches, sums.rows, sums.rows_squared, sums.batch_seconds, sums.row_seconds
        ),
        sizes=sums.sizes or sums.rows,  # older replicas, limited in rows, do not count sizes
        lane_seconds=sum(one.lane_seconds for one in pods),
        max_batch_size=policy.max_batch_size if policy.max_size is None else policy.max_size,
        batch_interval=policy.batch_interval,
        target_utilization=policy.target_utilization,
        pods=tuple(map(_load_of, pods)),
        service=load.service,
        latency_target=policy.latency_target,
        quantile=policy.quantile,
        queue_wait=sums.queue_wait / sums.waited if sums.waited > 0 else None,
        request_seconds=(sums.request_seconds / sums.answered if sums.answered > 0 else None),
        web_cpu=_busiest_web_process(pods),
        web_processes=api.spec.predictor.web_processes,
        replica_concurrency=api.spec.overload.max_replica_concurrency,
    )


def _load_of(pod: Rise) -> PodLoad:
    counts = pod.counts.sums
    return PodLoad(pod.pod, counts.received, pod.lane_seconds, counts.batch_seconds)


def _busiest_web_process(pods: tuple[Rise, ...]) -> float | None:
    """Share of a core, 0..1; None where none exports it: one that runs uses more than nothing."""
    share = max((max(one.counts.web_cpu) / one.seconds for one in pods), default=0.0)
    return min(1.0, share) if share > 0.0 else None
