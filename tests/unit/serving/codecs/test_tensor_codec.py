"""Methods with a declared tensor: every form of a request and of its answer."""

import io
import json
from typing import Any

import numpy as np
import pytest

from batchedapi_core import contract
from batchedapi_serving.codecs import Answer, Codec, Form, RequestHead, codec_for
from batchedapi_serving.codecs.item_codec import ItemResults
from batchedapi_serving.codecs.tensor_codec import TensorCodec
from batchedapi_serving.errors import (
    InvalidInputError,
    MalformedError,
    PredictorError,
    UnsupportedTypeError,
)
from batchedapi_serving.model.batch import split_tensor
from batchedapi_serving.predictor.api import MethodSpec, Tensor

CODEC = TensorCodec(Tensor("FP32", [2]))
JSON_HEAD = RequestHead(b"application/json", b"", ())
NPY_HEAD = RequestHead(b"application/x-npy", b"", ())


def results_of(array: Any, codec: Codec = CODEC) -> Any:
    """The codec's reading of what a model process sends for `array`."""
    meta, parts = split_tensor(array, len(array), None)
    return codec.results(json.loads(json.dumps(meta)), b"".join(parts))


def saved(array: Any) -> bytes:
    """What numpy.save writes."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_one_json_value_is_one_row() -> None:
    """The plain form: a row in, a row out."""
    decoded = CODEC.decode(JSON_HEAD, b"[1, 2.5]")

    assert (Form.ITEM, 1) == decoded[:2]
    assert np.array([1, 2.5], "<f4").tobytes() == decoded.payload


def test_instances_are_many_rows_in_order() -> None:
    """N14: a spreadsheet in one call."""
    decoded = CODEC.decode(JSON_HEAD, b'{"instances": [[1, 2], [3, 4], [5, 6]]}')

    assert (Form.INSTANCES, 3) == decoded[:2]
    assert [1, 2, 3, 4, 5, 6] == np.frombuffer(decoded.payload, "<f4").tolist()


def test_npy_is_many_rows() -> None:
    """Without JSON in between; parameters of the content type do not matter."""
    body = saved(np.ones((3, 2), "<f4"))

    decoded = CODEC.decode(RequestHead(b"Application/X-NPY; v=1", b"", ()), body)

    assert (Form.NPY, 3) == decoded[:2]
    assert np.ones(6, "<f4").tobytes() == decoded.payload


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"[1]", "item"),
        (b'{"instances": [[1, 2], [3]]}', "instances[1]"),
        (b'{"instances": [[1, 2], [3, "x"]]}', "instances[1][1]"),
        (b'{"instances": [[1, 2], [3, true]]}', "instances[1][1]"),
        (b'{"a": 1}', "item"),
        (b"null", "item"),
    ],
)
def test_the_path_of_what_is_wrong_is_named(body: bytes, path: str) -> None:
    """A bad row never reaches a batch (422)."""
    with pytest.raises(InvalidInputError) as caught:
        CODEC.decode(JSON_HEAD, body)

    assert str(caught.value).startswith(f"{path}: expected")


def test_a_float_too_large_for_json_is_refused_not_infinite() -> None:
    """1e999 parses as Infinity in many readers."""
    with pytest.raises((MalformedError, InvalidInputError)):
        CODEC.decode(JSON_HEAD, b"[1e999, 0]")


def test_another_content_type_names_those_that_are_taken() -> None:
    """Curl -d sends a form type by default."""
    head = RequestHead(b"application/x-www-form-urlencoded", b"", ())

    with pytest.raises(UnsupportedTypeError, match=r"application/json or application/x-npy.*curl"):
        CODEC.decode(head, b"[1, 2]")


def test_each_form_is_answered_in_kind() -> None:
    """An item by a value, instances by predictions, an array by an array."""
    results = results_of(np.array([[1, 2], [3, 4], [5, 6]], "<f4"))

    item = results.answer(Form.ITEM, 1, 2)
    instances = results.answer(Form.INSTANCES, 1, 3)
    npy = results.answer(Form.NPY, 0, 2)

    assert Answer(200, b"application/json", b"[3.0,4.0]") == item
    assert {"predictions": [[3, 4], [5, 6]]} == json.loads(instances.body)
    assert contract.NPY.encode() == npy.content_type
    assert [[1, 2], [3, 4]] == np.load(io.BytesIO(npy.body)).tolist()


@pytest.mark.parametrize("form", [Form.ITEM, Form.INSTANCES, Form.NPY])
def test_a_row_of_nan_fails_its_own_request_only(form: Form) -> None:
    """One diverged row is no reason to fail its neighbours, nor to answer null."""
    results = results_of(np.array([[1, 2], [np.nan, 4], [5, 6]], "<f4"))

    failed = results.answer(form, 1, 2)

    assert failed.status == 500
    assert json.loads(failed.body)["error"]["code"] == PredictorError.code
    assert results.answer(form, 0, 1).status == results.answer(form, 2, 3).status == 200


def test_the_failed_row_is_counted_within_the_request() -> None:
    """Row numbers of the batch would be others' business."""
    results = results_of(np.array([[1, 2], [3, 4], [np.inf, 4]], "<f4"))

    assert b"for row 1" in results.answer(Form.INSTANCES, 1, 3).body


def test_parts_of_an_oversize_request_are_put_together_in_order() -> None:
    """Across batches, with the rows that are not finite at their new places."""
    first = results_of(np.array([[9, 9], [1, 2]], "<f4"))
    second = results_of(np.array([[3, 4], [9, 9]], "<f4"))
    third = results_of(np.array([[np.nan, 0]], "<f4"))

    whole = first.joined(1, 2, [(second, 0, 1)])
    broken = first.joined(1, 2, [(second, 0, 1), (third, 0, 1)])

    assert {"predictions": [[1, 2], [3, 4]]} == json.loads(whole.answer(Form.INSTANCES, 0, 2).body)
    assert b"for row 2" in broken.answer(Form.INSTANCES, 0, 3).body


def test_parts_of_different_shapes_do_not_fit() -> None:
    """A predictor whose output depends on the batch is wrong, and is told so."""
    first, second = results_of(np.ones((1, 2), "<f4")), results_of(np.ones((1, 3), "<f4"))

    with pytest.raises(PredictorError, match=r"\[2\], \[3\]"):
        first.joined(0, 1, [(second, 0, 1)])
    with pytest.raises(TypeError, match="ItemResults"):
        first.joined(0, 1, [(ItemResults((), b""), 0, 0)])


def test_a_part_is_a_range_of_rows() -> None:
    """An oversize request is cut by rows, not by bytes."""
    payload = np.arange(6, dtype="<f4").tobytes()

    assert [2, 3] == np.frombuffer(CODEC.part(payload, 1, 2), "<f4").tolist()
    assert [payload] == CODEC.collate([payload])


def test_a_method_has_the_codec_of_what_it_declares() -> None:
    """A tensor, JSON items, or whole requests."""
    tensor = MethodSpec("predict", True, Tensor("FP32", [2]), None, 32)
    items = MethodSpec("predict", True, None, None, 32)
    call = MethodSpec("predict", False, None, None, 1)

    names = [type(codec_for(method)).__name__ for method in (tensor, items, call)]

    assert ["TensorCodec", "ItemCodec", "CallCodec"] == names
