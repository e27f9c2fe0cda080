"""What can be read of a replica under /v1 and /v2: who it is, whether it is ready, its tensors."""

from typing import Any, Final

import orjson

from batchedapi_serving.codecs import Answer
from batchedapi_serving.codecs.open_inference_metadata import (
    MODEL_VERSION,
    model_metadata,
    model_ready,
    server_live,
    server_metadata,
    server_ready,
)
from batchedapi_serving.codecs.problems import JSON_TYPE
from batchedapi_serving.errors import (
    DrainingError,
    NoSuchRouteError,
    NotReadyError,
    ServingError,
)
from batchedapi_serving.predictor.api import MethodSpec
from batchedapi_serving.web.gateway import Gateway
from batchedapi_serving.web.routes import models

METADATA_PATHS: Final = (
    "/v1/models/{model}",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/{model}",
    "/v2/models/{model}/ready",
    "/v2/models/{model}/versions/{version}",
    "/v2/models/{model}/versions/{version}/ready",
)
"""Templates of the paths that `metadata_answer` takes."""
_OK: Final = 200
_SERVER: Final = server_metadata()  # it reads a file, which no request is to do


def metadata_answer(gateway: Gateway, path: str) -> Answer:
    """The answer to a GET of a path that is one of METADATA_PATHS.

    Raises:
        NoSuchRouteError: there is no such model or version.
        NotReadyError: it is asked whether something is ready that is not, or the methods are not
            known yet.
        DrainingError: the same while the replica is stopping.
    """
    match path.strip("/").split("/"):
        case ["v1", "models", model]:
            _known(gateway, model)
            return _json(model_ready(model, ready=_why_not_ready(gateway) is None))
        case ["v2"]:
            return _json(_SERVER)
        case ["v2", "health", "live"]:
            return _json(server_live(live=True))
        case ["v2", "health", "ready"]:
            return _ready(gateway, server_ready(ready=True))
        case ["v2", "models", model] | ["v2", "models", model, "versions", _]:
            return _json(model_metadata(model, _known(gateway, model, path)))
        case ["v2", "models", model, "ready"] | ["v2", "models", model, "versions", _, "ready"]:
            _known(gateway, model, path)
            return _ready(gateway, model_ready(model, ready=True))
        case _:
            raise NoSuchRouteError(f"no route {path}; see /docs")


def _known(gateway: Gateway, model: str, path: str = "") -> MethodSpec:
    """The method behind a model's name; of a path with a version, if that version is served."""
    settings, desk = gateway.settings, gateway.desk
    if not desk.methods:
        desk.line(None)  # says that it is not ready yet
    served = {found.name: found.method for found in models(settings.name, desk.methods)}
    if model not in served:
        raise NoSuchRouteError(f"no model {model!r}; served are {', '.join(served)}")
    _, _, asked = path.partition("/versions/")
    if asked and asked.split("/")[0] != MODEL_VERSION:
        raise NoSuchRouteError(
            f"no version {asked.split('/')[0]!r} of {model}; served is {MODEL_VERSION}"
        )
    return desk.line(served[model]).spec


def _ready(gateway: Gateway, document: Any) -> Answer:
    error = _why_not_ready(gateway)
    if error is not None:
        raise error
    return _json(document)


def _why_not_ready(gateway: Gateway) -> ServingError | None:
    if gateway.draining:
        return DrainingError("the replica is stopping")
    if not gateway.desk.methods:
        return NotReadyError("the model is still being loaded; try again in a moment")
    return None


def _json(document: Any) -> Answer:
    return Answer(_OK, JSON_TYPE, orjson.dumps(document))
