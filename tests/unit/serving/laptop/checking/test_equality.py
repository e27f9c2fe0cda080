"""Whether answers depend on the company in which a row is asked; with the real codec and runner."""

import dataclasses
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import pytest

from batchedapi_serving.codecs import codec_for
from batchedapi_serving.codecs.equality import array_difference
from batchedapi_serving.errors import InvalidInputError
from batchedapi_serving.laptop.checking.__main__ import FEWEST_RUNS, time_batches
from batchedapi_serving.laptop.checking.equality import (
    AskedMethod,
    FailedError,
    Sample,
    by_shape,
    choose_samples,
    findings,
)
from batchedapi_serving.model.batch import BatchRunner
from batchedapi_serving.predictor import MethodSpec, Tensor
from batchedapi_serving.settings import BatchingSettings, MethodSettings
from protocols import padded, single

ROW = MethodSpec(
    "predict",
    batched=True,
    inputs={"input": Tensor("FP32", [4])},
    single_input=True,
    outputs={"output": Tensor("FP32", [4])},
    max_batch_size=8,
)
ITEMS = MethodSpec("predict", batched=True, max_batch_size=8, example={"id": 1})
TOKENS = MethodSpec(
    "predict",
    batched=True,
    inputs={"ids": Tensor("INT64", ["tokens"])},
    outputs={"sum": Tensor("INT64", [])},
    single_output=False,
    max_batch_size=8,
)


class Model:
    """A predictor of one function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.predict = function


def asked(
    spec: MethodSpec,
    function: Callable[[Any], Any],
    items: Sequence[Any] | None = None,
) -> tuple[AskedMethod, list[Sample]]:
    """The method and rows to ask it with."""
    settings = MethodSettings("predict", None, None, BatchingSettings())
    codec = codec_for(spec, settings, "api")
    runner = BatchRunner(Model(function), [spec])
    return AskedMethod(codec, runner.run), choose_samples(codec, items).rows


def found(
    spec: MethodSpec,
    function: Callable[[Any], Any],
    ignored: AbstractSet[str] = frozenset(),
    **how: Any,
) -> list[str]:
    """The findings about this method."""
    return findings(*asked(spec, function, **how), spec.max_batch_size, ignored)


def test_an_id_that_is_new_in_each_answer_is_left_out_by_its_name() -> None:
    """`--ignore`: an output, or a member."""
    random = np.random.default_rng()

    def tokens(inputs: Any) -> Any:
        return {"sum": random.integers(0, 1 << 40, len(inputs["ids"]))}

    def items(rows: list[Any]) -> list[Any]:
        return [{"uuid": random.random(), "row": row} for row in rows]

    assert "--ignore NAME" in found(ITEMS, items)[0]
    assert found(ITEMS, items, {"uuid"}) == []
    assert found(TOKENS, tokens) != []
    assert found(TOKENS, tokens, {"sum"}) == []


def test_a_model_that_treats_rows_alike_is_good() -> None:
    """C28: the weights do not matter, the batch does not either."""
    weights = np.random.default_rng(1).standard_normal((4, 4)).astype("f4")

    assert found(ROW, lambda x: x @ weights) == []


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x - x.mean(axis=0), "row 0 in a batch of 8"),
        (lambda x: x[::-1], "row 0 in a batch of 8"),
        (lambda x: np.where(np.arange(len(x)) < 7, x.T, np.float32(9)).T, "row 7 in a batch of 8"),
        (lambda x: x + (len(x) == 4), "in a batch of 4 is answered differently than alone"),
        (lambda x: x + np.random.default_rng().random(), "asked twice is answered differently"),
        (lambda x: x[:1], "expected 2 rows"),
        (lambda x: x.no_such, "raised AttributeError"),
    ],
    ids=["batch norm", "order", "the last row", "one size", "random", "rows", "raises"],
)  # fmt: skip
def test_a_model_that_mixes_rows_is_found(function: Callable[[Any], Any], message: str) -> None:
    """C28: in evaluation nothing warns of these, and clients get one another's answers."""
    texts = found(ROW, function)

    if "expected 2 rows" in message:
        message = "a batch of"  # the first that is not of one row
    assert any(message in text for text in texts), texts
    assert len(texts) <= 5


def test_rows_with_missing_values_are_asked_where_they_are_allowed() -> None:
    """A model that cannot take NaN after all is found before a client finds it."""
    missing = Tensor("FP32", [4], allow_non_finite=True)
    spec = dataclasses.replace(ROW, inputs={"input": missing}, outputs={"output": missing})

    def refusing(x: Any) -> Any:
        if np.isnan(x).any():
            raise ValueError("Input X contains NaN.")
        return x

    assert found(spec, lambda x: x * np.float32(2)) == []
    assert "raised ValueError" in found(spec, refusing)[0]
    assert "NaN" in found(dataclasses.replace(spec, outputs=ROW.outputs), lambda x: x)[0]
    codec = codec_for(spec, MethodSettings("predict", None, None, BatchingSettings()), "api")
    assert choose_samples(codec, None).source == "random numbers and zeros, some NaN"


def test_items_are_compared_as_json() -> None:
    """C28: with the items given; answers of one item depend on the others here."""
    items = [{"id": i} for i in range(6)]

    assert found(ITEMS, lambda batch: [{"id": i["id"], "x": 0.5} for i in batch], items=items) == []
    texts = found(ITEMS, lambda batch: [{"n": len(batch)} for _ in batch], items=items)
    assert (
        "row 0 in a batch of 6 is answered differently than alone: answer.n: expected 1" in texts[0]
    )


def test_items_the_method_does_not_take_are_refused() -> None:
    """The place is named, as a client would be told."""
    with pytest.raises(InvalidInputError, match=r"items\[1\]"):
        asked(ROW, lambda x: x, [[0, 1, 2, 3], [0, 1]])


def test_padded_batches_are_compared_too() -> None:
    """D15: zeros that count, as in a mean over the padding, are found."""
    good = found(padded(TOKENS), lambda x: {"sum": x["ids"].sum(axis=1)})
    bad = found(padded(TOKENS), lambda x: {"sum": np.full(len(x["ids"]), x["ids"].shape[1])})

    assert good == []
    assert bad[0] == (
        "row 30 in a batch of row 30 and the longer row 1 is answered differently than alone: sum:"
        " expected 3, got 8"
    )
    assert "row 0 in a batch of 8 is answered differently than alone: sum:" in bad[1]


def test_rows_that_are_padded_are_never_all_padding() -> None:
    """A model that takes the pad for no number would answer NaN to a row of nothing else."""
    spec = padded(single(Tensor("FP32", ["n"]), Tensor("FP32", [])), pad=0)
    ones = padded(single(Tensor("INT64", ["n"]), Tensor("FP32", [])), pad=1)

    def mean(x: Any, pad: float) -> Any:
        return (x * (x != pad)).sum(axis=1) / (x != pad).sum(axis=1)

    assert [] == found(spec, lambda x: mean(x, 0).astype("f4"))
    assert [] == found(ones, lambda x: mean(x, 1).astype("f4"))


def test_items_of_different_lengths_are_asked_beside_the_longest() -> None:
    """Their method pads them itself; the mistake is told of the row that it changes."""
    items = MethodSpec("predict", batched=True, max_batch_size=8)
    texts = ["abc", "a", "abcdef", "b"]

    def longest(rows: list[str]) -> list[int]:
        return [max(map(len, rows))] * len(rows)

    assert [] == found(items, lambda rows: [len(row) for row in rows], items=texts)
    wrong = [
        f"row {i} in a batch of row {i} and the longer row 2 is answered differently than alone:"
        f" answer: expected {length}, got 6"
        for i, length in ((0, 3), (3, 1))
    ]
    assert wrong == found(items, longest, items=texts)[:2]


def test_the_largest_difference_is_told() -> None:
    """By how much an answer is wrong says whether it is a mistake or a loose library."""
    expected, got = np.array([1.0, 2, 3], "f4"), np.array([1.1, 2, np.nan], "f4")

    assert "x[2]: expected 3, got nan" == array_difference("x", expected, got)
    assert "x[0]: expected 1, got 9" == array_difference("x", expected, np.array([9, 2.5, 3], "f4"))


def test_rows_of_different_shapes_never_share_a_batch() -> None:
    """D12: as the queue keeps them apart."""
    seen = []

    def predict(x: dict[str, Any]) -> dict[str, Any]:
        seen.append(x["ids"].shape)
        return {"sum": x["ids"].sum(axis=1)}

    assert found(TOKENS, predict) == []
    assert {3, 8} == {shape[1] for shape in seen}
    assert max(shape[0] for shape in seen) == 8


def test_the_largest_group_of_shapes_comes_first() -> None:
    """It is the one that is timed."""
    samples = [Sample(None, shape, 1, 1) for shape in ("a", "b", "b")]

    assert [[1, 2], [0]] == by_shape(samples)


def test_nobody_knows_what_an_undeclared_method_takes() -> None:
    """Nothing is asked rather than something wrong."""
    assert asked(MethodSpec("predict", batched=True), lambda x: x)[1] == []


def test_the_time_of_each_size_is_measured_and_fitted() -> None:
    """C28: a clock on which a batch takes 2 ms and 1 ms a row."""
    now = [0.0]

    def predict(x: Any) -> Any:
        now[0] += 0.002 + 0.001 * len(x)
        return x

    method, samples = asked(ROW, predict)
    timings, line = time_batches(method, samples, 8, clock=lambda: now[0])

    assert [1, 2, 4, 8] == [timing.rows for timing in timings]
    assert [0.003, 0.004, 0.006, 0.010] == pytest.approx([timing.seconds for timing in timings])
    assert all(timing.runs >= FEWEST_RUNS for timing in timings)
    assert line is not None
    assert (0.002, 0.001) == pytest.approx((line.fixed, line.per_row))
    assert timings[3].rows_per_second == pytest.approx(800)


def test_rows_that_cost_more_fill_a_batch_sooner() -> None:
    """B13: maxBatchSize is in the method's own unit."""
    method, samples = asked(ROW, lambda x: x)
    costly = [sample._replace(cost=3) for sample in samples]

    timings, _ = time_batches(method, costly, 8, clock=iter(range(10**6)).__next__)

    assert [1, 2] == [timing.rows for timing in timings]
    assert findings(method, costly, 8) == []


def test_a_batch_that_fails_while_it_is_timed_is_told() -> None:
    """A size that only the table reaches."""

    def predict(x: Any) -> Any:
        if len(x) == 8:
            raise MemoryError
        return x

    method, samples = asked(ROW, predict)

    with pytest.raises(FailedError, match="a batch of 8 rows"):
        time_batches(method, samples, 8)
