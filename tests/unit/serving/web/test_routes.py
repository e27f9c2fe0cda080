"""The paths of predictions."""

import pytest

from batchedapi_serving.codecs import Wire
from batchedapi_serving.web.frontend import Route, prediction_routes, wire_of_path
from connections import web_settings


def test_the_default_method_has_every_route_and_a_named_one_its_own() -> None:
    """D10, N25: one table for all; `/predict` and the name are there whatever the endpoint is."""
    table = prediction_routes(web_settings(name="api", endpoint="/say"), ["predict", "embed"])

    assert {
        "/predict": Route(None, Wire.PLAIN),
        "/api": Route(None, Wire.PLAIN),
        "/say": Route(None, Wire.PLAIN),
        "/say/predict": Route("predict", Wire.PLAIN),
        "/say/embed": Route("embed", Wire.PLAIN),
        "/v1/models/api:predict": Route(None, Wire.V1),
        "/v1/models/api.predict:predict": Route("predict", Wire.V1),
        "/v1/models/api.embed:predict": Route("embed", Wire.V1),
        "/v2/models/api/infer": Route(None, Wire.V2),
        "/v2/models/api/versions/1/infer": Route(None, Wire.V2),
        "/v2/models/api.predict/infer": Route("predict", Wire.V2),
        "/v2/models/api.predict/versions/1/infer": Route("predict", Wire.V2),
        "/v2/models/api.embed/infer": Route("embed", Wire.V2),
        "/v2/models/api.embed/versions/1/infer": Route("embed", Wire.V2),
    } == table


@pytest.mark.parametrize(
    ("name", "wire"), [("embeddings", Wire.EMBEDDINGS), ("rerank", Wire.RERANK)]
)
def test_a_method_of_that_name_has_the_path_of_openais_clients(name: str, wire: Wire) -> None:
    """Beside those that every method has; another method of that path was there before."""
    table = prediction_routes(web_settings(name="api"), ["predict", name])
    own = prediction_routes(web_settings(name="api", endpoint="/v1"), ["predict", name])

    assert Route(name, wire) == table[f"/v1/{name}"]
    assert Route(name, Wire.PLAIN) == table[f"/api/{name}"] == own[f"/v1/{name}"]
    assert f"/v1/{name}" not in prediction_routes(web_settings(name="api"), ["predict"])


def test_before_the_methods_are_known_the_default_ones_routes_are() -> None:
    """They answer 503 until then, and not 404."""
    table = prediction_routes(web_settings(), [])

    assert {None} == {route.method for route in table.values()}
    assert {"/predict", "/api", "/v1/models/api:predict", "/v2/models/api/infer"} < set(table)


@pytest.mark.parametrize("name", ["predict", "docs", "v2"])
def test_a_name_may_be_a_path_that_is_there_already(name: str) -> None:
    """The API `predict` has one path for both, and its methods below it."""
    settings = web_settings(name=name, endpoint=f"/{name}")

    table = prediction_routes(settings, ["predict", "embed"])

    assert Route(None, Wire.PLAIN) == table["/predict"] == table[f"/{name}"]
    assert Route("embed", Wire.PLAIN) == table[f"/{name}/embed"]


@pytest.mark.parametrize("endpoint", ["/", "/predict", "/v2/models/api/infer"])
def test_an_endpoint_may_be_anything(endpoint: str) -> None:
    """Where it is another route's path, the endpoint is served: its author chose it."""
    table = prediction_routes(web_settings(endpoint=endpoint), ["predict"])

    assert Route(None, Wire.PLAIN) == table[endpoint]
    named = table[f"{endpoint.rstrip('/')}/predict"]
    assert (Wire.PLAIN, True) == (named.wire, named.method in {None, "predict"})


@pytest.mark.parametrize(
    ("path", "wire"),
    [
        ("/v2", Wire.V2),
        ("/v2/models/other/infer", Wire.V2),
        ("/v1/models/other:predict", Wire.V1),
        ("/v22", Wire.PLAIN),
        ("/v1/embeddings", Wire.EMBEDDINGS),
        ("/v1/rerank", Wire.RERANK),
        ("/other", Wire.PLAIN),
    ],
)
def test_errors_without_a_route_follow_the_path(path: str, wire: Wire) -> None:
    """A client of a protocol reads that protocol's errors, also of a model that does not exist."""
    assert wire is wire_of_path(path)
