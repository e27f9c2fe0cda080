"""Both ends of one queue for all replicas, in virtual time: each request is answered once."""

import asyncio
from collections.abc import Sequence

import orjson
import pytest

from batchedapi_core.batching import ItemErrorPolicy
from batchedapi_serving.errors import QueueFullError
from batchedapi_serving.queue.entries import MOST_BYTES, joined_answers
from queue_room import Room, Web, Worker, left_over, room

pytestmark = pytest.mark.looptime


async def test_rows_are_answered_and_leave_the_queue() -> None:
    """Acknowledged rows take no memory."""
    async with room() as here:
        await here.worker()
        web = await here.web()

        asked = [web.ask({"id": n}) for n in range(40)]
        answers = [await one.answer() for one in asked]
        await asyncio.sleep(1.0)

    assert [{"id": n} for n in range(40)] == [orjson.loads(answer.body) for answer in answers]
    assert 0 == left_over(here.redis)
    assert [["predict", "predict"]] == web.told


async def test_a_worker_takes_no_more_than_it_runs_next() -> None:
    """Late binding: what waits is for whoever is free first."""
    async with room(max_batch_size=4) as here:
        worker = await here.worker(seconds=0.05)
        web = await here.web()
        for n in range(40):
            web.ask({"id": n})
        await asyncio.sleep(0.03)
        (stream,) = here.redis.streams.values()

        held = len(stream.pending)

    assert 8 == held
    assert [4] == [len(batch) for batch in worker.world.batches]


async def test_rows_of_a_dead_worker_are_answered_by_another_within_two_seconds() -> None:
    """And by the signs of life that are missing, not by how long a batch takes."""
    async with room() as here:
        first = await here.worker(seconds=30.0)
        web = await here.web()
        asked = web.ask({"id": 1})
        await asyncio.sleep(0.5)
        first.die()
        died = here.loop.time()
        second = await here.worker()

        answer = await asked.answer()
        took = here.loop.time() - died
        await asyncio.sleep(40.0)

    assert 200 == answer.status
    assert took <= 2.0
    assert [[{"id": 1}]] == second.world.batches
    assert 1 == len(asked.answers)


async def test_a_slow_batch_is_no_death() -> None:
    """Its worker says that it lives."""
    async with room() as here:
        await here.worker(seconds=20.0)
        web = await here.web()
        asked = web.ask({"id": 1})
        second = await here.worker()

        answer = await asked.answer()

    assert 200 == answer.status
    assert [] == second.world.batches


async def test_with_fail_batch_rows_of_a_dead_worker_are_refused() -> None:
    """Nothing that was taken is run again."""
    async with room(item_errors=ItemErrorPolicy.FAIL_BATCH) as here:
        first = await here.worker(seconds=30.0)
        web = await here.web()
        asked = web.ask({"id": 1})
        await asyncio.sleep(0.5)
        first.die()
        second = await here.worker()

        answer = await asked.answer()

    assert 503 == answer.status
    assert b"FailBatch" in answer.body
    assert [] == second.world.batches


@pytest.mark.parametrize("keeps", [True, False], ids=["with its data", "without"])
async def test_a_restart_of_redis_costs_nobody_an_answer(keeps: bool) -> None:  # noqa: FBT001
    """A request that Redis has lost is handed in again, and answered once."""
    async with room(max_batch_size=4) as here:
        await here.worker(seconds=0.2)
        web = await here.web()
        asked = [web.ask({"id": n}) for n in range(20)]
        await asyncio.sleep(0.3)
        here.redis.down = True
        asked += [web.ask({"id": n}) for n in range(20, 30)]
        await asyncio.sleep(1.0)
        here.redis.restart(keeps=keeps)
        here.redis.down = False
        answers = [await one.answer() for one in asked]
        await asyncio.sleep(5.0)

    assert [{"id": n} for n in range(30)] == [orjson.loads(answer.body) for answer in answers]
    assert {1} == {len(one.answers) for one in asked}
    assert 0 == left_over(here.redis)


async def test_answers_lost_with_a_connection_are_not_waited_for() -> None:
    """Redis gave them away, and lives on: nothing else tells that they will never come."""
    async with room(max_batch_size=4) as here:
        await here.worker(seconds=0.2)
        web = await here.web()
        here.redis.losses = 2
        asked = [web.ask({"id": n}) for n in range(20)]
        answers = [await one.answer() for one in asked]
        await asyncio.sleep(1.0)

    assert [{"id": n} for n in range(20)] == [orjson.loads(answer.body) for answer in answers]
    assert {1} == {len(one.answers) for one in asked}
    assert 0 == left_over(here.redis)


async def test_with_fail_batch_an_answer_lost_with_a_connection_is_refused() -> None:
    """It was run, and is not run twice."""
    async with room(item_errors=ItemErrorPolicy.FAIL_BATCH) as here:
        worker = await here.worker()
        web = await here.web()
        here.redis.losses = 1
        answer = await web.ask({"id": 1}).answer()

    assert (503, 1) == (answer.status, len(worker.world.batches))


@pytest.mark.parametrize(
    ("policy", "statuses", "times"),
    [(ItemErrorPolicy.FAIL_BATCH, {503}, 1), (ItemErrorPolicy.ISOLATE, {200}, 2)],
    ids=["FailBatch", "Isolate"],
)
async def test_what_redis_brings_back_from_older_data_runs_again_or_is_refused(
    policy: ItemErrorPolicy, statuses: set[int], times: int
) -> None:
    """It had not kept that the rows were taken: nobody can tell them from those that never were."""
    async with room(item_errors=policy) as here:
        first = await here.worker(seconds=5.0)
        web = await here.web()
        asked = [web.ask({"id": n}) for n in range(2)]
        await asyncio.sleep(0.5)
        second = await here.worker()
        (stream,) = here.redis.streams.values()
        here.redis.down = True
        here.redis.restart(keeps=True)
        stream.pending.clear()
        stream.delivered.clear()
        first.die()
        await asyncio.sleep(1.0)
        here.redis.down = False
        answers = [await one.answer() for one in asked]
        after = await web.ask({"id": 9}).answer()
        await asyncio.sleep(1.0)

    ran = [item["id"] for one in (first, second) for batch in one.world.batches for item in batch]
    assert statuses == {answer.status for answer in answers}
    assert [times, times, 1] == [ran.count(number) for number in (0, 1, 9)]
    assert 200 == after.status
    assert 0 == left_over(here.redis)


async def test_a_queue_that_stays_away_refuses_until_it_is_back() -> None:
    """503 with Retry-After, and not a request without end."""
    async with room() as here:
        await here.worker()
        web = await here.web()
        here.redis.down = True
        held = web.ask({"id": 1})
        refused = await held.answer()
        with pytest.raises(Exception, match="cannot be reached"):
            web.ask({"id": 2})
        here.redis.down = False
        await asyncio.sleep(3.0)
        after = await web.ask({"id": 3}).answer()

    assert (503, 200) == (refused.status, after.status)
    assert refused.retry_after >= 1


async def test_a_web_process_that_ended_refuses_nobody_later() -> None:
    """It knew why, and that is told until then."""
    async with room() as here:
        here.redis.down = True
        web = await here.web()
        known = (
            web.engine.line.why is not None,
            web.engine.line.connected,
            str(web.engine.refusal()),
        )
        here.tasks[-1].cancel()
        await web.engine.close()
        await asyncio.sleep(10.0)

    assert (True, False) == known[:2]
    assert "cannot be reached" in known[2]
    assert not web.engine.hold.given_up.is_set()


async def test_a_web_process_that_ends_leaves_nothing_behind() -> None:
    """Nor does it wait for a Redis that is away."""
    async with room() as here:
        await here.worker()
        web = await here.web()
        signed = web.engine.line.name in here.redis.alive
        here.tasks[-1].cancel()
        await web.engine.close()

    assert (True, False) == (signed, web.engine.line.name in here.redis.alive)


async def test_rows_of_a_dead_web_process_are_not_run() -> None:
    """Nobody could be told."""
    async with room() as here:
        worker = await here.worker()
        worker.die()
        web = await here.web()
        web.ask({"id": 1})
        await asyncio.sleep(0.5)
        here.tasks[-1].cancel()
        await asyncio.sleep(3.0)
        late = await here.worker()
        await asyncio.sleep(1.0)

    assert [] == late.world.batches
    assert 0 == left_over(here.redis)


async def test_who_leaves_is_taken_out_of_the_queue() -> None:
    """No lane is spent on it."""
    async with room() as here:
        (await here.worker()).die()
        web = await here.web()
        _, handle = web.submit({"id": 1})
        await asyncio.sleep(0.1)
        waited = left_over(here.redis)
        web.engine.cancel(handle)
        await asyncio.sleep(0.1)

    assert (1, 0) == (waited, left_over(here.redis))


async def test_a_full_queue_and_a_full_redis_refuse() -> None:
    """Each says which of them it is."""
    async with room() as here:
        (await here.worker()).die()
        web = await here.web(max_length=2)
        for n in range(2):
            web.ask({"id": n})
        await asyncio.sleep(0.4)
        with pytest.raises(Exception, match="maxLength"):
            web.ask({"id": 2})
        other = await here.web()
        here.redis.full = True
        answer = await other.ask({"id": 3}).answer()

    assert 503 == answer.status
    assert b"no memory" in answer.body


@pytest.mark.parametrize("slow", ["handing_seconds", "looking_seconds"])
async def test_a_queue_keeps_its_length_while_what_redis_says_of_it_is_old(slow: str) -> None:
    """Requests that came since it was said count too."""
    refused = 0
    async with room() as here:
        (await here.worker()).die()
        web = await here.web(max_length=4)
        setattr(here.redis, slow, 0.3)
        for n in range(12):
            try:
                web.ask({"id": n})
            except QueueFullError:
                refused += 1
            await asyncio.sleep(0.1)

    assert 8 == refused


async def test_a_redis_without_memory_takes_nobody_offline() -> None:
    """Accepted requests run, new ones are refused with the reason, and all recovers by itself."""
    async with room() as here:
        worker = await here.worker(seconds=1.0)
        web = await here.web()
        before = web.ask({"id": 1})
        await asyncio.sleep(0.1)
        here.redis.full = True
        refused = await web.ask({"id": 2}).answer()
        late = await here.worker()
        await asyncio.sleep(10.0)
        meanwhile = [*worker.connected], [*late.connected], [*before.answers]
        here.redis.full = False
        answers = [await before.answer(), await web.ask({"id": 3}).answer()]
        await asyncio.sleep(2.0)

    assert (503, [200, 200]) == (refused.status, [answer.status for answer in answers])
    assert b"no memory" in refused.body
    assert ([True], False, []) == (meanwhile[0], True in meanwhile[1], meanwhile[2])
    assert ([True], True) == (worker.connected, late.connected[-1])


async def test_a_web_process_that_cannot_sign_for_want_of_memory_says_so() -> None:
    """It was missed, and nobody may take it for alive: its requests would be dropped."""
    async with room() as here:
        await here.worker()
        web = await here.web()
        here.redis.full = True
        here.redis.alive.clear()
        await asyncio.sleep(1.0)
        held = await web.ask({"id": 1}).answer()
        with pytest.raises(Exception, match="no memory"):
            web.ask({"id": 2})
        here.redis.full = False
        await asyncio.sleep(3.0)
        after = await web.ask({"id": 3}).answer()

    assert (503, 200) == (held.status, after.status)
    assert b"no memory" in held.body


async def test_a_deadline_is_kept_whoever_runs() -> None:
    """504 comes from the web process, even while no worker is there."""
    async with room() as here:
        (await here.worker()).die()
        web = await here.web()
        began = here.loop.time()
        answer = await web.ask({"id": 1}, timeout=2.0).answer()

    assert 504 == answer.status
    assert 2.0 == pytest.approx(here.loop.time() - began, abs=0.1)


async def test_a_worker_that_drains_leaves_what_others_can_run() -> None:
    """And answers what it has before it goes."""
    async with room(max_batch_size=4) as here:
        first = await here.worker(seconds=0.2)
        second = await here.worker(seconds=0.2)
        web = await here.web()
        asked = [web.ask({"id": n}) for n in range(40)]
        await asyncio.sleep(0.1)
        first.puller.drain()
        await first.puller.drained()
        first.die()
        answers = [await one.answer() for one in asked]

    assert {200} == {answer.status for answer in answers}
    ran = [item["id"] for one in (first, second) for batch in one.world.batches for item in batch]
    assert list(range(40)) == sorted(ran)


async def test_a_missing_right_is_no_connection_though_redis_answers() -> None:
    """Told once, and neither ready nor waited for without end; granted, all goes on."""
    async with room() as here:
        worker = await here.worker()
        web = await here.web()
        here.redis.forbidden = {"take", "hand_in"}
        here.redis.down = True
        await asyncio.sleep(1.0)
        here.redis.down = False
        await asyncio.sleep(10.0)
        meanwhile = [*worker.connected]
        refused = await web.ask({"id": 1}).answer()
        here.redis.forbidden = set()
        await asyncio.sleep(3.0)
        answer = await web.ask({"id": 2}).answer()

    assert [True, False] == [meanwhile[0], meanwhile[-1]]
    assert 1 == meanwhile.count(True)
    assert worker.connected[-1]
    assert (503, 200) == (refused.status, answer.status)


async def test_a_worker_stops_in_seconds_while_its_queue_is_away() -> None:
    """It waits to be told what it was given as Redis went away, and then for nothing."""
    async with room() as here:
        asks = await here.worker()
        late = await here.worker()
        here.redis.down = True
        await asyncio.sleep(1.0)
        began = here.loop.time()
        asks.puller.drain()
        await asks.puller.drained()
        took = here.loop.time() - began
        await asyncio.sleep(5.0)
        late.puller.drain()
        await late.puller.drained()
        took_later = here.loop.time() - began - took - 5.0

    assert 3.0 < took < 6.0
    assert took_later < 0.1


async def test_a_worker_that_has_to_answer_waits_for_its_queue() -> None:
    """And one that has nothing stops at once where Redis is there."""
    async with room() as here:
        idle = await here.worker()
        busy = await here.worker(seconds=3.0)
        idle.puller.drain()
        await idle.puller.drained()
        web = await here.web()
        asked = web.ask({"id": 1})
        await asyncio.sleep(0.5)
        here.redis.down = True
        await asyncio.sleep(1.0)
        busy.puller.drain()
        leaving = asyncio.create_task(busy.puller.drained())
        await asyncio.sleep(3.0)
        waited = not leaving.done()
        here.redis.down = False
        answer = await asked.answer()
        await leaving

    assert waited
    assert 200 == answer.status


async def test_no_worker_stops_before_it_knows_what_it_was_given() -> None:
    """Redis had given it a request as the connection broke; no other may run that a second time."""
    async with room(item_errors=ItemErrorPolicy.FAIL_BATCH) as here:
        worker = await here.worker()
        web = await here.web()
        here.redis.taking_losses = 1
        asked = web.ask({"id": 1})
        while worker.connected[-1]:  # noqa: ASYNC110 - a fake tells nobody
            await asyncio.sleep(0.001)
        worker.puller.drain()
        leaving = asyncio.create_task(worker.puller.drained())
        leaving.add_done_callback(lambda _: worker.die())
        await here.worker()
        answer = await asked.answer()
        await leaving

    assert 200 == answer.status


@pytest.mark.parametrize("away", [True, False], ids=["while Redis is away", "while it is slow"])
async def test_no_worker_stops_before_its_answers_are_written(away: bool) -> None:  # noqa: FBT001
    """On their way they are neither in hand nor here."""
    async with room() as here:
        worker = await here.worker(seconds=0.5)
        web = await here.web()
        here.redis.writing_seconds = 3.0
        asked = web.ask({"id": 1})
        await asyncio.sleep(1.0)
        worker.puller.drain()
        here.redis.down = away
        leaving = asyncio.create_task(worker.puller.drained())
        leaving.add_done_callback(lambda _: worker.die())
        await asyncio.sleep(1.9)
        waited = not leaving.done()
        here.redis.down = False
        answer = await asked.answer()
        await leaving

    assert waited
    assert 200 == answer.status


async def with_a_suspect(here: Room) -> tuple["Worker", "Web"]:
    """A worker that has a row of which another has died, and the web process that asked for it."""
    worker = await here.worker(seconds=60.0)
    web = await here.web()
    web.ask({"id": 0})
    await asyncio.sleep(0.1)
    (stream,) = here.redis.streams.values()
    (suspect,) = stream.pending.values()
    suspect.deliveries = 2
    return worker, web


async def test_a_suspect_has_no_company_of_what_was_being_asked_for() -> None:
    """A row that came meanwhile would die with it."""
    async with room() as here:
        dies, web = await with_a_suspect(here)
        (stream,) = here.redis.streams.values()
        worker = await here.worker(lanes=2, seconds=2.0)
        dies.die()
        await asyncio.sleep(1.0)
        beside = []
        for number in range(1, 100):
            web.ask({"id": number})
            await asyncio.sleep(0.1)
            if [{"id": 0}] == worker.world.batches[-1]:
                mine = [
                    one for one in stream.pending.values() if one.worker == worker.puller.line.name
                ]
                beside.append(len(mine))

    assert 10 < len(beside)
    assert {1} == set(beside)


async def test_a_suspect_that_another_worker_gets_holds_nobody_up() -> None:
    """One of its lanes is busy for long: it takes more for the other all the same."""
    async with room(max_batch_size=1) as here:
        dies, web = await with_a_suspect(here)
        busy = await here.worker(lanes=2, seconds=60.0)
        dies.die()
        web.ask({"id": 1})
        await asyncio.sleep(3.0)
        gets = await here.worker(seconds=60.0)
        await asyncio.sleep(2.0)
        web.ask({"id": 2})
        await asyncio.sleep(2.0)

    assert [[{"id": 0}]] == gets.world.batches
    assert [[{"id": 1}], [{"id": 2}]] == busy.world.batches


async def test_one_command_is_bounded_in_bytes() -> None:
    """Redis does nothing else meanwhile, and takes no more than 512 MB as one value."""
    async with room(max_batch_size=8) as here:
        worker = await here.worker()
        web = await here.web()
        large = "x" * (6 << 20)
        asked = [web.ask({"id": n, "large": large}) for n in range(5)]
        answers = [await one.answer() for one in asked]

    assert [2, 2, 1] == here.redis.handed_in
    assert 5 == sum(map(len, worker.world.batches))
    assert [200] * 5 == [answer.status for answer in answers]


@pytest.mark.parametrize("full", [False, True], ids=["at once", "after a spell without memory"])
async def test_answers_of_one_command_are_bounded_in_bytes(full: bool) -> None:  # noqa: FBT001
    """A slow link would never take all of them in the time that one command has."""
    async with room(max_batch_size=8) as here:
        await here.worker(seconds=1.0)
        webs = [await here.web() for _ in range(2)]
        large = "x" * (6 << 20)
        asked = [web.ask({"id": n, "large": large}) for n in range(3) for web in webs]
        await asyncio.sleep(0.5)
        here.redis.full = full
        await asyncio.sleep(4.0)
        here.redis.full = False
        answers = [await one.answer() for one in asked]
        await asyncio.sleep(1.0)

    assert [200] * 6 == [answer.status for answer in answers]
    assert 6 * len(large) < sum(here.redis.written)
    assert max(here.redis.written) <= MOST_BYTES
    assert {1} == {len(one.answers) for one in asked}
    assert 0 == left_over(here.redis)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([1, 2], [3]),
        ([MOST_BYTES + 1, 1], [MOST_BYTES + 1, 1]),
        ([1, MOST_BYTES, MOST_BYTES - 1, 1], [1, MOST_BYTES, MOST_BYTES]),
    ],
)
def test_answers_are_joined_as_far_as_one_element_may_be(
    lengths: Sequence[int], expected: Sequence[int]
) -> None:
    """None is cut, and none is left out."""
    joined = joined_answers([bytes(length) for length in lengths])

    assert expected == [len(pack) for pack in joined]
