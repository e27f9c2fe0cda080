"""Whole requests, for methods that take one at a time."""

import json

import numpy as np
import orjson
import pytest

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import Answer, RequestHead, Wire
from batchedapi_serving.codecs.item_codec import CallCodec
from batchedapi_serving.codecs.replies import INSTANCES, ITEM
from batchedapi_serving.errors import MalformedError
from batchedapi_serving.predictor import MethodSpec

CALL = CallCodec(MethodSpec("predict", batched=False), "api", Receipts.OFF)
JSON_HEAD = RequestHead(b"", b"", ())


@pytest.mark.parametrize(
    ("content_type", "as_json", "as_text"),
    [(b"", True, False), (b"text/csv", False, True), (b"image/png", False, False)],
)
def test_a_whole_request_says_how_its_body_is_to_be_read(
    content_type: bytes, *, as_json: bool, as_text: bool
) -> None:
    """JSON is parsed, text decoded, anything else handed over as bytes."""
    head = RequestHead(content_type, b"a=1&b=", [(b"x-user", b"J\xf6rg")])

    decoded = CALL.decode(Wire.PLAIN, head, b"[1]")

    ((about_text, body),) = decoded.payload
    about = orjson.loads(about_text[4:])
    assert (1, ITEM, b"[1]") == (decoded.rows, decoded.reply, body)
    assert len(about_text) - 4 == int.from_bytes(about_text[:4], "little")
    assert (as_json, as_text) == (about["json"], about["text"])
    assert ("a=1&b=", [["x-user", "J\xf6rg"]]) == (about["query"], about["headers"])


def test_bad_json_is_refused_before_a_call_too() -> None:
    """S9: a method that takes JSON should not have to expect anything else."""
    with pytest.raises(MalformedError):
        CALL.decode(Wire.PLAIN, JSON_HEAD, b"{")


def test_several_calls_of_a_batch_are_told_apart_by_their_lengths() -> None:
    """C16, C17: one call has no lengths; several, with rows of other languages among them, do."""
    encoded = CALL.from_rows([1, {"a": 2}], "instances", RequestHead(b"", b"q=1", ()))

    assert encoded.rows == 2
    (part,) = CALL.part(encoded.payload, 1, 2)
    about, body = CALL.collate([[part]]).buffers
    assert b'{"a":2}' == body
    assert "q=1" == orjson.loads(about[4:])["query"]
    both = CALL.collate([encoded.payload])
    calls = [b"".join(call) for call in encoded.payload]
    assert {"calls": [len(call) for call in calls]} == both.meta
    assert b"".join(calls) == b"".join(both.buffers)


def test_an_array_is_a_call_for_each_of_its_rows() -> None:
    """The method takes one at a time, whatever the language."""
    encoded = CALL.from_arrays({"x": np.arange(4).reshape(2, 2)}, "inputs")

    assert [b"[0,1]", b"[2,3]"] == [body for _, body in encoded.payload]
    assert b"5" == CALL.from_row(5, "item").payload[0][1]


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        ("json", b"application/json"),
        ("text", b"text/plain; charset=utf-8"),
        ("bytes", b"application/octet-stream"),
    ],
)
def test_a_call_is_answered_with_the_type_of_its_value(kind: str, content_type: bytes) -> None:
    """Str is text, bytes are bytes, anything else is JSON."""
    results = CALL.results({"items": [[200, kind, 2]]}, b"hi")

    assert Answer(200, content_type, b"hi") == ITEM.answer(results, 0, 1, None)


def test_among_predictions_text_and_bytes_are_json_strings() -> None:
    """A list has one language."""
    meta = {"items": [[200, "json", 1], [200, "text", 2], [200, "bytes", 1]]}
    results = CALL.results(meta, b"1hi\xff")

    assert {"predictions": [1, "hi", "\xff"]} == json.loads(
        INSTANCES.answer(results, 0, 3, None).body
    )
