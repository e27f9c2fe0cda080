"""What /docs says of the routes: bodies, an example that works, every status that can come."""

from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI

from batchedapi_core import contract
from batchedapi_serving.codecs import Wire
from batchedapi_serving.codecs.open_inference_metadata import MODEL_VERSION
from batchedapi_serving.predictor.api import MethodSpec
from batchedapi_serving.web import schemas
from batchedapi_serving.web.gateway import Gateway
from batchedapi_serving.web.metadata import METADATA_PATHS
from batchedapi_serving.web.open_inference_docs import infer_example, infer_schema
from batchedapi_serving.web.routes import Route, models, wire_of_path
from batchedapi_serving.web.schemas import Schema, example_of

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
_ANY_ITEM_STATUS: Final = "A status of the predictor's own (`ItemError`)."


def document_routes(app: FastAPI, gateway: Gateway) -> None:
    """Make `app.openapi()` describe the routes; built anew once the methods are known."""
    plain: Callable[[], dict[str, Any]] = app.openapi
    cache: dict[tuple[str, ...], dict[str, Any]] = {}

    def openapi() -> dict[str, Any]:
        gateway.learn_methods()
        known = tuple(gateway.desk.methods)
        if known not in cache:
            app.openapi_schema = None
            cache[known] = {**plain(), "paths": _paths(gateway)}
        return cache[known]

    app.openapi = openapi  # type: ignore[method-assign]  # the way FastAPI documents


def _paths(gateway: Gateway) -> dict[str, Any]:
    desk = gateway.desk
    paths: dict[str, Any] = {}
    for path, route in gateway.routes.items():
        name = desk.default if route.method is None else route.method
        if name is None and desk.methods:
            continue  # no default: the path answers 404
        method = None if name is None else desk.methods.get(name)
        paths[path] = {"post": _prediction(method, route)}
    for path in _metadata_paths(gateway):
        paths.setdefault(path, {})["get"] = _metadata(path)
    return paths


def _metadata_paths(gateway: Gateway) -> list[str]:
    served = [model.name for model in models(gateway.settings.name, gateway.desk.methods)]
    return [
        template.format(model=model, version=MODEL_VERSION)
        for template in METADATA_PATHS
        for model in (served if "{model}" in template else [""])
    ]


def _metadata(path: str) -> dict[str, Any]:
    return {
        "summary": "Health" if path.endswith(("ready", "live")) else "Metadata",
        "parameters": _REQUEST_HEADERS[:1],
        "responses": {
            "200": {
                "description": "The answer.",
                "content": {contract.JSON: {"schema": {"type": "object"}}},
            },
            **_errors(_READING, wire_of_path(path)),
        },
        "tags": ["metadata"],
    }


def _prediction(method: MethodSpec | None, route: Route) -> dict[str, Any]:
    request, answer = _bodies(method, route.wire)
    name = "the default method" if route.method is None else f"`{route.method}`"
    errors = _errors(_PREDICTING, route.wire)
    if method is None or not method.inputs:
        errors["default"] = _error(_ANY_ITEM_STATUS, route.wire)
    return {
        "summary": f"Predict with {name}",
        "parameters": _REQUEST_HEADERS,
        "requestBody": {"required": True, "content": request},
        "responses": {"200": {"description": "The answer.", "content": answer}, **errors},
        "tags": [_TAGS[route.wire]],
    }


_TAGS: Final = {
    Wire.PLAIN: "predictions",
    Wire.V1: "KServe v1",
    Wire.V2: "Open Inference Protocol v2",
}


def _errors(descriptions: dict[int, str], wire: Wire) -> dict[str, Any]:
    return {str(status): _error(text, wire) for status, text in descriptions.items()}


def _error(description: str, wire: Wire) -> dict[str, Any]:
    schema = schemas.V2_ERROR if wire is Wire.V2 else schemas.ERROR
    return {"description": description, "content": {contract.JSON: {"schema": schema}}}


def _bodies(method: MethodSpec | None, wire: Wire) -> tuple[Schema, Schema]:
    """Content of the request and of the answer, by content type."""
    if method is None:
        return {contract.JSON: {"schema": {}}}, {contract.JSON: {"schema": {}}}
    if wire is Wire.V2:
        schema = {"schema": infer_schema(method), "example": infer_example(method)}
        return {contract.JSON: schema}, {contract.JSON: {"schema": {"type": "object"}}}
    row, answer, example = (
        schemas.row_schema(method),
        schemas.answer_schema(method),
        example_of(method),
    )
    many = schemas.many_rows(row, "instances", "Many rows, answered by `predictions`.")
    predictions = schemas.many_rows(answer, "predictions", "One for each of `instances`.")
    if wire is Wire.V1:
        instances = None if example is None else {"instances": [example]}
        request = {contract.JSON: {"schema": many, "example": instances}}
        return request, {contract.JSON: {"schema": predictions}}
    return _plain_bodies(method, row, answer, many, predictions)


def _plain_bodies(
    method: MethodSpec, row: Schema, answer: Schema, many: Schema, predictions: Schema
) -> tuple[Schema, Schema]:
    binary = {"schema": {"type": "string", "format": "binary"}}
    example = {"example": example_of(method)}
    if not method.batched:  # it takes and answers whatever its author likes
        return {contract.JSON: {"schema": {}, **example}}, {"*/*": {"schema": {}}}
    one = row | {"description": "One row, answered by one JSON value."}
    requests, responses = [many, one], [predictions, answer]
    if method.inputs:
        requests.append(schemas.rows(row, "Many rows, answered by a list of as many."))
        responses.append(schemas.rows(answer, "One for each row of a list."))
    request: Schema = {contract.JSON: {"schema": {"anyOf": requests}, **example}}
    answers: Schema = {contract.JSON: {"schema": {"anyOf": responses}}}
    if method.inputs and method.single_input:
        request[contract.NPY] = binary
        answers[contract.NPY] = binary
    return request, answers
