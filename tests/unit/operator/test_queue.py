"""The work queue, in virtual time."""

import asyncio
from itertools import pairwise

import pytest

from batchedapi_operator.cluster import ObjectKey
from batchedapi_operator.errors import ApplyError
from batchedapi_operator.queue import LARGEST_BACKOFF, LARGEST_UNHEARD, WorkQueue, backoff

KEY = ObjectKey("demo", "iris")

pytestmark = pytest.mark.looptime


class Recorder:
    """Work that notes when it ran, and fails as often as it is told."""

    def __init__(
        self,
        *,
        failures: int = 0,
        again: float | None = None,
        takes: float = 0.0,
        status: int = 403,
    ) -> None:
        self._status = status
        self.runs: list[float] = []
        self.running = 0
        self.most = 0
        self._failures = failures
        self._again = again
        self._takes = takes

    async def __call__(self, _key: ObjectKey) -> float | None:
        """As Work."""
        self.runs.append(asyncio.get_running_loop().time())
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self._takes)
        self.running -= 1
        if len(self.runs) <= self._failures:
            raise ApplyError("refused", self._status)
        return self._again


async def test_a_burst_of_events_is_one_run_and_one_more() -> None:
    """An event that arrives during a run may not be in the state that the run has read."""
    work = Recorder(takes=1.0)
    queue = WorkQueue(work)
    for _ in range(50):
        queue.enqueue(KEY)
        await asyncio.sleep(0.01)

    await asyncio.sleep(10)

    assert len(work.runs) == 2
    assert work.most == 1
    assert len(queue) == 0


async def test_failures_are_tried_again_for_ever_ever_more_slowly() -> None:
    """Kopf would not try again at all; a fixed pace would hammer an apiserver that is down."""
    work = Recorder(failures=20)
    queue = WorkQueue(work)
    queue.enqueue(KEY)

    await asyncio.sleep(3600)

    pauses = [later - earlier for earlier, later in pairwise(work.runs)]
    assert len(work.runs) == 21
    assert 0.375 <= pauses[0] <= 0.5
    assert 45.0 <= pauses[-1] <= 60.0


async def test_an_apiserver_that_does_not_answer_is_asked_again_within_seconds() -> None:
    """Changes are caught up with as soon as it answers; slots bound the requests to it."""
    work = Recorder(failures=20, status=0)
    queue = WorkQueue(work)
    queue.enqueue(KEY)

    await asyncio.sleep(3600)

    pauses = [later - earlier for earlier, later in pairwise(work.runs)]
    assert max(pauses) <= LARGEST_UNHEARD


@pytest.mark.parametrize(("status", "runs"), [(0, 2), (403, 1)])
async def test_an_apiserver_that_answers_again_ends_the_rests_of_those_it_did_not_answer(
    status: int, runs: int
) -> None:
    """A refused run would be refused again; an unheard one waits for nothing else."""
    work = Recorder(failures=20, status=status)
    queue = WorkQueue(work)
    queue.enqueue(KEY)
    await asyncio.sleep(0.2)

    queue.go_on()
    await asyncio.sleep(0.1)

    assert runs == len(work.runs)
    await queue.close()


@pytest.mark.parametrize(("status", "runs"), [(504, 2), (403, 1)])
async def test_what_ran_before_the_apiserver_answered_again_and_fails_after_it_does_not_rest(
    status: int, runs: int
) -> None:
    """An apiserver that was stopped gives up what it was asked before, once it goes on."""
    work = Recorder(failures=20, status=status, takes=1.0)
    queue = WorkQueue(work)
    queue.enqueue(KEY)
    await asyncio.sleep(0.5)

    queue.go_on()
    await asyncio.sleep(0.6)

    assert runs == len(work.runs)
    await queue.close()


async def test_an_event_does_not_cut_a_back_off_short_but_the_user_does() -> None:
    """Our own writes cause events: cutting short on those would be a hot loop."""
    work = Recorder(failures=6)
    queue = WorkQueue(work)
    queue.enqueue(KEY)
    await asyncio.sleep(20)
    runs = len(work.runs)
    queue.enqueue(KEY)
    await asyncio.sleep(0.1)
    after_event = len(work.runs)
    queue.enqueue_fresh(KEY)
    await asyncio.sleep(0.1)

    assert runs == after_event
    assert len(work.runs) == runs + 1
    await queue.close()


async def test_an_event_is_looked_at_where_what_failed_is_sent_at_a_pace_of_its_own() -> None:
    """Other news of the API is not to be told a minute late."""
    runs: list[float] = []

    async def work(_key: ObjectKey) -> None:
        runs.append(asyncio.get_running_loop().time())
        error = ApplyError("refused", 500)
        error.rest = 50.0
        raise error

    queue = WorkQueue(work)
    queue.enqueue(KEY)
    await asyncio.sleep(20)
    for _ in range(9):
        queue.enqueue(KEY)
        await asyncio.sleep(0.01)
    await asyncio.sleep(100)

    assert [0.0, 20.0, 20.2, 70.4] == [round(run, 1) for run in runs]
    await queue.close()


async def test_work_that_asks_for_another_look_gets_it() -> None:
    """A status write that had to wait, a child that will be gone soon."""
    work = Recorder(again=5.0)
    queue = WorkQueue(work)
    queue.enqueue(KEY)

    await asyncio.sleep(11)

    assert len(work.runs) == 3
    await queue.close()


async def test_an_unexpected_error_stops_neither_its_key_nor_others() -> None:
    """One bad API must not stop the others (O31)."""
    seen = []

    async def work(key: ObjectKey) -> float | None:
        seen.append(key.name)
        if key.name == "bad":
            raise ZeroDivisionError
        return None

    results: list[str] = []
    queue = WorkQueue(work, lambda result, _seconds: results.append(result))
    for name in ("bad", "good"):
        queue.enqueue(ObjectKey("demo", name))
    await asyncio.sleep(1.0)

    assert seen.count("bad") >= 2
    assert seen.count("good") == 1
    assert {"success", "error"} == set(results)
    await queue.close()


def test_back_off_is_capped_for_any_number_of_failures() -> None:
    """An outage of a day must not overflow."""
    assert backoff(10**9, jitter=lambda: 0.0) == LARGEST_BACKOFF


async def test_a_queue_that_is_closed_takes_nothing_until_it_is_opened() -> None:
    """A replica that stands by is told of every change, and does nothing about it."""
    work = Recorder(takes=5.0)
    queue = WorkQueue(work)
    queue.enqueue(KEY)
    await asyncio.sleep(1.0)
    await queue.close()
    queue.enqueue(KEY)
    queue.enqueue_fresh(KEY)
    await asyncio.sleep(60.0)
    begun, left = len(work.runs), len(queue)

    queue.open()
    queue.enqueue(KEY)
    await asyncio.sleep(60.0)

    assert (1, 0) == (begun, left)
    assert 2 == len(work.runs)
