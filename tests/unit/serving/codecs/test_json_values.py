"""JSON that comes in is parsed once, bounded, and told apart from other content types."""

import json
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedapi_core import contract
from batchedapi_serving.codecs import Wire
from batchedapi_serving.codecs.json_values import (
    _outside_texts,
    instances_of,
    is_finite,
    is_json,
    parse_items,
    parse_json,
)
from batchedapi_serving.errors import InvalidInputError, MalformedError, TooLargeError
from batchedapi_serving.predictor import Tensor
from protocols import ITEMS, JSON_HEAD, codec_of, single


def nested(levels: int) -> bytes:
    """An array in an array in an array."""
    return b"[" * levels + b"]" * levels


@pytest.mark.parametrize("body", [b"", b"  \n"])
def test_an_empty_body_is_named_as_such(body: bytes) -> None:
    """`curl` without -d sends nothing; a parser's position in nothing would not help."""
    with pytest.raises(MalformedError, match="expected a JSON value, got nothing"):
        parse_json(body)


@pytest.mark.parametrize(
    "body", [b"{", b"[1,]", b"NaN", b"[Infinity]", b'"\xff"', b"[1] [2]", b"'a'", b"01"]
)
def test_what_is_not_json_is_malformed(body: bytes) -> None:
    """NaN and Infinity too: Python's own parser would let them in."""
    with pytest.raises(MalformedError, match="body: expected JSON, got an error"):
        parse_json(body)


def test_nesting_is_allowed_up_to_the_limit_and_refused_beyond() -> None:
    """Deep values would exhaust the stack of whatever walks them recursively."""
    parse_json(nested(contract.MAX_NESTING))

    with pytest.raises(MalformedError, match=f"at most {contract.MAX_NESTING} levels"):
        parse_json(nested(contract.MAX_NESTING + 1))


def test_objects_count_as_levels_too() -> None:
    """A limit on arrays alone is none."""
    body = b'{"a":[' * 40 + b"]}" * 40

    with pytest.raises(MalformedError, match="levels"):
        parse_json(body)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    """A thousand flat rows are the ordinary case."""
    value = [[1, 2]] * 1000

    assert value == parse_json(json.dumps(value).encode())


def test_instances_are_rows_only_when_they_stand_alone() -> None:
    """An item that happens to have a member of that name is an item."""
    assert [1, 2] == instances_of({"instances": [1, 2]})
    assert instances_of({"instances": [1], "other": 2}) is None
    assert instances_of([1]) is None
    assert instances_of("instances") is None


@pytest.mark.parametrize("rows", [{}, "text", 3, None])
def test_instances_that_are_no_list_are_refused(rows: object) -> None:
    """They would otherwise be taken for an item and reach the model."""
    with pytest.raises(InvalidInputError, match="instances: expected a list of rows, got"):
        instances_of({"instances": rows})


def test_no_instances_at_all_are_refused() -> None:
    """An empty batch has no answer."""
    with pytest.raises(InvalidInputError, match="at least one row"):
        instances_of({"instances": []})


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (b"", True),
        (b"application/json", True),
        (b"application/json; charset=utf-8", True),
        (b"Application/JSON", True),
        (b"application/vnd.api+json", True),
        (b"text/json", False),
        (b"text/plain", False),
        (b"application/x-npy", False),
        (b"application/jsonx", False),
    ],
)
def test_content_types_that_mean_json(content_type: bytes, *, expected: bool) -> None:
    """Parameters and case do not matter, and no header at all means JSON."""
    assert expected == is_json(content_type)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, True),
        ({"a": [1, None, "nan"]}, True),
        (float("nan"), False),
        ({"a": [1, {"b": (float("-inf"),)}]}, False),
    ],
)
def test_what_is_not_finite_is_found_at_any_depth(value: object, *, expected: bool) -> None:
    """S10: msgpack can hold what JSON cannot."""
    assert expected == is_finite(value)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"0," * contract.MAX_VALUES + b"0]",
        b"[" + b"[]," * contract.MAX_CONTAINERS + b"0]",
        b"[" + b'{"":[]},' * (contract.MAX_CONTAINERS // 2) + b"[]]",
    ],
    ids=["numbers", "lists", "objects"],
)
def test_more_values_than_there_may_be_are_refused_before_they_are_built(body: bytes) -> None:
    """An empty list takes two bytes to say and sixty-four to hold."""
    tracemalloc.start()
    with pytest.raises(TooLargeError, match="body: expected at most"):
        parse_json(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert 20 * (1 << 20) > peak


@pytest.mark.parametrize(
    "text",
    [
        "," * (contract.MAX_VALUES + 1),
        "[" * (contract.MAX_CONTAINERS + 1),
        '"' * 1000 + "[:{," * contract.MAX_CONTAINERS + '"',
        "\\" * 1001 + "[:{," * contract.MAX_CONTAINERS + "\\",
        '\\"' * 1001 + "[:{," * contract.MAX_CONTAINERS + '"\\',
    ],
    ids=["commas", "brackets", "quotes", "backslashes", "both"],
)
def test_what_stands_in_a_text_is_no_value(text: str) -> None:
    """A document with a million commas is one value."""
    value = {"text": text, "more": [text[:10], 1]}

    assert value == parse_json(orjson.dumps(value))


@given(
    st.recursive(
        st.none() | st.integers(-9, 9) | st.text(alphabet='"\\,[]{}:a', max_size=6),
        lambda inner: st.lists(inner) | st.dictionaries(st.text('"\\,[', max_size=3), inner),
    )
)
def test_the_count_outside_of_texts_is_exact(value: Any) -> None:
    """Counted once by bytes and once by walking the value."""
    counts = _outside_texts(orjson.dumps(value))

    assert (containers(value), separators(value)) == (
        counts[ord("[")] + counts[ord("{")],
        counts[ord(",")] + counts[ord(":")],
    )


def containers(value: Any) -> int:
    """Arrays and objects."""
    if not isinstance(value, list | dict):
        return 0
    return 1 + sum(map(containers, value.values() if isinstance(value, dict) else value))


def separators(value: Any) -> int:
    """Commas and colons."""
    if not isinstance(value, list | dict):
        return 0
    own = max(0, len(value) - 1) + (len(value) if isinstance(value, dict) else 0)
    return own + sum(map(separators, value.values() if isinstance(value, dict) else value))


@pytest.mark.parametrize(
    "body",
    [
        b"18446744073709551616",
        b" -9223372036854775809\n",
        b"[1,99999999999999999999]",
        b'{"a":{"b":[1.5,-18446744073709551615]}}',
        b'{"a\\"":18446744073709551616}',
        b'["\\\\",18446744073709551616]',
        b"1" * 300,
        b"[%b]" % b",".join([b"1234567890123456789"] * 150 + [b"123456789012345678901"]),
    ],
)
def test_an_integer_of_more_than_64_bits_is_refused(body: bytes) -> None:
    """The parser makes a float of it, which is another number."""
    with pytest.raises(InvalidInputError, match=r"body: expected integers of 64 bits, got \S"):
        parse_items(body)


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.integers(2**63 - 5, 2**64 + 5).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"\A-?[1-9][0-9]{0,24}\.[0-9]{1,25}(e[-+]?0{0,20}[1-9])?\Z"),
    st.from_regex(r"\A[1-9][0-9]{0,24}[eE][-+]?0{0,20}[1-9]\Z"),
    st.text(alphabet='1234567890\\", .e', max_size=40).map(json.dumps),
)


@given(st.lists(NUMBERS, min_size=1), st.sampled_from([",", " , ", "\n,"]))
def test_of_all_numbers_and_texts_such_integers_alone_are_refused(
    numbers: list[str], comma: str
) -> None:
    """However long the others are, and whatever texts look like."""
    body = f"[{comma.join(numbers)}]"
    value = json.loads(body)
    wide = any(type(n) is int and not -(2**63) <= n < 2**64 for n in value)

    if wide:
        with pytest.raises(InvalidInputError):
            parse_items(body.encode())
    else:
        assert value == parse_items(body.encode())


@pytest.mark.parametrize("wire", [Wire.PLAIN, Wire.V1, Wire.V2])
def test_such_an_integer_is_refused_in_every_protocol(wire: Wire) -> None:
    """Also where a tensor is declared, whose type has no such number, but of a float's."""
    wide = b"18446744073709551616"
    bodies = {
        Wire.PLAIN: b'{"instances":[%b]}',
        Wire.V1: b'{"instances":[%b]}',
        Wire.V2: b'{"inputs":[{"name":"input","datatype":"%b","shape":[1%b],"data":[%b]}]}',
    }
    text = b'"%b"' % wide
    parameters = b'],"parameters":{"content_type":"json"},"note":['
    for method, datatype, shape, number in (
        (ITEMS, b"BYTES", parameters, text),
        (single(Tensor("INT64", [])), b"INT64", b"", wide),
        (single(Tensor("UINT64", [1])), b"UINT64", b",1", wide),
    ):
        row = wide if not shape.startswith(b",") else b"[%b]" % wide
        body = bodies[wire] % ((datatype, shape, number) if wire is Wire.V2 else row)
        with pytest.raises(InvalidInputError, match=r"expected (integers of 64 bits|U?INT64), got"):
            codec_of(method).decode(wire, JSON_HEAD, body)
    floats = single(Tensor("FP64", []))
    assert 1 == codec_of(floats).decode(Wire.PLAIN, JSON_HEAD, wide).rows
