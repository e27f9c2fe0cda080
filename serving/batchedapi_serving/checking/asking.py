"""Asks one method of a loaded predictor, in batches that the checker chooses."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson

from batchedapi_serving.checking.comparing import array_difference, json_difference
from batchedapi_serving.codecs import Codec, Encoded, Results
from batchedapi_serving.codecs.results import ItemResults, TensorResults
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.ipc.frames import Meta, Payload

Run = Callable[[Meta, bytes], tuple[Meta, Sequence[Payload]]]
"""Answers one batch frame."""


class FailedError(Exception):
    """The method did not answer a batch."""


class Sample(NamedTuple):
    """One row to ask with."""

    payload: Any
    """The codec's, of one row."""
    shape: Any
    """Rows of different shapes never share a batch."""
    cost: int


def samples_of(codec: Codec, encoded: Encoded) -> list[Sample]:
    """The rows of a request, each as a sample."""
    return [
        Sample(
            codec.part(encoded.payload, i, i + 1),
            None if encoded.shapes is None else encoded.shapes[i],
            1 if encoded.sizes is None else encoded.sizes[i],
        )
        for i in range(encoded.rows)
    ]


class Method:
    """One method that can be asked."""

    def __init__(self, codec: Codec, run: Run) -> None:
        self._codec = codec
        self._run = run

    def ask(self, samples: Sequence[Sample]) -> Results:
        """The answers to one batch.

        Raises:
            FailedError: there are none; says why.
        """
        batch = self._codec.collate([sample.payload for sample in samples])
        meta = {"method": self._codec.method.name, "rows": len(samples), **batch.meta}
        answer, buffers = self._run(meta, b"".join(batch.buffers))
        if answer["kind"] == "error":
            raise FailedError(f"a batch of {len(samples)} rows {answer['error']}")
        try:
            return self._codec.results(answer, b"".join(buffers))
        except PredictorError as error:
            raise FailedError(f"a batch of {len(samples)} rows: {error}") from error


def difference(expected: Results, got: Results, row: int) -> str | None:
    """What differs between the only row of `expected` and row `row` of `got`."""
    if isinstance(expected, TensorResults) and isinstance(got, TensorResults):
        try:
            ours, theirs = expected.arrays(0, 1), got.arrays(row, row + 1)
        except PredictorError as error:
            return str(error)
        found = (array_difference(name, ours[name][0], theirs[name][0]) for name in ours)
        return next((text for text in found if text), None)
    if isinstance(expected, ItemResults) and isinstance(got, ItemResults):
        (one,), (other,) = expected.items(0, 1), got.items(row, row + 1)
        if (one.status, one.kind) != (other.status, other.kind):
            return f"expected status {one.status}, got {other.status}"
        if one.kind != "json":
            return None if one.body == other.body else "expected other bytes"
        return json_difference("answer", orjson.loads(one.body), orjson.loads(other.body))
    return "expected one kind of answer, got two"
