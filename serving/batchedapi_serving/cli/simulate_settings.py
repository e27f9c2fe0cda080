"""What a simulation runs with, and where each value is from: printed with every result. Pure."""

import dataclasses
from typing import Final, NamedTuple

from batchedapi_core.manifest import BatchedAPI, format_duration
from batchedapi_core.service_model.service_time import ServiceTime
from batchedapi_core.simulation import STARTUP, Service

ASSUMED: Final = "assumed"
DEFAULT: Final = "default"
MANIFEST: Final = "manifest"


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """Of the command line; None: not given. Durations in seconds."""

    service: ServiceTime | None = None
    max_batch_size: int | None = None
    batch_interval: float | None = None
    max_latency: float | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    startup: tuple[float, float] | None = None
    replicas: int | None = None
    seed: int = 0


class Setting(NamedTuple):
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
_OPTIONS: Final = frozenset(field.name for field in dataclasses.fields(Options))


def settings_of(
    written: BatchedAPI, api: BatchedAPI, service: Service, options: Options
) -> tuple[Setting, ...]:
    """One line for each value.

    Args:
        written: As in the file.
        api: With the options in place of its own values.
        service: As made from it.
        options: As given.
    """
    fields = (_field(written, api, service, options, place) for place in _FIELDS)
    return (
        Setting(
            "service time",
            f"{format_duration(service.fixed)} + {format_duration(service.per_row)} * rows",
            "--service",
        ),
        *fields,
        *_derived(written, service, options),
        *_assumed(written, service, options),
    )


def _field(
    written: BatchedAPI,
    api: BatchedAPI,
    service: Service,
    options: Options,
    place: tuple[str, str],
) -> Setting:
    section, field = place
    name = f"{_camel(section)}.{_camel(field)}"
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
    return Setting(name, "none" if value is None else str(value), origin)


def _derived(written: BatchedAPI, service: Service, options: Options) -> tuple[Setting, ...]:
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
    return (
        Setting("latency target", target, origin),
        Setting("lanes of a replica", str(service.lanes), MANIFEST if lanes else DEFAULT),
        Setting("autoscaling.behavior", behavior, MANIFEST if scaling.behavior else DEFAULT),
    )


def _assumed(written: BatchedAPI, service: Service, options: Options) -> list[Setting]:
    least, most = options.startup or STARTUP
    startup = f"{format_duration(least)}..{format_duration(most)}"
    own = sum(method.server_side_batching is not None for method in written.spec.predictor.methods)
    settings = [
        Setting("start-up of a replica", startup, "--startup" if options.startup else ASSUMED),
        Setting("noise of a batch's time", f"{100 * service.noise:g}% log-normal", ASSUMED),
        Setting(
            "cold batches", f"the first {service.cold_batches} of a new replica take twice", ASSUMED
        ),
        Setting("balancing", "each request to a random ready replica", ASSUMED),
        Setting("clients", "strangers: nobody waits for an answer to ask again", ASSUMED),
        Setting("outside the batches", "no time: HTTP, encoding, the network", ASSUMED),
        Setting("seed", str(options.seed), "--seed" if options.seed else DEFAULT),
    ]
    if own:
        text = f"{own} with batching of their own run with the common one"
        settings.append(Setting("methods", text, ASSUMED))
    return settings


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)
