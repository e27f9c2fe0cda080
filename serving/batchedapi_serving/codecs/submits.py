"""Rows that one method of a predictor submits to another: as a frame, and back again.

The meta of a submit's frame says how the rows came:
    "arrays": [[name, numpy type string, shape], ...]    their bytes one after another, rows first
    without: JSON text of a list of items
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from orjson import loads

from batchedapi_core.contract import METHOD_BATCH
from batchedapi_serving.codecs.arrays import cast, check_dtype
from batchedapi_serving.codecs.interface import Array, Codec, Encoded, Item
from batchedapi_serving.codecs.own_values import json_of
from batchedapi_serving.codecs.results import OK, ItemResults, read_results
from batchedapi_serving.errors import InvalidInputError, PredictorError
from batchedapi_serving.ipc import Meta
from batchedapi_serving.predictor import SINGLE_INPUT, ItemError, MethodSpec, SubmitError

PLACE = "rows"
"""Their name in messages."""


def rows_frame(spec: MethodSpec, rows: Any) -> tuple[Meta, Sequence[bytes]]:
    """Rows for the method `spec` as a submit's frame; `submitted_rows` reads it.

    Raises:
        SubmitError: they are no rows, or not of the types it takes.
    """
    meta: Meta = {"method": spec.name}
    try:
        name = next(iter(spec.inputs), SINGLE_INPUT)
        fixed = spec.single_input and not spec.inputs[name].variable
        if isinstance(rows, Mapping):
            named = rows
        elif fixed or (hasattr(rows, "__array__") and not isinstance(rows, list | tuple)):
            named = {name: rows}
        else:  # better sent as JSON items
            items = list(rows)
            allowed = any(tensor.allow_non_finite for tensor in spec.inputs.values())
            text = json_of(items, spelled=allowed)
            return meta, (text,)
        arrays = {name: _array(spec, name, value) for name, value in named.items()}
    except (TypeError, ValueError, InvalidInputError) as error:
        name = spec.name.removesuffix(METHOD_BATCH)
        raise SubmitError(
            422, f"rows: expected what {name!r} takes, got {type(rows).__name__}: {error}"
        ) from error
    meta["arrays"] = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    return meta, [array.tobytes() for array in arrays.values()]


def submitted_rows(codec: Codec, meta: Meta, payload: bytes) -> Encoded:
    """Check and encode them.

    Raises:
        ClientError: they are not what the method takes.
    """
    if codec.method.streams:
        raise InvalidInputError(
            f"{codec.method.name} streams its answer, and no rows can be submitted to it; iterate"
            f" over self.{codec.method.name}(...) instead"
        )
    if "arrays" in meta:
        arrays, start = {}, 0
        for name, dtype, shape in meta["arrays"]:
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(payload, dtype, count, start).reshape(shape)
            start += arrays[name].nbytes
        return codec.from_arrays(arrays, PLACE)
    rows = loads(payload)
    if not rows:
        raise InvalidInputError(f"{PLACE}: expected at least one, got none")
    return codec.from_rows(rows, PLACE)


def answered_rows(spec: MethodSpec, meta: Meta, payload: bytes) -> Any:
    """The answer of `spec`, in its own kind: a list of items, an array, a dict of arrays.

    Raises:
        SubmitError: it could not be answered.
    """
    if meta["kind"] == "error":
        raise SubmitError(meta.get("status", PredictorError.status), meta["error"])
    results = read_results(spec, meta, payload)
    if isinstance(results, ItemResults):
        return _items(spec, results.items(0, len(meta["items"])))
    (_, _, shape), *_ = meta["outputs"]
    rows = len(shape) if isinstance(shape[0], list) else int(shape[0])
    try:
        arrays = results.arrays(0, rows)
    except PredictorError as error:
        raise SubmitError(error.status, f"{spec.name}: {error}") from error
    # Copies, because these are read-only.
    copies = {name: array.copy() for name, array in arrays.items()}
    return next(iter(copies.values())) if spec.single_output else copies


def _items(spec: MethodSpec, items: Sequence[Item]) -> list[Any]:
    failed = next((item for item in items if item.status != OK), None)
    if spec.inputs and failed is not None:  # an array has no place for the error of one row
        raise SubmitError(failed.status, str(loads(failed.body)["message"]))
    return [
        item.value()
        if item.status == OK
        else ItemError(item.status, str(loads(item.body)["message"]))
        for item in items
    ]


def _array(spec: MethodSpec, name: str, value: Any) -> Array:
    array = np.asarray(value)
    tensor = spec.inputs.get(name)
    if tensor is not None:
        check_dtype(array.dtype, tensor, PLACE)
        return cast(array, tensor, PLACE)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected numbers, got an array of {array.dtype}")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
