"""Batching in effect on replicas: by their pages, else by the manifest. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from batchedapi_core.batching import SizeUnit
from batchedapi_core.manifest import (
    BatchedAPI,
    InEffect,
    format_duration,
    model_processes,
    scaling_policy_of,
)
from batchedapi_core.scaling.observe import in_rows
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.samples import PodSample, QueueLook, Unready, fell
from batchedapi_core.scaling.state import ScalingState
from batchedapi_operator.autoscaling.metrics_page import MetricsPage
from batchedapi_operator.cluster import JsonObject
from batchedapi_operator.errors import MetricsUnavailableError
from batchedapi_operator.reconcile.conditions import load_failure
from batchedapi_operator.views import DeploymentView, PodView


def processes_of(api: BatchedAPI, pages: Sequence[MetricsPage] = ()) -> int:
    """Model processes of a replica: `model_processes` with what pages say."""
    return model_processes(api, _said(pages))


def effective_of(api: BatchedAPI, pages: Sequence[MetricsPage]) -> JsonObject | None:
    """`status.effective`; None without a page."""
    if not pages:
        return None
    said = _said(pages)
    processes = model_processes(api, said)
    figures: JsonObject = {
        "processesPerReplica": processes,
        "lanes": processes * api.spec.predictor.threads_per_process,
    }
    if said.max_batch_size is not None:
        figures["maxBatchSize"] = said.max_batch_size
    if said.batch_interval is not None:
        # to the microsecond: Adaptive comes to any number
        figures["batchInterval"] = format_duration(round(said.batch_interval, 6))
    return figures


def policy_of(
    api: BatchedAPI,
    pages: Sequence[MetricsPage],
    state: ScalingState,
    now: float,
    another: str | None = None,
) -> ScalingPolicy:
    """The user's targets, with the batching that is in effect on the replicas where they say so.

    `another` is the digest of what they run where that is not the manifest's: it was given up, or
    is tried. Then they alone tell of processes and threads, and nothing is taken from a canary.
    """
    if another is not None:
        pages = [page for page in pages if page.sample.revision == another]
    policy = scaling_policy_of(api, replace(_said(pages), another=another is not None))
    return in_rows(policy, state, samples_of(api, pages), now)


def _said(pages: Sequence[MetricsPage]) -> InEffect:
    sizes = (page.max_batch_size for page in pages if page.max_batch_size is not None)
    intervals = (page.batch_interval for page in pages if page.batch_interval is not None)
    return InEffect(
        lanes=max((int(page.sample.lanes) for page in pages), default=None),
        max_batch_size=max(sizes, default=None),
        batch_interval=max(intervals, default=None),
    )


def samples_of(api: BatchedAPI, pages: Sequence[MetricsPage]) -> tuple[PodSample, ...]:
    """With sizes also of replicas too old to export them: what `sizeUnit` says, as they ran it."""
    rows = api.spec.server_side_batching.size_unit is SizeUnit.ROWS
    samples = (page.sample for page in pages)
    return tuple(
        one if one.sizes > 0 else replace(one, sizes=one.rows if rows else one.requests)
        for one in samples
    )


def with_replicas(
    queue: QueueLook, pods: Sequence[PodView], samples: Sequence[PodSample]
) -> QueueLook:
    """With what replicas from before the queue tell: they answer until web pods do.

    Args:
        queue: As web pods tell of it.
        pods: Ready ones, which are no web pods.
        samples: Of those that answered.
    """
    names = {pod.uid for pod in pods if not pod.role}
    found = [one for one in samples if one.pod in names]
    return replace(
        queue,
        samples=(*queue.samples, *found),
        ready=queue.ready + len(names),
        rows=queue.rows + sum(one.queue_rows for one in found),
    )


def refusal_of(
    api: BatchedAPI, name: str, page: MetricsPage, before: PodSample | None
) -> MetricsUnavailableError | None:
    """Why the page of the pod of that name cannot be true after the sample before; None if it can.

    A replica's counters outlive its processes and start anew with its supervisor alone, so one
    that falls is wrong. Were the low figure taken for the start, the way back up would look like a
    demand of everything that was ever counted.
    """
    (sample,) = samples_of(api, (page,))
    if before is None or not fell(before, sample):
        return None
    return MetricsUnavailableError("invalid", f"pod {name}: a counter fell without a restart")


def unready_of(deployment: DeploymentView, pods: Sequence[PodView], wall: datetime) -> Unready:
    """State of the replicas that were ordered and have never been ready.

    A pod that only lost its readiness is none of them. Those that cannot even be created, for want
    of quota maybe, have no pod: their number is what is missing.
    """
    there = [pod for pod in pods if not pod.gone]
    starting = [pod for pod in there if not pod.was_ready]
    refused = deployment.conditions.get("ReplicaFailure")
    missing = deployment.replicas - len(there) if refused and refused.status == "True" else 0
    ages = ((wall - pod.placed).total_seconds() for pod in starting if pod.placed is not None)
    return Unready(
        unschedulable=sum(bool(pod.unschedulable) for pod in starting),
        failing=sum(load_failure(pod) is not None for pod in starting) + max(0, missing),
        oldest=max(ages, default=0.0),
    )
