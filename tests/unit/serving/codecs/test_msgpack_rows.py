"""msgpack on the plain routes: what JSON can say, and nothing else."""

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedapi_core import contract
from batchedapi_serving.codecs import DecodedRequest, RequestHead, Wire
from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.msgpack_rows import read_msgpack
from batchedapi_serving.errors import (
    ClientError,
    InvalidInputError,
    MalformedError,
    QueueFullError,
    TooLargeError,
)
from batchedapi_serving.predictor import MethodSpec
from protocols import IRIS, ITEMS, array, codec_of, failed_item, items, packed, plain, tensors

HEAD = RequestHead(b"application/msgpack; x=y", b"", ())


def decode(method: MethodSpec, body: bytes, head: RequestHead = HEAD) -> DecodedRequest:
    """A request on the plain route."""
    return codec_of(method).decode(Wire.PLAIN, head, body)


def nested(levels: int) -> bytes:
    """Arrays in arrays, the innermost empty."""
    return b"\x91" * (levels - 1) + b"\x90"


def test_an_item_is_answered_with_its_value() -> None:
    """In the content type it was sent in; 0.1 of float32 is 0.1, as in JSON."""
    results = tensors(IRIS, output=array("FP32", [[0.1, 0.2, 0.7]]))
    head = RequestHead(b"application/x-msgpack", b"", ())

    answer = decode(IRIS, msgpack.packb([1, 2, 3, 4]), head).reply.answer(results, 0, 1, None)

    assert (200, b"application/x-msgpack") == answer[:2]
    assert [0.1, 0.2, 0.7] == msgpack.unpackb(answer.body)


def test_instances_are_answered_with_predictions() -> None:
    """The structure is JSON's."""
    decoded = packed(codec_of(ITEMS), ["a", {"b": 1}])

    answer = decoded.reply.answer(items({"x": None}, [1]), 0, 2, None)

    assert b"application/msgpack" == answer.content_type
    assert {"predictions": [{"x": None}, [1]]} == msgpack.unpackb(answer.body)


def test_a_list_of_rows_is_answered_with_a_list() -> None:
    """As in JSON: one level deeper than a row is many rows. A list is one JSON item."""
    results = tensors(IRIS, output=array("FP32", [[0.5, 0, 0], [1, 0, 0]]))

    many = decode(IRIS, msgpack.packb([[1, 2, 3, 4], [5, 6, 7, 8]]))
    one = decode(ITEMS, msgpack.packb([[1, 2, 3, 4], [5, 6, 7, 8]]))

    assert (2, 1) == (many.rows, one.rows)
    assert [[0.5, 0, 0], [1, 0, 0]] == msgpack.unpackb(many.reply.answer(results, 0, 2, None).body)


def test_errors_are_msgpack_with_the_status_of_json() -> None:
    """One decoder is enough for a client; refusals before decoding are JSON."""
    reply = packed(codec_of(ITEMS), ["a", "b"]).reply

    failed = reply.answer(items(1, failed_item(409, "taken")), 0, 2, None)
    full = reply.problem(QueueFullError("full", 2), "my-id")

    assert (409, 1) == (failed.status, msgpack.unpackb(failed.body)["predictions"][0])
    assert (503, 2) == (full.status, full.retry_after)
    assert "my-id" == msgpack.unpackb(full.body)["error"]["request_id"]


def test_text_and_bytes_of_a_predictor_stay_what_they_are() -> None:
    """They have a content type of their own."""
    answer = decode(ITEMS, msgpack.packb("a")).reply.answer(
        items(Item(200, "bytes", b"\xff")), 0, 1, None
    )

    assert (b"application/octet-stream", b"\xff") == answer[1:3]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (b"raw", "body"),
        ([1, b"raw"], r"\[1\]"),
        ({"a": {"b": [[b"x"]]}}, r"a.b\[0\]\[0\]"),
        ({"a": msgpack.ExtType(5, b"x")}, "a"),
        ({"a": msgpack.Timestamp(1)}, "a"),
        ({b"a": 1}, "body"),
    ],
)
def test_what_json_cannot_say_is_refused_by_its_path(value: Any, place: str) -> None:
    """Such a row could not be answered to, batched with or logged like others."""
    with pytest.raises(InvalidInputError, match=f"^{place}: expected"):
        read_msgpack(msgpack.packb(value))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x01\x02",
        b"\x92\x01",
        b"\xa2\xff\xfe",
        b"\x81\x01\x02",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\x90\x01",
    ],
    ids=[
        "empty", "reserved", "two values", "cut off", "not UTF-8", "number as key",
        "4 billion elements", "4 billion pairs", "4 GiB", "list as key",
    ],
)  # fmt: skip
def test_what_is_no_msgpack_is_refused(body: bytes) -> None:
    """A length is a claim: nothing is allocated for it before its bytes are there."""
    with pytest.raises(MalformedError, match="expected one msgpack value"):
        read_msgpack(body)


def test_lengths_that_are_not_true_cost_no_memory() -> None:
    """500 lists in each other, each of which claims as many elements as the body has bytes."""
    length = 1 << 18
    body = (b"\xdd" + length.to_bytes(4, "big")) * 500 + b"\x00" * length

    tracemalloc.start()
    with pytest.raises(MalformedError):
        read_msgpack(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert 10 * len(body) > peak


def test_nesting_is_bounded_as_in_json() -> None:
    """The same limit, so that a row that is taken in one is taken in the other."""
    deepest = contract.MAX_NESTING

    assert isinstance(read_msgpack(nested(deepest)), list)
    assert {"a": 1} == read_msgpack(msgpack.packb({"a": 1}))
    for levels in (deepest + 1, 2000, 100_000):
        with pytest.raises(MalformedError):
            read_msgpack(nested(levels))


def test_values_in_the_deepest_container_are_checked_too() -> None:
    """The last level is the one a walk forgets."""
    body = b"\x91" * (contract.MAX_NESTING - 1) + msgpack.packb({"a": b"raw"})

    with pytest.raises(InvalidInputError, match="expected what JSON has"):
        read_msgpack(body)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": float("nan")}, "item.a"),
        ([1.0, [None, float("inf")]], r"item\[1\]\[1\]"),
        (float("-inf"), "item"),
        ({"instances": [{"a": None}, {"a": [float("nan")]}]}, r"instances\[1\].a\[0\]"),
    ],
)
def test_items_hold_no_nan(value: Any, place: str) -> None:
    """The model process gets JSON, which would make it null."""
    with pytest.raises(InvalidInputError, match=f"^{place}: expected a finite number"):
        decode(ITEMS, msgpack.packb(value))


def test_items_are_the_items_of_json() -> None:
    """Byte for byte."""
    row = {"a": [1, 2.5, None, True, "ü"], "b": {}}

    assert plain(codec_of(ITEMS), [row]).payload == packed(codec_of(ITEMS), [row]).payload


@given(body=st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(body: bytes) -> None:
    """Whatever is sent, a ClientError or rows; never another exception."""
    for method in (IRIS, ITEMS):
        try:
            decoded = decode(method, body)
        except ClientError:
            continue
        assert 1 <= decoded.rows


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5)
    | st.dictionaries(st.text() | st.integers(0, 9) | st.binary(max_size=3), inner, max_size=4),
)  # fmt: skip


@given(value=VALUES)
def test_any_value_is_decoded_or_refused(value: Any) -> None:
    """And what is decoded, is what JSON would have said."""
    for wrapped in (value, {"instances": [value]}):
        try:
            decoded = decode(ITEMS, msgpack.packb(wrapped))
        except ClientError:
            continue
        assert 1 <= decoded.rows


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd" + (contract.MAX_VALUES + 1).to_bytes(4, "big") + bytes(contract.MAX_VALUES + 1),
        b"\xdd" + contract.MAX_CONTAINERS.to_bytes(4, "big") + b"\x90" * contract.MAX_CONTAINERS,
        b"\xdd" + contract.MAX_CONTAINERS.to_bytes(4, "big") + b"\x80" * contract.MAX_CONTAINERS,
        b"\xdd"
        + (contract.MAX_VALUES + 1).to_bytes(4, "big")
        + b"\xd4\x01\x00" * (contract.MAX_VALUES + 1),
    ],
    ids=["numbers", "lists", "maps", "extensions"],
)
def test_more_values_than_there_may_be_are_refused(body: bytes) -> None:
    """A byte that is a list costs as much as one of three in JSON."""
    with pytest.raises(TooLargeError, match="body: expected at most"):
        read_msgpack(body)


def test_a_text_as_long_as_the_limit_is_one_value() -> None:
    """Lengths of texts are not counted."""
    text = "a" * (contract.MAX_VALUES + 1)

    assert [text] == read_msgpack(msgpack.packb([text]))
