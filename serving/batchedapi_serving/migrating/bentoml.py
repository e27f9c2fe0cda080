"""BentoML: configuration and service.py of 1.0 with runners, and @bentoml.service of 1.4."""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import yaml

from batchedapi_serving.migrating.migration import (
    MARK,
    MODULE,
    PREDICTOR,
    MigrateError,
    Migration,
    Note,
    Project,
    example_line,
    manifest_of,
    tensor,
)

_TYPES: Final = {
    "float16": "FP16", "float32": "FP32", "float64": "FP64", "int8": "INT8", "int16": "INT16",
    "int32": "INT32", "int64": "INT64", "uint8": "UINT8", "bool": "BOOL",
}  # fmt: skip
_RUNNER: Final = re.compile(r'bentoml\.(\w+)\.get\(\s*["\']([^"\']+)["\']\s*\)\.to_runner')
_CALL: Final = re.compile(r"\.(\w+)\.(?:async_)?run\(")
_PREDICTOR_OF_RUNNER: Final = """\
from pathlib import Path

{imports}import numpy as np

from batchedapi_serving import Tensor, batched

FILE = Path(__file__).parent / "saved_model.pkl"
{example}

class Model:
    def __init__(self):
        self.model = {load}

    @batched({declared})
    def {name}(self, x):  # rows of n clients -> n answers
        return {call}
"""
_LOADERS: Final = {
    "sklearn": ("import joblib\n", "joblib.load(FILE)"),
    "picklable_model": ("import pickle\n\n", "pickle.loads(FILE.read_bytes())"),
}
"""What reads saved_model.pkl, by the framework that wrote it."""
_ARRAYS: Final = frozenset({"ndarray", "NDArray"})
_AS_THEY_COME: Final = frozenset({"", "list", "List", "Sequence", "Iterable", "Any"})
"""Types of a batch for which the list of its rows will do."""
_PLAIN: Final = frozenset({"str", "int", "float", "bool", "dict", "Dict", "object"})
"""Types of a row that JSON has."""
_KNOWN_BATCHING: Final = {"enabled", "max_batch_size", "max_latency_ms"}


def migrate(project: Project) -> Migration:
    """A service.py, or the configuration beside one.

    Raises:
        MigrateError: there is no service in Python beside the configuration.
    """
    configuration: Mapping[str, Any] = {}
    if not project.file.endswith(".py"):
        loaded = yaml.safe_load(project.text)
        configuration = loaded if isinstance(loaded, Mapping) else {}
    for path, tree in project.modules().items():
        for one in tree.body:
            if isinstance(one, ast.ClassDef) and _decorator(one, "service") is not None:
                return _service(project, configuration, path, one, tree)
    for path, text in project.files.items():
        if path.endswith(".py") and (match := _RUNNER.search(text)):
            return _runner(project, configuration, path, match)
    raise MigrateError(
        "expected a Python file with @bentoml.service, or with bentoml.FRAMEWORK.get(TAG)"
        ".to_runner(), beside it; found none"
    )


def _batching(values: Mapping[str, Any], place: str, notes: list[Note]) -> dict[str, Any]:
    notes += [
        Note(f"{place}.{name}", "has no field here", "the queue learns what batches take by itself")
        for name in values
        if name not in _KNOWN_BATCHING
    ]
    if not values.get("enabled", True):
        return {"enabled": False}
    latency = float(values.get("max_latency_ms", 10_000))
    return {
        "maxBatchSize": int(values.get("max_batch_size", 100)),
        "maxLatency": f"{latency:g}ms",
    }


# ------------------------------------------------------------ 1.0


def _runner(
    project: Project, configuration: Mapping[str, Any], path: str, match: "re.Match[str]"
) -> Migration:
    notes: list[Note] = []
    text = project.files[path]
    framework, tag = match[1], match[2]
    spec_of = _of_runners(configuration, tag.partition(":")[0], notes)
    call = _CALL.search(text)
    method = call[1] if call else "predict"
    api = next(
        (
            (one, decorator)
            for one in ast.parse(text).body
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            for decorator in one.decorator_list
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(".api")
        ),
        None,
    )
    declared, array = "example=EXAMPLE", "np.asarray(x)"
    route = "predict"
    if api is not None:
        function, decorator = api
        route = function.name
        written = {k.arg: k.value for k in decorator.keywords}
        node = written.get("input")
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("NumpyNdarray"):
            said = {k.arg: k.value for k in node.keywords}
            spec = _tensor(said.get("dtype"), said.get("shape"))
            if spec is not None:  # it says both
                declared, array = f"inputs={spec}", "x"
        if len(function.body) > 1:
            notes.append(
                Note(
                    f"{path}, line {function.lineno}: {function.name}",
                    "what it does around the runner is not taken over",
                    f"write it into {route} of {PREDICTOR}, for all rows at once",
                )
            )
    imports, load = _LOADERS.get(
        framework, ("", f"None{MARK}load {tag} with {framework}'s own function")
    )
    notes.append(
        Note(
            f"{path}: bentoml.{framework}.get({tag!r})",
            "BentoML's store of models is not read",
            f"`bentoml models export {tag}` and put its saved_model.pkl beside {PREDICTOR}",
        )
    )
    found = (
        f"np.asarray(self.model.{method}({array}))"
        if method != "__call__"
        else (f"np.asarray(self.model({array}))")
    )
    code = _PREDICTOR_OF_RUNNER.format(
        example="" if array == "x" else example_line(project),
        imports=imports,
        load=load,
        declared=declared,
        name=route,
        call=found if array == "x" else f"{found}.tolist()",
    )
    return Migration(manifest_of(tag.partition(":")[0], spec_of), {PREDICTOR: code}, tuple(notes))


def _of_runners(configuration: Mapping[str, Any], name: str, notes: list[Note]) -> dict[str, Any]:
    """The spec that bentoconfiguration.yaml asks for, of the runner of this name."""
    runners = configuration.get("runners") or {}
    own = runners.get(name) or {}
    merged = {**(runners.get("batching") or {}), **(own.get("batching") or {})}
    batching = _batching({"enabled": True, **merged}, "runners.batching", notes)
    compute: dict[str, Any] = {}
    for key, value in {**(runners.get("resources") or {}), **(own.get("resources") or {})}.items():
        if key == "cpu":
            compute["cpu"] = str(value)
        elif key == "nvidia.com/gpu":
            compute["gpu"] = int(value)
        else:
            notes.append(Note(f"runners.resources.{key}", "has no field here", "leave it out"))
    notes += [
        Note(f"runners.{key}", "one model is a manifest", "a method of its own, or an API")
        for key in runners
        if key not in {"batching", "resources", "timeout", "logging", "metrics", name}
    ]
    overload = {}
    if timeout := runners.get("timeout"):
        overload["timeout"] = f"{timeout}s"
    predictor: dict[str, Any] = {"path": f"{MODULE}:Model"}
    server = configuration.get("api_server") or {}
    for key, value in server.items():
        if key == "workers":
            predictor["webProcesses"] = int(value)
        else:
            notes.append(
                Note(f"api_server.{key}", "has no field here", "a gateway, or batchedapi serve")
            )
    return {
        "predictor": predictor,
        "serverSideBatching": batching,
        "compute": compute,
        "overload": overload,
    }


def _tensor(dtype: ast.expr | None, shape: ast.expr | None) -> str | None:
    if dtype is None or shape is None:
        return None
    kind = _TYPES.get(ast.unparse(dtype).strip("'\"").rpartition(".")[2])
    lengths = ast.literal_eval(shape)
    return None if kind is None or not lengths else tensor(kind, lengths[1:])


# ------------------------------------------------------------ 1.4


class _Api(NamedTuple):
    name: str
    parameters: Sequence[ast.arg]
    options: Mapping[str, Any]
    asynchronous: bool


def _decorator(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Any:
    """Its keywords with constant values; None: it is not decorated so."""
    for one in node.decorator_list:
        call = one if isinstance(one, ast.Call) else None
        function = ast.unparse(one if call is None else call.func)
        if function in {name, f"bentoml.{name}"}:
            return {k.arg: _constant(k.value) for k in (call.keywords if call is not None else [])}
    return None


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _service(
    project: Project,
    configuration: Mapping[str, Any],
    path: str,
    service: ast.ClassDef,
    tree: ast.Module,
) -> Migration:
    notes: list[Note] = []
    options = _decorator(service, "service")
    of_file = (configuration.get("services") or {}).get(service.name) or {}
    options = {**options, **of_file}
    apis = [
        _Api(f.name, f.args.args[1:], found, isinstance(f, ast.AsyncFunctionDef))
        for f in service.body
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
        if (found := _decorator(f, "api")) is not None
    ]
    if not apis:
        raise MigrateError(
            f"{path}: expected methods with @bentoml.api in {service.name}, got none"
        )
    spec: dict[str, Any] = {"predictor": {"path": f"{MODULE}:Model"}}
    methods = []
    for api in apis:
        batchable = bool(api.options.get("batchable"))
        own = _batching(
            {k: v for k, v in api.options.items() if k in _KNOWN_BATCHING}, api.name, notes
        )
        methods.append(
            {"name": api.name, "serverSideBatching": own if batchable else {"maxBatchSize": 1}}
        )
        known = {"batchable", "batch_dim", "name", *_KNOWN_BATCHING}
        notes += [
            Note(f"{api.name}: @bentoml.api({key}=)", "has no field here", "see the guide")
            for key in api.options
            if key not in known
        ]
        if batchable and api.parameters:
            name = api.parameters[0].arg
            notes.append(
                Note(
                    f'{api.name}: body {{"{name}": [...]}}',
                    "rows are named as in KServe v1",
                    'clients send {"instances": [...]}, or one row alone',
                )
            )
            if (taken := _taken(api)) not in _AS_THEY_COME | _ARRAYS:
                notes.append(
                    Note(
                        f"{api.name}: {name}: {taken}",
                        "rows come as a list of what JSON has, or as an array",
                        f"make it of `items` in {PREDICTOR}",
                    )
                )
    spec["predictor"]["methods"] = methods
    _options(options, spec, notes)
    text, left = _without_bentoml(project.files[path], tree, service)
    notes += [
        Note(f"{path}, line {line}", "uses bentoml itself", "load from context.model_path instead")
        for line in left
    ]
    wrapped = "\n".join(_method(api, service) for api in apis)
    example = example_line(project) if "EXAMPLE" in wrapped else ""
    numpy = "import numpy\n" if "numpy.asarray(items)" in wrapped else ""
    code = (
        f"from __future__ import annotations\n\n{numpy}"
        "from batchedapi_serving import Tensor, batched\n\n"
        f"{text.rstrip()}\n\n\n{example}\n\nclass Model({service.name}):\n{wrapped}"
    )
    return Migration(manifest_of(service.name, spec), {PREDICTOR: code}, tuple(notes))


def _options(options: Mapping[str, Any], spec: dict[str, Any], notes: list[Note]) -> None:
    for key, value in options.items():
        if key == "workers" and value is not None:
            spec["predictor"]["processesPerReplica"] = value
        elif key == "resources" and isinstance(value, Mapping):
            names = {"cpu": "cpu", "memory": "mem", "gpu": "gpu"}
            spec["compute"] = {
                ours: value[name] if name == "gpu" else str(value[name])
                for name, ours in names.items()
                if name in value
            }
            rest = [name for name in value if name not in names]
            notes += [
                Note(f"resources.{name}", "has no field here", "spec.pod.nodeSelector picks nodes")
                for name in rest
            ]
        elif key == "traffic" and isinstance(value, Mapping):
            for name, number in value.items():
                if name == "timeout":
                    spec.setdefault("overload", {})["timeout"] = f"{number}s"
                elif name == "max_concurrency":
                    spec.setdefault("overload", {})["maxReplicaConcurrency"] = number
                elif name == "concurrency":
                    spec["autoscaling"] = {
                        "policy": "Concurrency",
                        "targetReplicaConcurrency": str(number),
                    }
                else:
                    notes.append(Note(f"traffic.{name}", "has no field here", "leave it out"))
        elif key != "name":
            notes.append(Note(f"@bentoml.service({key}=)", "has no field here", "see the guide"))


def _declared(api: _Api) -> str | None:
    """The argument of @batched for a parameter that is Annotated with a DType and a Shape."""
    node = api.parameters[0].annotation if api.parameters else None
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)):
        return None
    calls = {
        ast.unparse(one.func).rpartition(".")[2]: one.args[0]
        for one in node.slice.elts
        if isinstance(one, ast.Call) and one.args
    }
    spec = _tensor(calls.get("DType"), calls.get("Shape"))
    return None if spec is None else f"inputs={spec}"


def _taken(api: _Api) -> str:
    """The type that its batch has, without its module; of a list that of a row.

    Empty: it is not said, or is one that JSON has.
    """
    node = api.parameters[0].annotation if api.parameters else None
    while node is not None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        elif isinstance(node, ast.BinOp):  # X | None
            node = node.left
        elif isinstance(node, ast.Subscript):
            outer = ast.unparse(node.value).rpartition(".")[2]
            inner = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
            if outer not in _AS_THEY_COME | {"Annotated", "Optional"}:
                return "" if outer in _PLAIN else outer
            node = inner
        else:
            name = ast.unparse(node).rpartition(".")[2]
            return "" if name in _PLAIN else name
    return ""


def _method(api: _Api, service: ast.ClassDef) -> str:
    batchable = bool(api.options.get("batchable"))
    declared = _declared(api) if batchable else None
    example = declared is None
    declared = declared or "example=EXAMPLE"
    start, wait = ("async def", "await ") if api.asynchronous else ("def", "")
    if batchable:
        items = "numpy.asarray(items)" if example and _taken(api) in _ARRAYS else "items"
        answer = f"{wait}super().{api.name}({items})"
        if example:
            answer = f"list({answer})"
        return (
            f"    @batched({declared})\n    {start} {api.name}(self, items):\n"
            f"        return {answer}\n"
        )
    one = f"{wait}{service.name}.{api.name}(self, **item)"
    return (
        f"    @batched({declared})\n    {start} {api.name}(self, items):  # bodies, as BentoML's\n"
        f"        return [{one} for item in items]\n"
    )


def _without_bentoml(text: str, tree: ast.Module, service: ast.ClassDef) -> tuple[str, list[int]]:
    """The module without its decorators and imports of BentoML, and lines that still use it."""
    lines = text.splitlines()
    gone: set[int] = set()
    decorated = [service, *service.body]
    for node in decorated:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for one in node.decorator_list:
            name = ast.unparse(one.func if isinstance(one, ast.Call) else one)
            if name.removeprefix("bentoml.") in {"service", "api", "task"}:
                gone |= set(range(one.lineno, (one.end_lineno or one.lineno) + 1))
    imports = {
        one.lineno
        for one in tree.body
        if (isinstance(one, ast.Import) and one.names[0].name.partition(".")[0] == "bentoml")
        or (isinstance(one, ast.ImportFrom) and (one.module or "").partition(".")[0] == "bentoml")
    }
    future = {
        one.lineno
        for one in tree.body
        if isinstance(one, ast.ImportFrom) and one.module == "__future__"
    }
    left = sorted(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "bentoml" and node.lineno not in gone
    )
    gone |= future if left else future | imports
    kept = [line for number, line in enumerate(lines, 1) if number not in gone]
    return "\n".join(kept), left
