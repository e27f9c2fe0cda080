"""Requests that are no prediction, in uvicorn's own cycle: to the FastAPI application."""

import asyncio
import logging
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from batchedapi_serving.web.frontend import Frontend
from batchedapi_serving.web.parser import Request

log = logging.getLogger("uvicorn.error")

App = Callable[[Any, Any, Any], Awaitable[None]]


class Application:
    """The application, which is loaded in a thread: predictions are answered before it is there."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._app: asyncio.Future[App] = asyncio.get_running_loop().create_future()

    async def load(self) -> None:
        """Import and make it; until then whoever asks for it waits."""
        self._app.set_result(await asyncio.to_thread(self._made))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI has it."""
        await (await asyncio.shield(self._app))(scope, receive, send)

    def _made(self) -> App:
        from batchedapi_serving.web.app import create_app  # noqa: PLC0415 - see above

        app: App = create_app(self._frontend)
        return app


def start_cycle(
    request: Request,
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
        config: Holds the application.
        state: Of the server: its default headers, and the tasks it waits for when it stops.
        transport: The response is written to it.
        flow: Of the transport.
        keep_alive: False closes the connection after the response.
        on_response: Called when the response is complete.
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
        "client": get_remote_addr(transport),
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
