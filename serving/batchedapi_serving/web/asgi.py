"""Everything but predictions goes through FastAPI, in uvicorn's own request cycle.

What is answered to a GET is here too: health, metadata, configuration and statistics, of v1 and v2.
"""

import asyncio
import logging
import time
import urllib.parse
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr
from uvicorn.server import ServerState

from batchedapi_core import contract
from batchedapi_serving.codecs import Answer, Reply
from batchedapi_serving.codecs.open_inference_metadata import (
    MODEL_VERSION,
    model_metadata,
    model_name,
    server_metadata,
)
from batchedapi_serving.codecs.replies import JSON_TYPE
from batchedapi_serving.errors import (
    DrainingError,
    MethodNotAllowedError,
    NoSuchRouteError,
    NotReadyError,
    ServingError,
)
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.web.access import client_of
from batchedapi_serving.web.frontend import (
    METADATA_PATHS,
    OPENAI_PATHS,
    Frontend,
    default_paths,
    models,
    wire_of_path,
)
from batchedapi_serving.web.openapi import document_routes, serve_docs
from batchedapi_serving.web.parser import REQUEST_ID, HttpRequest
from batchedapi_serving.web.responses import ERROR, finished_error, new_request_id, problem_on

log = logging.getLogger("uvicorn.error")

_AS_GET = {"method": "GET"}
_HEADERS = ("allow", "retry-after")
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def start_cycle(
    request: HttpRequest,
    *,
    config: Config,
    state: ServerState,
    transport: Any,
    flow: FlowControl,
    keep_alive: bool,
    on_response: Callable[[], None],
) -> RequestResponseCycle:
    """Run the application on a complete request, as a task of the server.

    Args:
        request: Whole; nothing more is read for it. Its id is `request.state.request_id`.
        state: Of the server: its default headers, and the tasks it waits for when it stops.
    """
    text = request.path.decode("latin-1")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.0" if request.old else "1.1",
        "method": request.method.decode("ascii"),
        "scheme": "http",
        "path": urllib.parse.unquote(text) if "%" in text else text,
        "raw_path": request.path,
        "query_string": request.query,
        "root_path": "",
        "headers": request.headers,
        "server": get_local_addr(transport),
        "client": client_of(transport),
        "state": {"request_id": request.options.request_id},
    }
    cycle = RequestResponseCycle(
        scope=scope,  # type: ignore[arg-type]  # a plain dict
        transport=transport,
        flow=flow,
        logger=log,
        access_logger=log,
        access_log=False,
        default_headers=state.default_headers,
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=keep_alive,
        on_response=on_response,
    )
    cycle.body += request.body
    cycle.more_body = False
    cycle.message_event.set()  # the whole body is there: nothing to wait for
    task = asyncio.get_running_loop().create_task(cycle.run_asgi(config.loaded_app))
    task.add_done_callback(state.tasks.discard)
    state.tasks.add(task)
    return cycle


_OF_ANY_MODEL: Final = (
    "/v1/models/{model}:predict",
    "/v2/models/{model}/infer",
    "/v2/models/{model}/versions/{version}/infer",
)


def create_app(frontend: Frontend) -> Any:
    """The ASGI application of one web process."""
    settings = frontend.settings
    app = FastAPI(
        title=settings.name,
        description="Requests of different clients are answered in batches.",
        docs_url=None,  # ours, below
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_routes(app, frontend)
    document_routes(app, frontend)
    serve_docs(app)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _http_error)
    inner = app if frontend.guard.cors is None else frontend.guard.cors.around(app)
    return _Outermost(inner, frontend)


def _add_routes(app: FastAPI, frontend: Frontend) -> None:
    async def not_served(request: Request) -> Response:
        try:
            frontend.engine.served(None)  # as long as no methods are known, this raises
            raise _no_such_route(request.scope["path"])
        except ServingError as error:
            return _response(request, _problem(request, error))

    async def metadata(request: Request) -> Response:
        path = request.scope["path"]
        # /v1/models/NAME:predict looks like a model; a GET of / asks whether the server lives,
        # also where predictions are POSTed to it.
        if path != "/" and frontend.routes.of(path.encode()) is not None:
            raise HTTPException(MethodNotAllowedError.status, headers={"allow": "POST"})
        try:
            answer = metadata_answer(frontend, path)
        except ServingError as error:
            answer = _problem(request, error)
        return _response(request, answer)

    # Predictions for whatever method or model. Those of the table are answered before they come
    # here. Of the others a POST is not served, and another method is not allowed.
    named = f"{frontend.settings.endpoint.rstrip('/')}/{{method}}"
    paths = (*default_paths(frontend.settings), "/", named, *_OF_ANY_MODEL, *OPENAI_PATHS)
    for path in dict.fromkeys(paths):
        app.add_api_route(path, not_served, methods=["POST"], include_in_schema=False)
    for path in METADATA_PATHS:
        app.add_api_route(path, metadata, methods=["GET"], include_in_schema=False)


def _request_id(scope: MutableMapping[str, Any]) -> str:
    """The client's, or ours: the same in body, header and log."""
    state = scope["state"]
    state["request_id"] = state["request_id"] or new_request_id()
    return str(state["request_id"])


def _response(
    request: Request, answer: Answer, headers: MutableMapping[str, str] | None = None
) -> Response:
    if answer.status >= ERROR:
        answer = finished_error(answer, request.scope["path"], _request_id(request.scope))
    response = Response(answer.body, answer.status, headers=headers)
    response.headers["content-type"] = answer.content_type.decode("latin-1")
    if answer.retry_after:
        response.headers["retry-after"] = str(answer.retry_after)
    for name, value in answer.headers:
        response.headers.append(name.decode("latin-1"), value.decode("latin-1"))
    return response


def _problem(request: Request, error: ServingError, reply: Reply | None = None) -> Answer:
    wire = wire_of_path(request.scope["path"])
    return problem_on(wire, error, _request_id(request.scope), reply)


def _no_such_route(path: str) -> NoSuchRouteError:
    return NoSuchRouteError(f"no route {path}; POST to {contract.PATH_PREDICT}, or see /docs")


async def _http_error(request: Request, error: Exception) -> Response:
    """The answer to what FastAPI refuses by itself, and to a bug of ours."""
    status = error.status_code if isinstance(error, HTTPException) else ServingError.status
    path = request.scope["path"]
    problem: ServingError
    if status == NoSuchRouteError.status:
        problem = _no_such_route(path)
    elif status == MethodNotAllowedError.status:
        problem = MethodNotAllowedError(f"{path}: {request.method} is not served here")
    elif isinstance(error, HTTPException):
        problem = ServingError(f"{path}: {error.detail}")
    else:
        problem = ServingError(f"{path}: a bug of the server; its log has the details")
    found = (isinstance(error, HTTPException) and error.headers) or {}
    headers = {
        name.lower(): "GET, HEAD" if value == "GET" else value
        for name, value in found.items()
        if name.lower() in _HEADERS
    }
    return _response(request, _problem(request, problem), headers)


class _Outermost:
    """Counts every response by its code, and logs it if asked to; sends the request's id back.

    A HEAD is a GET whose answer goes out without its body, for which uvicorn sees.
    """

    def __init__(self, app: ASGIApp, frontend: Frontend) -> None:
        self._app = app
        self._answered = frontend.answered
        self._access_log = frontend.guard.log

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        named = scope["state"]["request_id"] is not None
        started = time.monotonic()

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self._answered(message["status"])
                if self._access_log is not None:
                    self._access_log.write(
                        method=scope["method"],
                        path=scope["raw_path"].decode("latin-1"),
                        status=message["status"],
                        seconds=time.monotonic() - started,
                        client=scope["client"][0] if scope["client"] else "",
                        request_id=scope["state"]["request_id"],
                    )
                if named or message["status"] >= ERROR:
                    header = (REQUEST_ID, _request_id(scope).encode("ascii"))
                    message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await self._app(scope | _AS_GET if scope["method"] == "HEAD" else scope, receive, sending)


_OK: Final = 200
_FIXED: Final = {
    "": {"status": "alive"},
    "v2": server_metadata(),  # it reads a file, which no request is to do
    "v2/health/live": {"live": True},
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
            return _ready(frontend, {"ready": True})
        case ["v2", "models", "stats"] if "stats" not in _served(frontend):
            api, methods = frontend.settings.name, frontend.engine.methods
            by_model = {model_name(api, name): spec for name, spec in methods.items()}
            return _json(frontend.model_statistics(by_model))
        case ["v2", "models", model, "versions", version, *what]:
            return _of_model(frontend, model, what, version)
        case ["v2", "models", model, *what]:
            return _of_model(frontend, model, what)
    raise NoSuchRouteError(f"no route {path}; see /docs")


def _v1_models(frontend: Frontend, *asked: str) -> dict[str, Any]:
    if not asked:
        return {"models": list(_served(frontend))}
    (model,) = asked
    _known(frontend, model)
    return {"name": model, "ready": _why_not_ready(frontend) is None}


def _of_model(
    frontend: Frontend, model: str, what: list[str], version: str = MODEL_VERSION
) -> Answer:
    """The answer of v2 about one model."""
    method = _known(frontend, model, version)
    match what:
        case []:
            return _json(model_metadata(model, method))
        case ["ready"]:
            return _ready(frontend, {"name": model, "ready": True})
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


def _ready(frontend: Frontend, document: Any) -> Answer:
    error = _why_not_ready(frontend)
    if error is not None:
        raise error
    return _json(document)


def _why_not_ready(frontend: Frontend) -> ServingError | None:
    if frontend.leaving:
        return DrainingError("the replica is stopping")
    if not frontend.engine.methods:
        return NotReadyError("the model is still being loaded; try again in a moment")
    return None


def _json(document: Any) -> Answer:
    return Answer(_OK, JSON_TYPE, orjson.dumps(document))
