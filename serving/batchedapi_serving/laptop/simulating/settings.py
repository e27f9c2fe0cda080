"""Values of a simulation, from a manifest and options, and the origin of each. Pure."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic.alias_generators import to_camel

from batchedapi_core.manifest import (
    BatchedAPI,
    ScalingMode,
    UnitError,
    format_duration,
    parse_duration,
    scaling_policy_of,
    with_changes,
)
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.service_model import ServiceTime
from batchedapi_core.simulated import service_of
from batchedapi_core.simulation import STARTUP, NoisyService
from batchedapi_serving.overrides import Flags, in_effect

ASSUMED: Final = "assumed"
DEFAULT: Final = "default"
MANIFEST: Final = "manifest"


@dataclasses.dataclass(frozen=True, slots=True)
class SimulateOptions:
    """Options of the command line; None: not given. Durations in seconds."""

    service: ServiceTime | None = None
    per_length: float = 0.0
    lengths: tuple[int, ...] = ()
    lengths_from: str = "--lengths"  # or the trace, which was recorded with them
    max_batch_size: int | None = None
    batch_interval: float | None = None
    max_latency: float | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    startup: tuple[float, float] | None = None
    replicas: int | None = None
    connections: int | None = None
    seed: int = 0


class SettingLine(NamedTuple):
    """One value that the result depends on."""

    name: str
    value: str
    origin: str  # the option, MANIFEST, DEFAULT or ASSUMED


_FIELDS: Final = (
    ("server_side_batching", "max_batch_size"),
    ("server_side_batching", "batch_interval"),
    ("server_side_batching", "strategy"),
    ("server_side_batching", "size_unit"),
    ("server_side_batching", "max_latency"),
    ("overload", "max_replica_concurrency"),
    ("overload", "timeout"),
    ("autoscaling", "mode"),
    ("autoscaling", "policy"),
    ("autoscaling", "min_replicas"),
    ("autoscaling", "max_replicas"),
    ("autoscaling", "target_utilization_percent"),
    ("autoscaling", "window"),
)
"""(section, field) of the spec, in the order in which they are printed."""
_OPTIONS: Final = frozenset(field.name for field in dataclasses.fields(SimulateOptions))


def settings_of(
    written: BatchedAPI, api: BatchedAPI, service: NoisyService, options: SimulateOptions
) -> tuple[SettingLine, ...]:
    """One line for each value.

    Args:
        written: As in the file.
        api: With the options in place of its own values.
        service: As made from it.
        options: As given.
    """
    scaling, predictor = written.spec.autoscaling, written.spec.predictor
    target = "none: only what is refused is a miss"
    origin = DEFAULT
    if service.latency_target is not None:
        percentile = scaling.slo.percentile
        target = f"{format_duration(service.latency_target)} for {percentile} % of the requests"
        origin = MANIFEST
        if scaling.slo.latency is None and options.max_latency is not None:
            origin = "--max-latency"
    lanes = {"processes_per_replica", "threads_per_process"} & predictor.model_fields_set
    behavior = "as written" if scaling.behavior else "of the policy"
    fields = (_field(written, api, service, options, place) for place in _FIELDS)
    return (
        SettingLine(
            "service time",
            f"{format_duration(service.fixed)} + {format_duration(service.per_row)} * rows"
            + f" + {format_duration(service.per_length)} * padded lengths" * bool(service.lengths),
            "--service",
        ),
        *_lengths(service, options),
        *fields,
        SettingLine("latency target", target, origin),
        SettingLine("lanes of a replica", str(service.lanes), MANIFEST if lanes else DEFAULT),
        SettingLine("autoscaling.behavior", behavior, MANIFEST if scaling.behavior else DEFAULT),
        *_assumed(written, service, options),
    )


def _lengths(service: NoisyService, options: SimulateOptions) -> list[SettingLine]:
    if not service.lengths:
        return []
    shortest, longest = min(service.lengths), max(service.lengths)
    text = f"{shortest} to {longest}, {service.mean_length} in the mean"
    return [SettingLine("lengths of rows", text, options.lengths_from)]


def _field(
    written: BatchedAPI,
    api: BatchedAPI,
    service: NoisyService,
    options: SimulateOptions,
    place: tuple[str, str],
) -> SettingLine:
    section, field = place
    name = f"{to_camel(section)}.{to_camel(field)}"
    value = getattr(getattr(api.spec, section), field)
    if field == "max_batch_size":
        value = service.max_batch_size  # in effect, where the manifest says nothing
    if isinstance(value, float):
        value = format_duration(value)
    origin = DEFAULT
    if field in _OPTIONS and getattr(options, field) is not None:
        origin = "--" + field.replace("_", "-")
    elif field in getattr(written.spec, section).model_fields_set:
        origin = MANIFEST
    return SettingLine(name, "none" if value is None else str(value), origin)


def _assumed(
    written: BatchedAPI, service: NoisyService, options: SimulateOptions
) -> list[SettingLine]:
    least, most = options.startup or STARTUP
    startup = f"{format_duration(least)}..{format_duration(most)}"
    own = sum(method.server_side_batching is not None for method in written.spec.predictor.methods)
    settings = [
        SettingLine("start-up of a replica", startup, "--startup" if options.startup else ASSUMED),
        SettingLine("noise of a batch's time", f"{100 * service.noise:g}% log-normal", ASSUMED),
        SettingLine(
            "cold batches", f"the first {service.cold_batches} of a new replica take twice", ASSUMED
        ),
        SettingLine("balancing", "each request to a random ready replica", ASSUMED),
        SettingLine("clients", "strangers: nobody waits for an answer to ask again", ASSUMED),
        SettingLine("outside the batches", "no time: HTTP, encoding, the network", ASSUMED),
        SettingLine("seed", str(options.seed), "--seed" if options.seed else DEFAULT),
    ]
    if own:
        text = f"{own} with batching of their own run with the common one"
        settings.append(SettingLine("methods", text, ASSUMED))
    return settings


LONGEST: Final = 10**6
_DRAWN: Final = 1000
CONNECTIONS: Final = 64
"""Default of an API with one queue for the comparison."""


class OptionError(ValueError):
    """An option that says nothing usable; names the option, what was expected and what came."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Arguments of one simulation."""

    service: NoisyService
    policy: ScalingPolicy | None  # None: the number of replicas is fixed
    replicas: int | None  # at the beginning; None: as many as the first load needs
    min_replicas: int
    max_replicas: int
    startup: tuple[float, float]  # seconds
    quantile: float  # of the requests, to be within the target
    seed: int
    settings: tuple[SettingLine, ...]
    connections: int | None = None  # to compare with one queue; None: not asked


def parse_service(text: str) -> tuple[ServiceTime, float]:
    """`a=8ms,b=0.15ms,c=2us`: seconds of a batch, of each row in it, and of each padded length.

    Raises:
        OptionError: it is none.
    """
    expected = "--service: expected a=DURATION,b=DURATION (of a batch, and of each row in it)"
    parts = dict(part.partition("=")[::2] for part in text.replace(" ", "").split(","))
    if not {"a", "b"} <= set(parts) <= {"a", "b", "c"}:
        raise OptionError(f"{expected}, such as a=8ms,b=0.15ms, got {text!r}")
    try:
        time = ServiceTime(parse_duration(parts["a"]), parse_duration(parts["b"]))
        per_length = parse_duration(parts.get("c", "0s"))
    except UnitError as error:
        raise OptionError(f"--service {text}: {error}") from error
    if time.fixed + time.per_row <= 0.0:
        raise OptionError(f"{expected} that are not both 0, got {text!r}")
    return time, per_length


def parse_lengths(text: str) -> tuple[int, ...]:
    """`4..512`: lengths to draw from, as many from 4 to 8 as from 8 to 16.

    Raises:
        OptionError: it is none.
    """
    least, _, most = text.partition("..")
    if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) <= int(most) <= LONGEST):
        raise OptionError(f"--lengths: expected LEAST..MOST of 1 to {LONGEST}, got {text!r}")
    factor = int(most) / int(least)
    return tuple(round(int(least) * factor ** (i / _DRAWN)) for i in range(_DRAWN + 1))


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


def set_up(api: BatchedAPI, options: SimulateOptions) -> Setup:
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
    if bool(options.per_length) != bool(options.lengths):
        raise OptionError(
            "--service: expected c=DURATION (of each row's length, padded) with --lengths, and"
            " --lengths or a recording that has them with c"
        )
    written = in_effect(api, Flags(), {}, 1)
    api = _changed(written, options)
    scaling, queue = api.spec.autoscaling, api.spec.server_side_batching.queue
    if scaling.min_replicas < 1:
        raise OptionError(
            "--min-replicas: expected 1 or more, got 0 in the manifest: no request waits here for"
            " a first replica; simulate with --min-replicas 1"
        )
    policy = scaling_policy_of(api)
    service = dataclasses.replace(
        service_of(api, options.service, policy),
        per_length=options.per_length,
        lengths=options.lengths,
    )
    native = scaling.mode is ScalingMode.NATIVE
    replicas = options.replicas
    if replicas is None and not native:
        replicas = 1 if api.spec.replicas is None else api.spec.replicas  # as an API begins
    return Setup(
        service=service,
        policy=policy if native else None,
        replicas=replicas,
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        startup=options.startup or STARTUP,
        quantile=scaling.slo.percentile / 100,
        seed=options.seed,
        settings=settings_of(written, api, service, options),
        connections=options.connections or (None if queue is None else CONNECTIONS),
    )


def _changed(api: BatchedAPI, options: SimulateOptions) -> BatchedAPI:
    changes: dict[str, dict[str, Any]] = {}
    for section, field in _FIELDS:
        value = getattr(options, field, None)
        if value is not None:
            text = format_duration(value) if isinstance(value, float) else value
            changes.setdefault(to_camel(section), {})[to_camel(field)] = text
    return with_changes(api, changes)
