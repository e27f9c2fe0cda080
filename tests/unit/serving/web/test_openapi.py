"""What /docs says of the routes: true, and with an example that the method takes."""

from typing import Any

import orjson
import pytest
from fastapi import FastAPI

from batchedapi_core import contract
from batchedapi_serving import Tensor
from batchedapi_serving.codecs import RequestHead, codec_for
from batchedapi_serving.predictor.api import DTYPES, MethodSpec
from batchedapi_serving.web.gateway import prediction_paths
from batchedapi_serving.web.openapi import document_predictions, example_of
from dispatching import World


def method(inputs: Tensor | None = None, example: Any = None) -> MethodSpec:
    """A batched method that declares so much."""
    return MethodSpec("predict", True, inputs, None, 32, example)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [[], [2], [2, 3]], ids=str)
def test_the_example_of_a_tensor_is_one_that_it_takes(dtype: str, shape: list[int]) -> None:
    """Who tries it must not get 422."""
    spec = method(Tensor(dtype, shape))

    decoded = codec_for(spec).decode(RequestHead(b"", b"", ()), orjson.dumps(example_of(spec)))

    assert decoded.rows == 1


def test_items_show_the_example_that_the_method_gives() -> None:
    """And an empty object when nobody knows."""
    assert {"id": 1} == example_of(method(example={"id": 1}))
    assert {} == example_of(method()) == example_of(None)


@pytest.mark.looptime
async def test_the_schema_is_completed_once_the_method_is_known() -> None:
    """Before that it describes the routes without their rows."""
    world = World(lanes=0)
    app = FastAPI()
    document_predictions(app, world.dispatcher, prediction_paths("/api"))

    before = app.openapi()
    world.method = method(Tensor("FP32", [2]))
    world.start_lane()
    after = app.openapi()

    assert {"/predict", "/api", "/api/predict"} == set(before["paths"]) == set(after["paths"])
    content = after["paths"]["/predict"]["post"]["requestBody"]["content"]
    row = content[contract.JSON]["schema"]["anyOf"][1]
    assert (2, 2, "number") == (row["minItems"], row["maxItems"], row["items"]["type"])
    assert contract.NPY in content
    assert contract.NPY not in before["paths"]["/predict"]["post"]["requestBody"]["content"]
    documented = {int(status) for status in after["paths"]["/predict"]["post"]["responses"]}
    assert documented <= set(contract.STATUS_CODES)
    assert {200, 422, 429, 503, 504} <= documented
