"""Requests in parts put together, and what their clients are told."""

import asyncio
import math

import pytest

from batchedapi_core.batching import Client, Request
from batchedapi_serving.codecs import Answer, DecodedRequest
from batchedapi_serving.codecs.interface import Item
from batchedapi_serving.codecs.replies import INSTANCES
from batchedapi_serving.codecs.results import (
    ItemResults,
)
from batchedapi_serving.dispatch.executor import MethodQueue
from batchedapi_serving.dispatch.requests import InFlightRequest
from batchedapi_serving.errors import PredictorError
from dispatching import World

pytestmark = pytest.mark.looptime


class Nobody:
    """Asks, and does not listen."""

    def request_id(self) -> str | None:
        """See Caller."""
        return "id"

    def deliver(self, answer: Answer) -> None:
        """See Caller."""


@pytest.fixture
async def served() -> MethodQueue:
    """The queue of a method over JSON items."""
    await asyncio.sleep(0)
    return World().dispatcher.served(None)


def request_of(served: MethodQueue, rows: int) -> InFlightRequest:
    """A request of so many rows."""
    request = Request(1, served.name, rows, rows, Client(), 0.0, math.inf)
    return InFlightRequest(
        served, request, DecodedRequest(rows, [b"0"] * rows, INSTANCES), Nobody(), hurried=False
    )


async def test_a_request_is_answered_once_its_last_part_is_there(served: MethodQueue) -> None:
    """In whatever order the parts come back: they may run on different lanes."""
    pending = request_of(served, 5)
    first, second, third = pending.request.divide([(0, 2), (2, 4), (4, 5)])
    rows = ItemResults([Item(200, "json", b"%d" % n) for n in range(4)])

    assert pending.part_answered(third, rows, 3, 4, None) is None
    assert pending.part_answered(first, rows, 1, 3, None) is None
    answer = pending.part_answered(second, rows, 0, 2, None)

    assert answer is not None
    assert answer.body == b'{"predictions":[1,2,0,1,3]}'


async def test_the_clients_message_points_to_the_log_and_shows_no_traceback() -> None:
    """The output of the user's code may be private."""
    error = PredictorError.logged("raised KeyError")

    assert isinstance(error, PredictorError)
    assert str(error) == "the predictor raised KeyError; the server's log has the details"
