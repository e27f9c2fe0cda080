"""Every route as FastAPI serves it: /docs, the schema, and predictions if the fast lane is off.

The one place where errors become HTTP responses on this path; the fast lane has the same answers.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from batchedapi_core import contract
from batchedapi_core.batching import Client
from batchedapi_serving.codecs import Answer, RequestHead
from batchedapi_serving.codecs.problems import problem_answer
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.errors import (
    MethodNotAllowedError,
    NoSuchRouteError,
    ServingError,
)
from batchedapi_serving.metrics.recorder import Recorder
from batchedapi_serving.settings import ReplicaSettings
from batchedapi_serving.web.gateway import prediction_paths
from batchedapi_serving.web.openapi import document_predictions

_COUNTED = "counted_by_dispatcher"
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _FutureAsker:
    """Turns the dispatcher's call-back into something to await."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def request_id(self) -> str | None:
        """See AnswerTo."""
        return _request_id(self._request)

    def deliver(self, answer: Answer) -> None:
        """See AnswerTo."""
        if not self.answer.done():
            self.answer.set_result(answer)


def create_app(settings: ReplicaSettings, dispatcher: Dispatcher, recorder: Recorder) -> Any:
    """The ASGI application of one replica."""
    app = FastAPI(
        title=settings.name,
        description="Requests of different clients are answered in batches.",
        redoc_url=None,
        redirect_slashes=False,
    )

    async def predict(request: Request) -> Response:
        return _response(await _predict(dispatcher, request))

    for path in prediction_paths(settings.endpoint):
        app.add_api_route(path, predict, methods=["POST"], include_in_schema=False)
    document_predictions(app, dispatcher, prediction_paths(settings.endpoint))

    async def http_error(request: Request, error: Exception) -> Response:
        return _response(_http_problem(request, error))

    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, http_error)
    return _Counted(app, recorder)


async def _predict(dispatcher: Dispatcher, request: Request) -> Answer:
    body = await request.body()
    headers = request.scope["headers"]
    content_type = request.headers.get("content-type", "").encode("latin-1")
    head = RequestHead(content_type, request.scope["query_string"], headers)
    asker = _FutureAsker(request)
    try:
        decoded = dispatcher.ready_codec().decode(head, body)
        job = dispatcher.submit(decoded, _client(request), asker)
    except ServingError as error:
        return problem_answer(error, _request_id(request))
    setattr(request.state, _COUNTED, True)
    left = asyncio.ensure_future(_left(request))
    await asyncio.wait((asker.answer, left), return_when=asyncio.FIRST_COMPLETED)
    left.cancel()
    if not asker.answer.done():
        dispatcher.cancel(job)
        return Answer(499, contract.JSON.encode(), b"")
    return asker.answer.result()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _client(request: Request) -> Client:
    client: Client = request.state.client
    return client


def _request_id(request: Request) -> str | None:
    value = request.headers.get("x-request-id")
    return value[:200] if value else None


def _response(answer: Answer) -> Response:
    headers = {"content-type": answer.content_type.decode()}
    if answer.retry_after:
        headers["retry-after"] = str(answer.retry_after)
    return Response(answer.body, answer.status, headers=headers)


def _http_problem(request: Request, error: Exception) -> Answer:
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = request.url.path
    problem: ServingError
    if status == NoSuchRouteError.status:
        problem = NoSuchRouteError(
            f"no route {path}; POST to {contract.PATH_PREDICT}, or see /docs"
        )
    elif status == MethodNotAllowedError.status:
        problem = MethodNotAllowedError(f"{path}: {request.method} is not served here")
    else:
        problem = ServingError(f"{path}: {error}")
    return problem_answer(problem, _request_id(request))


class _Counted:
    """Counts by code every response that the dispatcher has not counted; ASGI, outermost."""

    def __init__(self, app: FastAPI, recorder: Recorder) -> None:
        self._app = app
        self._recorder = recorder

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        async def counting(message: MutableMapping[str, Any]) -> None:
            by_dispatcher = scope.get("state", {}).get(_COUNTED, False)
            if message["type"] == "http.response.start" and not by_dispatcher:
                self._recorder.answered(message["status"])
            await send(message)

        await self._app(scope, receive, counting)
