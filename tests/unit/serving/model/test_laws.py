"""Laws over random methods, rows and bytes: from the codec through the runner and back."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_serving.codecs import Codec, RequestHead, Wire, codec_of
from batchedapi_serving.codecs.replies import ITEM
from batchedapi_serving.errors import ClientError
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.predictor import DTYPES, MethodSpec, Tensor

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=150)
HEAD = RequestHead(b"", b"", ())
NAMES = ("n", "m")
QUARTERS = [n / 4 for n in range(-400, 400)]  # exact in every type, and in any text
PATCHES = (b"[", b"]", b"{", b"}", b"null", b"true", b"1e400", b"-0", b'"', b",")


class Echo:
    """Answers its inputs, rows where they are wanted; row by row the same as in batches."""

    def __init__(self, method: MethodSpec) -> None:
        self._method = method

    def predict(self, given: Any) -> Any:
        """Same names, same values."""
        if self._method.single_input:
            return np.moveaxis(given, *self._method.batch_dim)
        return {key: np.moveaxis(x, *self._method.batch_dim) for key, x in given.items()}


@st.composite
def methods(draw: st.DrawFn) -> MethodSpec:
    """A method that answers what it gets: one tensor or several, fixed or variable."""
    shapes = st.lists(st.one_of(st.integers(1, 3), st.sampled_from(NAMES)), max_size=3)
    count = draw(st.integers(1, 3))
    tensors = {
        f"x{i}": Tensor(draw(st.sampled_from(sorted(DTYPES))), draw(shapes)) for i in range(count)
    }
    dims = st.integers(0, min(len(tensor.shape) for tensor in tensors.values()))
    single = count == 1 and draw(st.booleans())
    return MethodSpec(
        "predict",
        batched=True,
        inputs=tensors,
        single_input=single,
        outputs=tensors,
        single_output=single,
        batch_dim=(draw(dims), draw(dims)),
    )


def value_of(draw: st.DrawFn, tensor: Tensor, lengths: dict[str, int]) -> Any:
    """One row of a tensor as JSON."""
    shape = [lengths[n] if isinstance(n, str) else n for n in tensor.shape]
    dtype = np.dtype(tensor.numpy_dtype)
    if dtype.kind == "b":
        numbers: st.SearchStrategy[Any] = st.booleans()
    elif dtype.kind == "f":
        numbers = st.sampled_from(QUARTERS)
    else:
        numbers = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    size = int(np.prod(shape))
    flat = draw(st.lists(numbers, min_size=size, max_size=size))
    return np.array(flat, dtype=dtype).reshape(shape).tolist()


@st.composite
def batches(draw: st.DrawFn) -> tuple[MethodSpec, list[Any]]:
    """A method and rows for it, each with lengths of its own."""
    method = draw(methods())
    rows = []
    for _ in range(draw(st.integers(1, 5))):
        lengths = {name: draw(st.integers(1, 4)) for name in NAMES}
        row = {name: value_of(draw, t, lengths) for name, t in method.inputs.items()}
        rows.append(next(iter(row.values())) if method.single_input else row)
    return method, rows


def answers(method: MethodSpec, codec: Codec, requests: Sequence[Any]) -> list[bytes]:
    """Bodies of requests of one row each that ride in one batch."""
    decoded = [codec.decode(Wire.PLAIN, HEAD, orjson.dumps(request)) for request in requests]
    collated = codec.collate([request.payload for request in decoded])
    meta = {"method": "predict", "rows": len(decoded), **collated.meta}
    runner = BatchRunner(Echo(method), [method])
    answer, buffers = runner.run(meta, b"".join(collated.buffers))
    assert "tensors" == answer["kind"], answer
    results = codec.results(json.loads(json.dumps(answer)), b"".join(buffers))
    return [ITEM.answer(results, i, i + 1, None).body for i in range(len(decoded))]


@SETTINGS
@given(batches())
def test_batched_answers_are_those_of_one_by_one(batch: tuple[MethodSpec, list[Any]]) -> None:
    """Firsts 3.8, N17, B14: for any types, shapes and batch dimensions, padded or not."""
    method, rows = batch
    codec = codec_of(method)

    together = answers(method, codec, rows)

    assert [answers(method, codec, [row])[0] for row in rows] == together


@SETTINGS
@given(batches())
def test_what_is_padded_is_cut_back_to_what_it_was(batch: tuple[MethodSpec, list[Any]]) -> None:
    """Firsts 3.5: nobody sees another's length."""
    method, rows = batch

    echoed = answers(method, codec_of(method), rows)

    assert rows == [orjson.loads(body) for body in echoed]


@SETTINGS
@given(batches(), st.data())
def test_frames_and_joins_change_nothing(
    batch: tuple[MethodSpec, list[Any]], data: st.DataObject
) -> None:
    """N13, N22: an oversize request is put together in any web process."""
    method, rows = batch
    codec = codec_of(method)
    cut = data.draw(st.integers(0, len(rows) - 1))
    encoded = codec.from_rows(rows, "rows")
    runner = BatchRunner(Echo(method), [method])
    whole = []
    for start, stop in [(0, cut), (cut, len(rows))]:
        if start == stop:
            continue
        collated = codec.collate([codec.part(encoded.payload, start, stop)])
        meta, buffers = runner.run(
            {"method": "predict", "rows": stop - start, **collated.meta}, b"".join(collated.buffers)
        )
        meta, buffers = codec.results(meta, b"".join(buffers)).to_frame(0, stop - start)
        whole.append((codec.results(meta, b"".join(buffers)), 0, stop - start))

    (first, start, stop), *others = whole
    joined = first.joined(start, stop, others)

    bodies = [ITEM.answer(joined, i, i + 1, None).body for i in range(len(rows))]
    assert rows == [orjson.loads(body) for body in bodies]


@SETTINGS
@given(batches(), st.data())
def test_any_mutation_of_a_request_is_rows_or_the_clients_error(
    batch: tuple[MethodSpec, list[Any]], data: st.DataObject
) -> None:
    """S9, S11: no other exception comes out of a decoder, whatever came in."""
    method, rows = batch
    body = bytearray(orjson.dumps({"instances": rows}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        patch = data.draw(
            st.one_of(
                st.binary(max_size=3),
                st.sampled_from(
                    [b"[", b"]", b"{", b"}", b"null", b"true", b"1e400", b"-0", b'"', b","]
                ),
            )
        )
        body[at : at + data.draw(st.integers(0, 3))] = patch
        body = body or bytearray(b" ")
    codecs = [
        codec_of(method),
        codec_of(MethodSpec("predict", batched=True)),
        codec_of(MethodSpec("predict", batched=False)),
    ]

    for codec in codecs:
        try:
            decoded = codec.decode(Wire.PLAIN, HEAD, bytes(body))
        except ClientError:
            continue
        assert decoded.rows >= 1
        assert codec.collate([codec.part(decoded.payload, 0, 1)]).buffers


HOSTILE = [
    b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000, b"1" * 1_000_000,
    b"\xef\xbb\xbf[1]", b'"\xff"', b'{"a":1,"a":2}', b"-", b'"\\ud800"', b"[1e999]", b"NaN",
]  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: repr(body[:20]))
def test_hostile_bodies_are_refused_or_plain_json(body: bytes) -> None:
    """S9: nesting, numbers of a million digits, byte order marks, bad UTF-8."""
    codec = codec_of(
        MethodSpec("predict", batched=True, inputs={"x": Tensor("FP32", [2])}, single_input=True)
    )

    with pytest.raises(ClientError):
        codec.decode(Wire.PLAIN, HEAD, body)
