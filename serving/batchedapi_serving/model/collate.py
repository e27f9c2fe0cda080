"""From a batch frame to the arguments of the user's method; the codecs write what is read here.

one tensor of fixed shape    the packed rows one after another               codecs/tensor_codec
named tensors, variable      the inputs one after another, each (rows, *shape) for the whole
                             batch; meta "lengths": {name: [of each row]}     codecs/named_codec
JSON items                   one JSON list                                    codecs/item_codec
one request                  uint32 length, JSON about it, its body           codecs/call_codec
"""

import math
import urllib.parse
from typing import Any

import numpy as np
import orjson

from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.predictor.api import MethodSpec

Array = np.ndarray[Any, Any]


def arguments(method: MethodSpec, meta: Meta, payload: bytes) -> tuple[Any, ...]:
    """What the method is called with; arrays are its own to write into."""
    if not method.batched:
        return _call(payload)
    if not method.inputs:
        return (orjson.loads(payload),)
    arrays = input_arrays(method, meta, payload)
    if method.single_input:
        (array,) = arrays.values()
        return (array,)
    return (arrays,)


def input_arrays(method: MethodSpec, meta: Meta, payload: bytes) -> dict[str, Array]:
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


def _call(payload: bytes) -> tuple[Any, ...]:
    length = int.from_bytes(payload[:4], "little")
    about = orjson.loads(payload[4 : 4 + length])
    body = payload[4 + length :]
    value: Any = body
    if about["json"]:
        value = orjson.loads(body)
    elif about["text"]:
        value = body.decode("utf-8", "replace")
    query = dict(urllib.parse.parse_qsl(about["query"], keep_blank_values=True))
    return value, query, dict(about["headers"])
