"""From a manifest and options to a simulation. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_core.manifest import (
    BatchedAPI,
    ScalingMode,
    UnitError,
    behaviors_of,
    format_duration,
    parse_duration,
    parse_quantity,
    with_changes,
)
from batchedapi_core.placement import cpu_count
from batchedapi_core.scaling import ScalingPolicy
from batchedapi_core.service_model.line import ServiceTime
from batchedapi_core.simulation import STARTUP, Service
from batchedapi_serving.cli.overrides import Flags, in_effect
from batchedapi_serving.cli.simulate_settings import Options, Setting, settings_of

_MANY_CPUS: Final = 10**6
"""Stands in for the CPUs of a node, which are not known here; the request is less."""


class OptionError(ValueError):
    """An option that says nothing usable; names the option, what was expected and what came."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What to simulate."""

    service: Service
    policy: ScalingPolicy | None  # None: the number of replicas is fixed
    replicas: int | None  # at the beginning; None: as many as the first load needs
    min_replicas: int
    max_replicas: int
    startup: tuple[float, float]  # seconds
    quantile: float  # of the requests, to be within the target
    seed: int
    settings: tuple[Setting, ...]


def parse_service(text: str) -> ServiceTime:
    """`a=8ms,b=0.15ms`: seconds of a batch, and of each row in it.

    Raises:
        OptionError: it is none.
    """
    expected = "--service: expected a=DURATION,b=DURATION (of a batch, and of each row in it)"
    parts = dict(part.partition("=")[::2] for part in text.replace(" ", "").split(","))
    if set(parts) != {"a", "b"}:
        raise OptionError(f"{expected}, such as a=8ms,b=0.15ms, got {text!r}")
    try:
        time = ServiceTime(parse_duration(parts["a"]), parse_duration(parts["b"]))
    except UnitError as error:
        raise OptionError(f"--service {text}: {error}") from error
    if time.fixed + time.per_row <= 0.0:
        raise OptionError(f"{expected} that are not both 0, got {text!r}")
    return time


def parse_startup(text: str) -> tuple[float, float]:
    """`20s..60s`, or one duration for every replica.

    Raises:
        OptionError: it is neither.
    """
    least, _, most = text.partition("..")
    try:
        span = parse_duration(least.strip()), parse_duration((most or least).strip())
    except UnitError as error:
        raise OptionError(f"--startup {text}: {error}, or two of them as 20s..60s") from error
    if span[0] > span[1]:
        raise OptionError(f"--startup: expected the shorter first, as 20s..60s, got {text!r}")
    return span


def set_up(api: BatchedAPI, options: Options) -> Setup:
    """Everything that a simulation of `api` needs.

    Raises:
        ManifestError: an option does not go with the manifest.
        OptionError: nobody says how long a batch takes.
    """
    if options.service is None:
        raise OptionError(
            f"--service: expected how long a batch takes, which no manifest says; `batchedapi check"
            f" -f FILE` measures it: t(n) = a + b * n is --service a=...,b=... (of"
            f" {api.metadata.name})"
        )
    written = in_effect(api, Flags(), {}, 1)
    api = _changed(written, options)
    scaling = api.spec.autoscaling
    service = _service(api, options.service)
    native = scaling.mode is ScalingMode.NATIVE
    replicas = options.replicas
    if replicas is None and not native:
        replicas = api.spec.replicas
    return Setup(
        service=service,
        policy=_policy(api, service) if native else None,
        replicas=replicas if replicas is not None else scaling.init_replicas,
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        startup=options.startup or STARTUP,
        quantile=scaling.slo.percentile / 100,
        seed=options.seed,
        settings=settings_of(written, api, service, options),
    )


def _changed(api: BatchedAPI, options: Options) -> BatchedAPI:
    batching: dict[str, Any] = {}
    scaling: dict[str, Any] = {}
    if options.max_batch_size is not None:
        batching["maxBatchSize"] = options.max_batch_size
    if options.batch_interval is not None:
        batching["batchInterval"] = format_duration(options.batch_interval)
    if options.max_latency is not None:
        batching["maxLatency"] = format_duration(options.max_latency)
    if options.min_replicas is not None:
        scaling["minReplicas"] = options.min_replicas
    if options.max_replicas is not None:
        scaling["maxReplicas"] = options.max_replicas
    changes: Mapping[str, Mapping[str, Any]] = {
        "serverSideBatching": batching,
        "autoscaling": scaling,
    }
    return with_changes(api, {name: fields for name, fields in changes.items() if fields})


def _service(api: BatchedAPI, time: ServiceTime) -> Service:
    batching, overload = api.spec.server_side_batching, api.spec.overload
    size = batching.max_batch_size or contract.DEFAULT_BATCHED_MAX_BATCH_SIZE
    size = size if batching.enabled else 1
    target = api.spec.autoscaling.slo.latency
    return Service(
        fixed=time.fixed,
        per_row=time.per_row,
        max_batch_size=size,
        batch_interval=batching.batch_interval,
        latency_target=batching.max_latency if target is None else target,
        strategy=batching.strategy,
        max_latency=batching.max_latency,
        max_in_flight=overload.max_replica_concurrency,
        timeout=overload.timeout or math.inf,
        lanes=_lanes(api),
        size_unit=batching.size_unit,
        preferred_sizes=tuple(n for n in sorted(batching.preferred_batch_sizes) if n <= size),
        queue_order=batching.queue_order,
    )


def _lanes(api: BatchedAPI) -> int:
    predictor = api.spec.predictor
    processes = predictor.processes_per_replica
    if not isinstance(processes, int):
        processes = cpu_count((), parse_quantity(api.spec.compute.cpu), _MANY_CPUS)
    return processes * predictor.threads_per_process


def _policy(api: BatchedAPI, service: Service) -> ScalingPolicy:
    """As the operator makes it, of replicas that run what the manifest says."""
    scaling = api.spec.autoscaling
    up, down = behaviors_of(scaling)
    batched = service.max_batch_size if api.spec.server_side_batching.enabled else 1
    written = scaling.target_replica_concurrency
    return ScalingPolicy(
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        max_batch_size=service.max_batch_size,
        batch_interval=service.batch_interval,
        latency_target=service.latency_target,
        quantile=scaling.slo.percentile / 100,
        target_utilization=scaling.target_utilization_percent / 100,
        lanes=service.lanes,
        window=scaling.window,
        kind=scaling.policy,
        target_concurrency=(
            float(batched * service.lanes) if written is None else parse_quantity(written)
        ),
        up=up,
        down=down,
        paused=api.spec.paused,
    )
