"""ONNX: the graph says names, types and shapes; a symbolic first dimension is that of rows."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from batchedapi_serving.formats.interface import ModelFile, check_rows, imported, refused, threads
from batchedapi_serving.formats.items import ItemColumn, answers_of, example_of, items_class
from batchedapi_serving.formats.tensors import Array, Run, tensor_of, tensors_class, zeros_of
from batchedapi_serving.predictor import DTYPES, Tensor

_DTYPES: Final = {
    "bool": "BOOL", "float16": "FP16", "float": "FP32", "double": "FP64",
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u")
       for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""ONNX's names of types, and the protocol's."""
_STRING: Final = "string"
_PROVIDERS: Final = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
_LENGTHS: Final = (1, 32, 64)
_REMEDY: Final = (
    "export it with a symbolic first dimension (dynamic_shapes or dynamic_axes of"
    " torch.onnx.export, [None, ...] of skl2onnx), or write a class that takes one row at a time"
)


def class_of(file: ModelFile) -> type:
    """See formats.class_of."""
    session = _session(file)
    inputs, outputs = session.get_inputs(), session.get_outputs()
    for one in inputs:
        if _kind(one) not in {*_DTYPES, _STRING}:
            raise refused(
                file,
                f"input {one.name!r}: expected numbers or strings, got {one.type}; write a class"
                " that makes it of what clients send",
            )
        check_rows(file, f"input {one.name!r}", one.shape, _REMEDY)
    for one in outputs:
        if one.shape:  # without it nothing is known, not even the rank
            check_rows(file, f"output {one.name!r}", one.shape, _REMEDY)
    names = [one.name for one in outputs]

    def run(x: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(zip(names, session.run(names, x), strict=True))

    if all(_kind(one) in _DTYPES for one in (*inputs, *outputs)):
        return _tensors_class(file, inputs, outputs, run)
    return _items_class(inputs, run)


def _session(file: ModelFile) -> Any:
    runtime = imported(file, "onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.log_severity_level = 3  # errors: what it warns of is the exporter's business
    device, _, index = file.device.partition(":")
    provider = _PROVIDERS[device]
    if provider not in runtime.get_available_providers():
        raise refused(
            file,
            f"the replica has {file.device}, and this onnxruntime computes on the CPU alone:"
            " install onnxruntime-gpu in its place, or leave compute.gpu out",
        )
    chosen: list[Any] = [_PROVIDERS["cpu"]]
    if device != "cpu":
        chosen.insert(0, (provider, {"device_id": int(index)}))
    return runtime.InferenceSession(str(file.file), options, providers=chosen)


def _kind(one: Any) -> str:
    """Type of the elements; of anything but a tensor, the whole type."""
    return str(one.type).removeprefix("tensor(").removesuffix(")")


def _declared(ones: Sequence[Any], shapes: Sequence[Sequence[Any]]) -> dict[str, Tensor]:
    return {
        one.name: tensor_of(one.name, _DTYPES[_kind(one)], shape)
        for one, shape in zip(ones, shapes, strict=True)
    }


def _tensors_class(
    file: ModelFile, inputs: Sequence[Any], outputs: Sequence[Any], run: Run
) -> type:
    given = _declared(inputs, [one.shape[1:] for one in inputs])
    length, rows, found = _first_answer(given, run)
    for name, array in found.items():
        if np.shape(array)[:1] != (2,):
            raise refused(
                file,
                f"output {name!r}: expected 2 rows for 2, got the shape {list(np.shape(array))};"
                f" {_REMEDY}",
            )
    shapes = [one.shape[1:] if one.shape else found[one.name].shape[1:] for one in outputs]
    return tensors_class(given, _declared(outputs, shapes), run, None if length == 1 else rows)


def _first_answer(
    given: Mapping[str, Tensor], run: Run
) -> tuple[int, dict[str, Array], Mapping[str, Any]]:
    """Rows of the least length that the graph takes where lengths differ, and its answer to them.

    One of pictures may halve them several times. One that takes none raises what length 1 raises.
    """
    for length in _LENGTHS:
        rows = zeros_of(given, length)
        with contextlib.suppress(Exception):
            return length, rows, run(rows)
    rows = zeros_of(given, 1)
    return 1, rows, run(rows)


def _items_class(inputs: Sequence[Any], run: Run) -> type:
    """Strings, and the maps that classifiers of scikit-learn answer, are JSON items."""
    columns = [_column(one) for one in inputs]
    return items_class(lambda items: answers_of(columns, items, run), example_of(columns))


def _column(one: Any) -> ItemColumn:
    kind = _kind(one)
    dtype = np.dtype(object if kind == _STRING else DTYPES[_DTYPES[kind]])
    return ItemColumn(
        one.name, dtype, tuple(n if isinstance(n, int) else None for n in one.shape[1:])
    )
