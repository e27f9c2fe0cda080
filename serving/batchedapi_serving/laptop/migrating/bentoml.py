"""BentoML: its configuration, of 1.0 with runners and of 1.2 on with services; bentofile.yaml."""

from collections.abc import Mapping
from typing import Any, Final

from batchedapi_serving.laptop.migrating.migration import (
    IMAGE,
    UNKNOWN,
    Draft,
    Migration,
    Project,
    Rules,
    To,
    concurrency,
    drafts_of,
    finished,
    milliseconds,
    quantity,
    seconds,
    skeleton,
    text,
    variables,
    whole,
)

_CODE: Final = (
    "each @bentoml.api becomes a method of the class; one that is batchable gets @batched, its"
    " max_batch_size and max_latency_ms become maxBatchSize and maxLatency of"
    " predictor.methods[].serverSideBatching"
)
_STORE: Final = (
    "`bentoml models export TAG` writes what the store has; load the file in the class,"
    " predictor.model.uri fetches it"
)
_DEPENDS: Final = (
    "a service that it depends on is an API of its own, asked over HTTP; or a method of the same"
    " class, asked with `await context.submit(...)`"
)
_TLS: Final = "a gateway ends TLS"
_TRACES: Final = "OpenTelemetry's variables in predictor.env send traces"
_METRICS: Final = "port 8081 has /metrics"


def _gpus(value: Any) -> int:
    return len(value) if isinstance(value, list) else whole(value)


def _workers(draft: Draft, place: str, value: Any) -> None:
    if isinstance(value, list):  # one each, with GPUs of its own
        draft.tell(place, "which worker has which GPU", "see predictor.gpuAssignment")
        value = len(value)
    field = To("predictor.processesPerReplica", lambda v: v if v == "cpu_count" else whole(v))
    draft.take(value, field, place)


_RESOURCES: Final[Rules] = {
    "cpu": To("compute.cpu", text),
    "memory": To("compute.mem", quantity),
    "gpu": To("compute.gpu", _gpus),
    "nvidia.com/gpu": To("compute.gpu", _gpus),
    "*": "pod.nodeSelector picks nodes",
}
_BATCHING: Final[Rules] = {
    "enabled": To("serverSideBatching.enabled"),
    "max_batch_size": To("serverSideBatching.maxBatchSize", whole),
    "max_latency_ms": To("serverSideBatching.maxLatency", milliseconds),
    "*": "the queue learns how long batches take",
}
_HTTP: Final = "networking.cors has origins; batchedapi serve has --host and --port"
_LOGS: Final = "networking.accessLog logs requests; logs are JSON"
_RUNNER: Final[Rules] = {
    "batching": _BATCHING,
    "resources": _RESOURCES,
    "timeout": To("overload.timeout", seconds),
    "logging": _LOGS,
    "metrics": _METRICS,
    "traffic": {"timeout": To("overload.timeout", seconds), "*": UNKNOWN},
}
_SERVICE: Final[Rules] = {
    "name": None,
    "workers": _workers,
    "resources": _RESOURCES,
    "traffic": {
        "timeout": To("overload.timeout", seconds),
        "max_concurrency": To("overload.maxReplicaConcurrency", whole),
        "concurrency": concurrency,
        "external_queue": "serverSideBatching.queue holds requests for all replicas",
    },
    "batching": _BATCHING,
    "envs": To("predictor.env", variables),
    "http": _HTTP,
    "grpc": "networking.grpc answers on port 9000",
    "logging": _LOGS,
    "metrics": _METRICS,
    "monitoring": "log what you watch in the class",
    "tracing": _TRACES,
    "ssl": _TLS,
    "image": IMAGE,
    "labels": To("pod.labels"),
}
_SERVER: Final[Rules] = {
    "version": None,
    "runners": None,
    "services": None,
    "api_server": {
        **_SERVICE,
        "workers": To("predictor.webProcesses", whole),
        **dict.fromkeys(("host", "port", "cors"), _HTTP),
        "timeout": To("overload.timeout", seconds),
        "max_request_size": To("overload.maxBodySize", quantity),
        "backlog": "the backlog is the system's",
    },
    "logging": _LOGS,
    "tracing": _TRACES,
    "monitoring": "log what you watch in the class",
}
_BENTOFILE: Final[Rules] = {
    "service": None,
    "name": None,
    "labels": To("pod.labels", lambda value: {str(k): str(v) for k, v in value.items()}),
    "include": "copy the code into the image, or into the ConfigMap of predictor.source",
    "exclude": None,
    "python": IMAGE,
    "conda": IMAGE,
    "docker": IMAGE,
    "models": _STORE,
    "envs": To("predictor.env", variables),
}


def is_bentoml(name: str, document: object) -> bool:
    """Whether a YAML document is a configuration or a bentofile."""
    keys = document.keys() if isinstance(document, Mapping) else set()
    return name.startswith("bento") or bool(
        keys & {"runners", "services", "api_server"} or {"service", "include"} <= keys
    )


def migrate(project: Project) -> Migration:
    """The services of a configuration, the runners of an older one, or one bentofile."""
    first = Draft(project.folder)
    values: Mapping[str, Any] = {}
    for document in project.documents():
        values = {**values, **first.mapping(document, project.file)}
    if "service" in values or ("bento" in project.file and not values.keys() & _SERVER.keys()):
        first.take(values, _BENTOFILE, "")
        service = values.get("service")
        if isinstance(service, str):
            first.name = service.rpartition(":")[2] or project.folder
            if first.name in {"svc", "service"}:
                first.name = project.folder
        return finished(project, [_told(first)])
    services = _named(first, values, "services", _SERVICE)
    runners = _named(first, values, "runners", _RUNNER)
    names = [name for name in {**services, **runners} if name] or [project.folder]
    drafts = drafts_of(names)
    for draft in drafts:
        name = draft.name
        draft.take(values, _SERVER, "")
        draft.take(runners.get(name, runners.get("")), _RUNNER, f"runners.{name}")
        draft.take(services.get(name, services.get("")), _SERVICE, f"services.{name}")
        _told(draft)
    if len(runners) > 1:
        remedy = "methods of one class share a replica, and ask each other with context.submit"
        first.tell("runners", "each is an API of its own, which its service asked", remedy)
    drafts[0].notes[:0] = first.notes
    return finished(project, drafts)


def _named(
    draft: Draft, values: Mapping[str, Any], key: str, rules: Rules
) -> dict[str, Mapping[str, Any]]:
    """Settings of each service or runner; those beside them, or of `*`, are for all."""
    section = draft.mapping(values.get(key), key)
    general = {name: one for name, one in section.items() if name in rules}
    general |= draft.mapping(section.get("*"), f"{key}.*")
    own = {name: one for name, one in section.items() if name not in rules and name != "*"}
    merged: dict[str, Mapping[str, Any]] = {
        name: _merged(general, draft.mapping(one, f"{key}.{name}")) for name, one in own.items()
    }
    return merged or ({"": general} if general else {})


def _merged(general: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(general)
    for key, value in own.items():
        before = found.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            value = _merged(before, value)  # noqa: PLW2901 - both hold
        found[key] = value
    return found


def _told(draft: Draft) -> Draft:
    batching = draft.spec.get("serverSideBatching", {})
    if batching.get("enabled") is False:
        batching.pop("maxLatency", None)
    draft.code = skeleton(draft.class_name)
    draft.tell("the service", "its code is not read", _CODE)
    draft.tell("bentoml.depends", "code has it, which is not read", _DEPENDS)
    draft.tell("bentoml.models", "the store of models is not read", _STORE)
    return draft
