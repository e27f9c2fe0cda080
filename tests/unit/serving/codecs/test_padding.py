"""Padding multiplies memory: a bound that holds whatever lengths clients send."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core import contract
from batchedapi_core.batching import SizeUnit, padding_class
from batchedapi_serving.codecs import RequestHead, Wire, codec_for
from batchedapi_serving.codecs.named_codec import FREE_BYTES, freely_padded
from batchedapi_serving.predictor import Tensor
from batchedapi_serving.settings import BatchingSettings, MethodSettings
from protocols import named, padded, single

IMAGES = single(Tensor("FP32", ["height", "width", 3]))
TOKENS = named({"ids": Tensor("INT64", ["tokens"]), "mask": Tensor("UINT8", ["tokens"])}, {})
HEAD = RequestHead(b"", b"", ())


@pytest.mark.parametrize(
    ("most_rows", "tokens", "side"), [(1, 8388608, 2048), (64, 131072, 256), (2048, 4096, 64)]
)
def test_lengths_that_are_usual_are_padded_freely(most_rows: int, tokens: int, side: int) -> None:
    """128 MiB / rows / 9 bytes a token, or 12 bytes a pixel; the power of two below."""
    assert tokens == freely_padded(TOKENS, most_rows)
    assert side == freely_padded(IMAGES, most_rows)


def test_a_row_that_is_large_whatever_its_lengths_is_padded_with_its_like() -> None:
    """The fixed part alone may be above the bound."""
    wide = single(Tensor("FP64", ["n", 1 << 20]))

    assert freely_padded(wide, 64) == 1


@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.integers(1, 100_000), st.integers(1, 100_000)), min_size=1, max_size=64)
)
def test_no_batch_is_larger_than_what_is_free_or_four_times_what_was_sent(
    rows: list[tuple[int, int]],
) -> None:
    """The law of the bound, for two variable dimensions and every class that rows fall into."""
    free = freely_padded(IMAGES, 64)
    classes: dict[object, list[tuple[int, int]]] = {}
    for row in rows:
        classes.setdefault(padding_class(row, free), []).append(row)

    for alike in classes.values():
        batch = 12 * len(alike) * math.prod(max(lengths) for lengths in zip(*alike, strict=True))
        assert batch <= max(FREE_BYTES, 4 * 12 * sum(h * w for h, w in alike))


def test_one_long_row_does_not_make_its_batch_long() -> None:
    """Together they were 2 rows of 300 x 300; a tall and a wide one of 30000 would be 21 GB."""
    batching = BatchingSettings(max_batch_size=64)
    codec = codec_for(padded(IMAGES), MethodSettings("predict", None, None, batching), "api")
    tall, wide, small = ([[[0] * 3] * w] * h for h, w in ((300, 1), (1, 300), (2, 2)))

    decoded = codec.decode(
        Wire.PLAIN, HEAD, json.dumps({"instances": [tall, wide, small]}).encode()
    )

    assert decoded.shapes is not None
    assert [(9, 0), (0, 9), None] == [padding_class(s, codec.pads_to) for s in decoded.shapes]


@pytest.mark.parametrize(("unit", "free"), [(SizeUnit.ROWS, True), (SizeUnit.REQUESTS, False)])
def test_the_bound_is_of_rows_and_not_of_requests(unit: SizeUnit, *, free: bool) -> None:
    """64 requests may have as many rows as each may have."""
    batching = BatchingSettings(max_batch_size=64, size_unit=unit)
    codec = codec_for(padded(TOKENS), MethodSettings("predict", None, None, batching), "api")

    assert free == (codec.pads_to >= 1000)
    assert freely_padded(TOKENS, 64 * contract.MAX_BATCH_SIZE_LIMIT) < 1000
