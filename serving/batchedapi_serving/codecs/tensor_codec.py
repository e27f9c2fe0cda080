"""Methods with a declared tensor: JSON rows or .npy in, the same out."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from batchedapi_core import contract
from batchedapi_serving.codecs.base import Answer, Decoded, Form, Head, Results
from batchedapi_serving.codecs.json_values import instances_of, is_json, parse_json, unsupported
from batchedapi_serving.codecs.npy import decode_npy, encode_npy
from batchedapi_serving.codecs.problems import JSON_TYPE, problem_answer
from batchedapi_serving.codecs.tensor_rows import RowPacker, array_of, json_rows
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.predictor.api import Tensor

_NPY: Final = contract.NPY.encode()


class TensorCodec:
    """Payloads are packed bytes of whole rows."""

    def __init__(self, inputs: Tensor) -> None:
        self._inputs = inputs
        self._row_bytes = inputs.row_bytes
        self._pack = RowPacker(inputs).pack

    def decode(self, head: Head, body: bytes) -> Decoded:
        """See Codec.decode."""
        if is_json(head.content_type):
            return self._decode_json(body)
        if head.content_type.split(b";", 1)[0].strip().lower() == _NPY:
            return Decoded(Form.NPY, *decode_npy(body, self._inputs))
        raise unsupported(head.content_type, f"{contract.JSON} or {contract.NPY}")

    def _decode_json(self, body: bytes) -> Decoded:
        value = parse_json(body)
        may_hold_bool = b"u" in body or b"l" in body  # of true and false; no number has these
        rows = instances_of(value)
        if rows is None:
            packed = self._pack(value, "item", may_hold_bool=may_hold_bool)
            return Decoded(Form.ITEM, 1, packed)
        pack = self._pack
        parts = [
            pack(row, f"instances[{i}]", may_hold_bool=may_hold_bool) for i, row in enumerate(rows)
        ]
        return Decoded(Form.INSTANCES, len(rows), b"".join(parts))

    def part(self, payload: bytes, start: int, stop: int) -> bytes:
        """See Codec.part."""
        return payload[start * self._row_bytes : stop * self._row_bytes]

    def collate(self, payloads: Sequence[bytes]) -> Sequence[bytes]:
        """See Codec.collate."""
        return payloads

    def results(self, meta: Meta, payload: bytes) -> Results:
        """See Codec.results."""
        return TensorResults(array_of(payload, meta["dtype"], meta["shape"]), meta["not_finite"])


class TensorResults:
    """The output array of one batch; rows named in `not_finite` are errors."""

    __slots__ = ("_array", "_json", "_not_finite")

    def __init__(self, array: np.ndarray[Any, Any], not_finite: Sequence[int]) -> None:
        self._array = array
        self._not_finite = not_finite
        self._json: list[bytes] | None = None

    def answer(self, form: Form, start: int, stop: int) -> Answer:
        """See Results.answer."""
        if self._not_finite:
            for i in self._not_finite:
                if start <= i < stop:
                    return _not_finite_answer(form, i - start)
        if form is Form.NPY:
            return Answer(200, _NPY, encode_npy(self._array[start:stop]))
        if self._json is None:
            self._json = json_rows(self._array)
        if form is Form.ITEM:
            return Answer(200, JSON_TYPE, self._json[start])
        return Answer(200, JSON_TYPE, b'{"predictions":[%b]}' % b",".join(self._json[start:stop]))

    def joined(self, start: int, stop: int, others: Sequence[tuple[Results, int, int]]) -> Results:
        """See Results.joined."""
        slices = [(self, start, stop), *others]
        arrays, not_finite, offset = [], [], 0
        for results, first, last in slices:
            if not isinstance(results, TensorResults):
                raise TypeError(f"expected TensorResults to join, got {type(results).__name__}")
            arrays.append(results._array[first:last])  # noqa: SLF001 - the same class
            not_finite += [
                i - first + offset
                for i in results._not_finite  # noqa: SLF001 - the same class
                if first <= i < last
            ]
            offset += last - first
        if len({array.shape[1:] for array in arrays}) > 1:
            raise PredictorError(
                "the predictor answered rows of one request with different shapes: "
                + ", ".join(str(list(array.shape[1:])) for array in arrays)
            )
        return TensorResults(np.concatenate(arrays), not_finite)


def _not_finite_answer(form: Form, row: int) -> Answer:
    place = "" if form is Form.ITEM else f" for row {row}"
    return problem_answer(PredictorError(f"the predictor answered NaN or Infinity{place}"))
