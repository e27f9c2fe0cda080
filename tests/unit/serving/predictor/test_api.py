"""The declarations that users write, as the server reads them."""

import functools
import json
import re
from typing import Any

import numpy as np
import pytest

from batchedapi_serving import ItemError, Response, SizeOf, Tensor, batched, endpoint
from batchedapi_serving.model.loading import declared_methods, method_spec
from batchedapi_serving.predictor import DTYPES, MethodSpec


class Everything:
    """One method of each kind."""

    @batched
    def bare(self, items: list[Any]) -> list[Any]:
        """Without arguments."""
        return items

    @batched(inputs=Tensor("FP32", [4]), outputs=Tensor("FP32", [3]), max_batch_size=7)
    def tensors(self, x: Any) -> Any:
        """With both tensors."""
        return x

    @batched(example={"id": 1})
    def items(self, items: list[Any]) -> list[Any]:
        """With an example."""
        return items

    def plain(self, payload: Any, query_params: Any, headers: Any) -> Any:
        """Not batched."""

    @batched(
        inputs={"ids": Tensor("INT64", ["tokens"]), "scale": Tensor("FP16", [])},
        outputs={"out": Tensor("FP32", ["tokens"])},
        batch_dim=(0, 1),
        size_of=SizeOf.length(of="tokens", per=8),
    )
    async def several(self, x: Any) -> Any:
        """With named tensors."""
        return x

    @endpoint
    async def ask(self, payload: Any, query_params: Any, headers: Any) -> Any:
        """One request at a time."""

    @batched
    def __call__(self, items: list[Any]) -> list[Any]:
        """B12: named as models name it."""
        return items

    attribute = 3


class Inherits(Everything):
    """Has them all."""


def test_a_bare_decorator_takes_json_items_in_batches_of_32() -> None:
    """B15: on by default when batchable."""
    assert method_spec(Everything, "bare") == MethodSpec("bare", batched=True, max_batch_size=32)


def test_a_method_without_decorator_takes_one_request_at_a_time() -> None:
    """B13, C17: the default is not batchable."""
    assert method_spec(Everything, "plain") == MethodSpec("plain", batched=False)


def test_a_declaration_is_read_from_a_base_class_too() -> None:
    """Predictors are ordinary classes."""
    spec = method_spec(Inherits, "tensors")

    assert spec is not None
    assert ({"input": Tensor("FP32", [4])}, 7) == (spec.inputs, spec.max_batch_size)
    assert {"output": Tensor("FP32", [3])} == spec.outputs
    assert spec.single_input
    assert spec.single_output


def test_what_is_no_method_is_none() -> None:
    """An attribute neither."""
    assert method_spec(Everything, "missing") is None
    assert method_spec(Everything, "attribute") is None


def test_call_is_a_method_only_if_it_was_written() -> None:
    """B12: every class has a __call__ of its metaclass, which is not meant."""

    class Without:
        """Has none."""

    found = method_spec(Everything, "__call__")

    assert found is not None
    assert found.batched
    assert method_spec(Without, "__call__") is None


def test_decorated_methods_are_listed_by_name() -> None:
    """C20: each is served."""
    assert ["__call__", "ask", "bare", "items", "several", "tensors"] == declared_methods(Inherits)


def test_several_tensors_are_kept_by_name() -> None:
    """And methods that answer a dict are told from those that answer an array."""
    spec = method_spec(Everything, "several")

    assert spec is not None
    assert ["ids", "scale"] == list(spec.inputs)
    assert (False, False) == (spec.single_input, spec.single_output)
    assert (("tokens",), (0, 1)) == (spec.variable, spec.batch_dim)


@pytest.mark.parametrize(("name", "is_async"), [("several", True), ("ask", True), ("bare", False)])
def test_async_methods_are_known(name: str, *, is_async: bool) -> None:
    """N10: they run on the event loop and not on a lane's thread."""
    spec = method_spec(Everything, name)

    assert spec is not None
    assert is_async == spec.is_async


def test_decorators_may_be_stacked_and_methods_static() -> None:
    """Timing decorators keep what ours left, through functools.wraps."""

    def timed(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*arguments: Any) -> Any:
            return function(*arguments)

        return wrapper

    class Stacked:
        """Wraps in both orders."""

        @timed
        @batched
        async def inner(self, items: list[Any]) -> list[Any]:
            """Ours first."""
            return items

        @staticmethod
        @batched
        def static(items: list[Any]) -> list[Any]:
            """Without self."""
            return items

    inner, static = method_spec(Stacked, "inner"), method_spec(Stacked, "static")

    assert inner is not None
    assert static is not None
    assert (True, True, True) == (inner.batched, inner.is_async, static.batched)


@pytest.mark.parametrize("name", ["bare", "tensors", "items", "plain", "several", "ask"])
def test_a_declaration_crosses_processes_as_json(name: str) -> None:
    """The web process never imports the user's code."""
    spec = method_spec(Everything, name)
    assert spec is not None

    received = MethodSpec.from_json(json.loads(json.dumps(spec.to_json())))

    assert spec == received


def test_a_decorated_method_is_still_itself() -> None:
    """Users test their predictors without a server."""
    assert [1] == Everything().bare([1])


@pytest.mark.parametrize("size", [0, -1, 65537, "8", 8.0, True])
def test_a_batch_size_out_of_range_is_refused_where_it_is_written(size: Any) -> None:
    """At import, with the limits."""
    with pytest.raises(ValueError, match="1 to 65536"):
        batched(max_batch_size=size)


def test_outputs_need_inputs() -> None:
    """Items are JSON on both sides."""
    with pytest.raises(ValueError, match="needs inputs"):
        batched(outputs=Tensor("FP32", [1]))


@pytest.mark.parametrize(
    ("dtype", "meant"),
    [
        ("float32", "FP32"),
        ("double", "FP64"),
        ("torch.float16", "FP16"),
        ("int64", "INT64"),
        ("bool", "BOOL"),
        (np.uint8, "UINT8"),
    ],
)
def test_a_type_by_another_librarys_name_is_told_ours(dtype: Any, meant: str) -> None:
    """The first thing that somebody who knows numpy writes."""
    with pytest.raises(ValueError, match=rf"; did you mean {meant}\?$"):
        Tensor(dtype, [4])


@pytest.mark.parametrize("dtype", ["float", "text", "BF16", ""])
def test_an_unknown_type_names_the_known_ones(dtype: str) -> None:
    """The names are those of the Open Inference Protocol."""
    with pytest.raises(ValueError, match=r"expected a dtype of BOOL, UINT8, .*, got '\w*'$"):
        Tensor(dtype, [1])


@pytest.mark.parametrize("shape", [[0], [-1, 4], [None], [1.5], [True], [""], "tokens"])
def test_lengths_are_known_and_positive(shape: list[Any]) -> None:
    """-1 for the batch dimension is the usual mistake."""
    with pytest.raises(ValueError, match="leave out the batch dimension"):
        Tensor("FP32", shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bytes_of_a_row_follow_from_type_and_shape(dtype: str) -> None:
    """The wire and the warm-up are cut by them."""
    width = int(DTYPES[dtype][2:])

    assert width * 6 == Tensor(dtype, [2, 3]).row_bytes
    assert width == Tensor(dtype, []).row_bytes
    assert repr(Tensor(dtype, (2,))) == f"Tensor({dtype!r}, [2])"


def test_a_name_is_a_length_that_differs_from_row_to_row() -> None:
    """Such a row has no number of bytes of its own."""
    tensor = Tensor("FP32", ["tokens", 3, "tokens", "heads"])

    assert (True, ("tokens", "heads")) == (tensor.variable, tensor.names)
    assert not Tensor("FP32", [3]).variable
    with pytest.raises(ValueError, match="without variable dimensions"):
        _ = tensor.row_bytes
    with pytest.raises(ValueError, match="without variable dimensions"):
        _ = tensor.items_per_row


@pytest.mark.parametrize(
    ("dtype", "pad"),
    [("INT8", -128), ("UINT64", 2**64 - 1), ("BOOL", True), ("BOOL", 0), ("FP16", -1.5)],
)
def test_an_input_says_what_fills_it_up(dtype: str, pad: float) -> None:
    """Across processes too; it makes another tensor of it."""
    tensor = Tensor(dtype, ["tokens"], pad=pad)
    spec = MethodSpec("predict", batched=True, inputs={"x": tensor})

    assert f"Tensor({dtype!r}, ['tokens'], pad={pad!r})" == repr(tensor)
    assert spec == MethodSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert tensor != Tensor(dtype, ["tokens"])
    assert spec.pads


@pytest.mark.parametrize(
    ("dtype", "shape", "pad"),
    [
        ("INT8", ["n"], 128), ("UINT8", ["n"], -1), ("INT64", ["n"], 0.0), ("INT64", ["n"], True),
        ("BOOL", ["n"], 2), ("FP32", ["n"], float("nan")), ("FP32", ["n"], "0"), ("FP32", [3], 0),
    ],
)  # fmt: skip
def test_a_pad_is_a_number_of_the_type_beside_a_named_length(
    dtype: str, shape: list[int | str], pad: Any
) -> None:
    """Where all rows are of one length there is nothing to fill."""
    with pytest.raises(ValueError, match=f"expected pad to be a finite number of {dtype} beside"):
        Tensor(dtype, shape, pad=pad)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"a": Tensor("INT8", ["n"], pad=0), "b": Tensor("INT8", ["n"])}, None),
        (Tensor("INT8", ["n"]), Tensor("INT8", ["n"], pad=0)),
    ],
)
def test_all_inputs_with_lengths_say_pad_or_none_does(inputs: Any, outputs: Any) -> None:
    """A batch of rows that are padded in part has no shape."""
    with pytest.raises(ValueError, match="expected pad for every input that has a named length"):
        batched(inputs=inputs, outputs=outputs)
    fine = {"a": Tensor("INT8", ["n"], pad=0), "b": Tensor("INT8", [2])}
    batched(inputs=fine, outputs=Tensor("INT8", ["n"]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_types_that_have_nan_can_allow_it(dtype: str) -> None:
    """For the others it would say nothing."""
    if not dtype.startswith("FP"):
        with pytest.raises(ValueError, match=f"for FP16, FP32 or FP64, .* got it for {dtype}"):
            Tensor(dtype, [2], allow_non_finite=True)
        return
    tensor = Tensor(dtype, [2], allow_non_finite=True)

    assert f"Tensor({dtype!r}, [2], allow_non_finite=True)" == repr(tensor)
    assert tensor != Tensor(dtype, [2])
    spec = MethodSpec("predict", batched=True, inputs={"input": tensor}, outputs={"y": tensor})
    assert spec == MethodSpec.from_json(json.loads(json.dumps(spec.to_json())))


def test_tensors_are_equal_if_type_and_shape_are() -> None:
    """Methods of all model processes are compared."""
    same = {Tensor("FP32", [2]), Tensor("FP32", (2,))}

    assert 1 == len(same)
    assert Tensor("FP32", [2]) != Tensor("FP64", [2])
    assert Tensor("FP32", [2]) != "FP32"


X, IDS = Tensor("FP32", [4]), Tensor("INT64", ["tokens"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_dim": 1}, "batch_dim: expected 0 for JSON items, got (1, 1)"),
        ({"inputs": X, "batch_dim": 2}, "batch_dim: expected at most 1 for 'input'"),
        ({"inputs": X, "outputs": Tensor("FP32", []), "batch_dim": 1}, "at most 0 for 'output'"),
        ({"inputs": X, "batch_dim": -1}, "expected an int >= 0 or a pair of them, got (-1, -1)"),
        ({"inputs": X, "batch_dim": (0, 0, 0)}, "a pair of them, got (0, 0, 0)"),
        ({"inputs": [4]}, "to be a Tensor or a mapping of names to Tensors, got [4]"),
        ({"inputs": {}}, "expected inputs to be a Tensor or a mapping"),
        ({"inputs": {"a": [1]}}, "expected inputs to be a Tensor or a mapping"),
        ({"inputs": X, "outputs": {"": X}}, "expected outputs to be a Tensor or a mapping"),
        ({"inputs": IDS, "size_of": SizeOf.length(of="x")}, "(tokens, input), got 'x'"),
        ({"inputs": IDS, "size_of": SizeOf.length()}, "(tokens, input), got None"),
        (
            {"inputs": Tensor("FP32", []), "size_of": SizeOf.length(of="input")},
            "(there is none), got 'input'",
        ),
        ({"example": float("nan")}, "expected example to be a JSON value"),
        ({"example": {"a": "\ud800"}}, "expected example to be a JSON value"),
        ({"inputs": {"a\ud800": Tensor("FP32", [4])}}, "to be a Tensor or a mapping of names"),
        ({"inputs": {"a\nb": Tensor("FP32", [4])}}, "to be a Tensor or a mapping of names"),
        ({"example": ...}, "expected example to be a JSON value"),
    ],
    ids=str,
)
def test_a_declaration_that_cannot_be_is_refused_where_it_is_written(
    arguments: dict[str, Any], message: str
) -> None:
    """B14, N16: at import, and not on the first request."""
    with pytest.raises(ValueError, match=re.escape(message)):
        batched(**arguments)


@pytest.mark.parametrize("batch_dim", [0, 1, (0, 1), (1, 0)])
def test_the_batch_dimension_is_one_or_a_pair(batch_dim: Any) -> None:
    """B14, N16: a scalar is both."""

    class Has:
        """One method."""

        @batched(inputs=X, batch_dim=batch_dim)
        def predict(self, x: Any) -> Any:
            """Rows along that dimension."""

    spec = method_spec(Has, "predict")

    assert spec is not None
    assert (batch_dim if isinstance(batch_dim, tuple) else (batch_dim, batch_dim)) == spec.batch_dim


@pytest.mark.parametrize("per", [0, -1, float("inf"), float("nan")])
def test_a_cost_is_counted_in_something(per: float) -> None:
    """A division by nothing."""
    with pytest.raises(ValueError, match="finite per > 0"):
        SizeOf.bytes(per=per)


def test_a_cost_is_rounded_up_and_never_nothing() -> None:
    """A free row would never fill a batch."""
    assert [1, 1, 2] == [SizeOf.bytes(per=10).cost(measured) for measured in (0, 10, 11)]


def test_an_item_error_can_be_sent_whatever_made_it() -> None:
    """Its status goes over a pipe as JSON: a predictor may take it from an array, or inherit."""

    class CarelessError(ItemError):
        def __init__(self) -> None:
            """Without that of ItemError."""

    assert {"status": 410, "text": "gone"} == json.loads(
        json.dumps({"status": ItemError(np.int64(410), "gone").status, "text": "gone"})  # type: ignore[arg-type]  # an array's
    )
    assert (500, "") == (CarelessError().status, CarelessError().message)


@pytest.mark.parametrize("status", [200, 399, 600])
def test_an_item_error_has_the_status_of_an_error(status: int) -> None:
    """200 with a failure would be a lie."""
    with pytest.raises(ValueError, match="400 to 599"):
        ItemError(status, "x")


def test_batchable_is_true_or_false() -> None:
    """B12: as other servers' signatures have it; anything else is a slip."""
    with pytest.raises(ValueError, match="batched: expected batchable True or False, got 'no'"):
        batched(batchable="no")  # type: ignore[call-overload]  # what the test is about


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (199, {}), (204, {}), (304, {}), (400, {}), (200, {"a b": "c"}), (200, {"": "c"}),
        (200, {"a": "b\r\nc: d"}), (200, {"a": "b\n"}), (200, {"a": "\u20ac"}), (200, {"a": 1}),
        (200, {"Content-Length": "1"}), (200, {"connection": "close"}),
    ],
)  # fmt: skip
def test_a_response_that_cannot_be_sent_is_refused_where_it_is_made(
    status: int, headers: dict[str, Any]
) -> None:
    """A line end in a header would be another answer to somebody else."""
    with pytest.raises(ValueError, match="Response: "):
        Response("x", status, headers)


def test_a_response_keeps_what_it_was_given() -> None:
    """Names in lower case, as they are sent."""
    response = Response({"a": 1}, 201, {"Cache-Control": "no-store"})

    found = (response.content, response.status, response.headers)
    assert ({"a": 1}, 201, {"cache-control": "no-store"}) == found
