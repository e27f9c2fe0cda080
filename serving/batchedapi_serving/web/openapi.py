"""What /docs says of the prediction routes: the body, an example that works, every status."""

from typing import Any

from fastapi import FastAPI

from batchedapi_core import contract
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.predictor.api import MethodSpec, Tensor

_ERRORS = {
    400: "The body cannot be parsed.",
    408: "The request was not sent in time.",
    413: "The body is too large.",
    415: "The content type is not served.",
    422: "Shape, type or range of a value is wrong; the JSON path is named.",
    429: "The answer would miss `maxLatency`; see `Retry-After`.",
    431: "The headers are too large.",
    500: "The predictor failed on this input.",
    503: "Queue full, draining, or not ready; see `Retry-After`.",
    504: "No answer within `timeout`.",
}

_SHOWN_NUMBERS = 1000


def document_predictions(app: FastAPI, dispatcher: Dispatcher, paths: tuple[str, ...]) -> None:
    """Make `app.openapi()` describe the routes; built anew once the method is known."""
    without_method = app.openapi
    cache: dict[bool, dict[str, Any]] = {}

    def openapi() -> dict[str, Any]:
        known = dispatcher.method is not None
        if known not in cache:
            app.openapi_schema = None
            schema = dict(without_method())
            schema["paths"] = {
                path: {"post": _operation(dispatcher.method, first=path == paths[0])}
                for path in paths
            }
            cache[known] = schema
        return cache[known]

    app.openapi = openapi  # type: ignore[method-assign]  # the way FastAPI documents


def _operation(method: MethodSpec | None, *, first: bool) -> dict[str, Any]:
    item = _item_schema(method)
    body = {
        contract.JSON: {
            "schema": {
                "anyOf": [
                    {
                        "type": "object",
                        "required": ["instances"],
                        "properties": {
                            "instances": {"type": "array", "minItems": 1, "items": item}
                        },
                        "description": "Many rows, answered by `predictions`.",
                    },
                    item | {"description": "One row, answered by one JSON value."},
                ]
            },
            "example": example_of(method),
        }
    }
    if method is not None and method.inputs is not None:
        body[contract.NPY] = {"schema": {"type": "string", "format": "binary"}}
    responses: dict[str, Any] = {"200": {"description": "The answer."}}
    for status, description in _ERRORS.items():
        responses[str(status)] = {"description": description}
    return {
        "summary": "Predict" if first else "Predict (the same under another path)",
        "requestBody": {"required": True, "content": body},
        "responses": responses,
        "tags": ["predictions"],
    }


def _item_schema(method: MethodSpec | None) -> dict[str, Any]:
    return {} if method is None or method.inputs is None else _tensor_schema(method.inputs)


def _tensor_schema(tensor: Tensor) -> dict[str, Any]:
    kind = (
        "boolean" if tensor.dtype == "BOOL" else "number" if tensor.dtype[0] == "F" else "integer"
    )
    schema: dict[str, Any] = {"type": kind}
    for length in reversed(tensor.shape):
        schema = {"type": "array", "minItems": length, "maxItems": length, "items": schema}
    return schema


def example_of(method: MethodSpec | None) -> Any:
    """An item that the method takes; None if it would fill pages."""
    if method is None or method.inputs is None:
        return {} if method is None or method.example is None else method.example
    if method.inputs.items_per_row > _SHOWN_NUMBERS:
        return None
    example: Any = False if method.inputs.dtype == "BOOL" else 0
    for length in reversed(method.inputs.shape):
        example = [example] * length
    return example
