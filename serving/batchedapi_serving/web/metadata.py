"""What is answered to a GET: health, metadata, configuration and statistics, of v1 and of v2."""

from typing import Any, Final

import orjson

from batchedapi_serving.codecs import Answer
from batchedapi_serving.codecs.open_inference_metadata import (
    MODEL_VERSION,
    model_metadata,
    model_name,
    model_ready,
    server_live,
    server_metadata,
    server_ready,
    v1_live,
    v1_models,
)
from batchedapi_serving.codecs.replies import JSON_TYPE
from batchedapi_serving.errors import (
    DrainingError,
    NoSuchRouteError,
    NotReadyError,
    ServingError,
)
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.web.frontend import Frontend
from batchedapi_serving.web.routes import models

_OK: Final = 200
_FIXED: Final = {
    "": v1_live(),
    "v2": server_metadata(),  # it reads a file, which no request is to do
    "v2/health/live": server_live(live=True),
}
"""Documents that are the same at any time, by path."""


def metadata_answer(frontend: Frontend, path: str) -> Answer:
    """The answer to a GET of a path that is one of METADATA_PATHS.

    Raises:
        NoSuchRouteError: there is no such model or version.
        NotReadyError: it is asked whether something is ready that is not, or the methods are not
            known yet.
        DrainingError: the same while the replica is stopping.
    """
    asked = path.strip("/")
    if asked in _FIXED:
        return _json(_FIXED[asked])
    match asked.split("/"):
        case ["v1", "models", *model]:
            return _json(_v1_models(frontend, *model))
        case ["v2", "health", "ready"]:
            return _ready(frontend, server_ready(ready=True))
        case ["v2", "models", "stats"] if "stats" not in _served(frontend):
            return _json(frontend.model_statistics(_all(frontend)))
        case ["v2", "models", model, "versions", version, *what]:
            return _of_model(frontend, model, what, version)
        case ["v2", "models", model, *what]:
            return _of_model(frontend, model, what)
    raise NoSuchRouteError(f"no route {path}; see /docs")


def _v1_models(frontend: Frontend, *asked: str) -> dict[str, Any]:
    if not asked:
        return v1_models(_served(frontend))
    (model,) = asked
    _known(frontend, model)
    return model_ready(model, ready=_why_not_ready(frontend) is None)


def _of_model(
    frontend: Frontend, model: str, what: list[str], version: str = MODEL_VERSION
) -> Answer:
    """What v2 says of one model."""
    method = _known(frontend, model, version)
    match what:
        case []:
            return _json(model_metadata(model, method))
        case ["ready"]:
            return _ready(frontend, model_ready(model, ready=True))
        case ["config"]:
            return _json(frontend.model_config(model, method))
        case ["stats"]:
            return _json(frontend.model_statistics({model: method}))
    raise NoSuchRouteError(f"no route /v2/models/{model}/{'/'.join(what)}; see /docs")


def _known(frontend: Frontend, model: str, version: str = MODEL_VERSION) -> MethodSpec:
    """The method behind a model's name, if that version is served."""
    served = _served(frontend)
    if model not in served:
        raise NoSuchRouteError(f"no model {model!r}; served are {', '.join(served)}")
    if version != MODEL_VERSION:
        raise NoSuchRouteError(f"no version {version!r} of {model}; served is {MODEL_VERSION}")
    return frontend.engine.served(served[model]).spec


def _served(frontend: Frontend) -> dict[str, str | None]:
    """Names of methods by those of models; None: the default one."""
    if not frontend.engine.methods:
        frontend.engine.served(None)  # says that it is not ready yet
    return {
        found.name: found.method
        for found in models(frontend.settings.name, frontend.engine.methods)
    }


def _all(frontend: Frontend) -> dict[str, MethodSpec]:
    """Every method once, by its name as a model."""
    methods = frontend.engine.methods
    return {model_name(frontend.settings.name, name): spec for name, spec in methods.items()}


def _ready(frontend: Frontend, document: Any) -> Answer:
    error = _why_not_ready(frontend)
    if error is not None:
        raise error
    return _json(document)


def _why_not_ready(frontend: Frontend) -> ServingError | None:
    if frontend.draining:
        return DrainingError("the replica is stopping")
    if not frontend.engine.methods:
        return NotReadyError("the model is still being loaded; try again in a moment")
    return None


def _json(document: Any) -> Answer:
    return Answer(_OK, JSON_TYPE, orjson.dumps(document))
