"""Compares answers to a row alone with answers to it among others; see codecs.equality."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

import numpy as np

from batchedapi_core.batching import padding_class
from batchedapi_serving.codecs import Codec, Encoded, Results
from batchedapi_serving.codecs.equality import difference
from batchedapi_serving.codecs.interface import Array
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.ipc import Meta, Payload
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
    length: int
    """Bytes of its frame: rows of the same method that are longer have more."""


def samples_of(codec: Codec, encoded: Encoded) -> list[Sample]:
    """The rows of a request, each as a sample."""
    parts = [codec.part(encoded.payload, i, i + 1) for i in range(encoded.rows)]
    return [
        Sample(
            part,
            None if encoded.shapes is None else padding_class(encoded.shapes[i], codec.pads_to),
            1 if encoded.sizes is None else encoded.sizes[i],
            sum(map(len, codec.collate([part]).buffers)),
        )
        for i, part in enumerate(parts)
    ]


class AskedMethod:
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
"""Lengths of variable dimensions: two, so that padded batches are checked too."""
SMALL: Final = 2
"""Random integers are 0 or 1: whatever they index, these exist."""


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
            if tensor.pad is not None:  # none that consists of padding
                row[name].flat[0] = tensor.pad == 0
            if tensor.allow_non_finite and i % 2:
                row[name].flat[i % row[name].size] = np.nan
        drawn.append(row)
    return drawn


FINDINGS = 5
"""Sentences at most: one mistake mostly shows in every row."""


def findings(
    method: AskedMethod,
    samples: Sequence[Sample],
    max_batch_size: int,
    ignored: AbstractSet[str] = frozenset(),
) -> list[str]:
    """Sentences about answers that differ; empty: batching does not change any.

    `ignored` are outputs, and members of JSON answers at any depth, that are not compared.

    Every row is asked alone, the first one twice, then among others: one of each length beside the
    longest, which pads it; all together in batches as full as they may be, in reverse, and in
    batches half as full.
    """
    try:
        alone = [method.ask([sample]) for sample in samples]
        for i, sample in enumerate(samples[:1]):
            text = difference(alone[i], method.ask([sample]), 0, ignored)
            if text is not None:
                return [(f"the same row asked twice is answered differently: {text}; is the model"
                        " in evaluation mode, and every seed fixed? What is new in each answer on"
                        " purpose is left out with --ignore NAME")]  # fmt: skip
        found: list[str] = []
        for what, batch in _batches(samples, max_batch_size):
            answers = method.ask([samples[i] for i in batch])
            for row, i in enumerate(batch):
                text = difference(alone[i], answers, row, ignored)
                if text is not None:
                    found.append(f"row {i} {what} is answered differently than alone: {text}")
            if len(found) >= FINDINGS:
                return found[:FINDINGS]
    except FailedError as error:
        return [str(error)]
    return found


def _batches(samples: Sequence[Sample], limit: int) -> Iterator[tuple[str, list[int]]]:
    """Words for a batch, and the samples in it by number."""
    for group in by_shape(samples):
        longest = max(group, key=lambda i: samples[i].length)
        shorter = {samples[i].length: i for i in group}
        del shorter[samples[longest].length]
        for i in shorter.values():
            if samples[i].cost + samples[longest].cost <= limit:
                yield f"in a batch of row {i} and the longer row {longest}", [i, longest]
        half = max(1, limit // 2)
        for rows, most, order in (
            (group, limit, ""), (group[::-1], limit, " in reverse order"), (group, half, ""),
        ):  # fmt: skip
            for batch in _filled(samples, rows, most):
                yield f"in a batch of {len(batch)}{order}", batch


def by_shape(samples: Sequence[Sample]) -> list[list[int]]:
    """Numbers of samples that may share a batch, the largest group first."""
    groups: dict[object, list[int]] = {}
    for i, sample in enumerate(samples):
        groups.setdefault(sample.shape, []).append(i)
    return sorted(groups.values(), key=len, reverse=True)


def _filled(samples: Sequence[Sample], group: Sequence[int], limit: int) -> Iterator[list[int]]:
    """The group in batches of at most `limit` in cost; a row above it goes alone."""
    batch: list[int] = []
    cost = 0
    for i in group:
        if batch and cost + samples[i].cost > limit:
            yield batch
            batch, cost = [], 0
        batch.append(i)
        cost += samples[i].cost
    if batch:
        yield batch
