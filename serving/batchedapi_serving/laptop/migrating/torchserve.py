"""TorchServe: every model of config.properties, and model-config.yaml."""

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from batchedapi_serving.laptop.migrating.migration import (
    Draft,
    MigrateError,
    Migration,
    Project,
    Rules,
    To,
    documents,
    drafts_of,
    finished,
    milliseconds,
    seconds,
    skeleton,
    text,
    whole,
)

MODEL_CONFIG: Final = ("model-config.yaml", "model_config.yaml", "model-config.yml")
_CODE: Final = (
    "handle(data, context) gets rows as they came, predict gets them decoded; `decode=` of @batched"
    " names a method that gets the raw bytes of one. context.device replaces gpu_id, config of"
    " __init__ replaces model_yaml_config"
)
_REPLICAS: Final = "processes of a replica are fixed: autoscaling.maxReplicas is what grows"


def _configured(draft: Draft, place: str, value: Any) -> None:
    """A setting of the handler's own, unless it is a misspelled one of TorchServe."""
    key = place.rpartition(".")[2]
    if meant := difflib.get_close_matches(key.lower(), _LOWER, n=1):
        reason = f"is no setting of TorchServe, so that the class gets it: predictor.config.{key}"
        draft.tell(place, reason, f"if {_LOWER[meant[0]]} was meant, rename it")
    config = draft.spec.setdefault("predictor", {}).setdefault("config", {})
    config[key] = value


def _processor(draft: Draft, place: str, value: Any) -> None:
    if str(value).lower() == "gpu":
        draft.spec.setdefault("compute", {}).setdefault("gpu", 1)
    elif str(value).lower() != "cpu":
        draft.tell(place, f"expected cpu or gpu, got {value!r:.60}", "set spec.compute.gpuResource")


def _devices(draft: Draft, place: str, value: Any) -> None:
    draft.take(len(value) if isinstance(value, list) else value, To("compute.gpu", whole), place)


_MODEL: Final[Rules] = {
    "marName": "copy the code and the model of the archive beside the manifest; `unzip` opens it",
    "defaultVersion": None,
    "minWorkers": To("predictor.processesPerReplica", whole),
    "maxWorkers": None,
    "batchSize": To("serverSideBatching.maxBatchSize", whole),
    "maxBatchDelay": To("serverSideBatching.batchInterval", milliseconds),
    "responseTimeout": To("overload.timeout", seconds),
    "startupTimeout": To("predictor.startupTimeout", seconds),
    "jobQueueSize": To("overload.maxReplicaConcurrency", whole),
    "deviceType": _processor,
    "deviceIds": _devices,
}
_LOWER: Final = {key.lower(): key for key in _MODEL}
_SERVER: Final[Rules] = {
    "models": None,
    "default_workers_per_model": To("predictor.processesPerReplica", whole),
    "default_response_timeout": To("overload.timeout", seconds),
    "default_startup_timeout": To("predictor.startupTimeout", seconds),
    "max_request_size": To("overload.maxBodySize", text),
    "job_queue_size": To("overload.maxReplicaConcurrency", whole),
    "number_of_gpu": To("compute.gpu", whole),
    "cors_allowed_origin": To("networking.cors.allowOrigins", lambda value: value.split(",")),
    "inference_address": "batchedapi serve --host and --port; a Service in a cluster",
    "management_address": "models are not registered at run time: kubectl applies and deletes them",
    "metrics_address": "port 8081 has /metrics",
    "grpc_inference_port": "networking.grpc answers the Open Inference Protocol on port 9000",
    "model_store": "predictor.model.uri, or the image",
    "load_models": "a BatchedAPI is one model: write one for each of the store",
    "number_of_netty_threads": "predictor.webProcesses",
    "install_py_dep_per_model": "install dependencies in predictor.image",
    "disable_token_authorization": "networking.apiKeys names a Secret of keys; without it all ask",
}
_OWN: Final = (("minWorkers", "default_workers_per_model"),
               ("responseTimeout", "default_response_timeout"),
               ("startupTimeout", "default_startup_timeout"),
               ("jobQueueSize", "job_queue_size"))  # fmt: skip
"""Settings of a model, and the server's default for it."""


def migrate(project: Project) -> Migration:
    """Each model, or the server's defaults where none is named.

    Raises:
        MigrateError: `models` is no JSON of models.
    """
    if not project.file.endswith(".properties"):
        draft = Draft(project.folder)
        for document in project.documents():
            _modelled(draft, document, "")
        _finish(draft)
        return finished(project, [draft])
    values: dict[str, str] = {}
    first = Draft("")
    # A backslash goes on in the next line.
    for line in re.sub(r"\\\r?\n\s*", "", project.text).splitlines():
        if line.strip() and line.strip()[0] not in "#!":
            name, value = [*re.split(r"\s*[=:]\s*|\s+", line.strip(), maxsplit=1), ""][:2]
            if values.get(name, value) != value:
                first.tell(
                    name, f"is there twice, the last is taken: {value}", "see which is right"
                )
            values[name] = value
    models = _models(values.get("models"), first, project.folder)
    names = list(models)
    beside = next((name for name in MODEL_CONFIG if name in project.beside), "")
    drafts = drafts_of(names)
    for draft in drafts:
        place, model = models[draft.name]
        if len(names) == 1 and beside:
            for document in documents(project.beside[beside]):
                model = {**model, **draft.mapping(document, beside)}
        own = {theirs for ours, theirs in _OWN if model.get(ours) is not None}
        draft.take({k: v for k, v in values.items() if k not in own}, _SERVER, "")
        _modelled(draft, model, place)
        _finish(draft)
    drafts[0].notes[:0] = first.notes
    return finished(project, drafts, [beside] if len(names) == 1 else [])


def _models(
    value: str | None, draft: Draft, folder: str
) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Place and settings of the version that is served, by the model's name."""
    if value is None:
        return {folder: ("", {})}
    try:
        models = {name: dict(versions) for name, versions in json.loads(value).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise MigrateError(
            'models: expected JSON such as {"name": {"1.0": {"batchSize": 8}}}, got'
            f" {value[:60]!r}"
        ) from error
    found = {}
    for name, versions in models.items():
        settings = {
            key: draft.mapping(one, f"models.{name}.{key}") for key, one in versions.items()
        }
        latest = max(settings, key=_latest(settings), default=None)
        if latest is None:
            draft.tell(f"models.{name}", "has no version", "write one")
        for key in settings:
            if key != latest:
                draft.tell(f"models.{name}.{key}", f"version {latest} is served", "git keeps it")
        found[name] = (f"models.{name}.{latest}", settings.get(str(latest), {}))
    return found or {folder: ("", {})}


def _latest(settings: Mapping[str, Mapping[str, Any]]) -> Any:
    """The default version, else the one with the highest numbers."""
    return lambda key: (
        settings[key].get("defaultVersion") is True,
        [int(part) for part in re.findall("[0-9]+", key)],
    )


def _modelled(draft: Draft, model: Any, place: str) -> None:
    model = draft.mapping(model, place or "model-config.yaml")
    draft.take(model, {**_MODEL, "*": _configured}, place)
    most, workers = model.get("maxWorkers"), model.get("minWorkers")
    if most is not None and most != workers:
        if workers is None:
            draft.take(most, To("predictor.processesPerReplica", whole), f"{place}.maxWorkers")
        else:
            draft.tell(f"{place}.maxWorkers".strip("."), "there is no field for it", _REPLICAS)


def _finish(draft: Draft) -> None:
    batching = draft.spec.setdefault("serverSideBatching", {})
    if batching.setdefault("maxBatchSize", 1) != 1:
        batching.setdefault("batchInterval", "100ms")
        batching["strategy"] = "Fixed"
    draft.code = skeleton(draft.class_name)
    draft.tell("the handler", "its code is not read", _CODE)
