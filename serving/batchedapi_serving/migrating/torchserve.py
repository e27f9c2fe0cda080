"""TorchServe's config.properties, with a predictor around the handler beside it."""

import ast
import json
from collections.abc import Mapping
from typing import Any, Final

from batchedapi_serving.migrating.migration import (
    MODULE,
    PREDICTOR,
    MigrateError,
    Migration,
    Note,
    Project,
    example_line,
    manifest_of,
    module_of,
)

_PREDICTOR: Final = """\
from pathlib import Path
from types import SimpleNamespace

from batchedapi_serving import batched
from {module} import {name}

{example}

class Model:
    def __init__(self, context):
        gpu = int(context.device.partition(":")[2] or 0) if context.devices else None
        self.context = SimpleNamespace(
            system_properties={{
                "model_dir": str(Path(__file__).parent),
                "gpu_id": gpu,
                "batch_size": None,
                "server_name": "batchedapi",
            }},
            manifest={{"model": {{"serializedFile": {serialized}}}}},
            model_yaml_config={{}},
            get_request_header=lambda index, name: None,
            metrics=None,
        )
{make}
    @batched(example=EXAMPLE)
    def predict(self, items):  # bodies of n clients -> n answers
        return {call}([{{"body": item}} for item in items], self.context)
"""
_CLASS: Final = """\
        self.handler = {name}()
        self.handler.initialize(self.context)
"""
_REMEDIES: Final = {
    "inference_address": "batchedapi serve --host and --port; a Service in a cluster",
    "management_address": "there is none: kubectl apply and delete are it",
    "metrics_address": "port 8081 has /metrics",
    "model_store": "predictor.model.uri, or the image",
    "load_models": "a manifest is one model",
    "number_of_gpu": "compute.gpu",
    "job_queue_size": "overload.maxReplicaConcurrency",
    "number_of_netty_threads": "predictor.webProcesses",
    "install_py_dep_per_model": "dependencies go into the image",
}


def _handler(project: Project) -> tuple[str, str, bool]:
    """Path, name and whether it is a class, of the handler.

    Raises:
        MigrateError: there is none, or several.
    """
    found = []
    for path, tree in project.modules().items():
        for one in tree.body:
            if isinstance(one, ast.FunctionDef) and one.name == "handle":
                found.append((path, "handle", False))
            elif isinstance(one, ast.ClassDef):
                methods = {f.name for f in one.body if isinstance(f, ast.FunctionDef)}
                bases = {ast.unparse(base).rpartition(".")[2] for base in one.bases}
                if "handle" in methods or any(base.endswith("Handler") for base in bases):
                    found.append((path, one.name, True))
    if any(is_class for *_, is_class in found):
        found = [one for one in found if one[2]]
    if len(found) != 1:
        names = ", ".join(f"{path}: {name}" for path, name, _ in found)
        raise MigrateError(
            "expected one handler beside it, a class with `handle` or a function of that name, got"
            f" {names or 'none'}; a built-in handler's code is in the .mar: write its three steps"
            " as a class (`batchedapi init --template torch`)"
        )
    return found[0]


def migrate(project: Project) -> Migration:
    """The first model of `models=`, or the server's defaults where there is none.

    Raises:
        MigrateError: `models` is no JSON, or there is no handler.
    """
    # A backslash goes on in the next line.
    lines = (line.strip() for line in project.text.replace("\\\n", " ").splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    values = {name.strip(): value.strip() for name, _, value in pairs}
    notes: list[Note] = []
    model, name = _model(values, project.folder, notes)
    workers = int(model.get("minWorkers") or values.get("default_workers_per_model") or 1)
    batching: dict[str, Any] = {"maxBatchSize": int(model.get("batchSize", 1))}
    if batching["maxBatchSize"] > 1:
        batching["batchInterval"] = f"{int(model.get('maxBatchDelay', 100))}ms"
        batching["strategy"] = "Fixed"
    overload: dict[str, Any] = {}
    timeout = model.get("responseTimeout") or values.get("default_response_timeout")
    if timeout:
        overload["timeout"] = f"{int(timeout)}s"
    if "max_request_size" in values:
        overload["maxBodySize"] = values["max_request_size"]
    if int(model.get("maxWorkers", workers)) > workers:
        notes.append(
            Note(
                "maxWorkers",
                "the number of processes of a replica is fixed",
                "replicas are what grows: autoscaling.maxReplicas",
            )
        )
    said = {"models", "default_workers_per_model", "default_response_timeout", "max_request_size"}
    notes += [
        Note(key, "has no field here", _REMEDIES.get(key, "leave it out, or see the guide"))
        for key in values
        if key not in said
    ]
    path, handler, is_class = _handler(project)
    if any("ts." in line and "import" in line for line in project.files[path].splitlines()):
        notes.append(
            Note(f"{path}: import ts", "is TorchServe's own package", "pip install torchserve too")
        )
    serialized = [one for one in project.files if one.endswith((".pt", ".pth"))]
    text = _PREDICTOR.format(
        module=module_of(path),
        name=handler,
        example=example_line(project),
        serialized=repr(serialized[0]) if serialized else "None",
        make=_CLASS.format(name=handler) if is_class else "",
        call="self.handler.handle" if is_class else handler,
    )
    spec = {
        "predictor": {
            "path": f"{MODULE}:Model",
            **({"processesPerReplica": workers} if workers > 1 else {}),
        },
        "serverSideBatching": batching,
        "overload": overload,
    }
    return Migration(manifest_of(name, spec), {PREDICTOR: text}, tuple(notes))


def _model(
    values: Mapping[str, str], folder: str, notes: list[Note]
) -> tuple[Mapping[str, Any], str]:
    if "models" not in values:
        return {}, folder
    try:
        models = json.loads(values["models"])
        (name, versions), *others = models.items()
        version, *older = versions
        model = versions[version]
    except (ValueError, AttributeError, TypeError) as error:
        raise MigrateError(
            'models: expected JSON such as {"name": {"1.0": {"batchSize": 8}}}, got'
            f" {values['models'][:60]!r}"
        ) from error
    notes += [
        Note(f"models: {other}", "a manifest is one model", "migrate it from a file of its own")
        for other, _ in others
    ]
    notes += [Note(f"{name} {other}", "one version is served", "keep it in git") for other in older]
    known = {"minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout"}
    known |= {"marName", "defaultVersion"}
    notes += [
        Note(f"models: {name}.{key}", "has no field here", "see the table of the guide")
        for key in model
        if key not in known
    ]
    return model, name
