"""Metadata of the server and its methods in the Open Inference Protocol."""

from importlib.metadata import version

import pytest

from batchedapi_serving.codecs.open_inference_metadata import (
    method_of_model,
    model_metadata,
    model_name,
    server_metadata,
)
from batchedapi_serving.errors import NoSuchRouteError
from batchedapi_serving.predictor import Tensor
from protocols import IRIS, ITEMS, PAIRS, single


def test_the_server_says_that_it_takes_raw_tensors() -> None:
    """Clients look for the extension by this name before they send any."""
    expected = {
        "name": "batchedapi",
        "version": version("batchedapi"),
        "extensions": ["binary_tensor_data", "model_configuration", "statistics"],
    }

    assert expected == server_metadata()


def test_named_tensors_are_listed_with_the_batch_first() -> None:
    """-1 is what may differ from request to request."""
    expected = {
        "name": "iris",
        "versions": ["1"],
        "platform": "python",
        "inputs": [
            {"name": "ids", "datatype": "INT64", "shape": [-1, 2]},
            {"name": "weights", "datatype": "FP32", "shape": [-1]},
        ],
        "outputs": [
            {"name": "sum", "datatype": "FP32", "shape": [-1]},
            {"name": "scaled", "datatype": "FP32", "shape": [-1, 2]},
        ],
    }

    assert expected == model_metadata("iris", PAIRS)


def test_variable_dimensions_are_unknown_lengths() -> None:
    """Their names are the predictor's own."""
    method = single(Tensor("INT64", ["tokens", 2]))

    assert [-1, -1, 2] == model_metadata("iris", method)["inputs"][0]["shape"]


def test_a_single_tensor_is_called_input_and_output() -> None:
    """It has no name of its own."""
    document = model_metadata("iris", IRIS)

    assert [{"name": "input", "datatype": "FP32", "shape": [-1, 4]}] == document["inputs"]
    assert [{"name": "output", "datatype": "FP32", "shape": [-1, 3]}] == document["outputs"]


def test_items_are_strings_to_the_protocol() -> None:
    """BYTES in and out, one element a row."""
    document = model_metadata("iris", ITEMS)

    assert [{"name": "input", "datatype": "BYTES", "shape": [-1]}] == document["inputs"]
    assert [{"name": "output", "datatype": "BYTES", "shape": [-1]}] == document["outputs"]


def test_outputs_that_are_not_declared_are_not_made_up() -> None:
    """Nothing is known of them before the first answer."""
    assert [] == model_metadata("iris", single(Tensor("FP32", [4])))["outputs"]


@pytest.mark.parametrize(
    ("model", "method"),
    [("my.api", None), ("my.api.predict", "predict"), ("my.api.embed", "embed")],
)
def test_a_model_is_a_method(model: str, method: str | None) -> None:
    """N25: the API's own name is its default method; names of APIs may have dots."""
    assert method == method_of_model("my.api", model)
    assert method == method_of_model("my.api", model, "1")


def test_a_model_is_called_as_it_is_asked_for() -> None:
    """The default method has the API's name."""
    assert ("iris", "iris.embed") == (model_name("iris", "predict"), model_name("iris", "embed"))


@pytest.mark.parametrize("model", ["", "other", "iris.", ".predict", "other.predict", "iris/x"])
def test_another_model_is_not_found(model: str) -> None:
    """404 says what there is."""
    with pytest.raises(NoSuchRouteError, match=r"there is iris, and iris\.METHOD"):
        method_of_model("iris", model)


def test_another_version_is_not_found() -> None:
    """A replica has one."""
    with pytest.raises(NoSuchRouteError, match="no version '2' of model 'iris': there is 1"):
        method_of_model("iris", "iris", "2")
