"""Rows to ask a method with, and asking it in batches that the checker chooses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from batchedapi_serving.codecs import Codec, Encoded, Results
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.ipc.frames import Meta, Payload
from batchedapi_serving.predictor import MethodSpec

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


# ------------------------------------------------------------ rows that nobody gave

MOST: Final = 32
"""Different rows that are compared."""
SEED: Final = 20_231
LENGTHS: Final = (3, 8)
"""Of variable dimensions: two, so that padded batches are checked too."""
SMALL: Final = 2
"""Random integers are 0 or 1: whatever they index, these exist."""
Array = np.ndarray[Any, Any]


class Samples(NamedTuple):
    """Rows and where they come from."""

    rows: list[Sample]
    source: str


def choose_samples(codec: Codec, items: Sequence[Any] | None) -> Samples:
    """Rows for one method; none if nobody knows what it takes.

    Args:
        codec: Of the method.
        items: Given by the user, as JSON.

    Raises:
        InvalidInputError: the method does not take what it was given.
    """
    method = codec.method
    if items:
        rows = list(items[:MOST])
        return Samples(samples_of(codec, codec.from_rows(rows, "items")), "the items given")
    if method.inputs:
        drawn = random_rows(method, MOST)
        rows = [
            sample
            for arrays in drawn
            for sample in samples_of(codec, codec.from_arrays(arrays, "sample"))
        ]
        missing = any(tensor.allow_non_finite for tensor in method.inputs.values())
        return Samples(rows, f"random numbers and zeros{', some NaN' if missing else ''}")
    if method.batched and method.example is not None:
        encoded = codec.from_rows([method.example] * 4, "example")
        return Samples(samples_of(codec, encoded), "the method's example, the same in every row")
    return Samples([], "nothing")


def random_rows(method: MethodSpec, count: int) -> list[Mapping[str, Array]]:
    """So many requests of one row each, the first of zeros; always the same ones.

    Where NaN is allowed, every other row has one.
    """
    random = np.random.default_rng(SEED)
    drawn: list[Mapping[str, Array]] = []
    for i in range(count):
        lengths = dict.fromkeys(method.variable, LENGTHS[i % len(LENGTHS)])
        row: dict[str, Array] = {}
        for name, tensor in method.inputs.items():
            shape = (1, *(lengths[n] if isinstance(n, str) else n for n in tensor.shape))
            dtype = np.dtype(tensor.numpy_dtype)
            if i == 0:
                row[name] = np.zeros(shape, dtype)
            elif dtype.kind == "f":
                row[name] = random.standard_normal(shape).astype(dtype)
            else:
                row[name] = random.integers(0, SMALL, shape).astype(dtype)
            if tensor.allow_non_finite and i % 2:
                row[name].flat[i % row[name].size] = np.nan
        drawn.append(row)
    return drawn
