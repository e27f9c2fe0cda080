"""An apiserver that did not answer and does again: who is told, how often, and what is listed."""

import asyncio

import pytest
from tests.unit.operator.worlds import KEY, MemoryCluster, api_body, deployment_body

from batchedapi_operator import process
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    SERVICES,
    JsonObject,
    ObjectKey,
    Resource,
)
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.handlers import WatchScope
from batchedapi_operator.kube import SECONDS_PER_RETURN, Answering
from batchedapi_operator.queue import WorkQueue
from batchedapi_operator.store import Store
from batchedapi_operator.views import DeploymentView, Observed

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("failure", [0, 502, 503, 504])
def test_the_first_answer_after_silence_is_told(failure: int) -> None:
    """And no answer before it, nor after it."""
    told = list[float]()
    answering = Answering(lambda: 100.0)
    answering.tell(lambda: told.append(1.0), lambda: told.append(2.0))

    for status in (200, failure, failure, 404, 200):
        answering.heard(status)

    assert [1.0, 2.0] == told


@pytest.mark.parametrize("failure", [429, 500])
def test_what_one_object_or_client_is_refused_is_no_silence(failure: int) -> None:
    """A webhook of one namespace that fails must not have the whole cluster listed again."""
    told = list[float]()
    answering = Answering(lambda: 100.0)
    answering.tell(lambda: told.append(1.0))

    for status in (200, failure, 200):
        answering.heard(status)

    assert [] == told


def test_an_apiserver_that_answers_some_is_not_stormed_for_each_answer() -> None:
    """Behind a front that has lost one of several it answers some: those are to rest."""
    now, told = 0.0, list[float]()
    answering = Answering(lambda: now)
    answering.tell(lambda: told.append(now))

    for number in range(200):
        now = number / 10
        answering.heard(503)
        answering.heard(200)

    assert 20.0 / SECONDS_PER_RETURN == len(told)


class Refusing(MemoryCluster):
    """Answers every list but those of one kind."""

    refused: Resource | None = None

    async def list_metadata(
        self, resource: Resource, namespace: str | None, selector: str = ""
    ) -> tuple[list[JsonObject], str]:
        """As Kube."""
        if resource is self.refused:
            raise ApplyError("no answer", 0)
        return await super().list_metadata(resource, namespace, selector)


class Lists:
    """A resync's lists and queued runs, in virtual time."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.cluster, self.store, self.returned = Refusing(), Store(), asyncio.Event()
        self.runs = list[float]()
        """When the API was queued."""
        self.queue = WorkQueue(self._work)
        self.began = self.loop.time()

    async def _work(self, key: ObjectKey) -> None:
        assert KEY == key
        self.runs.append(self.loop.time())

    async def resync(self, seconds: float) -> None:
        """For so long."""
        task = asyncio.create_task(
            process._resync(self.cluster, self.store, self.queue, WatchScope(), self.returned)
        )
        await asyncio.sleep(seconds)
        assert not task.done()
        task.cancel()
        await self.queue.close()


async def test_lists_follow_at_once_and_again_when_the_watches_are_open() -> None:
    """No watch tells of an object deleted in between."""
    lists = Lists()
    lists.cluster.put(BATCHED_APIS, api_body())
    lists.loop.call_later(1.0, lists.returned.set)

    await lists.resync(1.0 + process.SECONDS_TO_WATCH_AGAIN + 1.0)

    assert 2 == len(lists.runs)
    assert 1.0 <= lists.runs[0] - lists.began < 1.1
    assert lists.runs[1] - lists.runs[0] <= process.SECONDS_TO_WATCH_AGAIN


async def test_a_list_that_fails_keeps_nothing_from_being_found_in_the_others() -> None:
    """A Deployment that is gone is missed although Services cannot be listed."""
    lists = Lists()
    lists.cluster.put(BATCHED_APIS, api_body())
    deployment = DeploymentView.of(deployment_body())
    lists.store.put_observed(api_body(), Observed(status={}, deployment=deployment))
    lists.cluster.refused = SERVICES

    await lists.resync(process.RELIST_SECONDS + 1.0)

    assert 1 == len(lists.runs)


@pytest.mark.parametrize("failing", [False, True])
async def test_every_api_is_looked_at_every_ten_minutes_however_many_lists(
    *, failing: bool
) -> None:
    """Lists that fail must not put it off, nor many lists make many looks of it."""
    lists = Lists()
    lists.store.put_api(api_body())
    lists.cluster.put(BATCHED_APIS, api_body())
    if failing:
        lists.cluster.refused = BATCHED_APIS

    async def restless() -> None:
        while True:
            lists.returned.set()
            await asyncio.sleep(1.0)

    again = asyncio.create_task(restless())
    await lists.resync(process.RESYNC_SECONDS * 2 + 60.0)
    again.cancel()

    assert 2 == len(lists.runs)
