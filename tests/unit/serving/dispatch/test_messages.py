"""Messages between web processes are read as they were meant."""

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_serving import errors
from batchedapi_serving.codecs import Receipt
from batchedapi_serving.codecs.named_codec import Row
from batchedapi_serving.codecs.results import read_results, status_of
from batchedapi_serving.dispatch.messages import (
    error_meta,
    error_of,
    hashable,
    pack_payload,
    receipt_meta,
    receipt_of,
    unpack_payload,
)
from batchedapi_serving.ipc import BrokenFrameError, FrameReader, encode_frame
from batchedapi_serving.predictor import MethodSpec

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=200)
BYTES = st.binary(max_size=30)
ROWS = st.integers(1, 3).flatmap(
    lambda inputs: st.lists(
        st.builds(
            Row,
            st.lists(st.integers(1, 9), max_size=2).map(tuple),
            st.tuples(*[BYTES] * inputs),
        ),
        max_size=5,
    )
)
PAYLOADS = BYTES | ROWS | st.lists(BYTES | st.tuples(BYTES, BYTES), max_size=5)
SHAPES = st.recursive(
    st.integers(0, 1 << 40) | st.text(max_size=3) | st.none(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


def across(form: object, buffers: list[bytes]) -> tuple[Any, bytes]:
    """The same after a trip over the wire."""
    (frame,) = FrameReader().feed(encode_frame({"form": form}, buffers))
    return frame.meta["form"], frame.payload


@SETTINGS
@given(PAYLOADS)
def test_a_payload_is_the_same_on_the_other_side(payload: object) -> None:
    """D05: a codec there must not see which process decoded the request; types included."""
    form, buffers = pack_payload(payload)

    unpacked = unpack_payload(*across(form, buffers))

    assert payload == unpacked
    assert repr(payload) == repr(unpacked)  # a Row equals a plain tuple, and is none


@SETTINGS
@given(SHAPES)
def test_a_shape_is_the_same_on_the_other_side(shape: Hashable) -> None:
    """C20: rows of one shape share a batch whichever process they came through."""
    (read, _) = across(shape, [])

    assert shape == hashable(read)
    assert hash(shape) == hash(hashable(read))


@pytest.mark.parametrize(
    ("form", "data"),
    [(3, b"ab"), (1, b"ab"), ([1, 1], b"abc"), ({"what": 1}, b""), ("x", b"")],
    ids=["too few", "too many", "too many in a list", "unknown", "text"],
)
def test_a_payload_that_does_not_fit_its_form_breaks_the_connection(
    form: object, data: bytes
) -> None:
    """Rows of one client must never be cut out of another's bytes."""
    with pytest.raises(BrokenFrameError):
        unpack_payload(form, data)


def test_a_payload_of_something_else_is_refused() -> None:
    """A codec with a new kind of payload is to fail in its first test, not on a wire."""
    with pytest.raises(TypeError, match="got dict"):
        pack_payload({"a": b""})


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidInputError("item: expected 4 numbers, got 3"),
        errors.NoSuchRouteError("no method"),
        errors.QueueFullError("full", 7.2),
        errors.LateError("late", 2),
        errors.NotReadyError("loading"),
        errors.DeadlineExceededError("no answer within 1 s"),
        errors.PredictorError("the predictor raised ValueError"),
        errors.ServingError("?"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_on_the_other_side(error: errors.ServingError) -> None:
    """A client's 429 and its Retry-After do not depend on the process that took the request."""
    (read, _) = across(error_meta(error), [])

    again = error_of(read)

    assert (type(error), str(error), error.status, error.code) == (
        type(again), str(again), again.status, again.code,
    )  # fmt: skip
    assert getattr(error, "retry_after", None) == getattr(again, "retry_after", None)


def test_a_receipt_is_the_same_on_the_other_side() -> None:
    """F8: receipts look alike whichever process answers."""
    receipt = Receipt("b-1", 8, 3, 2, 0.001, 0.02, "size", "replica-0", 1)

    (read, _) = across(receipt_meta(receipt), [])

    assert receipt == receipt_of(read)
    assert receipt_of(receipt_meta(None)) is None


@pytest.mark.parametrize(
    ("status", "meta"),
    [
        (200, {"kind": "tensors", "outputs": [], "not_finite": []}),
        (500, {"kind": "tensors", "outputs": [], "not_finite": [1]}),
        (200, {"kind": "items", "items": [[200, "json", 0], [200, "json", 0]]}),
        (422, {"kind": "items", "items": [[200, "json", 0], [422, "json", 0], [500, "json", 0]]}),
    ],
    ids=["tensors", "not finite", "items", "failed item"],
)
def test_a_forwarded_answer_counts_with_the_status_its_client_sees(
    status: int, meta: dict[str, object]
) -> None:
    """The process with the queue counts it, before it is written."""
    results = read_results(MethodSpec("predict", batched=True), meta, b"")

    assert status == status_of(results, 0, 3)
