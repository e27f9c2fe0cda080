"""Every route as FastAPI serves it: /docs, metadata, and predictions that the fast lane leaves.

The one place where errors become HTTP responses on this path; the fast lane has the same answers.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from batchedapi_core import contract
from batchedapi_serving.codecs import Answer, Reply, RequestHead, Wire
from batchedapi_serving.dispatch.desk import Ticket
from batchedapi_serving.errors import (
    MethodNotAllowedError,
    NoSuchRouteError,
    ServingError,
)
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.docs_page import serve_docs
from batchedapi_serving.web.gateway import Gateway
from batchedapi_serving.web.large_bodies import is_large
from batchedapi_serving.web.metadata import METADATA_PATHS, metadata_answer
from batchedapi_serving.web.openapi import document_routes
from batchedapi_serving.web.problems import ERROR, finished_error, new_request_id, problem_on
from batchedapi_serving.web.request import REQUEST_ID, Options
from batchedapi_serving.web.routes import Route, default_paths, wire_of_path

_COUNTED = "counted_by_desk"
_CLIENT_LEFT = 499
_AS_GET = {"method": "GET"}
_HEADERS = ("allow", "retry-after")
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _FutureAsker:
    """Turns the desk's call-back into something to await."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def request_id(self) -> str:
        """See AnswerTo."""
        return _request_id(self._request.scope)

    def deliver(self, answer: Answer) -> None:
        """See AnswerTo."""
        if not self.answer.done():
            self.answer.set_result(answer)


def create_app(gateway: Gateway) -> Any:
    """The ASGI application of one web process."""
    settings = gateway.settings
    app = FastAPI(
        title=settings.name,
        description="Requests of different clients are answered in batches.",
        docs_url=None,  # ours, below
        redoc_url=None,
        redirect_slashes=False,
    )

    async def predict(request: Request) -> Response:
        return _response(request, await _predict(gateway, request))

    async def metadata(request: Request) -> Response:
        if request.scope["path"] in gateway.routes:  # /v1/models/N:predict looks like a model
            raise HTTPException(MethodNotAllowedError.status, headers={"allow": "POST"})
        try:
            answer = metadata_answer(gateway, request.scope["path"])
        except ServingError as error:
            answer = _problem(request, error)
        return _response(request, answer)

    async def http_error(request: Request, error: Exception) -> Response:
        return _response(request, _http_problem(request, error), _headers_of(error))

    for path in dict.fromkeys(_prediction_templates(settings)):
        app.add_api_route(path, predict, methods=["POST"], include_in_schema=False)
    for path in METADATA_PATHS:
        app.add_api_route(path, metadata, methods=["GET"], include_in_schema=False)
    document_routes(app, gateway)
    serve_docs(app)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, http_error)
    return _Outermost(app, gateway)


def _prediction_templates(settings: ReplicaSettings) -> tuple[str, ...]:
    """Paths of predictions for whatever method or model; the table says which there are."""
    return (
        *default_paths(settings),
        f"{settings.endpoint.rstrip('/')}/{{method}}",
        "/v1/models/{model}:predict",
        "/v2/models/{model}/infer",
        "/v2/models/{model}/versions/{version}/infer",
    )


async def _predict(gateway: Gateway, request: Request) -> Answer:
    body = await request.body()
    content_type = request.headers.get("content-type", "").encode("latin-1")
    scope, desk = request.scope, gateway.desk
    head = RequestHead(content_type, scope["query_string"], scope["headers"])
    asker = _FutureAsker(request)
    options: Options = request.state.options
    wire, reply = wire_of_path(scope["path"]), None
    try:
        route = _route(gateway, scope["path"])
        wire = route.wire
        if options.refusal is not None:
            raise options.refusal
        line = desk.line(route.method)
        ticket: Ticket
        if is_large(line.spec, head, body):
            problem_of = functools.partial(_problem_on, wire, asker)
            ticket = gateway.large.submit(
                line, wire, head, body, request.state.client, asker, options.timeout, problem_of
            )
        else:
            decoded = line.codec.decode(wire, head, body)
            reply = decoded.reply
            ticket = desk.submit(line, decoded, request.state.client, asker, options.timeout)
    except ServingError as error:
        return problem_on(wire, error, asker.request_id(), reply)
    setattr(request.state, _COUNTED, True)
    left = asyncio.ensure_future(_left(request))
    await asyncio.wait((asker.answer, left), return_when=asyncio.FIRST_COMPLETED)
    left.cancel()
    if not asker.answer.done():
        gateway.cancel(ticket)
        return Answer(_CLIENT_LEFT, contract.JSON.encode(), b"")
    return asker.answer.result()


def _problem_on(wire: Wire, asker: _FutureAsker, error: ServingError) -> Answer:
    return problem_on(wire, error, asker.request_id())


def _route(gateway: Gateway, path: str) -> Route:
    gateway.learn_methods()
    route = gateway.routes.get(path)
    if route is None:
        gateway.desk.line(None)  # until the methods are known, nobody knows what is not served
        raise _no_such_route(path)
    return route


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


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


def _http_problem(request: Request, error: Exception) -> Answer:
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
    return _problem(request, problem)


def _headers_of(error: Exception) -> dict[str, str]:
    found = (isinstance(error, HTTPException) and error.headers) or {}
    return {
        name.lower(): "GET, HEAD" if value == "GET" else value
        for name, value in found.items()
        if name.lower() in _HEADERS
    }


class _Outermost:
    """Counts by code every response that the desk has not counted; sends the request's id back.

    A HEAD is a GET whose answer goes out without its body, for which uvicorn sees.
    """

    def __init__(self, app: FastAPI, gateway: Gateway) -> None:
        self._app = app
        self._recorder = gateway.recorder

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        named = scope["state"]["request_id"] is not None

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                if not scope["state"].get(_COUNTED, False):
                    self._recorder.answered(message["status"])
                if named or message["status"] >= ERROR:
                    header = (REQUEST_ID, _request_id(scope).encode("ascii"))
                    message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await self._app(scope | _AS_GET if scope["method"] == "HEAD" else scope, receive, sending)
