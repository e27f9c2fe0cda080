"""Arrays that a method answered: every check between its mistakes and other people's answers."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from batchedapi_serving import Tensor
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.model.marshalling import TensorSplitter, split_items, split_tensors
from batchedapi_serving.predictor import MethodSpec
from protocols import named, single

TENSOR = single(Tensor("FP32", [2]), Tensor("FP32", [1]))
ANY = single(Tensor("FP32", [2]))
TOKENS = named(
    {"ids": Tensor("INT64", ["tokens"])},
    {"scores": Tensor("FP32", ["tokens"]), "boxes": Tensor("FP32", ["found", 4])},
)


class Labelled(NamedTuple):
    """An answer of two fields."""

    scores: object
    labels: object


def refusal(method: MethodSpec, answer: Any, rows: int = 2, **lengths: list[int]) -> str:
    """The message with which an answer is refused."""
    with pytest.raises(PredictorError) as caught:
        split_tensors(method, answer, rows, lengths)
    return str(caught.value)


@pytest.mark.parametrize("shape", [(3, 1), (1, 1), (2,), (2, 2), (), (2, 1, 1)], ids=str)
def test_an_array_of_another_shape_fails_the_batch(shape: tuple[int, ...]) -> None:
    """Checked on every batch, because some models drop or add rows only sometimes."""
    assert refusal(TENSOR, np.zeros(shape)).startswith("expected")


@pytest.mark.parametrize("answer", [None, "text", [[1], [2, 3]], [["a"], ["b"]], ...], ids=str)
def test_what_is_no_array_of_numbers_fails_the_batch(answer: object) -> None:
    """With the type that came."""
    assert refusal(TENSOR, answer).startswith("expected")


@pytest.mark.parametrize("dtype", ["<U3", "O", "<c8", "<M8[s]"])
def test_an_undeclared_output_must_still_be_numbers(dtype: str) -> None:
    """Anything else has no JSON that a client could expect."""
    with pytest.raises(PredictorError, match="expected numbers"):
        split_tensors(ANY, np.zeros((2, 1), dtype=dtype), 2)


def test_rows_that_are_not_finite_are_listed() -> None:
    """They fail alone."""
    array = np.array([[1, 2], [np.nan, 1], [1, 1], [1, -np.inf]])

    meta, _ = split_tensors(ANY, array, 4)

    assert [1, 3] == meta["not_finite"]


@pytest.mark.parametrize("dtype", [">f4", ">i8", "<f2", "<u2", "|b1"])
def test_numbers_are_sent_little_endian(dtype: str) -> None:
    """The other side writes them as JSON, which of big-endian arrays it cannot."""
    array = np.array([[1], [0]], dtype=dtype)

    meta, (data,) = split_tensors(ANY, array, 2)

    ((_, sent, _),) = meta["outputs"]
    assert not sent.startswith(">")
    assert [[1], [0]] == np.frombuffer(data, sent).reshape(2, 1).tolist()


def test_a_transposed_array_is_sent_in_c_order() -> None:
    """Its memory is not the order of its rows."""
    _, (data,) = split_tensors(ANY, np.arange(6, dtype="<f4").reshape(3, 2).T, 2)

    assert [0, 2, 4, 1, 3, 5] == np.frombuffer(data, "<f4").tolist()


def test_a_wrong_number_of_rows_says_which_came_and_where() -> None:
    """C19, S4: shifted rows would be other people's answers."""
    assert refusal(TENSOR, np.zeros((3, 1))) == (
        "expected 2 rows, got an answer of shape [3, 1]; the first dimension must have one for each"
        " row of the input"
    )


@pytest.mark.parametrize(
    ("dtype", "answer"),
    [("INT64", [[1.5], [2.0]]), ("BOOL", [[1], [0]]), ("UINT8", [["1"], ["2"]])],
)
def test_values_of_another_kind_are_not_cast(dtype: str, answer: Any) -> None:
    """Fractions would be cut off without a word."""
    message = refusal(single(Tensor("FP32", [1]), Tensor(dtype, [1])), answer)

    assert message.startswith(f"expected {dtype} values, got an array of")


def test_values_out_of_range_fail_instead_of_wrapping_around() -> None:
    """300 as UINT8 would be 44; a float becomes Infinity, which fails its row alone."""
    integers = single(Tensor("FP32", [1]), Tensor("INT8", [1]))
    halves = single(Tensor("FP32", [1]), Tensor("FP16", [1]))

    assert "got one out of range" in refusal(integers, np.array([[1], [300]]))
    assert [1] == split_tensors(halves, np.array([[1], [1e6]]), 2)[0]["not_finite"]


def test_a_named_tuple_is_no_list_of_rows() -> None:
    """A named tuple, as torch.max answers, may have as many fields as there are rows."""
    answer = Labelled(np.array([[0.5], [0.6]]), np.array([[1.0], [2.0]]))

    assert refusal(ANY, answer) == "expected one array, got Labelled, a named tuple"
    with pytest.raises(PredictorError, match="expected a list of 2 answers, got Labelled"):
        split_items(answer, {"rows": 2})


def test_masked_values_are_no_numbers() -> None:
    """The values below the mask would be answered; an array with none masked is fine."""
    masked = np.ma.array([[1.0], [2.0]], mask=[[True], [False]])

    assert refusal(ANY, masked) == "expected numbers, got masked values; fill them"
    assert [] == split_tensors(ANY, np.ma.array([[1.0], [2.0]]), 2)[0]["not_finite"]


def test_rows_that_are_not_finite_are_told_in_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The owner of a predictor reads the log, and not its clients' answers."""
    with caplog.at_level("ERROR"):
        split_tensors(ANY, np.array([[np.nan], [1], [np.inf]]), 3)

    (line,) = caplog.records
    told = vars(line)
    assert ("wrong answer", 2, 3) == (line.message, told["wrong"], told["rows"])


def test_integers_of_any_width_and_sign_are_cast_if_they_fit() -> None:
    """Argmax gives int64, whatever is declared."""
    method = single(Tensor("FP32", [1]), Tensor("UINT8", []))

    _, (data,) = split_tensors(method, [3, 255], 2)

    assert bytes([3, 255]) == data
    assert refusal(method, [3, -1]) == "expected UINT8 values, got one out of range"


def test_what_is_declared_is_what_is_sent() -> None:
    """FP16 and INT32 from numpy's defaults."""
    method = named({"a": Tensor("FP32", [])}, {"h": Tensor("FP16", []), "i": Tensor("INT32", [2])})

    meta, (halves, integers) = split_tensors(method, {"i": [[1, 2]], "h": np.array([0.5])}, 1)

    assert [["h", "<f2", [1]], ["i", "<i4", [1, 2]]] == meta["outputs"]
    assert (b"\x008", 8) == (halves, len(integers))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.zeros((1, 2)), "expected a dict of scores, boxes, got ndarray"),
        ({"scores": 1}, "expected a dict of scores, boxes, got one of scores"),
        ({}, "expected a dict of scores, boxes, got one of nothing"),
        ({"scores": 1, "boxes": 1, "x": 1}, "expected a dict of scores, boxes, got one of scores,"),
        (
            {"scores": [1, 2], "boxes": 1},
            "output 'boxes': expected an array with rows, got int of shape []",
        ),
    ],
    ids=str,
)
def test_named_outputs_are_all_there(answer: Any, message: str) -> None:
    """S4: a missing one is named."""
    answer = answer if not isinstance(answer, dict) or "scores" not in answer else {
        **answer, "scores": np.zeros((1, 2))
    }  # fmt: skip

    assert refusal(TOKENS, answer, rows=1, tokens=[2]).startswith(message)


def test_a_dict_for_one_array_says_what_to_declare() -> None:
    """Its names would be lost."""
    assert refusal(ANY, {"a": 1}) == (
        "expected one array, got a dict of a; declare outputs={...} to answer several"
    )


def test_a_named_dimension_of_the_answer_is_as_long_as_that_of_the_input() -> None:
    """Else it could not be cut back; a name of its own may have any length."""
    boxes = np.zeros((2, 7, 4))

    meta, _ = split_tensors(
        TOKENS, {"scores": np.zeros((2, 3)), "boxes": boxes}, 2, {"tokens": [3, 1]}
    )

    assert {"tokens": [3, 1]} == meta["lengths"]
    assert refusal(TOKENS, {"scores": np.zeros((2, 4)), "boxes": boxes}, tokens=[3, 1]).startswith(
        "output 'scores': expected rows of shape ['tokens']"
    )


def test_nan_in_the_padding_is_nobodys() -> None:
    """A softmax over nothing; the row's own numbers are fine."""
    scores = np.array([[1, 2, 3], [4, np.nan, np.nan], [np.inf, 1, 1]])

    meta, _ = split_tensors(
        TOKENS, {"scores": scores, "boxes": np.zeros((3, 1, 4))}, 3, {"tokens": [3, 1, 2]}
    )

    assert [2] == meta["not_finite"]


@pytest.mark.parametrize("batch_dim", [(0, 0), (1, 0), (1, 1), (0, 1)])
def test_rows_lie_along_the_dimension_that_is_declared(batch_dim: tuple[int, int]) -> None:
    """B14, N17: on the wire they come first."""
    method = MethodSpec(
        "predict", batched=True, inputs=ANY.inputs, single_input=True, batch_dim=batch_dim
    )
    rows = np.arange(6, dtype="<f4").reshape(3, 2)

    meta, (data,) = split_tensors(method, np.moveaxis(rows, 0, batch_dim[1]), 3)

    assert [["output", "<f4", [3, 2]]] == meta["outputs"]
    assert rows.tobytes() == data


def test_too_few_dimensions_for_the_batch_dimension_are_refused() -> None:
    """With the word to look for."""
    method = MethodSpec("predict", batched=True, inputs=ANY.inputs, batch_dim=(0, 1))

    assert "dimension 1 (batch_dim) must have one for each row" in refusal(method, [1, 2])


@pytest.mark.parametrize(
    "answer",
    [
        np.array([[1], [2]], "<f4"),
        np.array([[1], [2]], ">f4"),
        np.array([[1], [2]], "<f8"),
        np.array([[1], [np.nan]], "<f4"),
        np.array([[9, 1], [9, 2]], "<f4")[:, 1:],
        [[1], [2]],
    ],
    ids=["usual", "big endian", "wider", "not finite", "sliced", "a list"],
)
def test_the_shortcut_for_the_usual_answer_frames_it_as_the_long_way_does(answer: Any) -> None:
    """It leaves out checks, and must do so only where they cannot fail."""
    assert split_tensors(TENSOR, answer, 2) == _framed(TENSOR, answer)


@pytest.mark.parametrize("method", [TENSOR, ANY, TOKENS], ids=["declared", "undeclared", "named"])
def test_the_shortcut_lets_nothing_pass_that_the_long_way_refuses(method: MethodSpec) -> None:
    """A row too many would be another client's answer."""
    with pytest.raises(PredictorError):
        _framed(method, np.zeros((3, 1), "<f4"))


def _framed(method: MethodSpec, answer: Any) -> tuple[Any, list[bytes]]:
    meta, buffers = TensorSplitter(method).split(answer, {"method": method.name, "rows": 2})
    return meta, list(buffers)
