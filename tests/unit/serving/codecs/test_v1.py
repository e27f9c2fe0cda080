"""KServe's v1 protocol."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedapi_serving.codecs import RequestHead, Wire
from batchedapi_serving.errors import (
    ClientError,
    InvalidInputError,
    QueueFullError,
    UnsupportedTypeError,
)
from protocols import (
    IRIS,
    ITEMS,
    JSON_HEAD,
    RECEIPT,
    array,
    codec_of,
    failed_item,
    items,
    tensors,
    v1,
)

ROW = [1, 2, 3, 4]


def test_instances_are_answered_with_predictions() -> None:
    """In the order they were sent, and only those of this request."""
    decoded = v1(codec_of(IRIS), [ROW])
    results = tensors(IRIS, output=array("FP32", [[9, 9, 9], [0.1, 0.2, 0.7]]))

    answer = decoded.reply.answer(results, 1, 2, RECEIPT)

    assert {"predictions": [[0.1, 0.2, 0.7]]} == orjson.loads(answer.body)
    assert (200, b"application/json") == answer[:2]
    assert (b"x-batchedapi-batch-rows", b"12") in answer.headers


def test_a_failed_row_is_no_200() -> None:
    """KServe's batcher answers every failure with 200."""
    decoded = v1(codec_of(ITEMS), ["a", "b"])

    answer = decoded.reply.answer(items(1, failed_item(409, "taken")), 0, 2, None)

    body = orjson.loads(answer.body)
    assert 409 == answer.status
    assert "instances[1] failed" in body["error"]["message"]
    assert 1 == body["predictions"][0]


def test_errors_are_those_of_the_plain_route() -> None:
    """Code, message and the request's id."""
    answer = v1(codec_of(IRIS), [ROW]).reply.problem(QueueFullError("full", 2), "my-id")

    expected = {"error": {"code": "queue_full", "message": "full", "request_id": "my-id"}}
    assert expected == orjson.loads(answer.body)
    assert (503, 2) == (answer.status, answer.retry_after)


@pytest.mark.parametrize(
    "body",
    [
        b"[1]",
        b"{}",
        b"5",
        b'{"inputs": [[1]]}',
        b'{"instances": [[1,2,3,4]], "signature_name": "x"}',
        b'{"instances": []}',
        b'{"instances": {}}',
        b'{"instances": [[1,2,3]]}',
    ],
)
def test_anything_but_instances_is_refused(body: bytes) -> None:
    """A member that is not read would be a promise that is not kept."""
    with pytest.raises(InvalidInputError, match="instances"):
        codec_of(IRIS).decode(Wire.V1, JSON_HEAD, body)


def test_other_content_types_are_refused() -> None:
    """The protocol is JSON."""
    with pytest.raises(UnsupportedTypeError, match="expected application/json, got 'text/csv'"):
        codec_of(IRIS).decode(Wire.V1, RequestHead(b"text/csv", b"", ()), b"1")


@pytest.mark.parametrize("method", [IRIS, ITEMS], ids=["tensor", "items"])
@given(body=st.binary() | st.text().map(str.encode), inner=st.booleans())
def test_any_bytes_are_decoded_or_refused(method: object, body: bytes, inner: bool) -> None:  # noqa: FBT001 - drawn
    """Whatever is sent, a ClientError or rows; never another exception."""
    codec = codec_of(method)  # type: ignore[arg-type]  # a MethodSpec by its parameter's values
    sent = b'{"instances": [%b]}' % body if inner else body

    try:
        decoded = codec.decode(Wire.V1, JSON_HEAD, sent)
    except ClientError:
        return
    assert 1 <= decoded.rows
