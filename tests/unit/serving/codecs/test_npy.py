""".npy bodies: what numpy.save writes is taken, and nothing else is trusted."""

import io
import pickle
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_serving.codecs.arrays import decode_npy, encode_npy
from batchedapi_serving.errors import ClientError, InvalidInputError, MalformedError
from batchedapi_serving.predictor import DTYPES, Tensor

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=200)
FP32 = Tensor("FP32", [4])


def saved(array: Any, *, allow_pickle: bool = False) -> bytes:
    """The bytes that numpy.save writes."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=allow_pickle)
    return stream.getvalue()


def with_header(header: str, data: bytes = b"") -> bytes:
    """A .npy 1.0 file with that header, whatever it says."""
    text = header.encode("latin-1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [[], [3], [2, 3]], ids=str)
def test_an_array_comes_out_as_it_went_in(dtype: str, shape: list[int]) -> None:
    """For every type and rank a tensor can have."""
    array = (np.arange(2 * int(np.prod(shape))) % 2).reshape(2, *shape).astype(DTYPES[dtype])

    decoded = decode_npy(saved(array), Tensor(dtype, shape))

    assert len(decoded) == 2
    assert array.tobytes() == decoded.tobytes()
    assert np.array_equal(array, np.load(io.BytesIO(encode_npy(array))))


def test_fortran_order_is_put_right() -> None:
    """numpy.save keeps the order of a transposed array; as C order it is shuffled."""
    array = np.asfortranarray(np.arange(8, dtype="<f4").reshape(2, 4))

    payload = decode_npy(saved(array), FP32).tobytes()

    assert np.ascontiguousarray(array).tobytes() == payload


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<f2", "<i4", "|u1"])
def test_types_of_the_same_kind_or_narrower_are_cast(dtype: str) -> None:
    """Numpy's default is float64, and nobody should have to convert it by hand."""
    array = np.array([[1, 2, 3, 4]], dtype=dtype)

    payload = decode_npy(saved(array), FP32).tobytes()

    assert array.astype("<f4").tobytes() == payload


@pytest.mark.parametrize("dtype", ["<c8", "<U4", "|S4", "<M8[s]"])
def test_types_of_another_kind_are_refused(dtype: str) -> None:
    """A cast would lose what the client meant."""
    with pytest.raises(InvalidInputError, match="expected FP32 or narrower"):
        decode_npy(saved(np.zeros((1, 4), dtype=dtype)), FP32)


def test_floats_are_not_cast_to_integers() -> None:
    """The fractions would be lost."""
    with pytest.raises(InvalidInputError, match="expected INT64 or narrower"):
        decode_npy(saved(np.zeros((1, 4))), Tensor("INT64", [4]))


@pytest.mark.parametrize(("dtype", "value"), [("<i8", 300), ("<i8", -1), ("<u8", 2**63)])
def test_integers_out_of_range_do_not_wrap_around(dtype: str, value: int) -> None:
    """300 as UINT8 would be 44, with status 200."""
    array = np.array([[0, 0, 0, value]], dtype=dtype)
    narrow = Tensor("INT8" if dtype == "<i8" else "INT64", [4])

    if value == -1:
        assert [0, 0, 0, -1] == decode_npy(saved(array), narrow)[0].tolist()
        return
    with pytest.raises(InvalidInputError, match="out of range"):
        decode_npy(saved(array), narrow)


def test_a_named_dimension_takes_any_length_but_none() -> None:
    """All rows of one array have the same."""
    words = Tensor("FP32", ["words", 2])

    assert (3, 5, 2) == decode_npy(saved(np.zeros((3, 5, 2), "<f4")), words).shape
    with pytest.raises(InvalidInputError, match=r"expected shape \(rows, words, 2\), got"):
        decode_npy(saved(np.zeros((3, 0, 2), "<f4")), words)
    with pytest.raises(InvalidInputError, match=r"expected shape \(rows, words=5, 2\), got"):
        decode_npy(saved(np.zeros((3, 5, 3), "<f4")), words)


def test_a_value_that_overflows_in_the_cast_is_refused() -> None:
    """1e39 is a fine float64 and Infinity as a float32."""
    with pytest.raises(InvalidInputError, match="finite"):
        decode_npy(saved(np.array([[0, 0, 0, 1e39]])), FP32)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    """JSON cannot carry them, and one row must not poison a batch."""
    with pytest.raises(InvalidInputError, match="got NaN or Infinity"):
        decode_npy(saved(np.array([[0, 0, 0, value]], dtype="<f4")), FP32)


@pytest.mark.parametrize("shape", [(4,), (1, 3), (1, 4, 1), (0, 4), ()])
def test_a_wrong_shape_is_named(shape: tuple[int, ...]) -> None:
    """A single row without its batch dimension is the usual mistake."""
    with pytest.raises(InvalidInputError, match=r"array: expected (shape \(rows, 4\)|at least)"):
        decode_npy(saved(np.zeros(shape, "<f4")), FP32)


class Dangerous:
    """Would run a command when unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('unpickled')",)


def test_pickles_are_never_read() -> None:
    """An object array is a pickle, which is a program."""
    array = np.empty((1, 4), dtype=object)
    array[:] = Dangerous()

    with pytest.raises(InvalidInputError, match="dtype object"):
        decode_npy(saved(array, allow_pickle=True), FP32)
    with pytest.raises(MalformedError):
        decode_npy(pickle.dumps(Dangerous()), FP32)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 4)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4)}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (1, 4)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4,,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 0, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4)}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (1, 4), }",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4), 'more': 1}",
        "{'descr': 'f4,(2,2)f4', 'fortran_order': False, 'shape': (1, 4), }",
        "{'descr': '<z9', 'fortran_order': False, 'shape': (1, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 9000 + ", 4), }",
        "__import__('os').abort()",
        "[" * 5000,
        "{'shape': " + "(" * 3000,
        "\x00\xff",
        "",
    ],
    ids=lambda header: header[:40],
)
def test_hostile_headers_are_refused_without_believing_their_sizes(header: str) -> None:
    """Nothing of them may allocate, run or crash."""
    with pytest.raises(ClientError):
        decode_npy(with_header(header + "\n"), FP32)


@pytest.mark.parametrize("version", [b"\x02\x00", b"\x03\x00", b"\x09\x00"])
def test_a_file_of_another_version_is_read_or_refused_but_never_crashes(version: bytes) -> None:
    """2.0 differs in the width of one length; 3.0 only matters for names of fields."""
    body = saved(np.zeros((1, 4), "<f4"))

    with pytest.raises(ClientError):
        decode_npy(body[:6] + version + body[8:], FP32)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4), }   \n",
        "{'shape':(1,4,),'fortran_order':False,'descr':'<f4'}",
        "{ 'fortran_order' : False , 'descr' : '<f4' , 'shape' : ( 1 , 4 ) }\n",
    ],
)
def test_any_order_and_spacing_of_a_header_is_read(header: str) -> None:
    """Other libraries write .npy too, each in its own way."""
    data = np.arange(4, dtype="<f4").tobytes()

    assert [[0, 1, 2, 3]] == decode_npy(with_header(header, data), FP32).tolist()


def test_version_two_is_read() -> None:
    """Numpy writes it for long headers."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.ones((1, 4), "<f4"), version=(2, 0))

    assert len(decode_npy(stream.getvalue(), FP32)) == 1


@SETTINGS
@given(st.data())
def test_a_truncated_or_longer_file_is_malformed(data: st.DataObject) -> None:
    """A connection that broke off must not become a shorter array."""
    body = saved(np.ones((2, 4), "<f4"))
    cut = data.draw(st.integers(0, len(body) - 1))

    with pytest.raises(ClientError):
        decode_npy(body[:cut], FP32)
    with pytest.raises(ClientError):
        decode_npy(body + b"x" * (cut + 1), FP32)


@SETTINGS
@given(st.binary(max_size=200))
def test_any_bytes_are_either_rows_or_the_clients_error(body: bytes) -> None:
    """Anybody can send anything; no other exception may come out."""
    for prefix in (b"", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x01\x00\x10\x00{"):
        with pytest.raises(ClientError):
            decode_npy(prefix + body, FP32)
