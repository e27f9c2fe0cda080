"""JSON items, and whole requests for methods that take one at a time."""

import json

import orjson
import pytest

from batchedapi_serving.codecs import Answer, Decoded, Form, RequestHead
from batchedapi_serving.codecs.item_codec import CallCodec, ItemCodec
from batchedapi_serving.codecs.tensor_codec import TensorCodec
from batchedapi_serving.errors import MalformedError, UnsupportedTypeError
from batchedapi_serving.model.batch import split_items, split_tensor
from batchedapi_serving.predictor.api import ItemError, Tensor

ITEMS = ItemCodec()
CALL = CallCodec()
JSON_HEAD = RequestHead(b"", b"", ())


def answer(answers: list[object], form: Form, start: int, stop: int) -> Answer:
    """Rows [start, stop) of a batch that answered `answers`."""
    meta, parts = split_items(answers, len(answers))
    return ITEMS.results(meta, b"".join(parts)).answer(form, start, stop)


def test_any_json_value_is_an_item() -> None:
    """D10: arbitrary nested JSON; its text travels as it came."""
    body = b' {"a": [1, {"b": null}]} '

    decoded = ITEMS.decode(JSON_HEAD, body)

    assert Decoded(Form.ITEM, 1, [body]) == decoded
    assert [{"a": [1, {"b": None}]}, 2] == json.loads(b"".join(ITEMS.collate([[body], [b"2"]])))


def test_instances_are_items() -> None:
    """And are cut by items when there are too many."""
    decoded = ITEMS.decode(JSON_HEAD, b'{"instances": ["a", {"b": 1}, null]}')

    assert (Form.INSTANCES, 3) == decoded[:2]
    assert [b'{"b":1}', b"null"] == ITEMS.part(decoded.payload, 1, 3)
    assert ["a", {"b": 1}, None] == json.loads(b"".join(ITEMS.collate([decoded.payload])))


def test_a_bad_item_never_reaches_a_batch() -> None:
    """Its text is put between others' texts: a stray bracket would change all of them."""
    with pytest.raises(MalformedError):
        ITEMS.decode(JSON_HEAD, b"1],[2")
    with pytest.raises(UnsupportedTypeError, match="expected application/json, got 'text/csv'"):
        ITEMS.decode(RequestHead(b"text/csv", b"", ()), b"1,2")


def test_an_item_is_answered_with_its_value() -> None:
    """One JSON value for one JSON value."""
    assert Answer(200, b"application/json", b'{"b":2}') == answer(["a", {"b": 2}], Form.ITEM, 1, 2)


def test_instances_are_answered_with_predictions() -> None:
    """In the order they were sent."""
    body = answer(["x", 1, [2]], Form.INSTANCES, 1, 3).body

    assert {"predictions": [1, [2]]} == json.loads(body)


def test_an_item_error_fails_one_item_with_its_own_status() -> None:
    """The status is the predictor's to choose."""
    failed = answer([1, ItemError(404, "no such user")], Form.ITEM, 1, 2)

    error = json.loads(failed.body)["error"]
    assert failed.status == 404
    assert {"code": "item_failed", "message": "no such user", "request_id": None} == error


def test_among_many_rows_the_first_failure_gives_the_status_and_nothing_is_lost() -> None:
    """Who looks at the status only knows; who reads on has every other answer."""
    failed = answer([ItemError(410, "x"), 1, ItemError(409, "gone"), 3], Form.INSTANCES, 1, 4)

    body = json.loads(failed.body)
    assert failed.status == 409
    assert "instances[1] failed" in body["error"]["message"]
    assert [1, "gone", 3] == [
        row["error"]["message"] if isinstance(row, dict) else row for row in body["predictions"]
    ]


def test_parts_of_an_oversize_request_are_joined_in_order() -> None:
    """With the statuses of their rows."""
    meta, parts = split_items([0, 1], 2)
    first = ITEMS.results(meta, b"".join(parts))
    meta, parts = split_items([2, ItemError(409, "x")], 2)
    second = ITEMS.results(meta, b"".join(parts))

    whole = first.joined(1, 2, [(second, 0, 1)])
    failed = first.joined(0, 2, [(second, 0, 2)])

    assert {"predictions": [1, 2]} == json.loads(whole.answer(Form.INSTANCES, 0, 2).body)
    assert failed.answer(Form.INSTANCES, 0, 4).status == 409
    tensor = TensorCodec(Tensor("FP32", [1]))
    meta, parts = split_tensor([[1.0]], 1, None)
    with pytest.raises(TypeError, match="TensorResults"):
        first.joined(0, 1, [(tensor.results(meta, b"".join(parts)), 0, 1)])


@pytest.mark.parametrize(
    ("content_type", "as_json", "as_text"),
    [(b"", True, False), (b"text/csv", False, True), (b"image/png", False, False)],
)
def test_a_whole_request_says_how_its_body_is_to_be_read(
    content_type: bytes, *, as_json: bool, as_text: bool
) -> None:
    """JSON is parsed, text decoded, anything else handed over as bytes."""
    head = RequestHead(content_type, b"a=1&b=", [(b"x-user", b"J\xf6rg")])

    form, rows, (about_text, body) = CALL.decode(head, b"[1]")

    about = orjson.loads(about_text[4:])
    assert (Form.CALL, 1, b"[1]") == (form, rows, body)
    assert len(about_text) - 4 == int.from_bytes(about_text[:4], "little")
    assert (as_json, as_text) == (about["json"], about["text"])
    assert ("a=1&b=", [["x-user", "J\xf6rg"]]) == (about["query"], about["headers"])


def test_bad_json_is_refused_before_a_call_too() -> None:
    """A method that takes JSON should not have to expect anything else."""
    with pytest.raises(MalformedError):
        CALL.decode(JSON_HEAD, b"{")


def test_a_call_is_one_row() -> None:
    """It cannot be cut; asking for that is a mistake of ours."""
    payload = [b"head", b"body"]

    assert payload == CALL.part(payload, 0, 1)
    assert payload == CALL.collate([payload])
    with pytest.raises(ValueError, match="one row"):
        CALL.part(payload, 0, 2)


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

    assert Answer(200, content_type, b"hi") == results.answer(Form.CALL, 0, 1)
