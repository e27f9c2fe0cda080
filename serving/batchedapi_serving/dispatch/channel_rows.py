"""Rows that a predictor submitted, as a request to their method.

The meta of a submit's frame says how they came:
    "arrays": [[name, numpy type string, shape], ...]    their bytes one after another, rows first
    without: JSON text of a list of items
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from batchedapi_serving.codecs import Encoded
from batchedapi_serving.dispatch.desk import Line
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.errors import InvalidInputError

PLACE = "rows"
"""What messages call them."""
Array = np.ndarray[Any, Any]


def submitted_rows(line: Line, meta: Meta, payload: bytes) -> Encoded:
    """Check and encode them.

    Raises:
        ClientError: they are not what the method takes.
    """
    codec = line.codec
    if "arrays" in meta:
        return codec.from_arrays(_arrays(meta, payload), PLACE)
    rows = orjson.loads(payload)
    if not rows:
        raise InvalidInputError(f"{PLACE}: expected at least one, got none")
    return codec.from_rows(rows, PLACE)


def _arrays(meta: Meta, payload: bytes) -> Mapping[str, Array]:
    arrays, start = {}, 0
    for name, dtype, shape in meta["arrays"]:
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(payload, dtype, count, start).reshape(shape)
        arrays[name] = array
        start += array.nbytes
    return arrays
