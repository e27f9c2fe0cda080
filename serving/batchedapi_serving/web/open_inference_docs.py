"""The Open Inference Protocol's inference request of a method: schema and an example that works."""

from collections.abc import Iterator
from typing import Any

from batchedapi_serving.codecs.open_inference_metadata import model_metadata
from batchedapi_serving.predictor.api import MethodSpec, Tensor
from batchedapi_serving.web.schemas import Schema, example_of, number_schema


def infer_schema(method: MethodSpec) -> Schema:
    """Of the JSON request; that data and shape fit together is beyond a schema."""
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
