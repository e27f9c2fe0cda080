"""The routes in /docs: described truly, with an example that the method takes."""

from typing import Any

import orjson
import pytest
from fastapi import FastAPI

from batchedapi_core import contract
from batchedapi_core.batching import Receipts
from batchedapi_serving.codecs import RequestHead, Wire, codec_for
from batchedapi_serving.predictor import DTYPES, MethodSpec, Tensor
from batchedapi_serving.web.openapi import document_routes, example_of, infer_example
from connections import PREDICT, FakeMethod, Server, web_settings

HEAD = RequestHead(contract.JSON.encode(), b"", ())
ROUTES = {
    "/predict": "post",
    "/api": "post",
    "/api/predict": "post",
    "/v1/models/api:predict": "post",
    "/v2/models/api/infer": "post",
    "/v2/models/api/versions/1/infer": "post",
    "/v1/models/api": "get",
    "/": "get",
    "/v1/models": "get",
    "/v2": "get",
    "/v2/health/live": "get",
    "/v2/health/ready": "get",
    "/v2/models/api": "get",
    "/v2/models/api/ready": "get",
    "/v2/models/api/versions/1": "get",
    "/v2/models/api/versions/1/ready": "get",
    "/v2/models/stats": "get",
    "/v2/models/api/config": "get",
    "/v2/models/api/stats": "get",
    "/v2/models/api/versions/1/config": "get",
    "/v2/models/api/versions/1/stats": "get",
}


def tensors(**inputs: Tensor) -> MethodSpec:
    """A batched method that takes so many; `input` alone is the array itself."""
    return MethodSpec("predict", True, inputs=inputs, single_input=set(inputs) == {"input"})


def decoded_rows(spec: MethodSpec, wire: Wire, example: Any) -> int:
    """Rows of the example, as the method's own codec reads it."""
    settings = web_settings()
    codec = codec_for(spec, settings.of_method("predict"), "api", Receipts.OFF)
    return codec.decode(wire, HEAD, orjson.dumps(example)).rows


SHAPES: list[list[int | str]] = [[], [2, 3], ["tokens"], [2, "tokens"]]
SPECS = [
    *(tensors(input=Tensor(dtype, [2])) for dtype in DTYPES),
    *(tensors(input=Tensor("FP32", shape)) for shape in SHAPES),
    tensors(ids=Tensor("INT64", ["tokens"]), mask=Tensor("BOOL", ["tokens"])),
    tensors(size=Tensor("FP32", []), image=Tensor("UINT8", [2, 2])),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(dict(spec.inputs)))
def test_the_example_of_a_tensor_is_one_that_it_takes(spec: MethodSpec) -> None:
    """D09: who tries it must not get 422, in any of the languages."""
    example = example_of(spec)

    assert 1 == decoded_rows(spec, Wire.PLAIN, example)
    assert 1 == decoded_rows(spec, Wire.V1, {"instances": [example]})
    assert 1 == decoded_rows(spec, Wire.V2, infer_example(spec))


def test_items_show_the_example_that_the_method_gives() -> None:
    """And an empty object when nobody knows."""
    shown = MethodSpec("predict", True, example={"id": 1})

    assert {"id": 1} == example_of(shown)
    assert {} == example_of(PREDICT) == example_of(None)


def test_an_example_that_would_fill_pages_is_left_out() -> None:
    """An image is no reading."""
    image = tensors(input=Tensor("FP32", [3, 224, 224]))

    assert (None, None) == (example_of(image), infer_example(image))


def schema_of(server: Server) -> Any:
    """The OpenAPI schema of a new application."""
    app = FastAPI()
    document_routes(app, server.frontend)
    return app.openapi()


@pytest.mark.looptime
async def test_every_route_is_described_once_the_methods_are_known() -> None:
    """Before that, the default method's without its rows."""
    server = Server(methods=())
    app = FastAPI()
    document_routes(app, server.frontend)

    before = app.openapi()["paths"]
    server.engine.methods_served = {"predict": FakeMethod(tensors(input=Tensor("FP32", [2])))}
    after = app.openapi()["paths"]

    named = {path for path in ROUTES if "api.predict" in path} | {"/api/predict"}
    assert set(ROUTES) - named == set(before)
    assert set(ROUTES) < set(after)
    assert all(verb in after[path] for path, verb in ROUTES.items())
    content = after["/predict"]["post"]["requestBody"]["content"]
    _, row, listed = content[contract.JSON]["schema"]["anyOf"]
    assert (2, 2, "number") == (row["minItems"], row["maxItems"], row["items"]["type"])
    assert {**row, "description": ...} == {**listed["items"], "description": ...}
    assert contract.NPY in content
    assert contract.NPY not in before["/predict"]["post"]["requestBody"]["content"]


@pytest.mark.looptime
async def test_every_status_is_documented_with_its_error() -> None:
    """In the language of the route; a status of the predictor's own may be any."""
    paths = schema_of(Server())["paths"]

    for path, verb in ROUTES.items():
        responses = paths[path][verb]["responses"]
        documented = {int(status) for status in responses if status != "default"}
        assert documented <= set(contract.STATUS_CODES)
        assert {200, 400, 404, 405, 431, 500, 503} <= documented
        schema = responses["400"]["content"][contract.JSON]["schema"]
        kind = schema["properties"]["error"]["type"]
        assert ("string" if path.startswith("/v2") else "object") == kind
    assert {413, 415, 422, 429, 504} <= {
        int(status) for status in paths["/predict"]["post"]["responses"] if status != "default"
    }
    assert "default" in paths["/predict"]["post"]["responses"]


@pytest.mark.looptime
async def test_a_stream_is_described_with_its_types_on_the_paths_that_have_it() -> None:
    """GET too, for EventSource; KServe's calls of it are refused."""
    stream = MethodSpec("predict", batched=False, is_async=True, streams=True)
    paths = schema_of(Server(methods=(stream,)))["paths"]

    for path in ("/predict", "/api", "/api/predict"):
        for verb in ("post", "get"):
            types = set(paths[path][verb]["responses"]["200"]["content"])
            assert {"text/event-stream", "application/x-ndjson", "application/jsonl"} < types
        assert "requestBody" not in paths[path]["get"]
    assert not [path for path in paths if path.endswith((":predict", "/infer"))]


@pytest.mark.looptime
async def test_the_paths_of_openais_clients_are_described_with_an_example_that_works() -> None:
    """Where a method has their name."""
    methods = tuple(MethodSpec(name, batched=True) for name in ("embeddings", "rerank"))

    paths = schema_of(Server(methods=methods))["paths"]

    for spec, rows in zip(methods, (1, 2), strict=True):
        post = paths[f"/v1/{spec.name}"]["post"]
        example = post["requestBody"]["content"][contract.JSON]["example"]
        codec = codec_for(spec, web_settings().of_method(spec.name), "api", Receipts.OFF)
        assert rows == codec.decode(Wire(spec.name), HEAD, orjson.dumps(example)).rows
        error = post["responses"]["400"]["content"][contract.JSON]["schema"]
        assert "object" == error["properties"]["error"]["type"]


@pytest.mark.looptime
async def test_a_route_that_answers_404_is_not_described() -> None:
    """Without a default method, /predict means nothing."""
    methods = tuple(MethodSpec(name, batched=True) for name in ("embed", "rank"))

    paths = schema_of(Server(methods=methods))["paths"]

    assert "/predict" not in paths
    assert {"/api/embed", "/api/rank"} < set(paths)
