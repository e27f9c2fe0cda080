"""Values of user code as JSON: each type has one form, and no value becomes another."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import logging
import math
import types
import uuid
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedapi_serving.codecs.own_values import NotJsonError, json_of
from batchedapi_serving.codecs.submits import rows_frame
from batchedapi_serving.model.marshalling import call_item, split_items
from batchedapi_serving.predictor import MethodSpec, Response, SubmitError, Tensor

NAN = math.nan


class Pair(NamedTuple):
    """As many predictors answer."""

    score: Any
    label: Any


@dataclasses.dataclass
class Scored:
    """Another usual answer."""

    score: Any


@dataclasses.dataclass(slots=True)
class Slotted:
    """The same without a dict."""

    score: Any


class Odd(enum.Enum):
    """One whose value is no number of JSON."""

    UNKNOWN = NAN


class Half(float):
    """A float by another name."""


AROUND = [
    lambda x: x,
    lambda x: [x],
    lambda x: (1, x),
    lambda x: {"a": x},
    lambda x: {"a": {"b": [None, x]}},
    lambda x: Pair(x, "cat"),
    lambda x: [{"pair": Pair(1, x)}],
    Scored,
    Slotted,
    lambda x: [Scored(Slotted({"a": x}))],
    lambda x: collections.defaultdict(list, a=[x]),
    lambda x: collections.OrderedDict(a=x),
    lambda x: np.array([None, x], object),
    lambda x: {1: x},
]
NOT_FINITE = [
    NAN,
    math.inf,
    -math.inf,
    Half("nan"),
    Odd.UNKNOWN,
    np.float16("nan"),
    np.float32("inf"),
    np.float64("-inf"),
    np.array(NAN),
    np.array([1, NAN], np.float16),
    np.array([[1, 2], [NAN, 4]], np.float32).T,
    np.array([1, math.inf])[::-1],
    np.array([NAN], ">f8"),
]


@pytest.mark.parametrize("number", NOT_FINITE, ids=repr)
def test_a_number_that_is_not_finite_is_refused_in_whatever_holds_it(number: object) -> None:
    """Orjson writes null for it, also inside of dataclasses and enums, which is another answer."""
    for around in AROUND:
        with pytest.raises(NotJsonError, match="NaN or Infinity"):
            json_of(around(number))


@pytest.mark.parametrize("key", [NAN, math.inf, np.float64("nan"), Odd.UNKNOWN], ids=repr)
def test_a_key_that_is_not_finite_is_refused(key: object) -> None:
    """It would be the text null."""
    with pytest.raises(NotJsonError, match="NaN or Infinity"):
        json_of({key: 1})


def test_the_message_says_where_it_is() -> None:
    """An answer has thousands of numbers."""
    with pytest.raises(NotJsonError, match=r"^NaN or Infinity at \.a\[1\]\.score\[0\]\[2\]$"):
        json_of({"a": [None, Scored(np.array([[1, 2, NAN]]))]})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Pair(1.5, "cat"), [1.5, "cat"]),
        ([Pair(1, Pair(2, None))], [[1, [2, None]]]),
        (np.array(["a", "bc"]), ["a", "bc"]),
        (np.array([["a"], ["\u00e9"]]), [["a"], ["\u00e9"]]),
        (np.array(["a", 1, None, 0.5], object), ["a", 1, None, 0.5]),
        (np.array(["abc"], np.dtypes.StringDType()), ["abc"]),  # type: ignore[call-overload]  # numpy's stubs
        (np.array("text"), "text"),
        ({"a": np.array(["b"]), "c": np.array([0.5])}, {"a": ["b"], "c": [0.5]}),
        (np.array([1, 2], ">i4"), [1, 2]),
        (np.arange(6).reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
        (np.array(7), 7),
        (np.ma.array([1, 2], mask=[False, True]), [1, None]),
        (np.array(["2026-01-02"], "M8[D]"), ["2026-01-02T00:00:00"]),
        (Half(0.5), 0.5),
        ([Half(0.5), None], [0.5, None]),
        (Scored(None), {"score": None}),
        ({1: "a", 2.5: "b", np.int64(3): "c"}, {"1": "a", "2.5": "b", "3": "c"}),
        ([None, dt.date(2026, 1, 2)], [None, "2026-01-02"]),
        ([None, uuid.UUID(int=1)], [None, str(uuid.UUID(int=1))]),
        ([None, np.float32(0.1), np.bool_(True), 2**64 - 1], [None, 0.1, True, 2**64 - 1]),
        (-(2**63), -(2**63)),
    ],
    ids=repr,
)  # fmt: skip
def test_what_has_a_natural_form_has_it(value: object, expected: object) -> None:
    """Text arrays are lists of text, named tuples lists, as in the standard library's JSON."""
    assert expected == orjson.loads(json_of(value))


def endless() -> list[Any]:
    """A list in itself."""
    value: list[Any] = [None]
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**63) - 1,
        [None, 2**64],
        {1: "a", "1": "b"},
        {(1, 2): 3},
        {2**70: 1, 1: 2},
        {"half a surrogate": "\ud800"},
        {"\ud800": 1},
        b"bytes",
        [None, bytearray(b"x")],
        memoryview(b"x"),
        {1, 2},
        frozenset([1]),
        collections.deque([1]),
        types.MappingProxyType({"a": 1}),
        (number for number in [1]),
        range(3),
        1j,
        decimal.Decimal("1.5"),
        np.longdouble(1),
        np.array([1], np.longdouble),
        np.array([b"bytes"]),
        np.array([1j]),
        np.array([1], "m8[s]"),
        np.array([(1, 2)], [("a", "i4"), ("b", "i4")]),
        np.timedelta64(1, "s"),
        object(),
        Scored,
        endless(),
    ],
    ids=lambda value: type(value).__name__,  # a repr may have an address
)
def test_what_has_no_form_is_refused(value: object) -> None:
    """Never its repr, and never a number or a key that is only near it."""
    with pytest.raises(NotJsonError):
        json_of(value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab1", max_size=3), inner),
    max_leaves=20,
)


@given(JSON, st.booleans())
def test_a_json_value_is_read_back_as_it_was(value: object, in_array: bool) -> None:  # noqa: FBT001 - drawn
    """Whether it is walked, as a named tuple is, or not."""
    held = np.array([value, None], object)[:1] if in_array else Pair(value, None)

    assert value == orjson.loads(json_of(value))
    assert value == orjson.loads(json_of(held))[0]


def test_a_batch_with_wrong_answers_says_so_in_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each row has its reason in its answer; a thousand rows are no thousand lines."""
    with caplog.at_level(logging.ERROR):
        meta, _ = split_items([Scored(NAN), 1, {2}, Pair(1, 2)], {"rows": 4})

    assert [500, 200, 500, 200] == [status for status, *_ in meta["items"]]
    (line,) = caplog.records
    assert ("wrong answer", "NaN or Infinity at .score") == (line.message, vars(line)["error"])


@pytest.mark.parametrize("value", ["\ud800", Response("a\udfff"), Response({1: "a", "1": "b"})])
def test_one_answer_that_cannot_be_written_is_a_failure(
    value: object, caplog: pytest.LogCaptureFixture
) -> None:
    """A question mark in place of half a surrogate would be another text."""
    item = call_item(value)

    assert 500 == item.status
    assert b"predictor_failed" in item.body
    assert ["wrong answer"] == [line.message for line in caplog.records]


def test_a_view_of_bytes_is_answered_as_bytes() -> None:
    """As bytes and bytearray are."""
    assert ("bytes", b"abc") == call_item(memoryview(b"abc"))[1:3]


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [
        ("INT32", np.array([[2**31]])),
        ("UINT8", [[256]]),
        ("INT64", np.array([[2**63]], np.uint64)),
        ("FP32", np.array([[1e39]])),
        ("FP16", [[70000]]),
    ],
)
@pytest.mark.parametrize("allowed", [False, True])
def test_submitted_numbers_out_of_range_are_refused(
    dtype: str, rows: Any, *, allowed: bool
) -> None:
    """A cast would wrap integers, and make Infinity of floats."""
    tensor = Tensor(dtype, [1], allow_non_finite=allowed and dtype.startswith("FP"))
    spec = MethodSpec("predict", batched=True, inputs={"input": tensor}, single_input=True)

    with pytest.raises(SubmitError, match=r"out of range|got NaN or Infinity|or narrower"):
        rows_frame(spec, rows)
