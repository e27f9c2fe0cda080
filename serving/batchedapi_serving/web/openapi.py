"""/docs: what it says of the routes, with examples that work, and the page without a CDN."""

import functools
import importlib.resources
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html

from batchedapi_core import contract
from batchedapi_serving.codecs import Wire
from batchedapi_serving.codecs.json_values import NON_FINITE
from batchedapi_serving.codecs.open_inference_metadata import MODEL_VERSION, model_metadata
from batchedapi_serving.predictor import MethodSpec, Tensor
from batchedapi_serving.web.frontend import (
    METADATA_PATHS,
    Frontend,
    models,
    prediction_routes,
    wire_of_path,
)
from batchedapi_serving.web.responses import EVENTS, LINES

Schema = dict[str, Any]

_SHOWN_NUMBERS: Final = 1000
_ERROR: Final[Schema] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "request_id"],
            "properties": {
                "code": {"type": "string", "description": "For programs."},
                "message": {"type": "string", "description": "For people: what and where."},
                "request_id": {
                    "type": ["string", "null"],
                    "description": "As in the header X-Request-Id; quote it.",
                },
            },
        },
        "predictions": {"type": "array", "description": "Of rows that did not fail."},
    },
}
_V2_ERROR: Final[Schema] = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 1}
_OPENAI: Final[Mapping[Wire, tuple[Schema, Schema]]] = {
    Wire.EMBEDDINGS: (
        {"input": {}, "model": _TEXT, "encoding_format": {"enum": ["float", "base64"]}}
        | {"dimensions": _COUNT, "user": _TEXT},
        {"input": ["A text."]},
    ),
    Wire.RERANK: (
        {"query": _TEXT, "documents": {"type": "array", "minItems": 1, "items": _TEXT}}
        | {"model": _TEXT, "top_n": _COUNT, "return_documents": {"type": "boolean"}},
        {"query": "A question?", "documents": ["An answer.", "A text."]},
    ),
}
"""Members of a request, and an example that has those it needs."""


_READING: Final = {
    400: "The message cannot be parsed.",
    404: "There is no such route, model or version.",
    405: "The path is not served for this method.",
    408: "The request was not sent in time.",
    413: "The body is too large.",
    431: "The headers are too large.",
    500: "A bug of the server.",
    503: "Not ready, or draining; see `Retry-After`.",
}
_PREDICTING: Final = _READING | {
    400: "The body cannot be parsed, or a header is malformed.",
    413: "The body is too large, or it has too many rows.",
    415: "The content type or the content encoding is not served.",
    422: "Shape, type or range of a value is wrong; the place is named.",
    429: "The answer would miss `maxLatency`; see `Retry-After`.",
    500: "The predictor failed on this input.",
    503: "Queue full, draining, or not ready; see `Retry-After`.",
    504: "No answer within `overload.timeout` or `X-Request-Timeout-Ms`.",
}
_REQUEST_HEADERS: Final = [
    {
        "name": "X-Request-Id",
        "in": "header",
        "required": False,
        "description": "Sent back, and named in errors and in the server's log.",
        "schema": {"type": "string", "maxLength": 200, "pattern": "^[!-~]*$"},
    },
    {
        "name": "X-Request-Timeout-Ms",
        "in": "header",
        "required": False,
        "description": "How long to wait for the answer at most; shortens `overload.timeout`.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 10**12 - 1},
    },
]
_KEYS: Final = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_EITHER: Final[list[dict[str, list[str]]]] = [{name: []} for name in _KEYS]
_NO_KEY: Final = {401: "The request brings no key."}
_ANY_ITEM_STATUS: Final = "A status of the predictor's own (`ItemError`)."
_TAGS: Final = {
    Wire.PLAIN: "predictions",
    Wire.V1: "KServe v1",
    Wire.V2: "Open Inference Protocol v2",
    Wire.EMBEDDINGS: "OpenAI, Jina, Cohere",
    Wire.RERANK: "OpenAI, Jina, Cohere",
}
_PATH: Final = "/docs"
_FILES: Final = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
}
_CACHED: Final = {"cache-control": "public, max-age=86400"}


def many_rows_schema(row: Schema, name: str, description: str) -> Schema:
    """`{name: [row, ...]}`."""
    return {
        "type": "object",
        "required": [name],
        "properties": {name: _list(row)},
        "description": description,
    }


def _list(row: Schema) -> Schema:
    return {
        "type": "array", "minItems": 1, "maxItems": contract.MAX_BATCH_SIZE_LIMIT, "items": row,
    }  # fmt: skip


def _row(tensors: Mapping[str, Tensor], *, single: bool) -> Schema:
    """One row as JSON; anything, if nothing is declared."""
    if not tensors:
        return {}
    if single:
        return tensor_schema(*tensors.values())
    return {
        "type": "object",
        "required": list(tensors),
        "properties": {name: tensor_schema(tensor) for name, tensor in tensors.items()},
    }


def tensor_schema(tensor: Tensor) -> Schema:
    """Nested lists of numbers; a variable dimension has any length."""
    schema = number_schema(tensor)
    for length in reversed(tensor.shape):
        variable = isinstance(length, str)
        bounds = {"minItems": 1} if variable else {"minItems": length, "maxItems": length}
        schema = {"type": "array", **bounds, "items": schema}
    return schema


def number_schema(tensor: Tensor) -> Schema:
    """One element."""
    dtype = tensor.dtype
    if dtype == "BOOL":
        return {"type": "boolean"}
    if tensor.allow_non_finite:
        return {"anyOf": [{"type": "number"}, {"enum": list(NON_FINITE)}]}
    if dtype.startswith("FP"):
        return {"type": "number"}
    bits = int(dtype.removeprefix("U").removeprefix("INT"))
    low, high = (0, 2**bits - 1) if dtype[0] == "U" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return {"type": "integer", "minimum": low, "maximum": high}


def example_of(method: MethodSpec | None) -> Any:
    """A row that the method takes; None if it would fill pages."""
    if method is None:
        return {}
    if method.example is not None:
        return method.example
    if not method.inputs:
        return {}
    examples = {name: _zeros(tensor) for name, tensor in method.inputs.items()}
    if any(example is None for example in examples.values()):
        return None
    return next(iter(examples.values())) if method.single_input else examples


def _zeros(tensor: Tensor) -> Any:
    example: Any = False if tensor.dtype == "BOOL" else 0
    numbers = 1
    for length in reversed(tensor.shape):
        count = 1 if isinstance(length, str) else length
        numbers *= count
        if numbers > _SHOWN_NUMBERS:
            return None
        example = [example] * count
    return example


def infer_schema(method: MethodSpec) -> Schema:
    """The JSON request; that data and shape fit together is beyond a schema."""
    inputs = model_metadata(method.name, method)["inputs"]
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "inputs": {
                "type": "array",
                "minItems": len(inputs),
                "maxItems": len(inputs),
                "items": {
                    "anyOf": [
                        _input_schema(each, method.inputs.get(each["name"])) for each in inputs
                    ]
                },
            },
        },
    }


def _input_schema(tensor: Any, declared: Tensor | None) -> Schema:
    element = {"type": "string"} if declared is None else number_schema(declared)
    return {
        "type": "object",
        "required": ["name", "datatype", "shape", "data"],
        "properties": {
            "name": {"const": tensor["name"]},
            "datatype": {"const": tensor["datatype"]},
            "shape": {
                "type": "array",
                "minItems": len(tensor["shape"]),
                "maxItems": len(tensor["shape"]),
                "items": {"type": "integer", "minimum": 1},
            },
            "parameters": {"type": "object"},
            "data": {"type": "array", "items": element, "description": "Flat, or nested lists."},
        },
    }


def infer_example(method: MethodSpec) -> Any:
    """One row; None if it would fill pages, or only the author knows one."""
    row = example_of(method)
    if row is None or not method.inputs:
        return None
    rows = {next(iter(method.inputs)): row} if method.single_input else row
    return {
        "inputs": [
            {
                "name": name,
                "datatype": tensor.dtype,
                "shape": [1, *_lengths(rows[name])],
                "data": list(_flat(rows[name])),
            }
            for name, tensor in method.inputs.items()
        ]
    }


def _lengths(value: Any) -> list[int]:
    return [len(value), *_lengths(value[0])] if isinstance(value, list) else []


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def document_routes(app: FastAPI, frontend: Frontend) -> None:
    """Make `app.openapi()` describe the routes; built anew once the methods are known."""
    plain: Callable[[], dict[str, Any]] = app.openapi
    cache: dict[tuple[str, ...], dict[str, Any]] = {}

    def openapi() -> dict[str, Any]:
        known = tuple(frontend.engine.methods)
        if known not in cache:
            app.openapi_schema = None
            cache[known] = {**plain(), "paths": _paths(frontend)}
            if frontend.guard.keys is not None:
                cache[known] |= {"components": {"securitySchemes": _KEYS}, "security": _EITHER}
        return cache[known]

    app.openapi = openapi  # type: ignore[method-assign]  # the way FastAPI documents


def _paths(frontend: Frontend) -> dict[str, Any]:
    engine = frontend.engine
    paths: dict[str, Any] = {}
    guarded = {} if frontend.guard.keys is None else _NO_KEY
    for path, route in prediction_routes(frontend.settings, engine.methods).items():
        name = engine.default if route.method is None else route.method
        if name is None and engine.methods:
            continue  # no default: the path answers 404
        method = None if name is None else engine.methods.get(name)
        streams = method is not None and method.streams
        if streams and route.wire is not Wire.PLAIN:
            continue  # it has no word for a stream: 406
        asked = "the default method" if route.method is None else f"`{route.method}`"
        post = _prediction(f"Predict with {asked}", method, route.wire, _PREDICTING | guarded)
        paths[path] = {"post": post}
        if streams and path != "/":
            summary = f"{post['summary']}: without a body, for EventSource"
            paths[path]["get"] = {**post, "summary": summary}
            del paths[path]["get"]["requestBody"]
    _add_metadata(paths, frontend, _READING | guarded)
    return paths


def _prediction(
    summary: str, method: MethodSpec | None, wire: Wire, descriptions: dict[int, str]
) -> Schema:
    if wire in _OPENAI:
        members, example = _OPENAI[wire]
        schema = {"type": "object", "required": list(example), "properties": members}
        request: Schema = {contract.JSON: {"schema": schema, "example": example}}
        answer: Schema = {contract.JSON: {"schema": {"type": "object"}}}
    else:
        request, answer = _bodies(method, wire)
    errors = _errors(descriptions, wire)
    if method is None or not method.inputs:
        errors["default"] = _error(_ANY_ITEM_STATUS, wire)
    return {
        "summary": summary,
        "parameters": _REQUEST_HEADERS,
        "requestBody": {"required": True, "content": request},
        "responses": {"200": {"description": "The answer.", "content": answer}, **errors},
        "tags": [_TAGS[wire]],
    }


def _add_metadata(paths: dict[str, Any], frontend: Frontend, descriptions: dict[int, str]) -> None:
    served = [model.name for model in models(frontend.settings.name, frontend.engine.methods)]
    content = {contract.JSON: {"schema": {"type": "object"}}}
    for template in METADATA_PATHS:
        for model in served if "{model}" in template else [""]:
            path = template.format(model=model, version=MODEL_VERSION)
            paths.setdefault(path, {})["get"] = {
                "summary": "Health" if path.endswith(("ready", "live")) else "Metadata",
                "parameters": _REQUEST_HEADERS[:1],
                "responses": {
                    "200": {"description": "The answer.", "content": content},
                    **_errors(descriptions, wire_of_path(path)),
                },
                "tags": ["metadata"],
            }


def _errors(descriptions: dict[int, str], wire: Wire) -> dict[str, Any]:
    return {str(status): _error(text, wire) for status, text in descriptions.items()}


def _error(description: str, wire: Wire) -> dict[str, Any]:
    schema = _V2_ERROR if wire is Wire.V2 else _ERROR
    return {"description": description, "content": {contract.JSON: {"schema": schema}}}


def _bodies(method: MethodSpec | None, wire: Wire) -> tuple[Schema, Schema]:
    """Content of the request and of the answer, by content type."""
    if method is None:
        return {contract.JSON: {"schema": {}}}, {contract.JSON: {"schema": {}}}
    if wire is Wire.V2:
        schema = {"schema": infer_schema(method), "example": infer_example(method)}
        return {contract.JSON: schema}, {contract.JSON: {"schema": {"type": "object"}}}
    row = _row(method.inputs, single=method.single_input)
    answer = _row(method.outputs, single=method.single_output)
    example = example_of(method)
    many = many_rows_schema(row, "instances", "Many rows, answered by `predictions`.")
    predictions = many_rows_schema(answer, "predictions", "One for each of `instances`.")
    if wire is Wire.V1:
        instances = None if example is None else {"instances": [example]}
        request: Schema = {contract.JSON: {"schema": many, "example": instances}}
        return request, {contract.JSON: {"schema": predictions}}
    if method.streams:
        text = {"schema": {"type": "string", "description": "Item by item, until its end."}}
        kinds = [kind.decode() for kind in (EVENTS, *LINES)]
        return {contract.JSON: {"schema": {}, "example": example}}, dict.fromkeys(kinds, text)
    if not method.batched:  # it takes and answers whatever its author likes
        return {contract.JSON: {"schema": {}, "example": example}}, {"*/*": {"schema": {}}}
    one = row | {"description": "One row, answered by one JSON value."}
    requests, responses = [many, one], [predictions, answer]
    if method.inputs:
        requests.append(_list(row) | {"description": "Many rows, answered by a list of as many."})
        responses.append(_list(answer) | {"description": "One for each row of a list."})
    request = {contract.JSON: {"schema": {"anyOf": requests}, "example": example}}
    answers: Schema = {contract.JSON: {"schema": {"anyOf": responses}}}
    if method.inputs and method.single_input:
        request[contract.NPY] = answers[contract.NPY] = {
            "schema": {"type": "string", "format": "binary"}
        }
    return request, answers


def serve_docs(app: FastAPI) -> None:
    """Add the page and its files.

    Their links are relative, so that they hold behind a proxy that adds a prefix to paths.
    """

    async def page() -> Response:
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=f"{app.title} - Swagger UI",
            swagger_js_url="docs/swagger-ui-bundle.js",
            swagger_css_url="docs/swagger-ui.css",
            swagger_favicon_url="data:,",
        )

    app.add_api_route(_PATH, page, methods=["GET"], include_in_schema=False)
    for name in _FILES:
        app.add_api_route(
            f"{_PATH}/{name}",
            functools.partial(_file, name),
            methods=["GET"],
            include_in_schema=False,
        )


async def _file(name: str) -> Response:
    return Response(_content(name), media_type=_FILES[name], headers=_CACHED)


@functools.cache
def _content(name: str) -> bytes:
    return (importlib.resources.files("fastapi_offline") / "static" / name).read_bytes()
