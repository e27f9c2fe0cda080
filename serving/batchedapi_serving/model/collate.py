"""From a batch frame to the arguments of the user's method; the codecs write what is read here.

one tensor of fixed shape    the packed rows one after another               codecs/tensor_codec
named tensors, variable      the inputs one after another, each (rows, *shape) for the whole
                             batch; meta "lengths": {name: [of each row]}     codecs/named_codec
JSON items                   one JSON list                                    codecs/item_codec
one request                  uint32 length, JSON about it, its body           codecs/item_codec
"""

import math
import urllib.parse
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import orjson

from batchedapi_serving.dispatch.frames import Meta, Payload
from batchedapi_serving.predictor.api import MethodSpec

Array = np.ndarray[Any, Any]


Arguments: TypeAlias = Callable[[Meta, Payload], tuple[Any, ...]]
"""What a method is called with for one batch frame: its own to keep and to write into, while the
payload may be memory in which the next batch will be."""


def arguments_of(method: MethodSpec) -> Arguments:
    """What can be decided of the arguments before a batch is there, once for all batches."""
    if not method.batched:
        return lambda _, payload: _call(payload)
    if not method.inputs:
        return lambda _, payload: (orjson.loads(payload),)
    if not method.single_input:
        return lambda meta, payload: (input_arrays(method, meta, payload),)
    (tensor,) = method.inputs.values()
    if tensor.variable or method.batch_dim[0]:
        return lambda meta, payload: tuple(input_arrays(method, meta, payload).values())
    dtype, shape = np.dtype(tensor.numpy_dtype), tensor.fixed_shape

    def one_array(meta: Meta, payload: Payload) -> tuple[Array]:
        rows = (meta["rows"], *shape)
        if type(payload) is memoryview:  # large, of which numpy asks for larger pages
            return (np.frombuffer(payload, dtype).reshape(rows).copy(),)
        # As input_arrays does, in a third of the time: the copy is the array's memory.
        return (np.ndarray(rows, dtype, bytearray(payload)),)

    return one_array


def input_arrays(method: MethodSpec, meta: Meta, payload: Payload) -> dict[str, Array]:
    """The inputs by name, rows along the method's batch dimension."""
    lengths = {name: max(of_rows) for name, of_rows in meta.get("lengths", {}).items()}
    arrays = {}
    offset = 0
    for name, tensor in method.inputs.items():
        shape = [meta["rows"], *(lengths[n] if isinstance(n, str) else n for n in tensor.shape)]
        view = np.frombuffer(payload, tensor.numpy_dtype, math.prod(shape), offset).reshape(shape)
        offset += view.nbytes
        dim = method.batch_dim[0]
        # A copy, because models may write into their input, and frombuffer's is read-only.
        arrays[name] = np.array(np.moveaxis(view, 0, dim) if dim else view, order="C")
    return arrays


def _call(payload: Payload) -> tuple[Any, ...]:
    length = int.from_bytes(payload[:4], "little")
    about = orjson.loads(payload[4 : 4 + length])
    body = bytes(payload[4 + length :])
    value: Any = body
    if about["json"]:
        value = orjson.loads(body)
    elif about["text"]:
        value = body.decode("utf-8", "replace")
    query = dict(urllib.parse.parse_qsl(about["query"], keep_blank_values=True))
    return value, query, dict(about["headers"])
