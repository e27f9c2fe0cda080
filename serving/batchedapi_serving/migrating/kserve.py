"""KServe's InferenceService, with or without its batcher, and a predictor for its format."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from batchedapi_serving.migrating.migration import (
    MODULE,
    PREDICTOR,
    MigrateError,
    Migration,
    Note,
    Project,
    example_line,
    manifest_of,
)

_LOADERS: Final = {
    "sklearn": ("import joblib", "joblib.load({file})", (".joblib", ".pkl", ".pickle")),
    "xgboost": (
        "import xgboost",
        "xgboost.Booster(model_file={file})",
        (".bst", ".json", ".ubj"),
    ),
    "lightgbm": ("import lightgbm", "lightgbm.Booster(model_file={file})", (".bst", ".txt")),
}
_CALLS: Final = {
    "xgboost": "self.model.predict(xgboost.DMatrix(np.asarray(items)))",
    "sklearn": "self.model.predict(np.asarray(items))",
    "lightgbm": "self.model.predict(np.asarray(items))",
}
_PREDICTOR: Final = """\
from pathlib import Path

{imports}
import numpy as np

from batchedapi_serving import batched

SUFFIXES = {suffixes!r}
{example}

def model_file(path):
    path = Path(path)
    if path.is_file():
        return str(path)
    return next(str(one) for one in sorted(path.rglob("*")) if one.suffix in SUFFIXES)


class Model:
    def __init__(self, context):
        self.model = {load}

    @batched(example=EXAMPLE)
    def predict(self, items):  # instances of n clients -> n predictions
        return {call}.tolist()
"""
_RESOURCES: Final = {"cpu": "cpu", "memory": "mem", "nvidia.com/gpu": "gpu"}
_POD: Final = {
    "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints",
    "priorityClassName", "runtimeClassName", "imagePullSecrets", "serviceAccountName",
}  # fmt: skip
"""Fields that `spec.pod` has in the same words."""
_REMEDIES: Final = {
    "transformer": "write it into the class: a method before and after the model's",
    "explainer": "serve it as an API of its own",
    "logger": "log from the class; receipts name the batch of each answer",
    "canaryTrafficPercent": "roll out by a new revision, or split by a Gateway's weights",
    "scaleMetric": "replicas follow from batches; autoscaling.policy Concurrency is the nearest",
    "scaleTarget": "replicas follow from batches; autoscaling.policy Concurrency is the nearest",
    "containerConcurrency": "overload.maxReplicaConcurrency is the nearest",
}


def migrate(project: Project) -> Migration:
    """An InferenceService of v1beta1 whose model is sklearn, xgboost or lightgbm.

    Raises:
        MigrateError: another object, or a predictor that is a server of its own.
    """
    document = next(
        (
            one
            for one in yaml.safe_load_all(project.text)
            if isinstance(one, Mapping) and one.get("kind") == "InferenceService"
        ),
        None,
    )
    if document is None:
        raise MigrateError("expected kind InferenceService, found none")
    spec = document.get("spec") or {}
    predictor = spec.get("predictor") or {}
    notes = [_note(f"spec.{name}", name) for name in spec if name != "predictor"]
    model, format_ = _model(predictor)
    package, load, suffixes = _LOADERS[format_]
    batching = _batching(predictor.get("batcher"), notes)
    uri = str(model.get("storageUri", ""))
    ours: dict[str, Any] = {"path": f"{MODULE}:Model"}
    if uri.startswith(("s3://", "https://", "pvc://", "file:///")):
        ours["model"] = {"uri": uri}
    else:
        notes.append(
            Note(
                f"storageUri: {uri or 'none'}",
                "models come from s3://, https://, pvc:// or file:///",
                "copy it to one of them and set predictor.model.uri",
            )
        )
    placed = _placed(predictor, notes)
    compute: dict[str, Any] = {}
    resources = model.get("resources") or {}
    for name, value in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
        if name in _RESOURCES:
            key = _RESOURCES[name]
            compute[key] = int(value) if key == "gpu" else str(value)
        else:
            notes.append(_note(f"resources: {name}", name))
    if model.get("env"):
        ours["env"] = model["env"]
    known = {"modelFormat", "storageUri", "resources", "env", "protocolVersion", "name"}
    notes += [_note(f"model.{name}", name) for name in model if name not in known]
    name = str((document.get("metadata") or {}).get("name", project.folder))
    text = _PREDICTOR.format(
        imports=package,
        suffixes=suffixes,
        example=example_line(project),
        load=load.format(file="model_file(context.model_path)"),
        call=_CALLS[format_],
    )
    manifest = manifest_of(
        name,
        {
            "predictor": ours,
            "serverSideBatching": batching,
            **placed,
            "compute": compute,
        },
    )
    return Migration(manifest, {PREDICTOR: text}, tuple(notes))


def _batching(batcher: Mapping[str, Any] | None, notes: list[Note]) -> dict[str, Any]:
    if batcher is None:
        return {"maxBatchSize": 1}
    notes += [
        _note(f"spec.predictor.batcher.{name}", name)
        for name in batcher
        if name not in {"maxBatchSize", "maxLatency"}
    ]
    return {
        "maxBatchSize": int(batcher.get("maxBatchSize", 32)),
        "batchInterval": f"{int(batcher.get('maxLatency', 5000))}ms",
        "strategy": "Fixed",
    }


def _placed(predictor: Mapping[str, Any], notes: list[Note]) -> dict[str, Any]:
    """What is said of replicas and their pods."""
    scaling: dict[str, Any] = {}
    pod: dict[str, Any] = {}
    overload: dict[str, Any] = {}
    for name, value in predictor.items():
        if name == "minReplicas":
            if value == 0:
                remedy = "leave it at 1, or add serverSideBatching.queue and set it to 0"
                notes.append(Note("minReplicas: 0", "takes one queue for all replicas", remedy))
            scaling["minReplicas"] = max(1, value)
        elif name == "maxReplicas" and value:
            scaling["maxReplicas"] = value
        elif name == "timeout":
            overload["timeout"] = f"{value}s"
        elif name in _POD:
            pod[name] = value
        elif name not in {"model", "batcher", *_LOADERS}:
            notes.append(_note(f"spec.predictor.{name}", name))
    return {"autoscaling": scaling, "overload": overload, "pod": pod}


def _note(place: str, name: str) -> Note:
    return Note(place, "has no field here", _REMEDIES.get(name, "see the table of the guide"))


def _model(predictor: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The model, in the new words or the older ones, and its format."""
    model = predictor.get("model")
    if model is not None:
        format_ = str((model.get("modelFormat") or {}).get("name", ""))
    else:
        format_ = next((name for name in _LOADERS if name in predictor), "")
        model = predictor.get(format_) or {}
    if format_ not in _LOADERS:
        found = format_ or ", ".join(predictor) or "nothing"
        raise MigrateError(
            f"spec.predictor: expected a model of {', '.join(_LOADERS)}, got {found}: a container"
            " or another runtime is a server of its own; write a class that does what it does"
            " (`batchedapi init`)"
        )
    return model, format_
