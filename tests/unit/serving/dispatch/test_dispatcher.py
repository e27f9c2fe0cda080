"""Admission, batches, limits and the end: every request is answered exactly once."""

import asyncio
import contextlib
from typing import Any

import pytest

from batchedapi_core.batching import Client, SizeUnit, Strategy
from batchedapi_serving.dispatch.dispatcher import Dispatcher
from batchedapi_serving.errors import LateError, NotReadyError, QueueFullError
from batchedapi_serving.metrics import slots
from dispatching import FIXED, PER_ROW, HangsError, World

pytestmark = pytest.mark.looptime


def sizes(world: World) -> list[int]:
    """Sizes of the batches, in order."""
    return [len(batch) for batch in world.batches]


async def test_requests_of_different_clients_ride_together() -> None:
    """B02, C18: one batch, and everybody gets their own answer."""
    world = World()

    asked = [world.ask({"id": n}) for n in range(5)]
    await asyncio.sleep(1)

    assert [[{"id": n} for n in range(5)]] == world.batches
    assert [{"id": n} for n in range(5)] == [one.body for one in asked]


async def test_a_full_batch_leaves_at_once_and_the_rest_at_the_interval() -> None:
    """C18, D12: whichever comes first. D15's remainder: 100 = 64 + 36."""
    world = World(max_batch_size=64, batch_interval=2.0, seconds=lambda _: 0.064)

    asked = [world.ask(n) for n in range(100)]
    await asyncio.sleep(5)

    assert [64, 36] == sizes(world)
    assert {"full": 1, "interval": 1} == world.reasons()
    assert pytest.approx(0.064) == asked[0].at
    assert pytest.approx(2.064, abs=0.002) == asked[99].at


async def test_a_lone_request_waits_for_the_interval_under_fixed_and_not_under_window() -> None:
    """B03; the window is for those who are known to come back."""
    fixed, window = World(), World(strategy=Strategy.WINDOW)

    waited, at_once = fixed.ask(1), window.ask(1)
    await asyncio.sleep(1)

    assert pytest.approx(0.020 + FIXED + PER_ROW, abs=0.001) == waited.at
    assert pytest.approx(FIXED + PER_ROW, abs=0.001) == at_once.at
    assert {"early": 1} == window.reasons()


async def test_as_many_batches_run_at_once_as_there_are_lanes() -> None:
    """C08, D01: processes x threads, and never one more."""
    world = World(lanes=4, max_batch_size=1, seconds=lambda _: 1.0)

    asked = [world.ask(n) for n in range(5)]
    await asyncio.sleep(1.5)

    assert world.most_running == 4
    assert [1, 1, 1, 1, 0] == [len(one.answers) for one in asked]


async def test_before_the_first_model_is_ready_nothing_is_taken() -> None:
    """503: the model is still being loaded."""
    world = World(lanes=0)

    with pytest.raises(NotReadyError):
        world.ask(1)
    world.start_process()

    world.ask(1)
    assert len(world.announced) == 1


async def test_without_any_lane_requests_wait_for_one() -> None:
    """After the first readiness a death is nobody's business but ours."""
    world = World(restart=5.0)
    world.lanes[0].die()

    asked = world.ask(1)
    await asyncio.sleep(4.9)
    waiting = list(asked.answers)
    await asyncio.sleep(1)

    assert [] == waiting
    assert asked.status == 200


async def test_above_the_limit_a_request_is_refused_with_a_time_to_come_back() -> None:
    """503 with Retry-After, and its rows are counted as rejected."""
    world = World(max_concurrency=3)
    for n in range(3):
        world.ask(n)

    with pytest.raises(QueueFullError) as caught:
        world.ask_rows([4, 5])

    assert caught.value.retry_after >= 1
    assert world.counted(slots.REJECTION_SLOT["queue_full"]) == 2
    await asyncio.sleep(1)
    world.ask(4)


async def test_what_would_be_late_is_refused_before_it_queues() -> None:
    """B21: 429 with Retry-After; those who were accepted are in time."""
    world = World(max_latency=0.05, strategy=Strategy.WINDOW)
    for _ in range(20):
        world.ask(0)
        await asyncio.sleep(0.1)

    accepted, refusals = [], []
    for n in range(400):
        try:
            accepted.append((world.loop.time(), world.ask(n)))
        except LateError as error:
            refusals.append(error.retry_after)
        await asyncio.sleep(0.0002)
    await asyncio.sleep(1)

    assert refusals
    assert min(refusals) >= 1
    assert len(refusals) == world.counted(slots.REJECTION_SLOT["latency"])
    late = [asked.at - at for at, asked in accepted if asked.at - at > 0.05 * 1.5]
    assert len(late) <= len(accepted) // 20


WARM_UP = {"predict": [(n, n, FIXED + PER_ROW * n, 0) for n in (1, 2, 4, 8, 16, 32, 64)]}


@pytest.mark.parametrize("warm_up", [{}, WARM_UP])
@pytest.mark.parametrize("lanes", [1, 2])
async def test_a_first_burst_is_taken_whole(warm_up: Any, lanes: int) -> None:
    """None of 64 requests is refused for a guess from one; the target is ten batches' time."""
    target = 10 * (FIXED + PER_ROW * 64)
    world = World(
        max_latency=target, strategy=Strategy.WINDOW, max_batch_size=64, warm_up=warm_up,
        lanes=lanes,
    )  # fmt: skip

    asked = []
    for n in range(64):
        asked.append(world.ask(n))
        await asyncio.sleep(0.0005)
    await asyncio.sleep(1)

    assert {200} == {one.status for one in asked}
    assert max(one.at for one in asked) < target


async def test_each_process_says_once_what_its_warm_up_took() -> None:
    """Over whichever of its connections is first; that of a replacement counts as well."""
    world = World(threads=4, restart=0.1, warm_up={"predict": [(1, 1, 0.2, 0)]})
    service = world.dispatcher.served(None).batcher.service
    assert pytest.approx(0.2) == service.seconds(1)

    service.observe(1, 0.1)
    assert pytest.approx((0.25 * 0.2 + 0.1) / 1.25) == service.seconds(1)

    world.processes[0].die()
    await asyncio.sleep(0.2)
    assert pytest.approx((0.5 * 0.2 + 0.1) / 1.5) == service.seconds(1)


async def test_over_the_timeout_a_request_gets_504_and_the_process_that_hangs_is_replaced() -> None:
    """A deadline is a promise whatever the model does; the next request finds a fresh process."""
    world = World(seconds=lambda rows: 60.0 if rows == 2 else 0.01, timeout=1.0)
    hung = [world.ask(1), world.ask(2)]
    await asyncio.sleep(1.6)

    after = world.ask(3)
    await asyncio.sleep(1)

    assert [504, 504] == [one.status for one in hung]
    assert pytest.approx(1.0, abs=0.01) == hung[0].at
    assert [1] == world.replaced
    assert after.status == 200


async def test_a_request_that_expires_in_the_queue_is_never_run() -> None:
    """Nobody wants the answer any more."""
    world = World(max_batch_size=1, seconds=lambda _: 0.8, timeout=1.0)
    asked = [world.ask(n) for n in range(3)]

    await asyncio.sleep(5)

    assert [200, 504, 504] == [one.status for one in asked]
    assert [0] not in world.batches[1:]
    assert [2] not in world.batches
    assert world.counted(slots.REJECTION_SLOT["expired"]) >= 1


async def test_a_slow_model_that_answers_in_time_for_others_is_not_replaced() -> None:
    """Only a batch of which every request is over its deadline counts as hanging."""
    world = World(seconds=lambda _: 0.9, timeout=1.0, max_batch_size=1)
    world.ask(1)

    await asyncio.sleep(3)

    assert [] == world.replaced


async def test_a_hanging_process_is_replaced_even_when_its_clients_have_left() -> None:
    """Else the next client would wait for its own timeout first."""
    world = World(lambda items: _hang(items) if "hang" in items else items, timeout=1.0)
    world.ask(1)
    await asyncio.sleep(0.5)
    hung = world.ask("hang")
    await asyncio.sleep(0.1)
    world.cancel(hung)

    await asyncio.sleep(2)

    assert [1] == world.replaced


async def test_a_client_that_left_costs_nothing_while_it_is_queued() -> None:
    """LitServe computes for clients that are gone; its rows are counted as disconnected."""
    world = World()
    gone, stays = world.ask("gone"), world.ask("stays")

    world.cancel(gone)
    world.cancel(gone)
    await asyncio.sleep(1)

    assert [["stays"]] == world.batches
    assert ([], 200) == (gone.answers, stays.status)
    assert world.counted(slots.REJECTION_SLOT["disconnected"]) == 1
    assert world.counted(slots.CODE_SLOT[499]) == 1


async def test_a_client_that_was_answered_elsewhere_counts_as_what_it_was_told() -> None:
    """Once, and its row is not run."""
    world = World()
    told = world.ask("told")

    world.cancel(told, 503)
    await asyncio.sleep(1)

    assert [] == world.batches
    assert (1, 0) == (world.counted(slots.CODE_SLOT[503]), world.counted(slots.CODE_SLOT[499]))


async def test_a_client_that_leaves_while_its_batch_runs_disturbs_nobody() -> None:
    """Its answer goes nowhere, the neighbours' to them."""
    world = World()
    gone, stays = world.ask("gone"), world.ask("stays")
    await asyncio.sleep(0.025)

    world.cancel(gone)
    await asyncio.sleep(1)

    assert [["gone", "stays"]] == world.batches
    assert ([], "stays") == (gone.answers, stays.body)


async def test_a_connection_that_closes_idle_is_forgotten() -> None:
    """Nobody waits for its next request."""
    world = World(strategy=Strategy.WINDOW)
    client = Client()
    for n in range(5):
        world.ask(n, client)
        await asyncio.sleep(0.02)

    world.dispatcher.disconnected(client)
    asked, began = world.ask("x"), world.loop.time()
    await asyncio.sleep(1)

    assert pytest.approx(FIXED + PER_ROW, abs=0.002) == asked.at - began


async def test_an_oversize_request_is_split_and_put_together_in_order() -> None:
    """N14: more rows than a batch holds are no error."""
    world = World(max_batch_size=8, lanes=3)

    asked = world.ask_rows(list(range(20)))
    await asyncio.sleep(1)

    assert {"predictions": list(range(20))} == asked.body
    assert [4, 8, 8] == sorted(sizes(world))


async def test_when_a_part_fails_the_request_fails_once_and_its_neighbours_do_not() -> None:
    """The other parts of it are not run for nothing."""

    def predict(items: list[Any]) -> list[Any]:
        if 3 in items:
            raise ValueError
        return items

    world = World(predict, max_batch_size=4)

    asked, neighbour = world.ask_rows(list(range(12))), world.ask("x")
    await asyncio.sleep(3)

    assert (500, 200) == (asked.status, neighbour.status)


async def test_size_may_count_requests() -> None:
    """`sizeUnit: Requests`: rows of one request are then one."""
    world = World(max_batch_size=2, size_unit=SizeUnit.REQUESTS)

    asked = [world.ask_rows([n] * 5) for n in range(4)]
    await asyncio.sleep(1)

    assert [10, 10] == sizes(world)
    assert [{"predictions": [n] * 5} for n in range(4)] == [one.body for one in asked]


async def test_while_draining_nothing_waits_for_a_fuller_batch() -> None:
    """Reason `drain`; new requests are still answered until the listener closes."""
    world = World(batch_interval=10.0)
    waiting = world.ask(1)

    world.dispatcher.drain()
    await asyncio.sleep(0.1)
    late = world.ask(2)
    await asyncio.sleep(0.1)

    assert (200, 200) == (waiting.status, late.status)
    assert {"drain": 2} == world.reasons()


async def test_when_the_time_to_stop_is_over_the_rest_gets_503() -> None:
    """An answer, and not a broken connection."""
    world = World(seconds=lambda _: 60.0, timeout=None)
    asked = [world.ask(n) for n in range(3)]
    await asyncio.sleep(1)

    world.dispatcher.abandon()

    assert [503] * 3 == [one.status for one in asked]


async def test_without_a_timeout_nothing_expires() -> None:
    """`timeout: 0s` means no limit."""
    world = World(seconds=lambda _: 3600.0, timeout=None)
    asked = world.ask(1)

    await asyncio.sleep(4000)

    assert asked.status == 200


async def test_gauges_say_what_is_queued_and_running() -> None:
    """Rows in the queue, requests in flight, lanes."""
    world = World(max_batch_size=2, seconds=lambda _: 1.0)
    for n in range(5):
        world.ask(n)

    world.dispatcher.update_gauges()

    gauges = (slots.LANES, slots.QUEUE_ROWS, slots.IN_FLIGHT)
    assert [1, 3, 5] == [world.counted(slot) for slot in gauges]


async def test_a_lane_whose_frames_are_broken_is_given_up() -> None:
    """Its batch is run again elsewhere."""
    world = World(seconds=lambda _: 1.0)
    asked = world.ask(1)
    await asyncio.sleep(0.5)

    world.lanes[0]._lane.data_received(b"\xff" * 12)
    await asyncio.sleep(3)

    assert asked.status == 200
    assert len(world.batches) == 2


async def test_a_client_that_cannot_be_told_costs_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers go before the account of their batch; a bug in one must not keep the lane busy."""
    world = World()
    asked = world.ask(1)
    monkeypatch.setattr(asked, "deliver", _fail)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await asyncio.sleep(1)

    asked = world.ask(2)
    await asyncio.sleep(1)

    assert asked.status == 200


async def test_who_asks_again_while_being_answered_need_not_wait_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its batch is not yet accounted for then, and nobody else would start the next."""
    world = World(strategy=Strategy.WINDOW)
    first, again = world.ask(1), []
    monkeypatch.setattr(first, "deliver", lambda _: again.append(world.ask(2)))

    await asyncio.sleep(1)

    assert [200] == [one.status for one in again]


async def test_a_dispatcher_that_was_never_ready_stops_quietly() -> None:
    """SIGTERM may come while the model is loading."""
    world = World(lanes=0)
    dispatcher: Dispatcher = world.dispatcher

    dispatcher.drain()
    dispatcher.abandon()
    dispatcher.disconnected(Client())
    dispatcher.update_gauges()
    world.start_process()
    with contextlib.suppress(NotReadyError):
        world.ask(1)

    await asyncio.sleep(0.1)
    assert {"drain": 1} == world.reasons()


def _hang(_: object) -> None:
    raise HangsError


def _fail(_: object) -> None:
    raise RuntimeError
