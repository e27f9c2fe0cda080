"""An apiserver that did not answer and does again: who is told, how often, and what is listed."""

import asyncio

import pytest
from tests.unit.operator.worlds import KEY, MemoryCluster, api_body

from batchedapi_operator import process
from batchedapi_operator.keys import BATCHED_APIS, ObjectKey
from batchedapi_operator.kube import SECONDS_PER_RETURN, Answering
from batchedapi_operator.queue import WorkQueue
from batchedapi_operator.store import Store

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("failure", [0, 429, 503])
def test_the_first_answer_after_silence_is_told(failure: int) -> None:
    """And no answer before it, nor after it."""
    told = list[float]()
    answering = Answering(lambda: 100.0)
    answering.tell(lambda: told.append(1.0), lambda: told.append(2.0))

    for status in (200, failure, failure, 404, 200):
        answering.heard(status)

    assert [1.0, 2.0] == told


def test_an_apiserver_that_answers_some_is_not_stormed_for_each_answer() -> None:
    """Under too much load it refuses some: those are to rest."""
    now, told = 0.0, list[float]()
    answering = Answering(lambda: now)
    answering.tell(lambda: told.append(now))

    for number in range(200):
        now = number / 10
        answering.heard(429)
        answering.heard(200)

    assert 20.0 / SECONDS_PER_RETURN == len(told)


async def test_lists_follow_at_once_and_again_when_the_watches_are_open() -> None:
    """What was deleted in between is told by no watch."""
    cluster, store, returned = MemoryCluster(), Store(), asyncio.Event()
    cluster.put(BATCHED_APIS, api_body())
    runs = list[float]()
    loop = asyncio.get_running_loop()

    async def work(key: ObjectKey) -> None:
        assert KEY == key
        runs.append(loop.time())

    queue = WorkQueue(work)
    resync = asyncio.create_task(process._resync(cluster, store, queue, None, returned))
    await asyncio.sleep(1.0)
    assert [] == runs

    began = loop.time()
    returned.set()
    await asyncio.sleep(process.SECONDS_TO_WATCH_AGAIN + 1.0)
    resync.cancel()
    await queue.close()

    assert 2 == len(runs)
    assert runs[0] - began < 0.1
    assert runs[1] - began <= process.SECONDS_TO_WATCH_AGAIN
