"""Output tensors of the Open Inference Protocol: results of both kinds, and which were asked for.

Arrays go out as what they are. JSON items go out as BYTES, one JSON text a row, always: a datatype
that followed the values would differ from request to request, and from what metadata says.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from batchedapi_serving.codecs.interface import Array, Results
from batchedapi_serving.codecs.open_inference_binary import BYTES, datatype_of
from batchedapi_serving.codecs.results import OK, Item, ItemResults, TensorResults
from batchedapi_serving.errors import InvalidInputError, brief
from batchedapi_serving.predictor.api import SINGLE_OUTPUT, MethodSpec


class Output(NamedTuple):
    """One output tensor: an array, or of BYTES one element a row."""

    name: str
    datatype: str
    shape: Sequence[int]
    elements: Array | Sequence[bytes]
    as_json: bool = False


class FailedRow(NamedTuple):
    """The first row of an answer that failed, counted from the request's first."""

    row: int
    status: int
    message: str


def output_tensors(results: Results, start: int, stop: int) -> list[Output]:
    """Rows [start, stop) as tensors: numbers as what they are, JSON items as BYTES of their text.

    Raises:
        PredictorError: NaN, Infinity, rows of different shapes, or a type the protocol lacks.
    """
    if isinstance(results, TensorResults):
        return [
            Output(name, datatype_of(array.dtype), array.shape, array)
            for name, array in results.arrays(start, stop).items()
        ]
    items = _item_rows(results, start, stop)
    texts = [item.body if item.status == OK else b'{"error":%b}' % item.body for item in items]
    as_json = all(item.status != OK or item.kind == "json" for item in items)
    return [Output(SINGLE_OUTPUT, BYTES, (len(texts),), texts, as_json)]


def failed_row(results: Results, start: int, stop: int) -> FailedRow | None:
    """The first row of [start, stop) that a predictor failed by itself; None if it failed none."""
    if isinstance(results, TensorResults):
        return None
    for i, item in enumerate(_item_rows(results, start, stop)):
        if item.status != OK:
            message = str(orjson.loads(item.body).get("message", ""))
            return FailedRow(
                i, item.status, message if stop - start == 1 else f"row {i}: {message}"
            )
    return None


def _item_rows(results: Results, start: int, stop: int) -> Sequence[Item]:
    if not isinstance(results, ItemResults):
        raise TypeError(f"expected TensorResults or ItemResults, got {type(results).__name__}")
    return results.items(start, stop)


def checked_outputs(method: MethodSpec, names: Sequence[Any]) -> tuple[str, ...]:
    """The requested outputs, in the order in which they were asked for; none: all.

    Raises:
        InvalidInputError: a name that the method does not answer, or twice the same.
    """
    known = output_names(method)
    seen: set[str] = set()
    for i, name in enumerate(names):
        if not isinstance(name, str) or (known is not None and name not in known):
            expected = "a string" if known is None else " or ".join(map(repr, known))
            raise InvalidInputError(f"outputs[{i}].name: expected {expected}, got {brief(name)}")
        if name in seen:
            raise InvalidInputError(f"outputs[{i}].name: {brief(name)} is there twice")
        seen.add(name)
    return tuple(names)


def output_names(method: MethodSpec) -> tuple[str, ...] | None:
    """Names of what a method answers; None: known only once it has answered."""
    if method.outputs:
        return tuple(method.outputs)
    return (SINGLE_OUTPUT,) if method.single_output or not method.inputs else None


def requested(outputs: Sequence[Output], names: Sequence[str]) -> list[Output]:
    """Those of `outputs` that were asked for, as `checked_outputs` gives them.

    Raises:
        InvalidInputError: an output that the method did not declare and does not answer.
    """
    if not names:
        return list(outputs)
    by_name = {output.name: output for output in outputs}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise InvalidInputError(
            f"outputs: expected {' or '.join(map(repr, by_name))}, got {brief(missing[0])}"
        )
    return [by_name[name] for name in names]
