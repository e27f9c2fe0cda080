"""cortex.yaml of every release: predictor (to 0.34), handler (0.35), pod (from 0.36)."""

import re
from collections.abc import Mapping
from typing import Any, Final

from batchedapi_core.manifest import format_duration
from batchedapi_serving.laptop.migrating.migration import (
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
    quantity,
    skeleton,
    text,
    variables,
    whole,
)

KINDS: Final = ("RealtimeAPI", "SyncAPI")
"""APIs that answer at once; the second is the older word. Before 0.20 there was no kind."""
_OTHER_KINDS: Final = {
    "AsyncAPI": "serverSideBatching.queue holds requests for all replicas, but clients wait for"
    " their answers: keep their ids in front of it",
    "TrafficSplitter": "weights of an HTTPRoute of Gateway API split traffic between BatchedAPIs",
    "BatchAPI": "run it as a Job of Kubernetes: only an API that answers at once is batched",
    "TaskAPI": "run it as a Job of Kubernetes: only an API that answers at once is batched",
}
_CLASSES: Final = {"tensorflow": "TensorFlowPredictor", "onnx": "ONNXPredictor"}
_STEP_SECONDS: Final = 10
"""Cortex decides once in so many; its factors are of one step."""
_CODE: Final = (
    "predict(payload) gets the body alone: query_params, headers and post_predict are in"
    " `decode=` and `encode=` of @batched, on_job and the like nowhere"
)


def _duration(value: Any) -> str:
    return format_duration(value) if type(value) in {int, float} and value >= 0 else text(value)


def _seconds(value: Any) -> int:
    found = re.fullmatch("([0-9]+)([smh])", text(value))
    if found is None:
        raise ValueError(f"expected a time such as 5m, got {value!r:.60}")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _policies(factor: Any) -> list[dict[str, Any]]:
    """Policies for a factor of one step: above 1 replicas grow by it, below 1 they shrink."""
    if type(factor) not in {int, float}:
        raise ValueError(f"expected a factor, got {factor!r:.60}")
    percent = max(1, round(100 * abs(factor - 1)))
    return [{"type": "Percent", "value": percent, "periodSeconds": _STEP_SECONDS}]


def _image(draft: Draft, place: str, value: Any) -> None:
    draft.take(value, To("predictor.image", text), place)
    draft.tell(place, "is no image of this server", "build it FROM batchedapi-serving")


_UP, _DOWN = "autoscaling.behavior.scaleUp", "autoscaling.behavior.scaleDown"
_BATCHING: Final[Rules] = {
    "max_batch_size": To("serverSideBatching.maxBatchSize", whole),
    "batch_interval": To("serverSideBatching.batchInterval", _duration),
}
_PREDICTOR: Final[Rules] = {
    "type": None,
    "path": None,
    "config": To("predictor.config"),
    "env": To("predictor.env", variables),
    "image": _image,
    "model": To("predictor.model.uri", text),
    "model_path": To("predictor.model.uri", text),
    "models": {
        "path": To("predictor.model.uri", text),
        "*": "load each of them in the class, and mark a method for each with @batched",
    },
    "processes_per_replica": To("predictor.processesPerReplica", whole),
    "threads_per_process": To("predictor.threadsPerProcess", whole),
    "log_level": To("predictor.logLevel"),
    "shm_size": To("pod.sharedMemory", quantity),
    "server_side_batching": _BATCHING,
    "python_path": "put the code beside the manifest, or into the image",
}
_RULES: Final[Rules] = {
    "name": None,
    "kind": None,
    "predictor": _PREDICTOR,
    "handler": _PREDICTOR,
    "pod": "its containers are servers: write the class, set predictor.env, image and compute",
    "server_side_batching": _BATCHING,
    "compute": {
        "cpu": To("compute.cpu", text),
        "mem": To("compute.mem", quantity),
        "gpu": To("compute.gpu", whole),
        "inf": "compute.gpuResource names the resource of the device plugin",
        "node_groups": "pod.nodeSelector picks nodes",
    },
    "autoscaling": {
        "min_replicas": To("autoscaling.minReplicas", whole),
        "max_replicas": To("autoscaling.maxReplicas", whole),
        "init_replicas": "an API begins with autoscaling.minReplicas",
        "target_replica_concurrency": concurrency,
        "target_in_flight": concurrency,
        "max_replica_concurrency": To("overload.maxReplicaConcurrency", whole),
        "window": To("autoscaling.window", _duration),
        "upscale_stabilization_period": To(f"{_UP}.stabilizationWindowSeconds", _seconds),
        "downscale_stabilization_period": To(f"{_DOWN}.stabilizationWindowSeconds", _seconds),
        "max_upscale_factor": To(f"{_UP}.policies", _policies),
        "max_downscale_factor": To(f"{_DOWN}.policies", _policies),
        "upscale_tolerance": To(f"{_UP}.tolerance", text),
        "downscale_tolerance": To(f"{_DOWN}.tolerance", text),
    },
    "networking": {
        "endpoint": To("networking.endpoint", text),
        "api_gateway": "put a gateway or an Ingress of the cluster before the Service",
    },
    "update_strategy": {
        "max_surge": To("updateStrategy.maxSurge"),
        "max_unavailable": To("updateStrategy.maxUnavailable"),
    },
}


def is_cortex(document: object) -> bool:
    """Whether a YAML document is an API of Cortex, or a list of them."""
    entries = document if isinstance(document, list) else [document]
    return any(
        isinstance(one, Mapping)
        and "apiVersion" not in one
        and (one.get("kind") in (*KINDS, *_OTHER_KINDS) or ("name" in one and "predictor" in one))
        for one in entries
    )


def migrate(project: Project) -> Migration:
    """Each API that answers at once; the user's own class is served as it is.

    Raises:
        MigrateError: there is none.
    """
    entries: list[Any] = []
    for document in project.documents():
        entries += document if isinstance(document, list) else [document]
    apis, others = [], []
    for one in entries:
        kind = one.get("kind", KINDS[0]) if isinstance(one, Mapping) else f"{one!r:.60}"
        if kind in KINDS:
            apis.append(one)
        else:
            name = one.get("name") if isinstance(one, Mapping) else "an entry"
            remedy = _OTHER_KINDS.get(str(kind), f"expected kind {' or '.join(KINDS)}")
            others.append(MigrationNote(f"{name}: {kind}", "there is no such kind", remedy))
    if not apis:
        raise MigrateError(
            "; ".join(f"{one.place}: {one.remedy}" for one in others)
            or f"expected kind {' or '.join(KINDS)}, got no object"
        )
    names = [str(one.get("name") or project.folder) for one in apis]
    drafts = [
        _draft(draft, entry, f"{draft.name}: " if len(apis) > 1 else "")
        for draft, entry in zip(drafts_of(names), apis, strict=True)
    ]
    drafts[0].notes += others
    return finished(project, drafts, [str(_code(one).get("path")) for one in apis])


def _code(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    found = entry.get("predictor") or entry.get("handler")
    return found if isinstance(found, Mapping) else {}


def _draft(draft: Draft, entry: Mapping[str, Any], head: str) -> Draft:
    for key, value in entry.items():
        draft.take(value, _RULES.get(str(key), _RULES.get("*", "leave it out")), f"{head}{key}")
    code = _code(entry)
    kind = str(code.get("type", "python"))
    batching = draft.spec.get("serverSideBatching")
    if not code:
        draft.code = skeleton(draft.class_name)
    else:
        _served(draft, code, f"{head}predictor", is_handler="handler" in entry)
    if batching is None:
        draft.set("serverSideBatching.maxBatchSize", 1, "server_side_batching")
        return draft
    batching["strategy"] = "Fixed"
    if kind in _CLASSES:
        draft.tell(
            f"{head}server_side_batching",
            "TensorFlow Serving batched behind the class; here predict is called for each request",
            "take a list of payloads in predict, and mark it with @batched",
        )
    elif code:
        method = "handle_post" if "handler" in entry else "predict"
        draft.set("predictor.methods", [{"name": method, "batchable": True}], "the method")
        draft.tell(
            f"{head}{method}",
            "is batched, but `batchedapi check` has no request to ask it with",
            "give it --items, or mark it with @batched(example=...)",
        )
        if draft.spec["predictor"].pop("threadsPerProcess", 1) != 1:
            draft.tell(
                f"{head}threads_per_process",
                "beside batching Cortex runs one batch at a time in a process",
                "set spec.predictor.threadsPerProcess if the class is thread-safe",
            )
    return draft


def _served(draft: Draft, code: Mapping[str, Any], place: str, *, is_handler: bool) -> None:
    """Serve the user's class where it is."""
    kind = str(code.get("type", "python"))
    path = str(code.get("path") or ("handler.py" if is_handler else "predictor.py"))
    name = "Handler" if is_handler else _CLASSES.get(kind, "PythonPredictor")
    module = re.sub("[^A-Za-z0-9_.]", "_", path.removesuffix(".py").strip("./").replace("/", "."))
    draft.set("predictor.path", f"{module}:{name}", f"{place}.path")
    if f"{module.replace('.', '/')}.py" != path.removeprefix("./"):
        renamed = f"{module.replace('.', '/')}.py"
        draft.tell(f"{place}.path: {path}", "Python does not import it", f"rename it {renamed}")
    if is_handler:
        draft.tell(path, "its code is not read", "each handle_... method has a path of its own")
        return
    draft.tell(path, "its code is not read", _CODE)
    if kind in _CLASSES:
        draft.tell(
            f"{place}.type: {kind}",
            "no client of the model is handed to the class",
            f"load the model in __init__ of {name}, and drop the client",
        )
