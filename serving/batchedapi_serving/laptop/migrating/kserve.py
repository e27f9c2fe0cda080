"""KServe: every InferenceService of a file; its model is served as it is, where that is known."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving.laptop.migrating.migration import (
    NO_FIELD,
    UNKNOWN,
    Draft,
    MigrateError,
    Migration,
    MigrationNote,
    Project,
    Rules,
    To,
    concurrency,
    drafts_of,
    finished,
    milliseconds,
    model_uri,
    seconds,
    skeleton,
    text,
    variables,
    whole,
)

_SERVED: Final = ("sklearn", "xgboost", "lightgbm", "onnx", "huggingface")
"""Names of formats that are ours too."""
_FORMATS: Final = (*_SERVED, "pytorch", "tensorflow", "triton", "paddle", "pmml", "mlflow")
"""Keys of a predictor that hold a model, as `model` does."""
_MODEL_ID: Final = re.compile("--model_id=(.+)")
_SCALE: Final = "policy Concurrency counts requests; CPU, memory and rates are for mode External"


def _metric(draft: Draft, place: str, value: Any) -> None:
    if value != "concurrency":
        draft.tell(place, NO_METRIC, _SCALE)


NO_METRIC: Final = "replicas follow from batches"


def _text_map(draft: Draft, place: str, value: Any) -> None:
    """Labels or annotations of the object."""
    own = ("serving.kserve.io/", "autoscaling.knative.dev/", "serving.knative.dev/", "kubectl.")
    for key, member in draft.mapping(value, place).items():
        if str(key).startswith(own):
            remedy = "autoscaling.mode External lets an HPA or KEDA decide; else leave it out"
            draft.tell(f"{place}.{key}", f"{member!r:.60} is for KServe's controllers", remedy)
        else:
            draft.labels.setdefault(place.rpartition(".")[2], {})[str(key)] = str(member)


def _namespace(draft: Draft, _place: str, value: Any) -> None:
    draft.labels["namespace"] = value


def _resources(draft: Draft, place: str, value: Any) -> None:
    """Memory is request and limit here, so that the limit counts; of CPUs both are fields."""
    resources = draft.mapping(value, place)
    limits = draft.mapping(resources.get("limits"), f"{place}.limits")
    requests = draft.mapping(resources.get("requests"), f"{place}.requests")
    for name, amount in {**requests, **limits}.items():
        there = f"{place}.{'limits' if name in limits else 'requests'}.{name}"
        if name == "cpu":
            draft.take(requests.get(name, amount), To("compute.cpu", text), there)
            draft.take(limits.get(name), To("compute.cpuLimit", text), there)
        elif name in {"memory", "ephemeral-storage"}:
            field = "mem" if name == "memory" else "ephemeralStorage"
            draft.take(amount, To(f"compute.{field}", text), there)
            if requests.get(name, amount) != amount:
                reason = "request and limit are one field, which has the limit"
                draft.tell(f"{place}.requests.{name}", reason, f"see spec.compute.{field}")
        elif "/" in str(name):
            draft.take(amount, To("compute.gpu", whole), there)
            draft.set("compute.gpuResource", str(name), there)
        else:
            draft.take(amount, "leave it out", there)
    rest = {key: one for key, one in resources.items() if key not in {"limits", "requests"}}
    draft.take(rest, {}, place)


def _arguments(draft: Draft, place: str, value: Any) -> None:
    """Arguments of a server; that of Hugging Face is told the Hub's model by one."""
    for one in value if isinstance(value, list) else [value]:
        model = _MODEL_ID.fullmatch(str(one))
        if model:
            draft.take(f"hf://{model[1]}", _URI, place)
        else:
            draft.take(one, "predictor.config is handed to a class", f"{place} {one!r:.60}")


_URI: Final = To("predictor.model.uri", model_uri)
_ENV: Final = To("predictor.env", variables)
_MODEL: Final[Rules] = {
    "modelFormat": {"name": None, "version": "install this version in predictor.image"},
    "name": None,
    "runtime": "the format says what loads the model",
    "protocolVersion": None,
    "storageUri": _URI,
    "storage": "predictor.model.uri names it in full: s3://bucket/key",
    "resources": _resources,
    "env": _ENV,
    "envFrom": To("predictor.envFrom"),
    "volumeMounts": To("pod.volumeMounts"),
    "args": _arguments,
    "image": "build it FROM batchedapi-serving, and set predictor.image",
    "imagePullPolicy": To("predictor.imagePullPolicy"),
    "*": "probes, security and lifecycle of the container are ours",
}
_POD: Final = (
    "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "priorityClassName",
    "runtimeClassName", "imagePullSecrets", "serviceAccountName", "automountServiceAccountToken",
    "volumes", "labels", "annotations",
)  # fmt: skip
"""Fields that `spec.pod` has in the same words."""
_PREDICTOR: Final[Rules] = {
    **{name: To(f"pod.{name}") for name in _POD},
    **dict.fromkeys(("model", *_FORMATS), _MODEL),
    "batcher": {
        "maxBatchSize": To("serverSideBatching.maxBatchSize", whole),
        "maxLatency": To("serverSideBatching.batchInterval", milliseconds),
        "timeout": "overload.timeout is for the whole request",
    },
    "minReplicas": To("autoscaling.minReplicas", whole),
    "maxReplicas": To("autoscaling.maxReplicas", lambda value: whole(value) or None),
    "timeout": To("overload.timeout", seconds),
    "scaleMetric": _metric,
    "scaleTarget": None,
    "containerConcurrency": "overload.maxReplicaConcurrency is the nearest; more get 503",
    "deploymentStrategy": {
        "type": None,
        "rollingUpdate": {
            "maxSurge": To("updateStrategy.maxSurge"),
            "maxUnavailable": To("updateStrategy.maxUnavailable"),
        },
    },
    "containers": {
        **_MODEL,
        "*": "the server is ours: write what it answers into the class",
    },
    "canaryTrafficPercent": "a new revision replaces the old one; for a share of the traffic apply"
    " a second BatchedAPI, and split by weights of an HTTPRoute",
    "logger": "networking.accessLog logs requests; log bodies in the class",
}
_OF_CLUSTER: Final = (
    "uid", "generation", "resourceVersion", "creationTimestamp", "managedFields", "selfLink",
)  # fmt: skip
_OF_LIST: Final = frozenset(("apiVersion", "kind", "metadata", "items"))
_RULES: Final[Rules] = {
    "apiVersion": None,
    "kind": None,
    "status": None,
    "metadata": {
        "name": None,
        "namespace": _namespace,
        "labels": _text_map,
        "annotations": _text_map,
        **dict.fromkeys(_OF_CLUSTER),
    },
    "spec": {
        "predictor": _PREDICTOR,
        "transformer": "methods that `decode=` and `encode=` of @batched name run before and after"
        " the model; or an API of its own",
        "default": "write it as v1beta1 has it, and migrate that",
        "explainer": "serve it as an API of its own",
    },
}


def is_kserve(document: object) -> bool:
    """Whether a YAML document is an InferenceService, or a list with one."""
    return any(
        isinstance(one, Mapping) and one.get("kind") == "InferenceService"
        for one in objects(document)
    )


def objects(document: object) -> Iterator[Any]:
    """Kubernetes objects of a document; those of a List one by one, its other keys as a note."""
    if not (isinstance(document, Mapping) and str(document.get("kind")).endswith("List")):
        yield document
        return
    rest = {key: one for key, one in document.items() if key not in _OF_LIST}
    items = document.get("items")
    if isinstance(items, list):
        for item in items:
            yield from objects(item)
    elif items is not None:
        rest["items"] = items
    if rest:
        yield MigrationNote(f"{document['kind']}: {', '.join(map(str, rest))}", NO_FIELD, UNKNOWN)


def migrate(project: Project) -> Migration:
    """Each InferenceService of v1beta1.

    Raises:
        MigrateError: there is none.
    """
    apis, others = [], []
    for one in (found for document in project.documents() for found in objects(document)):
        if isinstance(one, Mapping) and one.get("kind") == "InferenceService":
            apis.append(one)
        elif isinstance(one, MigrationNote):
            others.append(one)
        else:
            name = f"{one!r:.60}"
            if isinstance(one, Mapping):
                name = f"{one.get('kind')} {_metadata(one).get('name')}"
            remedy = "apply it with kubectl, if the API needs it"
            others.append(MigrationNote(name, "is no InferenceService", remedy))
    if not apis:
        raise MigrateError("expected kind InferenceService, found none")
    names = [str(_metadata(one).get("name") or project.folder) for one in apis]
    drafts = [
        _draft(draft, one, f"{draft.name}: " if len(apis) > 1 else "")
        for draft, one in zip(drafts_of(names), apis, strict=True)
    ]
    drafts[0].notes += others
    return finished(project, drafts)


def _metadata(one: Mapping[str, Any]) -> Mapping[str, Any]:
    found = one.get("metadata")
    return found if isinstance(found, Mapping) else {}


def _draft(draft: Draft, document: Mapping[str, Any], head: str) -> Draft:
    for key, value in document.items():
        draft.take(value, _RULES.get(key, "leave it out"), f"{head}{key}")
    spec = document.get("spec")
    predictor = spec.get("predictor") if isinstance(spec, Mapping) else None
    predictor = predictor if isinstance(predictor, Mapping) else {}
    place = f"{head}spec.predictor"
    _batching(draft, predictor, place)
    format_ = next((name for name in _FORMATS if name in predictor), "")
    if isinstance(model := predictor.get("model"), Mapping):
        named = model.get("modelFormat")
        format_ = str(named.get("name", "")) if isinstance(named, Mapping) else ""
    if format_ not in _SERVED:
        found = f"a model of {format_}" if format_ else ", ".join(map(str, predictor)) or "nothing"
        reason = f"expected a model of {', '.join(_SERVED)}, got {found}"
        draft.tell(place, reason, "load it in the class, and write what it answers")
    if format_ not in _SERVED or not draft.serve(ModelFormat(format_), f"{place}.model"):
        draft.code = skeleton(draft.class_name)
    return draft


def _batching(draft: Draft, predictor: Mapping[str, Any], place: str) -> None:
    if predictor.get("batcher") is None:
        draft.set("serverSideBatching.maxBatchSize", 1, f"{place}.batcher")
    else:
        batching = draft.spec.setdefault("serverSideBatching", {})
        draft.spec["serverSideBatching"] = {
            "maxBatchSize": 32, "batchInterval": "5s", "strategy": "Fixed", **batching,
        }  # fmt: skip
    target = predictor.get("scaleTarget")
    if target is not None and predictor.get("scaleMetric", "concurrency") == "concurrency":
        concurrency(draft, f"{place}.scaleTarget", target)
    else:
        draft.take(target, _SCALE, f"{place}.scaleTarget")
