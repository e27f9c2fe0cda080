"""How far one row of JSON travels through a web process: calls of ours, and files they are in.

No two requests have the same bytes: the numbers differ in length, and a proxy adds ids.
"""

import asyncio
import tomllib
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pytest
from tests.support.connections import Peer, web_settings
from tests.support.dispatching import World
from tests.support.protocols import single
from tests.support.walks import Walk
from uvicorn.config import Config
from uvicorn.server import ServerState

from batchedapi_core import COMPILED
from batchedapi_core.batching import Strategy
from batchedapi_serving.predictor import Tensor
from batchedapi_serving.web.frontend import Frontend

ROOT: Final = Path(__file__).resolve().parents[3]
MOST_CALLS: Final = 75
MOST_FILES: Final = 23
ROUNDS: Final = 40
SECONDS: Final = 0.001
"""That the model takes, and the client after its answer."""
OURS: Final = ("/batchedapi_core/", "/batchedapi_serving/")
OTHER_END: Final = ("/batchedapi_serving/model/", "/batchedapi_serving/ipc.py")
"""What a test calls of these is the model process's part, with all that follows from it."""
NOT_COMPILED: Final = {"serving/ipc.py", "serving/dispatch/engine.py"}
"""Which mypyc does not take: an error of the system's, a protocol that is looked at as it runs."""
PROXIED: Final = (
    b"POST /api HTTP/1.1\r\nhost: iris.example\r\nuser-agent: python-httpx/0.28\r\naccept: */*\r\n"
    b"accept-encoding: gzip, deflate\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"x-forwarded-for: 10.0.0.7\r\nx-forwarded-proto: http\r\nx-envoy-attempt-count: 1\r\n"
    b"x-request-id: %b\r\ntraceparent: 00-%032x-%016x-00\r\n\r\n%b"
)
"""Of a client behind a proxy of a mesh."""
IRIS: Final = single(Tensor("FP32", [4]), Tensor("INT64", []))


def compiled_files() -> set[str]:
    """The modules that a wheel for this machine has compiled, as a walk names files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    return {
        f"{package}/{module}.py".replace("/batchedapi_core", "").replace("/batchedapi_serving", "")
        for package, modules in hook["compiled"].items()
        for module in modules
    }


def first_class(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A model of one class."""
    return np.zeros(len(rows), np.int64)


async def no_app(_scope: Any, _receive: Any, _send: Any) -> None:
    """Everything but predictions, for which nobody asks here."""


def web_of(world: World) -> tuple[Frontend, Config, ServerState]:
    """The parts that a connection needs in front of the dispatcher."""
    config = Config(no_app)
    config.load()
    return Frontend(web_settings(), world.dispatcher, lambda _: None), config, ServerState()


def proxied(number: int) -> bytes:
    """A request that no other is equal to."""
    row = [round(5.1 + number / 7, number % 5), 3.5, 1.4, 0.2]
    body = orjson.dumps(row)
    name = b"%x-%b" % (number, b"a" * (number % 30))
    return PROXIED % (len(body), name, number + 7**30, number + 5**20, body)


async def ask(client: Peer, first: int) -> None:
    """One request after the other, each a moment after the answer to the one before."""
    for number in range(first, first + ROUNDS):
        client.send(proxied(number))
        await asyncio.sleep(2 * SECONDS)


@pytest.mark.skipif(COMPILED, reason="calls from one compiled module to another are not seen")
@pytest.mark.looptime
async def test_a_row_of_json_is_answered_in_few_calls_and_few_files() -> None:
    """Whoever follows a request reads so much; a hop that only forwards is one too many."""
    world = World(
        methods=[(IRIS, first_class)],
        max_batch_size=32,
        strategy=Strategy.WINDOW,
        seconds=lambda _: SECONDS,
    )
    client = Peer(*web_of(world))
    walk = Walk(OURS, OTHER_END)
    await ask(client, 0)  # until the client is known
    with walk.on():
        await ask(client, ROUNDS)

    path = {place: times / ROUNDS for place, times in walk.calls.items() if times >= ROUNDS / 2}
    listed = "\n".join(f"{times:4.1f} {' '.join(place)}" for place, times in path.items())
    assert [200] * 2 * ROUNDS == client.statuses
    assert 2 * ROUNDS == len(set(client.header("x-request-id")))
    assert sum(path.values()) <= MOST_CALLS, listed
    assert len({file for file, _ in path}) <= MOST_FILES, listed
    assert [] == [file for file, _ in walk.calls if "trac" in file], "tracing is off"
    assert NOT_COMPILED == {file for file, _ in path} - compiled_files()
