"""What users write, and what the server reads out of it."""

import json
from typing import Any

import pytest

from batchedapi_serving import ItemError, Tensor, batched
from batchedapi_serving.predictor.api import DTYPES, MethodSpec, batched_methods, method_spec


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

    attribute = 3


class Inherits(Everything):
    """Has them all."""


def test_a_bare_decorator_takes_json_items_in_batches_of_32() -> None:
    """B15: on by default when batchable."""
    assert method_spec(Everything, "bare") == MethodSpec(
        "bare", batched=True, inputs=None, outputs=None, max_batch_size=32
    )


def test_a_method_without_decorator_takes_one_request_at_a_time() -> None:
    """B13, C17: the default is not batchable."""
    assert method_spec(Everything, "plain") == MethodSpec(
        "plain", batched=False, inputs=None, outputs=None, max_batch_size=1
    )


def test_a_declaration_is_read_from_a_base_class_too() -> None:
    """Predictors are ordinary classes."""
    spec = method_spec(Inherits, "tensors")

    assert spec is not None
    assert spec.inputs is not None
    assert ("FP32", (4,), 7) == (spec.inputs.dtype, spec.inputs.shape, spec.max_batch_size)


def test_what_is_no_method_is_none() -> None:
    """An attribute neither."""
    assert method_spec(Everything, "missing") is None
    assert method_spec(Everything, "attribute") is None


def test_batched_methods_are_listed_by_name() -> None:
    """To say which are not served."""
    assert ["bare", "items", "tensors"] == batched_methods(Inherits)


@pytest.mark.parametrize("name", ["bare", "tensors", "items", "plain"])
def test_a_declaration_crosses_processes_as_json(name: str) -> None:
    """The web process never imports the user's code."""
    spec = method_spec(Everything, name)
    assert spec is not None

    received = MethodSpec.from_json(json.loads(json.dumps(spec.to_json())))

    assert spec.to_json() == received.to_json()
    assert (spec.name, spec.batched, spec.example) == (
        received.name,
        received.batched,
        received.example,
    )


def test_a_decorated_method_is_still_itself() -> None:
    """Users test their predictors without a server."""
    assert [1] == Everything().bare([1])


@pytest.mark.parametrize("size", [0, -1, 65537])
def test_a_batch_size_out_of_range_is_refused_where_it_is_written(size: int) -> None:
    """At import, with the limits."""
    with pytest.raises(ValueError, match="1 to 65536"):
        batched(max_batch_size=size)


def test_outputs_need_inputs() -> None:
    """Items are JSON on both sides."""
    with pytest.raises(ValueError, match="needs inputs"):
        batched(outputs=Tensor("FP32", [1]))


@pytest.mark.parametrize("dtype", ["float32", "fp32", "FP16", ""])
def test_an_unknown_type_names_the_known_ones(dtype: str) -> None:
    """The names are those of the Open Inference Protocol."""
    with pytest.raises(ValueError, match="expected a dtype of BOOL, UINT8"):
        Tensor(dtype, [1])


@pytest.mark.parametrize("shape", [[0], [-1, 4], [None], [1.5]])
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


@pytest.mark.parametrize("status", [200, 399, 600])
def test_an_item_error_has_the_status_of_an_error(status: int) -> None:
    """200 with a failure would be a lie."""
    with pytest.raises(ValueError, match="400 to 599"):
        ItemError(status, "x")
