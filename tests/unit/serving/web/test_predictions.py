"""Every route of predictions, and what is told in its language where nothing is served."""

import asyncio
import json

import pytest

from batchedapi_serving.errors import DrainingError
from batchedapi_serving.predictor import MethodSpec
from batchedapi_serving.web.asgi import create_app
from connections import PREDICT, FakeMethod, Peer, Server

pytestmark = pytest.mark.looptime

EMBED = MethodSpec("embed", batched=True)
PATHS = [
    (b"/predict", "predict"),
    (b"/api", "predict"),
    (b"/api/predict", "predict"),
    (b"/api/embed", "embed"),
    (b"/v1/models/api:predict", "predict"),
    (b"/v1/models/api.embed:predict", "embed"),
    (b"/v2/models/api/infer", "predict"),
    (b"/v2/models/api.embed/versions/1/infer", "embed"),
    (b"/%70redict", "predict"),
    (b"/api/%65mbed?a=1", "embed"),
]


def request(path: bytes, body: bytes = b"1", method: bytes = b"POST") -> bytes:
    """One request."""
    return b"%b %b HTTP/1.1\r\nhost: t\r\ncontent-length: %d\r\n\r\n%b" % (
        method, path, len(body), body,
    )  # fmt: skip


async def asked(wire: Peer, path: bytes, body: bytes = b"1", method: bytes = b"POST") -> bytes:
    """The body of the answer."""
    before = len(wire.received)
    wire.send(request(path, body, method))
    await asyncio.sleep(1)
    return wire.received[before:].partition(b"\r\n\r\n")[2]


def two_methods() -> Server:
    """With a default and another."""
    return Server(app=create_app, methods=(PREDICT, EMBED))


@pytest.mark.parametrize(("path", "method"), PATHS, ids=str)
async def test_a_route_reaches_its_method(path: bytes, method: str) -> None:
    """Percent-encoded ones included."""
    server = two_methods()
    wire = server.connect()

    body = await asked(wire, path, b"7")

    assert ([200], b"7", [(method, None)]) == (wire.statuses, body, server.engine.asked)


@pytest.mark.parametrize(
    "path",
    [
        b"/", b"/api/other", b"/predict/", b"/v1/models/other:predict", b"/v2/models/other/infer",
        b"/v2/models/api/versions/2/infer", b"/v2/models/api.other/infer", b"/v1/models/api",
    ],
)  # fmt: skip
async def test_what_is_not_served_is_404_or_405(path: bytes) -> None:
    """In the protocol's own words under /v2."""
    wire = two_methods().connect()

    body = json.loads(await asked(wire, path))

    assert [405 if path == b"/v1/models/api" else 404] == wire.statuses
    assert path.startswith(b"/v2/") == isinstance(body["error"], str)


@pytest.mark.parametrize("endpoint", ["/say", "/predict", "/a/b"])
async def test_what_clients_of_other_servers_call_is_there_whatever_the_endpoint(
    endpoint: str,
) -> None:
    """`/predict` and the API's name; an endpoint is one more path, or one of these."""
    server = Server(app=create_app, endpoint=endpoint)
    wire = server.connect()

    bodies = [
        await asked(wire, path, b"7")
        for path in (b"/predict", b"/api", endpoint.encode(), endpoint.encode() + b"/predict")
    ]

    assert ([200] * 4, [b"7"] * 4) == (wire.statuses, bodies)


async def test_an_error_is_in_the_language_of_its_route() -> None:
    """From the decoder as well as from the engine."""
    server = two_methods()
    wire = server.connect()
    bodies = [await asked(wire, path, b"{") for path in (b"/predict", b"/v2/models/api/infer")]
    server.engine.refusal = DrainingError("stopping")
    bodies += [await asked(wire, path) for path in (b"/predict", b"/v2/models/api/infer")]

    assert [400, 400, 503, 503] == wire.statuses
    ours, theirs = [json.loads(body)["error"] for body in bodies[::2]], bodies[1::2]
    assert ["malformed", "draining"] == [error["code"] for error in ours]
    assert all(isinstance(json.loads(body)["error"], str) for body in theirs)


async def test_methods_are_served_as_soon_as_they_are_known() -> None:
    """Until then nobody knows what is not served: 503, also on a connection that stays."""
    server = Server(app=create_app, methods=())
    wire = server.connect()
    for path in (b"/predict", b"/api/embed", b"/v2/models/api.embed/infer"):
        await asked(wire, path)
    server.engine.methods_served = {method.name: FakeMethod(method) for method in (PREDICT, EMBED)}
    for path in (b"/predict", b"/api/embed", b"/v2/models/api.embed/infer", b"/api/other"):
        await asked(wire, path)

    assert [503, 503, 503, 200, 200, 200, 404] == wire.statuses
    assert [1, 1, 1] == [int(value) for value in wire.header("retry-after")]


async def test_without_a_default_method_one_must_be_named() -> None:
    """The error says which there are."""
    others = (EMBED, MethodSpec("rank", batched=True))
    wire = Server(app=create_app, methods=others).connect()

    body = await asked(wire, b"/predict")
    await asked(wire, b"/api/rank")

    assert [404, 200] == wire.statuses
    assert b"embed, rank" in body


async def test_another_http_method_is_refused_and_the_right_one_named() -> None:
    """RFC 9110: 405 comes with Allow."""
    wire = two_methods().connect()
    await asked(wire, b"/predict", b"", b"GET")
    await asked(wire, b"/v2/models/api.embed/infer", b"", b"DELETE")
    await asked(wire, b"/v2", b"", b"POST")

    assert [405, 405, 405] == wire.statuses
    assert ["POST", "POST", "GET, HEAD"] == wire.header("allow")


async def test_a_response_is_counted_once() -> None:
    """By the engine if it took the request, else here."""
    server = two_methods()
    wire = server.connect()
    for path, body in ((b"/predict", b"1"), (b"/predict", b"{"), (b"/nowhere", b"")):
        await asked(wire, path, body)

    assert ([200, 400, 404], [400, 404]) == (wire.statuses, server.engine.codes)


async def test_a_client_that_leaves_is_told_to_the_engine() -> None:
    """S12: what it asked is not run (LitServe computes it)."""
    server = Server(app=create_app, interval=5.0)
    wire = server.connect()
    wire.send(request(b"/predict"))
    await asyncio.sleep(1)
    wire.close()
    await asyncio.sleep(10)

    assert ([], 1) == (server.engine.batches, len(server.engine.cancelled))
    assert [] == wire.statuses
