"""Triton's config.pbtxt: tensors, batching, instances; ONNX and TorchScript need no class."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving.laptop.migrating.migration import (
    Draft,
    MigrateError,
    Migration,
    Project,
    Rules,
    To,
    finished,
    seconds,
    skeleton,
    text,
)
from batchedapi_serving.predictor.spec import DTYPES

_TOKEN: Final = re.compile(
    r"""\s+|\#[^\n]*|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<sign>[{}\[\]:,;<>])"""
    r"""|(?P<word>[-+.\w]+)"""
)
_SERVED: Final = {
    **dict.fromkeys(("onnxruntime", "onnxruntime_onnx"), (ModelFormat.ONNX, "model.onnx")),
    **dict.fromkeys(("pytorch", "pytorch_libtorch"), (ModelFormat.TORCHSCRIPT, "model.pt")),
}
"""Format of a backend, and the file that it loads unless it is told another."""
_ONE_OF: Final = {"max_batch_size", "name", "backend", "platform", "dynamic_batching"}
"""Fields that are there once; any other may be repeated."""
_STREAM: Final = "a method that yields answers a stream, over HTTP, for one request at a time"
_TENSOR: Final[Rules] = {
    "name": None,
    "data_type": None,
    "dims": None,
    "optional": "every request has every input: send a value for none, or take JSON items",
    "reshape": "reshape it in predict",
    "allow_ragged_batch": "Tensor(..., pad=0) in the model fills rows of several lengths up",
    "label_filename": "`encode=` of @batched names a method that makes an answer of a row",
    "*": "do it in predict",
}


def _delay(value: Any) -> str:
    return seconds(value, 1e-6)


_DYNAMIC: Final[Rules] = {
    "preferred_batch_size": "batches follow what they were measured to take; for a model that was"
    " compiled for these sizes set serverSideBatching.maxBatchSize to one of them",
    "max_queue_delay_microseconds": To("serverSideBatching.batchInterval", _delay),
    "preserve_ordering": None,
    "priority_levels": "serverSideBatching.queueOrder Deadline goes by the deadline of a request",
    "default_queue_policy": "overload.timeout and overload.maxReplicaConcurrency hold for all",
}
_RULES: Final[Rules] = {
    "name": None,
    "backend": None,
    "platform": None,
    "max_batch_size": None,
    "input": _TENSOR,
    "output": _TENSOR,
    "dynamic_batching": _DYNAMIC,
    "instance_group": {
        "count": None,
        "kind": None,
        "gpus": None,
        "name": None,
        "*": "all processes of a replica are alike",
    },
    "version_policy": "a manifest is one version; git keeps the others",
    "default_model_filename": None,
    "sequence_batching": "a request brings its state itself; or stay with Triton for it",
    "ensemble_scheduling": "one class with a method for each step, and `await context.submit(...)`"
    " between them",
    "model_transaction_policy": {"decoupled": _STREAM},
    "parameters": "write them into predictor.config, which the class gets",
    "optimization": "set it where the model is loaded",
    "model_warmup": "each size is warmed up with the example of @batched",
    "response_cache": "put a cache before the Service",
}


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
        if name in found and name in _ONE_OF:
            raise MigrateError(f"line {line}: expected {name} once, got it twice")
        if isinstance(values, list) or name in found:
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
    """The model of one config.pbtxt.

    Raises:
        MigrateError: it is no text of protobuf.
    """
    config = parse_text_format(project.text)
    draft = Draft(str(config.get("name") or project.folder))
    draft.take(config, _RULES, "")
    size = draft.whole(config.get("max_batch_size", 0), 1, "max_batch_size")
    inputs, takes_rows = _tensors(draft, "input", config.get("input"), rows_first=size > 0)
    outputs, gives_rows = _tensors(draft, "output", config.get("output"), rows_first=size > 0)
    _batching(draft, config, size)
    _instances(draft, [one for one in _list(config.get("instance_group")) if isinstance(one, dict)])
    known = bool(inputs and outputs)
    backend = str(config.get("backend") or config.get("platform") or "none")
    versions = _list(_below(config, "version_policy", "specific", "versions"))
    folder = project.version([one for one in versions if isinstance(one, int)])
    format_, name = _SERVED.get(backend, (None, "model.py"))
    name = config.get("default_model_filename") or name  # an empty text is none
    file = f"{folder}/{name}"
    onnx = format_ is ModelFormat.ONNX
    if format_ is not None and takes_rows and gives_rows and (known or onnx):
        uri = To("predictor.model.uri", lambda one: project.uri_of(f"{folder}/{text(one)}"))
        draft.take(name, uri, "default_model_filename")
        if draft.serve(format_, file):
            if not onnx:  # TorchScript knows neither types nor shapes
                tensors = {"inputs": inputs, "outputs": list(outputs)}
                draft.set("predictor.config", tensors, "input")
            remedy = "for a cluster put it where spec.predictor.model.uri may name it"
            draft.tell(file, "is served from here", remedy)
            return finished(project, [draft], [f"{folder}/"])
    draft.code = skeleton("Model", *map(_shown, (inputs, outputs) if known else ()))
    if known:
        draft.imports = ("from batchedapi_serving import Tensor, batched",)
    if backend == "python":
        remedy = "call what execute() does for all rows at once, without pb_utils"
        draft.tell(file, "its code is not translated", remedy)
    else:
        remedy = "load it in the class; most models can be exported to ONNX or TorchScript"
        draft.tell(f"backend {backend}", "its model is not loaded", remedy)
    return finished(project, [draft])


def _below(config: Any, *path: str) -> Any:
    for name in path:
        config = config.get(name) if isinstance(config, dict) else None
    return config


def _batching(draft: Draft, config: Mapping[str, Any], size: int) -> None:
    """Without dynamic batching a request is a batch, of as many rows as it has."""
    batching: dict[str, Any] = draft.spec.setdefault("serverSideBatching", {})
    if size == 0 or config.get("dynamic_batching") is None:
        batching |= {"maxBatchSize": 1, **({"sizeUnit": "Requests"} if size else {})}
        return
    draft.set("serverSideBatching.maxBatchSize", size, "max_batch_size")
    batching.setdefault("batchInterval", "0s")
    batching["strategy"] = "Fixed"


def _instances(draft: Draft, groups: list[Mapping[str, Any]]) -> None:
    if len(groups) > 1:
        remedy = "set predictor.processesPerReplica, or write a manifest for each kind of node"
        draft.tell("instance_group", "all processes of a replica are alike", remedy)
    group = groups[0] if groups else {}
    gpus = _list(group.get("gpus"))
    count = draft.whole(group.get("count", 1), 1, "instance_group.count") * max(1, len(gpus))
    if count > 1:
        draft.set("predictor.processesPerReplica", count, "instance_group.count")
    if group.get("kind") == "KIND_GPU" or gpus:
        draft.set("compute.gpu", max(1, len(gpus)), "instance_group.kind")


def _tensors(
    draft: Draft, field: str, value: Any, *, rows_first: bool
) -> tuple[dict[str, Any], bool]:
    """Type and shape of a row of each tensor, and whether its first dimension is that of rows.

    Of tensors with a text among them there are no types: rows are JSON items.
    """
    found: dict[str, Any] = {}
    batched = numbers = True
    for one in _list(value):
        name = str(_below(one, "name"))
        dtype = str(_below(one, "data_type")).removeprefix("TYPE_")
        place = f"{field} {name!r}"
        dims = [draft.whole(n, -1, f"{place}.dims") for n in _list(_below(one, "dims"))]
        if dtype not in DTYPES:
            draft.tell(place, f"expected numbers, got TYPE_{dtype}", "rows are JSON items instead")
            numbers = False
        if not rows_first and dims and dims[0] in {1, -1}:
            reason = f"its first dimension, {dims[0]}, is that of rows"
            remedy = "see whether the model takes several; if it does, set maxBatchSize"
            draft.tell(f"{place}: max_batch_size 0", reason, remedy)
            dims = dims[1:]
        elif not rows_first:
            reason = "has no dimension of rows, which arrays have here"
            draft.tell(f"{place}: max_batch_size 0", reason, "answer each row of x in predict")
            batched = False
        # Lengths of -1 have a name each: they differ from row to row, and from each other.
        shape = [n if n > 0 else f"{name}_{i}" for i, n in enumerate(dims, 1)]
        found[name] = {"datatype": dtype, "shape": shape}
    if not found:
        remedy = "`curl :8000/v2/models/NAME/config` prints what Triton completes from the model"
        draft.tell(field, "expected name, data_type and dims, got none", remedy)
    return (found if numbers else {}), batched


def _shown(tensors: Mapping[str, Any]) -> str:
    """Their code."""
    each = (
        f'{json.dumps(name)}: Tensor("{one["datatype"]}", {json.dumps(one["shape"])})'
        for name, one in tensors.items()
    )
    return f"{{{', '.join(each)}}}"
