"""A Cortex document in our words: whoever comes from there is shown what to apply instead."""

import ast
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import yaml

from batchedapi_core import contract
from batchedapi_core.manifest import format_duration
from batchedapi_serving.migrating.migration import (
    MODULE,
    PREDICTOR,
    MigrateError,
    Migration,
    Note,
    Project,
    example_line,
)

KINDS: Final = frozenset(("RealtimeAPI", "SyncAPI"))
"""What Cortex called an API that answers at once; the second is the older word."""
_CLASSES: Final = {"tensorflow": "TensorFlowPredictor", "onnx": "ONNXPredictor"}
"""Cortex looks for a class of a fixed name; PythonPredictor in all other types."""
_STEP_SECONDS: Final = 10
"""Cortex decides once in so many; its factors are of one step."""


class _Field(NamedTuple):
    path: str
    convert: Callable[[Any], Any] = lambda value: value


def _duration(value: Any) -> Any:
    """Cortex writes seconds as a number too."""
    return format_duration(value) if type(value) in {int, float} and value >= 0 else value


def _text(value: Any) -> Any:
    return str(value) if type(value) in {int, float} else value


def _seconds(value: Any) -> Any:
    units = {"s": 1, "m": 60, "h": 3600}
    text = str(value)
    number, unit = text[:-1], text[-1:]
    return int(number) * units[unit] if unit in units and number.isdigit() else value


def _policies(factor: Any) -> Any:
    """Of a factor above 1 by which replicas grow in one step, or below 1 by which they shrink."""
    if type(factor) not in {int, float}:
        return factor
    percent = max(1, round(100 * abs(factor - 1)))
    return [{"type": "Percent", "value": percent, "periodSeconds": _STEP_SECONDS}]


def _variables(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return [{"name": str(name), "value": str(text)} for name, text in value.items()]


_UP, _DOWN = "spec.autoscaling.behavior.scaleUp", "spec.autoscaling.behavior.scaleDown"
_FIELDS: Final[Mapping[str, _Field]] = {
    "predictor.processes_per_replica": _Field("spec.predictor.processesPerReplica"),
    "predictor.threads_per_process": _Field("spec.predictor.threadsPerProcess"),
    "predictor.config": _Field("spec.predictor.config"),
    "predictor.env": _Field("spec.predictor.env", _variables),
    "predictor.image": _Field("spec.predictor.image"),
    "predictor.model_path": _Field("spec.predictor.model.uri"),
    "predictor.log_level": _Field("spec.predictor.logLevel"),
    "compute.cpu": _Field("spec.compute.cpu", _text),
    "compute.gpu": _Field("spec.compute.gpu"),
    "compute.mem": _Field("spec.compute.mem", _text),
    "autoscaling.min_replicas": _Field("spec.autoscaling.minReplicas"),
    "autoscaling.max_replicas": _Field("spec.autoscaling.maxReplicas"),
    "autoscaling.init_replicas": _Field("spec.autoscaling.initReplicas"),
    "autoscaling.target_replica_concurrency": _Field(
        "spec.autoscaling.targetReplicaConcurrency", _text
    ),
    "autoscaling.max_replica_concurrency": _Field("spec.overload.maxReplicaConcurrency"),
    "autoscaling.window": _Field("spec.autoscaling.window", _duration),
    "autoscaling.upscale_stabilization_period": _Field(
        f"{_UP}.stabilizationWindowSeconds", _seconds
    ),
    "autoscaling.downscale_stabilization_period": _Field(
        f"{_DOWN}.stabilizationWindowSeconds", _seconds
    ),
    "autoscaling.max_upscale_factor": _Field(f"{_UP}.policies", _policies),
    "autoscaling.max_downscale_factor": _Field(f"{_DOWN}.policies", _policies),
    "autoscaling.upscale_tolerance": _Field(f"{_UP}.tolerance", _text),
    "autoscaling.downscale_tolerance": _Field(f"{_DOWN}.tolerance", _text),
    "networking.endpoint": _Field("spec.networking.endpoint"),
    "update_strategy.max_surge": _Field("spec.updateStrategy.maxSurge"),
    "update_strategy.max_unavailable": _Field("spec.updateStrategy.maxUnavailable"),
    **{
        f"{section}server_side_batching.{name}": field
        for section in ("", "predictor.")
        for name, field in (
            ("max_batch_size", _Field("spec.serverSideBatching.maxBatchSize")),
            ("batch_interval", _Field("spec.serverSideBatching.batchInterval", _duration)),
        )
    },
}
"""Path in an API of Cortex -> our field."""
_SAID_OTHERWISE: Final = frozenset(("name", "kind", "predictor.type", "predictor.path"))


def translated(document: Any) -> str | None:
    """The error for a Cortex document, which shows it as BatchedAPIs; None for any other."""
    entries = document if isinstance(document, list) else [document]
    if not entries or not all(
        isinstance(one, Mapping) and one.get("kind") in KINDS and "apiVersion" not in one
        for one in entries
    ):
        return None
    manifests, left = [], []
    for entry in entries:
        manifest, without = translate(entry)
        manifests.append(manifest)
        left += [
            path if len(entries) == 1 else f"{path} of {entry.get('name')}" for path in without
        ]
    text = yaml.safe_dump_all(manifests, sort_keys=False, explicit_start=len(manifests) > 1)
    missing = f"\nThere is no field here for {', '.join(left)}.\n" if left else ""
    return (
        f"expected a {contract.KIND} document, got a list of Cortex's {entries[0]['kind']}; in the"
        f" words of {contract.API_VERSION} it is\n\n{text}{missing}\nThe class takes (config,"
        " context) instead of (config), and methods with @batched get many rows at once."
    )


def translate(entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """One API of Cortex as a BatchedAPI, and the paths of what has no field here."""
    predictor = entry.get("predictor")
    predictor = predictor if isinstance(predictor, Mapping) else {}
    class_name = _CLASSES.get(str(predictor.get("type")), "PythonPredictor")
    file = str(predictor.get("path", "predictor.py")).removesuffix(".py").replace("/", ".")
    manifest: dict[str, Any] = {
        "apiVersion": contract.API_VERSION,
        "kind": contract.KIND,
        "metadata": {"name": str(entry.get("name", ""))},
        "spec": {"predictor": {"path": f"{file}:{class_name}"}},
    }
    left = []
    for path, value in _leaves(entry, ""):
        field = _FIELDS.get(path)
        if field is not None:
            *sections, name = field.path.split(".")
            section = manifest
            for part in sections:
                section = section.setdefault(part, {})
            section[name] = field.convert(value)
        elif path not in _SAID_OTHERWISE:
            left.append(path)
    scaling = manifest["spec"].get("autoscaling", {})
    if "targetReplicaConcurrency" in scaling:
        scaling["policy"] = "Concurrency"
    batching = manifest["spec"].get("serverSideBatching")
    if batching is not None:
        batching["strategy"] = "Fixed"
    return manifest, left


def _leaves(value: Mapping[str, Any], head: str) -> list[tuple[str, Any]]:
    found = []
    for name, member in value.items():
        path = f"{head}{name}"
        is_leaf = not isinstance(member, Mapping) or path in _FIELDS
        found += [(path, member)] if is_leaf else _leaves(member, f"{path}.")
    return found


# ------------------------------------------------------------ a whole project

_WRAPPED: Final = """\
from batchedapi_serving import batched
from {module} import {class_name}

{example}

class Model({class_name}):
    def __init__(self, config):
        super().__init__({config})

    @batched(example=EXAMPLE)
    def predict(self, items):  # bodies of n clients -> a list of n answers
        return {answer}
"""
_REMEDIES: Final = {
    "compute.inf": "Inferentia: compute.gpuResource names the resource of the device plugin",
    "networking.api_gateway": "put a gateway or an Ingress of the cluster's before the Service",
    "monitoring": "the replicas' metrics page has rows, sizes and latencies by themselves",
    "predictor.python_path": "put the code beside the manifest, or into the image",
    "predictor.models": "load each of them in the class, and mark a method for each with @batched",
}


def migrate(project: Project) -> Migration:
    """The first API of cortex.yaml, with a class around its predictor.

    Raises:
        MigrateError: the file has no API that answers at once.
    """
    document = yaml.safe_load(project.text)
    entries = document if isinstance(document, list) else [document]
    apis = [one for one in entries if isinstance(one, Mapping) and one.get("kind") in KINDS]
    if not apis:
        found = [str(one.get("kind")) for one in entries if isinstance(one, Mapping)]
        raise MigrateError(
            f"expected kind {' or '.join(sorted(KINDS))}, got {', '.join(found) or 'no object'}:"
            " only an API that answers at once has requests to batch; run a batch or a task as a"
            " Job of Kubernetes"
        )
    entry = apis[0]
    manifest, left = translate(entry)
    notes = [
        Note(path, "has no field here", _REMEDIES.get(path, "leave it out, or ask your platform"))
        for path in left
    ]
    notes += [
        Note(str(one.get("name")), "one API a file is written", "migrate it from a file of its own")
        for one in entries
        if one is not entry and isinstance(one, Mapping)
    ]
    predictor: dict[str, Any] = manifest["spec"]["predictor"]
    batching = manifest["spec"].get("serverSideBatching")
    module, class_name = predictor["path"].split(":")
    path = f"{module.replace('.', '/')}.py"
    tree = project.modules().get(path)
    if tree is None:
        raise MigrateError(f"predictor.path: expected the file {path} beside it, found none")
    methods = {
        f"{one.name}.{f.name}": [argument.arg for argument in f.args.args[1:]]
        for one in tree.body
        if isinstance(one, ast.ClassDef) and one.name == class_name
        for f in one.body
        if isinstance(f, ast.FunctionDef)
    }
    takes = methods.get(f"{class_name}.predict")
    if takes is None:
        raise MigrateError(f"{path}: expected class {class_name} with predict, found none")
    if class_name != "PythonPredictor":
        notes.append(
            Note(
                "predictor.type",
                "nobody hands a client of the model to the class",
                f"load the model in __init__ of {class_name} and drop the client argument",
            )
        )
    if batching is None:
        manifest["spec"]["serverSideBatching"] = {"maxBatchSize": 1}
    if f"{class_name}.post_predict" in methods:
        notes.append(
            Note(f"{path}: post_predict", "is not called", "call it at the end of predict")
        )
    if takes != ["payload"]:
        notes.append(
            Note(
                f"{path}: predict({', '.join(takes)})",
                "a batch has no one query or header, so it goes on with one request at a time",
                "write a method that takes a list of payloads, marked with @batched",
            )
        )
        return Migration(manifest, {}, tuple(notes))
    config = methods.get(f"{class_name}.__init__", [])
    one = "super().predict(items)" if batching else "[self.one(item) for item in items]"
    text = _WRAPPED.format(
        module=module,
        class_name=class_name,
        example=example_line(project),
        config="config" if "config" in config else "",
        answer=one,
    )
    if not batching:
        text += "\n    def one(self, payload):\n        return super().predict(payload)\n"
    predictor["path"] = f"{MODULE}:Model"
    return Migration(manifest, {PREDICTOR: text}, tuple(notes))
