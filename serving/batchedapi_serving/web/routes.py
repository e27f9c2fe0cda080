"""Which paths there are: of predictions, in one table, and of metadata."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from batchedapi_core import contract
from batchedapi_serving.codecs import Wire
from batchedapi_serving.codecs.open_inference_metadata import MODEL_VERSION
from batchedapi_serving.settings import ReplicaSettings

METADATA_PATHS: Final = (
    "/",
    "/v1/models",
    "/v1/models/{model}",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/stats",
    "/v2/models/{model}",
    "/v2/models/{model}/ready",
    "/v2/models/{model}/config",
    "/v2/models/{model}/stats",
    "/v2/models/{model}/versions/{version}",
    "/v2/models/{model}/versions/{version}/ready",
    "/v2/models/{model}/versions/{version}/config",
    "/v2/models/{model}/versions/{version}/stats",
)
"""Templates of the paths of metadata, of which GET is served."""


class Route(NamedTuple):
    """What a POST to a path asks for."""

    method: str | None
    """None: the default method."""
    wire: Wire


class Model(NamedTuple):
    """A method as protocols that know models, not methods, see it."""

    name: str
    method: str | None


def models(name: str, methods: Iterable[str]) -> tuple[Model, ...]:
    """The replica's own name is its default method; further ones have theirs behind a dot."""
    public = (method for method in methods if not method.endswith(contract.METHOD_BATCH))
    return (Model(name, None), *(Model(f"{name}.{method}", method) for method in public))


def prediction_routes(settings: ReplicaSettings, methods: Iterable[str]) -> dict[str, Route]:
    """Every path that takes predictions, by the path as it is written without escapes.

    Where two routes have one path (an endpoint may be anything) the first of this order is served:
    `/predict`, `/<name>`, the endpoint, the protocols.
    """
    endpoint = settings.endpoint.rstrip("/")
    methods = [method for method in methods if not method.endswith(contract.METHOD_BATCH)]
    table = {path: Route(None, Wire.PLAIN) for path in default_paths(settings)}
    for method in methods:
        table.setdefault(f"{endpoint}/{method}", Route(method, Wire.PLAIN))
    for model, name in models(settings.name, methods):
        table.setdefault(f"/v1/models/{model}:predict", Route(name, Wire.V1))
        table.setdefault(f"/v2/models/{model}/infer", Route(name, Wire.V2))
        versioned = f"/v2/models/{model}/versions/{MODEL_VERSION}/infer"
        table.setdefault(versioned, Route(name, Wire.V2))
    return table


def default_paths(settings: ReplicaSettings) -> tuple[str, ...]:
    """Plain paths of the default method; two of them may be the same.

    The first two are what clients of other servers call: they are there whatever the endpoint is.
    """
    return contract.PATH_PREDICT, f"/{settings.name}", settings.endpoint


def wire_of_path(path: str) -> Wire:
    """The language in which an error is told before a route is known."""
    if path == "/v2" or path.startswith("/v2/"):
        return Wire.V2
    return Wire.V1 if path.startswith("/v1/") else Wire.PLAIN
