"""Requests in parts put together, and what their clients are told."""

import asyncio
import math

import pytest

from batchedapi_core.batching import Client, Request
from batchedapi_serving.codecs import Answer, Decoded
from batchedapi_serving.codecs.replies import INSTANCES
from batchedapi_serving.codecs.results import Item, ItemResults
from batchedapi_serving.dispatch.jobs import Job
from batchedapi_serving.dispatch.line import MethodLine
from batchedapi_serving.errors import PredictorError
from dispatching import World

pytestmark = pytest.mark.looptime


class Nobody:
    """Asks, and does not listen."""

    def request_id(self) -> str | None:
        """See AnswerTo."""
        return "id"

    def deliver(self, answer: Answer) -> None:
        """See AnswerTo."""


@pytest.fixture
async def line() -> MethodLine:
    """Of a method over JSON items."""
    await asyncio.sleep(0)
    return World().dispatcher.line(None)


def job_of(line: MethodLine, rows: int) -> Job:
    """A request of so many rows."""
    request = Request(1, line.name, rows, rows, Client(), 0.0, math.inf)
    return Job(line, request, Decoded(rows, [b"0"] * rows, INSTANCES), Nobody(), hurried=False)


async def test_a_request_is_answered_once_its_last_part_is_there(line: MethodLine) -> None:
    """In whatever order the parts come back: they may run on different lanes."""
    job = job_of(line, 5)
    first, second, third = job.request.divide([(0, 2), (2, 4), (4, 5)])
    rows = ItemResults([Item(200, "json", b"%d" % n) for n in range(4)])

    assert job.part_answered(third, rows, 3, 4, None) is None
    assert job.part_answered(first, rows, 1, 3, None) is None
    answer = job.part_answered(second, rows, 0, 2, None)

    assert answer is not None
    assert answer.body == b'{"predictions":[1,2,0,1,3]}'


async def test_the_clients_message_points_to_the_log_and_shows_no_traceback() -> None:
    """What the user's code printed may be private."""
    error = PredictorError.logged("raised KeyError")

    assert isinstance(error, PredictorError)
    assert str(error) == "the predictor raised KeyError; the server's log has the details"
