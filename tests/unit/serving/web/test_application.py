"""The application that is loaded while predictions are answered already."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from batchedapi_serving.web.asgi import Application
from batchedapi_serving.web.frontend import Frontend
from connections import Server

pytestmark = pytest.mark.looptime

PREDICTION = b"POST /predict HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\n\r\n7"
METADATA = b"GET /v2 HTTP/1.1\r\nhost: t\r\n\r\n"


async def test_who_asks_for_it_before_it_is_loaded_waits_and_who_predicts_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that gives up meanwhile takes nobody's answer along."""

    async def at_once(made: Callable[[], Any]) -> Any:
        return made()

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    applications: list[Application] = []

    def later(frontend: Frontend) -> Application:
        applications.append(Application(frontend))
        return applications[0]

    server = Server(app=later)
    patient, leaving, predicting = server.connect(), server.connect(), server.connect()
    patient.send(METADATA)
    leaving.send(METADATA)
    predicting.send(PREDICTION)
    await asyncio.sleep(1)
    before = (patient.statuses, predicting.statuses)
    leaving.abort()

    await applications[0].load()
    await asyncio.sleep(1)

    assert ([], [200]) == before
    assert [200] == patient.statuses
