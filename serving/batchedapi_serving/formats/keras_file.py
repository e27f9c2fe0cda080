"""Keras: the model says names, types and shapes; its first dimension is that of rows."""

import importlib.util
import os
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from batchedapi_serving.formats.interface import ModelFile, check_rows, imported
from batchedapi_serving.formats.tensors import datatype_of, tensor_of, tensors_class
from batchedapi_serving.predictor import Tensor

_BACKENDS: Final = ("tensorflow", "jax", "torch")


def class_of(file: ModelFile) -> type:
    """See formats.class_of."""
    installed = [name for name in _BACKENDS if importlib.util.find_spec(name) is not None]
    os.environ.setdefault("KERAS_BACKEND", next(iter(installed), _BACKENDS[-1]))
    keras = imported(file, "keras", "keras")
    # Not trusted, it loads no code of a Lambda layer, and says so.
    model = keras.saving.load_model(file.file, compile=False, safe_mode=not file.trusted)
    inputs, outputs = _rows(file, "input", model.inputs), _rows(file, "output", model.outputs)
    names = list(inputs)

    def run(x: Mapping[str, Any]) -> Mapping[str, Any]:
        rows = [x[name] for name in names]
        found = model.predict_on_batch(rows if len(rows) > 1 else rows[0])
        answers = list(found.values()) if isinstance(found, dict) else found
        return dict(zip(outputs, answers if len(outputs) > 1 else [answers], strict=True))

    return tensors_class(inputs, outputs, run)


def _rows(file: ModelFile, what: str, tensors: Any) -> dict[str, Tensor]:
    found = {}
    for one in tensors:
        check_rows(file, f"{what} {one.name!r}", one.shape, "leave batch_size out of keras.Input")
        found[one.name] = tensor_of(one.name, datatype_of(np.dtype(one.dtype)), one.shape[1:])
    return found
