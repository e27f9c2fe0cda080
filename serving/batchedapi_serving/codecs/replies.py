"""Answers of the plain route, each in the form of its request, and the error body.

The error body is the same on every route: code, message and request id, never a traceback. A
receipt travels as response headers: which batch a request rode in, and what that took.
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson

from batchedapi_core import contract
from batchedapi_serving.codecs.arrays import encode_npy
from batchedapi_serving.codecs.interface import Answer, Receipt, Results
from batchedapi_serving.codecs.json_values import check_row_count, instances_of, is_deeper
from batchedapi_serving.codecs.results import (
    NOT_FINITE,
    OK,
    ItemResults,
    TensorResults,
    error_object,
)
from batchedapi_serving.errors import (
    InvalidInputError,
    OverloadedError,
    PredictorError,
    ServingError,
)

NPY_TYPE: Final = contract.NPY.encode()
JSON_TYPE = contract.JSON.encode()
CONTENT_TYPES: Final = {
    "json": JSON_TYPE,
    "text": b"text/plain; charset=utf-8",
    "bytes": b"application/octet-stream",
}
_UNNAMED_JSON: Final = b'"request_id":null'
_UNNAMED_MSGPACK: Final = b"\xaarequest_id\xc0"
_PREFIX: Final = "x-batchedapi-"


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
            # What Answer(...) does, without the call that takes as long.
            return tuple.__new__(Answer, (OK, JSON_TYPE, results.json_rows()[start], 0, headers))
        status, kind, body, said = _items(results).items(start, stop)[0]
        if status == OK:
            content_type = CONTENT_TYPES[kind]
            if said is not None:
                status, own = said
                content_type = own.get("content-type", content_type.decode()).encode("latin-1")
                headers += tuple(
                    (name.encode(), value.encode("latin-1"))
                    for name, value in own.items()
                    if name != "content-type"
                )
            return Answer(status, content_type, body, 0, headers)
        return Answer(status, JSON_TYPE, b'{"error":%b}' % body, 0, headers)


class RowsReply(_PlainReply):
    """Many rows, in the form in which they were sent."""

    __slots__ = ("_form", "place")

    def __init__(self, place: str, form: bytes) -> None:
        """`place` is what messages call the rows; `form` is what goes around their answers."""
        self.place = place
        self._form = form

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
            return self._rows(results.json_rows()[start:stop], headers)
        items = _items(results).items(start, stop)
        rows = [
            item_text(kind, body) if status == OK else b'{"error":%b}' % body
            for status, kind, body, _ in items
        ]
        failed = next((i for i, item in enumerate(items) if item.status != OK), None)
        if failed is None:
            return self._rows(rows, headers)
        error_text = orjson.dumps(
            error_object("item_failed", f"{self.place}[{failed}] failed; see predictions")
        )
        body = b'{"error":%b,"predictions":[%b]}' % (error_text, b",".join(rows))
        return Answer(items[failed].status, JSON_TYPE, body, 0, headers)

    def _rows(self, rows: Sequence[bytes], headers: tuple[tuple[bytes, bytes], ...]) -> Answer:
        return Answer(OK, JSON_TYPE, self._form % b",".join(rows), 0, headers)


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
INSTANCES: Final = RowsReply("instances", b'{"predictions":[%b]}')
ROWS: Final = RowsReply("rows", b"[%b]")
NPY: Final = NpyReply()


def plain_rows(rank: int | None, value: Any) -> tuple[list[Any], RowsReply] | None:
    """The rows of a parsed value that holds many, and how they are answered; None: it is one row.

    Many rows are the list in `{"instances": [...]}`, or a list that is nested one level deeper than
    a row. Only first elements are looked at: a row that is not like the first is an error with
    its place.

    Args:
        rank: Levels of lists in one row (MethodSpec.row_rank); None: a row may be any list.

    Raises:
        InvalidInputError: `instances` is not a list, or there is no row.
        TooLargeError: more rows than there may be.
    """
    if type(value) is dict:
        instances = instances_of(value)
        return None if instances is None else (instances, INSTANCES)
    if rank is None or not is_deeper(value, rank):
        return None
    if not value:
        raise InvalidInputError("rows: expected at least one row, got an empty list")
    check_row_count(len(value))
    return value, ROWS


def item_text(kind: str, body: bytes) -> bytes:
    """The answer of one row that did not fail as JSON; bytes as text, one character a byte."""
    match kind:
        case "text":
            return orjson.dumps(body.decode())
        case "bytes":
            return orjson.dumps(body.decode("latin-1"))
        case _:
            return body


def _items(results: Results) -> ItemResults:
    if not isinstance(results, ItemResults):
        raise TypeError(f"expected TensorResults or ItemResults, got {type(results).__name__}")
    return results


def named(answer: Answer, request_id: str) -> Answer:
    """An error answer with the id in its body, where one belongs there and is not known yet.

    Predictors' own errors are written in the model process, which knows rows and no requests. Only
    the first place is the answer's: what follows in `predictions` is of single rows. Neither text
    can be part of a string, in JSON for the quotes and in msgpack because it is no UTF-8.
    """
    if answer.content_type == JSON_TYPE:
        body = answer.body.replace(_UNNAMED_JSON, _UNNAMED_JSON[:-4] + orjson.dumps(request_id), 1)
    elif _UNNAMED_MSGPACK in answer.body and b"msgpack" in answer.content_type:
        import msgpack  # noqa: PLC0415 - where it was needed before

        packed = _UNNAMED_MSGPACK[:-1] + msgpack.packb(request_id)
        body = answer.body.replace(_UNNAMED_MSGPACK, packed, 1)
    else:
        return answer
    return answer._replace(body=body)


def problem_answer(error: ServingError, request_id: str | None = None) -> Answer:
    """The response that `error` is answered with."""
    body = orjson.dumps({"error": error_object(error.code, str(error), request_id)})
    retry_after = error.retry_after if isinstance(error, OverloadedError) else 0
    return Answer(error.status, JSON_TYPE, body, retry_after)


def receipt_headers(receipt: Receipt | None) -> tuple[tuple[bytes, bytes], ...]:
    """Headers of an answer, names in lower case; none without a receipt.

    Milliseconds have three decimals; elapsed is queue and execution together (D11).
    """
    if receipt is None:
        return ()
    return tuple(
        ((_PREFIX + name.replace("_", "-")).encode(), str(value).encode("latin-1", "replace"))
        for name, value in receipt_values(receipt).items()
    )


def receipt_values(receipt: Receipt) -> dict[str, str | int | float]:
    """The receipt as it is shown everywhere: names and values in the units of the names."""
    elapsed = receipt.queue_seconds + receipt.exec_seconds
    return {
        "batch_id": receipt.batch,
        "batch_rows": receipt.rows,
        "batch_requests": receipt.requests,
        "my_rows": receipt.my_rows,
        "queue_ms": round(receipt.queue_seconds * 1000, 3),
        "exec_ms": round(receipt.exec_seconds * 1000, 3),
        "elapsed_ms": round(elapsed * 1000, 3),
        "reason": receipt.reason,
        "replica": receipt.replica,
        "process": receipt.worker_index,
    }
