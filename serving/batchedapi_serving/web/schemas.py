"""JSON schemas of what methods take and answer, and examples that they take."""

from collections.abc import Mapping
from typing import Any, Final

from batchedapi_core import contract
from batchedapi_serving.codecs.json_values import NON_FINITE
from batchedapi_serving.predictor.api import MethodSpec, Tensor

Schema = dict[str, Any]

_SHOWN_NUMBERS: Final = 1000
ERROR: Final[Schema] = {
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
V2_ERROR: Final[Schema] = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}


def row_schema(method: MethodSpec) -> Schema:
    """One row that the method takes, as JSON; anything, if it declares nothing."""
    return _row(method.inputs, single=method.single_input)


def answer_schema(method: MethodSpec) -> Schema:
    """One row that the method answers, as JSON; anything, if it declares nothing."""
    return _row(method.outputs, single=method.single_output)


def many_rows(row: Schema, name: str, description: str) -> Schema:
    """`{name: [row, ...]}`."""
    return {
        "type": "object",
        "required": [name],
        "properties": {name: _list(row)},
        "description": description,
    }


def rows(row: Schema, description: str) -> Schema:
    """`[row, ...]`."""
    return _list(row) | {"description": description}


def _list(row: Schema) -> Schema:
    return {
        "type": "array", "minItems": 1, "maxItems": contract.MAX_BATCH_SIZE_LIMIT, "items": row,
    }  # fmt: skip


def _row(tensors: Mapping[str, Tensor], *, single: bool) -> Schema:
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
        bounds = {"minItems": 1} if isinstance(length, str) else _exactly(length)
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


def _exactly(length: int) -> Schema:
    return {"minItems": length, "maxItems": length}


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
