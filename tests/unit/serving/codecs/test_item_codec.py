"""JSON items, and whole requests for methods that take one at a time."""

import json

import numpy as np
import pytest

from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import (
    Answer,
    DecodedRequest,
    ItemResults,
    Reply,
    RequestHead,
    Results,
    TensorResults,
    Wire,
)
from batchedapi_serving.codecs.item_codec import ItemCodec, rows_of_arrays
from batchedapi_serving.codecs.replies import INSTANCES, ITEM, NPY
from batchedapi_serving.errors import (
    InvalidInputError,
    MalformedError,
    PredictorError,
    TooLargeError,
    UnsupportedTypeError,
)
from batchedapi_serving.model.marshalling import split_items
from batchedapi_serving.predictor import ItemError, MethodSpec, SizeOf

ITEMS = ItemCodec(MethodSpec("predict", batched=True), "api", Receipts.OFF)
JSON_HEAD = RequestHead(b"", b"", ())


def results(answers: list[object]) -> Results:
    """Results of a batch that answered `answers`."""
    meta, parts = split_items(answers, {"rows": len(answers)})
    return ITEMS.results(meta, b"".join(parts))


def answer(answers: list[object], reply: Reply, start: int, stop: int) -> Answer:
    """Rows [start, stop) of a batch that answered `answers`."""
    return reply.answer(results(answers), start, stop, None)


def decode(body: bytes, content_type: bytes = b"") -> DecodedRequest:
    """A request on the plain route."""
    return ITEMS.decode(Wire.PLAIN, RequestHead(content_type, b"", ()), body)


def sized(size_of: SizeOf) -> ItemCodec:
    """A codec whose rows have costs."""
    return ItemCodec(MethodSpec("predict", batched=True, size_of=size_of), "api", Receipts.OFF)


def texts(payloads: list[list[bytes]]) -> bytes:
    """The bytes that a batch of these payloads sends."""
    return b"".join(ITEMS.collate(payloads).buffers)


def test_any_json_value_is_an_item() -> None:
    """D10: arbitrary nested JSON; its text travels as it came."""
    body = b' {"a": [1, {"b": null}]} '

    decoded = decode(body)

    assert DecodedRequest(1, [body], ITEM) == decoded
    assert [{"a": [1, {"b": None}]}, 2] == json.loads(texts([[body], [b"2"]]))


def test_instances_are_items() -> None:
    """And are cut by items when there are too many."""
    decoded = decode(b'{"instances": ["a", {"b": 1}, null]}')

    assert (3, INSTANCES) == (decoded.rows, decoded.reply)
    assert [b'{"b":1}', b"null"] == ITEMS.part(decoded.payload, 1, 3)
    assert ["a", {"b": 1}, None] == json.loads(texts([decoded.payload]))


def test_a_bad_item_never_reaches_a_batch() -> None:
    """Its text is put between others' texts: a stray bracket would change all of them."""
    with pytest.raises(MalformedError):
        decode(b"1],[2")
    with pytest.raises(UnsupportedTypeError, match="expected application/json, got 'text/csv'"):
        decode(b"1,2", b"text/csv")


def test_an_item_is_answered_with_its_value() -> None:
    """One JSON value for one JSON value."""
    assert Answer(200, b"application/json", b'{"b":2}') == answer(["a", {"b": 2}], ITEM, 1, 2)


def test_instances_are_answered_with_predictions() -> None:
    """In the order they were sent."""
    body = answer(["x", 1, [2]], INSTANCES, 1, 3).body

    assert {"predictions": [1, [2]]} == json.loads(body)


def test_an_item_error_fails_one_item_with_its_own_status() -> None:
    """The status is the predictor's to choose."""
    failed = answer([1, ItemError(404, "no such user")], ITEM, 1, 2)

    error = json.loads(failed.body)["error"]
    assert failed.status == 404
    assert {"code": "item_failed", "message": "no such user", "request_id": None} == error


def test_among_many_rows_the_first_failure_gives_the_status_and_nothing_is_lost() -> None:
    """The status alone tells of a failure; the body has every other answer."""
    failed = answer([ItemError(410, "x"), 1, ItemError(409, "gone"), 3], INSTANCES, 1, 4)

    body = json.loads(failed.body)
    assert failed.status == 409
    assert "instances[1] failed" in body["error"]["message"]
    assert [1, "gone", 3] == [
        row["error"]["message"] if isinstance(row, dict) else row for row in body["predictions"]
    ]


def test_parts_of_an_oversize_request_are_joined_in_order() -> None:
    """With the statuses of their rows."""
    first, second = results([0, 1]), results([2, ItemError(409, "x")])

    whole = first.joined(1, 2, [(second, 0, 1)])
    failed = first.joined(0, 2, [(second, 0, 2)])

    assert {"predictions": [1, 2]} == json.loads(INSTANCES.answer(whole, 0, 2, None).body)
    assert INSTANCES.answer(failed, 0, 4, None).status == 409


def test_parts_answered_in_another_way_are_not_joined() -> None:
    """S4: nothing is guessed about them."""
    tensors = TensorResults(MethodSpec("predict", batched=True), {"output": np.ones((1, 1))}, ())

    with pytest.raises(PredictorError, match="different ways"):
        results([1]).joined(0, 1, [(tensors, 0, 1)])


def test_a_failed_row_is_joined_with_tensors() -> None:
    """An oversize request of a method with tensors, of which one row was refused."""
    method = MethodSpec("predict", batched=True)
    tensors = TensorResults(method, {"output": np.array([[1.0], [np.nan], [3.0]])}, (1,))
    refused = results([ItemError(409, "no")])

    for whole in (
        tensors.joined(0, 2, [(refused, 0, 1), (tensors, 2, 3)]),
        refused.joined(0, 1, [(tensors, 0, 3)]),
    ):
        answer = INSTANCES.answer(whole, 0, 4, None)
        predictions = json.loads(answer.body)["predictions"]
        codes = [row["error"]["code"] for row in predictions if isinstance(row, dict)]
        assert {"item_failed", "predictor_failed"} == set(codes)
        assert [[1.0], [3.0]] == [row for row in predictions if isinstance(row, list)]


def test_results_cross_processes_as_a_frame() -> None:
    """N13: further web processes write their clients' answers themselves."""
    meta, buffers = results([1, ItemError(409, "x"), "y"]).to_frame(1, 3)

    received = ITEMS.results(json.loads(json.dumps(meta)), b"".join(buffers))

    assert isinstance(received, ItemResults)
    assert [(409, "json"), (200, "json")] == [item[:2] for item in received.items(0, 2)]
    assert received.items(1, 2)[0].body == b'"y"'


def test_an_array_is_no_form_for_items() -> None:
    """Asked for by mistake, it is an error in words."""
    with pytest.raises(PredictorError, match="expected an array as the answer"):
        NPY.answer(results([1]), 0, 1, None)


def test_rows_from_another_language_are_items_too() -> None:
    """D10: what msgpack or a tensor of text brought."""
    encoded = ITEMS.from_rows([{"a": 1}, "b"], "instances")

    assert (2, [b'{"a":1}', b'"b"']) == (encoded.rows, encoded.payload)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (float("nan"), "NaN or Infinity"),
        ({"a": [float("inf")]}, "NaN or Infinity"),
        (b"bytes", "JSON value"),
        ({1: 2}, "JSON value"),
        (2**70, "JSON value"),
    ],
    ids=str,
)
def test_what_json_cannot_say_is_refused_with_its_place(row: object, what: str) -> None:
    """S10: msgpack can say it, and the model process gets JSON."""
    with pytest.raises(InvalidInputError, match=rf"instances\[1\]\S*: expected .*{what}"):
        ITEMS.from_rows([None, row], "instances")


def test_arrays_are_rows_of_items() -> None:
    """One array becomes its rows, several arrays become an object per row."""
    ids, names = np.array([[1, 2], [3, 4]]), np.array(["x", "y"], dtype=object)

    assert [[1, 2], [3, 4]] == rows_of_arrays({"ids": ids}, "inputs")
    assert [{"ids": [1, 2], "name": "x"}, {"ids": [3, 4], "name": "y"}] == rows_of_arrays(
        {"ids": ids, "name": names}, "inputs"
    )
    assert 2 == ITEMS.from_arrays({"ids": ids, "name": names}, "inputs").rows


@pytest.mark.parametrize("shapes", [{}, {"a": ()}, {"a": (0, 2)}, {"a": (2,), "b": (3,)}], ids=str)
def test_arrays_that_are_no_rows_are_refused(shapes: dict[str, tuple[int, ...]]) -> None:
    """S11: with how many each has."""
    with pytest.raises(InvalidInputError, match="inputs: expected as many rows, at least one"):
        ITEMS.from_arrays({name: np.zeros(shape) for name, shape in shapes.items()}, "inputs")


def test_arrays_have_no_more_rows_than_a_request_may() -> None:
    """The limit is the same in every language."""
    with pytest.raises(TooLargeError):
        ITEMS.from_arrays({"a": np.zeros(65537, bool)}, "inputs")


@pytest.mark.parametrize(
    ("size_of", "costs"),
    [
        (SizeOf.bytes(), [14, 30]),
        (SizeOf.bytes(per=10), [2, 3]),
        (SizeOf.length(of="text"), [3, 1]),
        (SizeOf.length(), [1, 2]),
    ],
    ids=str,
)
def test_an_items_cost_is_what_the_method_says(size_of: SizeOf, costs: list[int]) -> None:
    """Firsts 3.4: the limit counts rows, or what they cost."""
    rows = [{"text": "abc"}, {"text": "", "other": "12345678"}]
    codec = sized(size_of)

    decoded = codec.decode(
        Wire.PLAIN, JSON_HEAD, json.dumps({"instances": rows}, separators=(",", ":")).encode()
    )

    assert costs == list(decoded.sizes or ())
    assert costs[:1] == list(codec.from_row(rows[0], "item").sizes or ())


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("5", "item:"),
        ('{"other": 1}', "item:"),
        ('{"text": 7}', "item.text:"),
        ("[1]", "item:"),
    ],
)
def test_an_item_without_what_is_measured_is_refused(row: str, place: str) -> None:
    """S11: before the queue, which needs its cost."""
    codec = sized(SizeOf.length(of="text"))

    with pytest.raises(InvalidInputError) as caught:
        codec.decode(Wire.PLAIN, JSON_HEAD, row.encode())

    assert str(caught.value).startswith(place)
    assert "whose length is what the row costs" in str(caught.value)
