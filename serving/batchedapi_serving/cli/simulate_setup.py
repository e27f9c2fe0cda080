"""From a manifest and options to a simulation. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchedapi_core.manifest import (
    BatchedAPI,
    ScalingMode,
    UnitError,
    format_duration,
    parse_duration,
    scaling_policy_of,
    with_changes,
)
from batchedapi_core.scaling import ScalingPolicy
from batchedapi_core.service_model.service_time import ServiceTime
from batchedapi_core.simulation import STARTUP, Service
from batchedapi_serving.cli.overrides import Flags, in_effect
from batchedapi_serving.cli.simulate_settings import Options, Setting, settings_of


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
    policy = scaling_policy_of(api)
    service = _service(api, options.service, policy)
    native = scaling.mode is ScalingMode.NATIVE
    replicas = options.replicas
    if replicas is None and not native:
        replicas = api.spec.replicas
    return Setup(
        service=service,
        policy=policy if native else None,
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


def _service(api: BatchedAPI, time: ServiceTime, policy: ScalingPolicy) -> Service:
    """A replica that runs what the manifest says, as the autoscaler takes it to."""
    batching, overload = api.spec.server_side_batching, api.spec.overload
    size = policy.max_batch_size
    return Service(
        fixed=time.fixed,
        per_row=time.per_row,
        max_batch_size=size,
        batch_interval=policy.batch_interval,
        latency_target=policy.latency_target,
        strategy=batching.strategy,
        max_latency=batching.max_latency,
        max_in_flight=overload.max_replica_concurrency,
        timeout=overload.timeout or math.inf,
        lanes=policy.lanes,
        size_unit=batching.size_unit,
        preferred_sizes=tuple(n for n in sorted(batching.preferred_batch_sizes) if n <= size),
        queue_order=batching.queue_order,
    )
