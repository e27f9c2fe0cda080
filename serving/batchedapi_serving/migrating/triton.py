"""Triton's config.pbtxt, with a predictor for the backend that it names."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchedapi_serving.migrating.migration import (
    MANIFEST,
    MODULE,
    PREDICTOR,
    MigrateError,
    Migration,
    Note,
    Project,
    manifest_of,
    tensor,
)

_TOKEN: Final = re.compile(
    r"""\s+|\#[^\n]*|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<sign>[{}\[\]:,;<>])"""
    r"""|(?P<word>[-+.\w]+)"""
)
_ONE_OF: Final = {"max_batch_size", "name", "backend", "platform", "dynamic_batching"}
"""Fields that are there once; any other may be repeated."""
_DYNAMIC: Final = {"preferred_batch_size", "max_queue_delay_microseconds"}
_SAID: Final = {
    "name", "backend", "platform", "max_batch_size", "input", "output", "dynamic_batching",
    "instance_group", "default_model_filename",
}  # fmt: skip
_REMEDIES: Final = {
    "sequence_batching": "state of a client belongs into its request; or keep Triton for it",
    "ensemble_scheduling": "one class with a method each, and `await context.submit(...)` between",
    "optimization": "say it in the line that loads the model",
    "version_policy": "one manifest is one version; roll back with kubectl",
    "model_warmup": "each size is warmed up by itself, with the example of @batched",
    "parameters": "write it into predictor.config, which the class gets",
    "response_cache": "put a cache before the Service",
}
_LOADERS: Final = {
    "onnxruntime": ("onnxruntime", "model.onnx", "onnxruntime.InferenceSession(str({file}))"),
    "pytorch": ("torch", "model.pt", "torch.jit.load({file}, map_location=context.device).eval()"),
}
_CALLS: Final = {
    "onnxruntime": "        return dict(zip({outputs!r}, self.model.run({outputs!r}, x)))\n",
    "pytorch": (
        "        with torch.inference_mode():\n"
        "            found = self.model(*[torch.from_numpy(x[name]).to(self.device)"
        " for name in {inputs!r}])\n"
        "        found = found if isinstance(found, tuple) else (found,)\n"
        "        return {{name: y.cpu().numpy() for name, y in zip({outputs!r}, found)}}\n"
    ),
}
_LOADED: Final = """\
from pathlib import Path

import {package}

from batchedapi_serving import Tensor, batched


class Model:
    def __init__(self, context):
        self.device = context.device
        self.model = {load}

    @batched(
        inputs={inputs},
        outputs={outputs},
    )
    def predict(self, x):  # arrays by name, rows first
{call}"""
_PYTHON: Final = """\
import importlib.util
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from batchedapi_serving import Tensor, batched

MODEL = Path(__file__).parent / "1" / "model.py"
CONFIG = {config!r}


class Model:
    def __init__(self, context):
        spec = importlib.util.spec_from_file_location("triton_model", MODEL)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.model = module.TritonPythonModel()
        kind = "GPU" if context.devices else "CPU"
        if hasattr(self.model, "initialize"):
            self.model.initialize(
                {{
                    "model_config": json.dumps(CONFIG),
                    "model_instance_kind": kind,
                    "model_instance_device_id": "0",
                    "model_name": CONFIG["name"],
                    "model_version": "1",
                    "model_repository": str(MODEL.parents[1]),
                }}
            )

    @batched(
        inputs={inputs},
        outputs={outputs},
    )
    def predict(self, x):  # arrays by name, rows first: one request of Triton's with all rows
        request = pb_utils.InferenceRequest([pb_utils.Tensor(name, x[name]) for name in x])
        (response,) = self.model.execute([request])
        if response.has_error():
            raise RuntimeError(response.error().message())
        return {{y.name(): np.asarray(y.as_numpy()) for y in response.output_tensors()}}
"""
_UTILS: Final = '''\
"""Of Triton's Python backend as much as execute() of a model needs; written for batchedapi."""

import numpy as np

_TYPES = {
    "TYPE_BOOL": np.bool_, "TYPE_FP16": np.float16, "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64, "TYPE_INT8": np.int8, "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32, "TYPE_INT64": np.int64, "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16, "TYPE_UINT32": np.uint32, "TYPE_UINT64": np.uint64,
}


class TritonModelException(Exception):
    pass


class TritonError:
    def __init__(self, message):
        self._message = message

    def message(self):
        return self._message


class Tensor:
    def __init__(self, name, array):
        self._name, self._array = name, array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class InferenceRequest:
    def __init__(self, inputs):
        self._inputs = inputs

    def inputs(self):
        return self._inputs


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self._outputs, self._error = list(output_tensors), error

    def output_tensors(self):
        return self._outputs

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error


def get_input_tensor_by_name(request, name):
    return next((one for one in request.inputs() if one.name() == name), None)


def get_input_config_by_name(config, name):
    return next((one for one in config["input"] if one["name"] == name), None)


def get_output_config_by_name(config, name):
    return next((one for one in config["output"] if one["name"] == name), None)


def triton_string_to_numpy(name):
    return _TYPES[name]
'''


def parse_text_format(text: str) -> dict[str, Any]:
    """Fields of a message in protobuf's text format; repeated ones are lists.

    Raises:
        MigrateError: it is none; says the line.
    """
    tokens = _tokens(text)
    return _message(tokens, "")


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        line = text.count("\n", 0, at) + 1
        if match is None:
            raise MigrateError(f"line {line}: expected protobuf text, got {text[at : at + 20]!r}")
        at = match.end()
        if match.lastgroup is not None:
            yield match.lastgroup, match[match.lastgroup], line


def _message(tokens: Iterator[tuple[str, str, int]], end: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, name, line in tokens:
        if name == end and kind == "sign":
            return found
        if kind == "sign" and name in ",;":
            continue
        if kind != "word":
            raise MigrateError(f"line {line}: expected a field's name, got {name!r}")
        values = _values(tokens, line)
        if isinstance(values, list) or (name in found and name not in _ONE_OF):
            more = values if isinstance(values, list) else [values]
            before = found.get(name, [])
            found[name] = [*(before if isinstance(before, list) else [before]), *more]
        else:
            found[name] = values
    if end:
        raise MigrateError(f"expected {end!r} before the end of the file")
    return found


def _values(tokens: Iterator[tuple[str, str, int]], line: int) -> Any:
    kind, word, line = next(tokens, ("sign", "end of file", line))
    if kind == "sign" and word == ":":
        kind, word, line = next(tokens, ("sign", "end of file", line))
    if kind != "sign":
        return _scalar(kind, word)
    if word == "{":
        return _message(tokens, "}")
    if word == "<":
        return _message(tokens, ">")
    if word != "[":
        raise MigrateError(f"line {line}: expected a value, got {word!r}")
    members: list[Any] = []
    for kind, word, _ in tokens:
        if kind == "sign" and word == "]":
            return members
        if kind == "sign" and word == ",":
            continue
        members.append(_message(tokens, "}") if word == "{" else _scalar(kind, word))
    raise MigrateError("expected ']' before the end of the file")


def _scalar(kind: str, word: str) -> Any:
    if kind == "text":
        return word[1:-1]
    if re.fullmatch(r"[-+]?[0-9]+", word):
        return int(word)
    return {"true": True, "false": False}.get(word, word)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def migrate(project: Project) -> Migration:
    """config.pbtxt, for onnxruntime, pytorch_libtorch and the Python backend.

    Raises:
        MigrateError: it is no such file, or of a backend that only Triton has.
    """
    config = parse_text_format(project.text)
    backend = str(config.get("backend") or config.get("platform") or "")
    backend = {"onnxruntime_onnx": "onnxruntime", "pytorch_libtorch": "pytorch"}.get(
        backend, backend
    )
    if backend != "python" and backend not in _LOADERS:
        raise MigrateError(
            f"backend: expected python, onnxruntime or pytorch, got {backend or 'none'!r}: only"
            " Triton runs it. Export the model as ONNX or TorchScript, or write a class that loads"
            " it with its own library"
        )
    notes: list[Note] = []
    inputs = _tensors(config, "input", notes)
    outputs = _tensors(config, "output", notes)
    notes += [
        Note(name, "has no field here", _REMEDIES.get(name, "leave it out, or see the guide"))
        for name in config
        if name not in _SAID
    ]
    size = int(config.get("max_batch_size", 0))
    if size == 0:
        notes.append(
            Note(
                "max_batch_size: 0",
                "its tensors have no dimension of rows, every one here has",
                "look whether the model takes a batch; if it does, set maxBatchSize",
            )
        )
    batching, delay = _batching(config, size, notes)
    lanes = _instances(config, notes)
    name = str(config.get("name") or project.folder)
    spec = {
        "predictor": {"path": f"{MODULE}:Model", **lanes},
        "serverSideBatching": {**batching, **delay},
    }
    if any(group.get("kind") == "KIND_GPU" for group in _groups(config)):
        spec["compute"] = {"gpu": 1}
    shown = {"inputs": _shown(inputs), "outputs": _shown(outputs)}
    if backend == "python":
        if "1/model.py" not in project.files:
            raise MigrateError("expected the file 1/model.py beside it, found none")
        text = _PYTHON.format(config={**config, "name": name}, **shown)
        files = {PREDICTOR: text, "triton_python_backend_utils.py": _UTILS}
    else:
        files = {PREDICTOR: _loaded(backend, config, shown, list(inputs), list(outputs))}
    return Migration(manifest_of(name, spec), files, tuple(notes))


def _batching(
    config: Mapping[str, Any], size: int, notes: list[Note]
) -> tuple[dict[str, Any], dict[str, Any]]:
    dynamic = config.get("dynamic_batching")
    if dynamic is None:
        return {"maxBatchSize": 1}, {}
    notes += [
        Note(
            f"dynamic_batching.{name}",
            "has no field here",
            "requests have one queue and their own timeouts: see the guide of overload",
        )
        for name in dynamic
        if name not in _DYNAMIC
    ]
    batching: dict[str, Any] = {"maxBatchSize": max(1, size), "strategy": "Fixed"}
    preferred = [int(n) for n in _list(dynamic.get("preferred_batch_size")) if int(n) <= size]
    if preferred:
        batching["preferredBatchSizes"] = sorted(set(preferred))
    delay = int(dynamic.get("max_queue_delay_microseconds", 0))
    return batching, {"batchInterval": f"{delay}us" if delay else "0s"}


def _groups(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [group for group in _list(config.get("instance_group")) if isinstance(group, dict)]


def _instances(config: Mapping[str, Any], notes: list[Note]) -> dict[str, Any]:
    groups = _groups(config)
    if len(groups) > 1:
        notes.append(
            Note(
                "instance_group",
                "all processes of a replica are alike",
                "set processesPerReplica, or write a manifest for each kind of node",
            )
        )
    count = int(groups[0].get("count", 1)) if groups else 1
    return {"processesPerReplica": count} if count > 1 else {}


def _tensors(config: Mapping[str, Any], field: str, notes: list[Note]) -> dict[str, str]:
    found = {}
    for one in _list(config.get(field)):
        name, dtype = str(one.get("name")), str(one.get("data_type")).removeprefix("TYPE_")
        if dtype in {"STRING", "BF16"}:
            raise MigrateError(
                f"{field} {name!r}: expected numbers, got TYPE_{dtype}: write a method that takes"
                f" JSON items instead (no inputs in @batched); {MANIFEST} says which class"
            )
        found[name] = tensor(dtype, [int(n) for n in _list(one.get("dims"))])
        notes += [
            Note(f"{field} {name!r}: {more}", "has no field here", "do it in predict")
            for more in one
            if more not in {"name", "data_type", "dims"}
        ]
    if not found:
        raise MigrateError(
            f"{field}: expected name, data_type and dims, got none: Triton completes them from the"
            " model; write them down (`curl :8000/v2/models/NAME/config` prints them)"
        )
    return found


def _shown(tensors: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {text}' for name, text in tensors.items()) + "}"


def _loaded(
    backend: str,
    config: Mapping[str, Any],
    shown: Mapping[str, str],
    inputs: list[str],
    outputs: list[str],
) -> str:
    package, file, load = _LOADERS[backend]
    file = str(config.get("default_model_filename", file))
    call = _CALLS[backend].format(inputs=inputs, outputs=outputs)
    load = load.format(file=f'Path(__file__).parent / "1" / "{file}"')
    return _LOADED.format(package=package, load=load, call=call, **shown)
