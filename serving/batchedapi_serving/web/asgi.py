"""The hand-over of a request to the ASGI application, in uvicorn's own request cycle."""

import asyncio
import logging
import urllib.parse
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from batchedapi_core.batching import Client
from batchedapi_serving.web.request import Request

log = logging.getLogger("uvicorn.error")


def start_cycle(
    request: Request,
    client: Client,
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
        request: Whole; nothing more is read for it.
        client: Goes to the application as `request.state.client`, and the request's options beside
            it as `options` and `request_id`.
        config: Holds the application.
        state: Of the server: its default headers, and the tasks it waits for when it stops.
        transport: The response is written to it.
        flow: Of the transport.
        keep_alive: False closes the connection after the response.
        on_response: Called when the response is complete.
    """
    cycle = RequestResponseCycle(
        scope=_scope(request, client, transport),  # type: ignore[arg-type]  # a plain dict
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


def _scope(request: Request, client: Client, transport: Any) -> dict[str, Any]:
    text = request.path.decode("latin-1")
    return {
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
        "state": {
            "client": client,
            "options": request.options,
            "request_id": request.options.request_id,
        },
    }
