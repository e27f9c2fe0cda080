"""Rows to ask a replica with, as the bytes of HTTP requests.

They are the user's items; else random numbers for a tensor method, or the example of its /docs.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from batchedapi_core import contract
from batchedapi_serving.tuning.load import HOST

DIFFERENT: Final = 64
"""Rows that are drawn; a request has one of them, or some."""
MOST_NUMBERS: Final = 512
"""Numbers of a row up to which it is sent as JSON, beyond as npy where that can be."""
VARIABLE: Final = 8
"""Length of a dimension that a method leaves open."""
SEED: Final = 20_231
_DTYPES: Final[Mapping[str, str]] = {
    "BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64",
    **{f"{sign}INT{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U")
       for bits in (8, 16, 32, 64)},
}  # fmt: skip


class NoRowsError(ValueError):
    """Nobody says what the method takes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What is asked, and how."""

    path: str
    rows: Sequence[Any]
    """JSON values, or arrays of one shape: those are sent as npy."""
    batched: bool
    """Else the method takes one request at a time, and a row is its whole payload."""
    source: str
    """Where the rows come from."""

    def singles(self) -> list[bytes]:
        """Requests of one row, each row once."""
        return [self._request([row]) for row in self.rows]

    def request(self, count: int) -> bytes:
        """One request of `count` rows."""
        return self._request([self.rows[i % len(self.rows)] for i in range(count)])

    def _request(self, rows: Sequence[Any]) -> bytes:
        if isinstance(rows[0], np.ndarray):
            buffer = io.BytesIO()
            np.save(buffer, np.stack(rows))
            kind, body = contract.NPY, buffer.getvalue()
        else:
            kind = contract.JSON
            body = json.dumps({"instances": list(rows)} if self.batched else rows[0]).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def rows_for(
    path: str, openapi: Mapping[str, Any], metadata: Mapping[str, Any], items: Sequence[Any] | None
) -> Rows:
    """Rows for the method at `path`.

    Args:
        path: Of its predictions.
        openapi: The replica's document.
        metadata: Of its model, as v2 has it; {} if there is none.
        items: The user's own rows, as JSON.

    Raises:
        NoRowsError: nobody says what it takes.
    """
    content = openapi["paths"].get(path, {}).get("post", {}).get("requestBody", {})
    media: Mapping[str, Any] = content.get("content", {}).get(contract.JSON, {})
    batched = bool(media.get("schema"))
    if items:
        return Rows(path, items, batched, "the items given")
    if batched and (drawn := _drawn(metadata.get("inputs", []))):
        return Rows(path, drawn, batched, "random numbers")
    if media.get("example") is not None and (batched or media["example"] != {}):
        return Rows(path, [media["example"]], batched, "the method's example")
    raise NoRowsError(
        f"nobody says what {path} takes: give @batched an example=, or use --items FILE"
    )


def _drawn(inputs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Random rows of tensors; none if one of them holds no numbers."""
    if not inputs or any(one["datatype"] not in _DTYPES for one in inputs):
        return []
    chance = np.random.default_rng(SEED)
    rows = [{one["name"]: _array(one, chance) for one in inputs} for _ in range(DIFFERENT)]
    if len(inputs) == 1:
        name = inputs[0]["name"]
        if rows[0][name].size > MOST_NUMBERS:
            return [row[name] for row in rows]
        return [row[name].tolist() for row in rows]
    return [{name: array.tolist() for name, array in row.items()} for row in rows]


def _array(tensor: Mapping[str, Any], chance: np.random.Generator) -> "np.ndarray[Any, Any]":
    """One row of it: its shape without the first dimension, which is the batch's."""
    shape = [VARIABLE if length < 0 else length for length in tensor["shape"][1:]]
    dtype = np.dtype(_DTYPES[tensor["datatype"]])
    if dtype.kind == "f":
        return chance.standard_normal(shape).astype(dtype)
    return chance.integers(0, 2, shape).astype(dtype)  # 0 or 1: whatever they index, these exist
