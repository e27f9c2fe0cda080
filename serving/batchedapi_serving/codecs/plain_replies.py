"""Answers of the plain route, each in the form of its request."""

from collections.abc import Sequence
from typing import Final

import orjson

from batchedapi_core import contract
from batchedapi_serving.codecs.base import Answer, Receipt, Results
from batchedapi_serving.codecs.item_results import OK, ItemResults
from batchedapi_serving.codecs.npy import encode_npy
from batchedapi_serving.codecs.problems import JSON_TYPE, error_object, problem_answer
from batchedapi_serving.codecs.receipts import receipt_headers
from batchedapi_serving.codecs.tensor_results import NOT_FINITE, TensorResults
from batchedapi_serving.errors import PredictorError, ServingError

NPY_TYPE: Final = contract.NPY.encode()
CONTENT_TYPES: Final = {
    "json": JSON_TYPE,
    "text": b"text/plain; charset=utf-8",
    "bytes": b"application/octet-stream",
}


class _PlainReply:
    """Errors have the body of problem_answer."""

    __slots__ = ()

    def problem(self, error: ServingError, request_id: str | None) -> Answer:
        """See Reply.problem."""
        return problem_answer(error, request_id)


class ItemReply(_PlainReply):
    """One row by its value: JSON, text or bytes."""

    __slots__ = ()

    def answer(self, results: Results, start: int, stop: int, receipt: Receipt | None) -> Answer:
        """See Reply.answer."""
        headers = () if receipt is None else receipt_headers(receipt)
        if isinstance(results, TensorResults):
            if not results.all_finite and results.not_finite_row(start, stop) is not None:
                return problem_answer(PredictorError(NOT_FINITE))._replace(headers=headers)
            return Answer(OK, JSON_TYPE, results.json_rows()[start], 0, headers)
        status, kind, body = _items(results).items(start, stop)[0]
        if status == OK:
            return Answer(status, CONTENT_TYPES[kind], body, 0, headers)
        return Answer(status, JSON_TYPE, b'{"error":%b}' % body, 0, headers)


class InstancesReply(_PlainReply):
    """Rows as `{"predictions": [...]}`."""

    __slots__ = ()

    def answer(self, results: Results, start: int, stop: int, receipt: Receipt | None) -> Answer:
        """See Reply.answer.

        Of many rows, the status is the first failed row's, and every other answer is still in
        `predictions`: who looks only at the status knows, and who reads on loses nothing.
        """
        headers = receipt_headers(receipt)
        if isinstance(results, TensorResults):
            row = results.not_finite_row(start, stop)
            if row is not None:
                error = PredictorError(f"{NOT_FINITE} for row {row}")
                return problem_answer(error)._replace(headers=headers)
            return Answer(OK, JSON_TYPE, _predictions(results.json_rows()[start:stop]), 0, headers)
        items = _items(results).items(start, stop)
        rows = [
            item_text(kind, body) if status == OK else b'{"error":%b}' % body
            for status, kind, body in items
        ]
        failed = next((i for i, item in enumerate(items) if item.status != OK), None)
        if failed is None:
            return Answer(OK, JSON_TYPE, _predictions(rows), 0, headers)
        error_text = orjson.dumps(
            error_object("item_failed", f"instances[{failed}] failed; see predictions")
        )
        body = b'{"error":%b,"predictions":[%b]}' % (error_text, b",".join(rows))
        return Answer(items[failed].status, JSON_TYPE, body, 0, headers)


class NpyReply(_PlainReply):
    """Rows as one array; for methods with one output."""

    __slots__ = ()

    def answer(self, results: Results, start: int, stop: int, receipt: Receipt | None) -> Answer:
        """See Reply.answer."""
        if not isinstance(results, TensorResults):
            if all(item.status == OK for item in _items(results).items(start, stop)):
                raise PredictorError("expected an array as the answer, got JSON items")
            return INSTANCES.answer(results, start, stop, receipt)  # a row's own status
        headers = receipt_headers(receipt)
        try:
            (array,) = results.arrays(start, stop).values()
        except PredictorError as error:
            return problem_answer(error)._replace(headers=headers)
        return Answer(OK, NPY_TYPE, encode_npy(array), 0, headers)


ITEM: Final = ItemReply()
INSTANCES: Final = InstancesReply()
NPY: Final = NpyReply()


def item_text(kind: str, body: bytes) -> bytes:
    """The answer of one row that did not fail as JSON; bytes as text, one character a byte."""
    match kind:
        case "text":
            return orjson.dumps(body.decode())
        case "bytes":
            return orjson.dumps(body.decode("latin-1"))
        case _:
            return body


def _predictions(rows: Sequence[bytes]) -> bytes:
    return b'{"predictions":[%b]}' % b",".join(rows)


def _items(results: Results) -> ItemResults:
    if not isinstance(results, ItemResults):
        raise TypeError(f"expected TensorResults or ItemResults, got {type(results).__name__}")
    return results
