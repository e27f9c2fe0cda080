"""Several methods in one replica: each its own line, all of them the same lanes."""

import asyncio
from typing import Any

import pytest

from batchedapi_core.batching import LaneChoice, SizeUnit, Strategy
from batchedapi_serving.errors import LateError, NoSuchRouteError, NotReadyError, QueueFullError
from batchedapi_serving.metrics import slots
from batchedapi_serving.predictor import MethodSpec, SizeOf
from batchedapi_serving.settings import BatchingSettings
from dispatching import World, echo

pytestmark = pytest.mark.looptime

PREDICT = MethodSpec("predict", batched=True, max_batch_size=8)
EMBED = MethodSpec("embed", batched=True, max_batch_size=4)


def negated(items: list[int]) -> list[int]:
    """The answer of the other method, distinct from the first one's."""
    return [-item for item in items]


def two_methods(**settings: Any) -> World:
    """`predict` answers its items, `embed` the same with a minus."""
    values = {"max_batch_size": None, **settings}
    return World(methods=[(PREDICT, echo), (EMBED, negated)], **values)


async def test_requests_of_different_methods_never_share_a_batch() -> None:
    """N25, N28: each method has its own queue; the answers are its own."""
    world = two_methods()

    asked = [world.ask(n, method=("predict", "embed")[n % 2]) for n in range(12)]
    await asyncio.sleep(1)

    assert [-n if n % 2 else n for n in range(12)] == [one.body for one in asked]
    for method, batch in zip(world.methods_run, world.batches, strict=True):
        assert {("predict", "embed").index(method)} == {item % 2 for item in batch}


async def test_each_method_has_its_own_size_and_interval() -> None:
    """N25: what the manifest says of a method beats what it says of all."""
    embed = BatchingSettings(max_batch_size=2, batch_interval=0.1, strategy=Strategy.FIXED)
    world = two_methods(batch_interval=0.02, of_methods={"embed": embed})

    alone, early = world.ask(1, method="embed"), world.ask(2, method="predict")
    await asyncio.sleep(0.5)
    began = world.loop.time()
    full = [world.ask(n, method="embed") for n in (3, 4)]
    await asyncio.sleep(0.5)

    assert pytest.approx(0.1, abs=0.015) == alone.at
    assert pytest.approx(0.02, abs=0.015) == early.at
    assert [pytest.approx(began, abs=0.015)] * 2 == [one.at for one in full]
    assert ({"interval": 1}, {"interval": 1, "full": 1}) == (world.reasons(0), world.reasons(1))


async def test_one_free_lane_takes_the_oldest_of_the_batches_that_may_start() -> None:
    """Neither method can starve the other, however much comes of it."""
    world = two_methods(seconds=lambda _: 1.0, batch_interval=0.0)
    world.ask(0, method="predict")
    await asyncio.sleep(0.1)
    world.ask(1, method="embed")
    await asyncio.sleep(0.1)
    for n in range(2, 100):
        world.ask(n, method="predict")

    await asyncio.sleep(5)

    assert ["predict", "embed", "predict"] == world.methods_run[:3]


async def test_a_wait_of_one_method_does_not_hold_the_other_back() -> None:
    """The lane is free: whoever may start starts."""
    slow = BatchingSettings(batch_interval=10.0, strategy=Strategy.FIXED)
    world = two_methods(batch_interval=0.01, of_methods={"embed": slow})

    waits = world.ask(1, method="embed")
    await asyncio.sleep(0.1)
    starts = world.ask(2, method="predict")
    await asyncio.sleep(1)

    assert [] == waits.answers
    assert starts.at < 0.15
    await asyncio.sleep(10)
    assert pytest.approx(10.0, abs=0.02) == waits.at


async def test_predict_is_the_default_and_other_names_are_told() -> None:
    """A 404 that lists what there is."""
    world = two_methods()

    assert ("predict", {"predict": PREDICT, "embed": EMBED}) == (
        world.dispatcher.default,
        dict(world.dispatcher.methods),
    )
    assert world.dispatcher.served(None) is world.dispatcher.served("predict")
    with pytest.raises(NoSuchRouteError, match="'x'; there are predict, embed"):
        world.dispatcher.served("x")


async def test_without_a_default_a_method_must_be_named() -> None:
    """Nobody can guess which of two is meant."""
    rank = MethodSpec("rank", batched=True, max_batch_size=4)
    world = World(methods=[(EMBED, negated), (rank, echo)], max_batch_size=None)

    assert world.dispatcher.default is None
    with pytest.raises(NoSuchRouteError, match="name a method"):
        world.dispatcher.served(None)


async def test_before_the_first_model_is_ready_there_is_no_line() -> None:
    """503, also for a name that may not exist."""
    world = World(lanes=0)

    for name in (None, "predict", "x"):
        with pytest.raises(NotReadyError):
            world.dispatcher.served(name)


async def test_the_supervisor_is_told_the_methods_once() -> None:
    """Before the first request; however many processes become ready."""
    world = two_methods(lanes=3)

    assert [["predict", "embed", "predict"]] == world.announced


async def test_the_limit_of_requests_is_the_replicas_and_lateness_a_methods() -> None:
    """`maxReplicaConcurrency` is of all methods together; each promises a `maxLatency`."""
    embed = BatchingSettings(max_batch_size=4, max_latency=0.05)
    world = two_methods(max_concurrency=6, of_methods={"embed": embed}, seconds=lambda _: 1.0)
    for method in ("predict", "embed"):
        world.ask(0, method=method)
        await asyncio.sleep(1.5)
    world.ask(1, method="predict")
    await asyncio.sleep(0.1)

    with pytest.raises(LateError):
        world.ask(2, method="embed")
    for n in range(5):
        world.ask(n, method="predict")
    with pytest.raises(QueueFullError):
        world.ask(9, method="embed")

    assert (1, 0) == tuple(world.counted(slots.REJECTION_SLOT["latency"], m) for m in (1, 0))
    assert (1, 0) == tuple(world.counted(slots.REJECTION_SLOT["queue_full"], m) for m in (1, 0))


async def test_every_method_is_counted_apart() -> None:
    """Label `method`; gauges of lanes are of the lanes they share."""
    world = two_methods(lanes=2, seconds=lambda _: 1.0, batch_interval=0.0)
    for n in range(3):
        world.ask(n, method="embed")
        await asyncio.sleep(0.01)
    world.dispatcher.update_gauges()

    for slot, expected in (
        (slots.LANES, (2, 2)),
        (slots.IN_FLIGHT, (0, 3)),
        (slots.QUEUE_ROWS, (0, 1)),
        (slots.MAX_BATCH_SIZE, (8, 4)),
        (slots.ROWS_RECEIVED, (0, 3)),
    ):
        assert expected == tuple(world.counted(slot, method) for method in (0, 1))


async def test_a_method_without_batched_gets_one_request_at_a_time() -> None:
    """Whatever size the manifest gives to all."""
    world = World(
        methods=[(MethodSpec("predict", batched=False), lambda payload, _query, _headers: payload)],
        max_batch_size=32,
    )

    asked = [world.ask(n) for n in range(5)]
    await asyncio.sleep(1)

    assert list(range(5)) == [one.body for one in asked]
    assert {"full": 5} == world.reasons()


async def test_while_draining_no_method_waits() -> None:
    """Reason `drain`, of each."""
    world = two_methods(batch_interval=10.0)
    asked = [world.ask(1, method=method) for method in ("predict", "embed")]

    world.dispatcher.drain()
    await asyncio.sleep(1)

    assert [200, 200] == [one.status for one in asked]
    assert ({"drain": 1}, {"drain": 1}) == (world.reasons(0), world.reasons(1))


async def test_rows_of_different_shapes_never_share_a_batch() -> None:
    """N23, B14: the oldest shape is released without waiting, for the reason `shape`."""
    world = World(batch_interval=10.0, max_batch_size=4)

    asked = [world.ask(n, shape=(n % 2,)) for n in range(4)]
    await asyncio.sleep(0.1)
    first = list(world.batches)
    await asyncio.sleep(11)

    assert [0, 1, 2, 3] == [one.body for one in asked]
    assert all(len({item % 2 for item in batch}) == 1 for batch in world.batches)
    assert len(first) >= 1
    assert world.reasons()["shape"] >= 1


async def test_a_request_of_ragged_rows_is_split_by_shape_and_put_together() -> None:
    """One request, rows in their order, whatever rode where."""
    world = World(lanes=2)

    asked = world.ask_rows(list(range(6)), shapes=[(3,), (3,), (5,), (5,), (3,), (4,)])
    await asyncio.sleep(1)

    assert {"predictions": list(range(6))} == asked.body
    assert sorted(world.batches) == [[0, 1, 4], [2, 3], [5]]


async def test_a_batch_is_full_when_its_rows_cost_so_much() -> None:
    """B15: `size_of`, for example tokens; what costs more than a batch may runs alone."""
    world = World(max_batch_size=10)

    asked = world.ask_rows(list(range(5)), sizes=[4, 4, 4, 25, 1])
    await asyncio.sleep(1)

    assert {"predictions": list(range(5))} == asked.body
    assert [[0, 1], [2], [3], [4]] == sorted(world.batches)


@pytest.mark.parametrize(("size_of", "counted"), [(SizeOf.length(), (12, 24)), (None, (0, 0))])
async def test_padding_is_counted_of_rows_that_have_lengths(
    size_of: SizeOf | None, counted: tuple[int, int]
) -> None:
    """Rows of 8, 1 and 3 in one batch are three of 8; without `size_of` nobody knows."""
    spec = MethodSpec("predict", batched=True, max_batch_size=30, size_of=size_of)
    world = World(methods=[(spec, echo)], max_batch_size=None)

    texts = ["a" * 8, "a", "aaa"]
    asked = [world.ask_rows([one], sizes=size_of and [len(one)]) for one in texts]
    await asyncio.sleep(1)

    assert [{"predictions": [one]} for one in texts] == [one.body for one in asked]
    assert counted == tuple(map(world.counted, (slots.LENGTHS, slots.PADDED_LENGTHS)))
    world.dispatcher.update_gauges()
    batch, row, length = (world.counted(slots.SERVICE_TIME + term) for term in range(3))
    assert 0.0 < batch + row
    assert (0.0 < length) == (size_of is not None)


async def test_what_a_row_takes_is_told_of_rows_where_batches_are_counted_in_requests() -> None:
    """Of 10 ms + 2 ms a row and requests of five rows each request takes 10 ms, and each row 2."""
    world = World(seconds=lambda rows: 0.01 + 0.002 * rows, size_unit=SizeUnit.REQUESTS)

    for together in (1, 2, 4, 8):
        for _ in range(together):
            world.ask_rows([1] * 5)
        await asyncio.sleep(1)
    world.dispatcher.update_gauges()

    told = [world.counted(slots.SERVICE_TIME + term) for term in range(3)]
    assert pytest.approx([0.01, 0.002, 0.0], rel=0.2) == told


@pytest.mark.parametrize("choice", LaneChoice)
async def test_whichever_lane_is_chosen_every_batch_runs_on_a_free_one(choice: LaneChoice) -> None:
    """B09, B10."""
    world = World(lanes=3, threads=2, lane_choice=choice, max_batch_size=1)

    asked = [world.ask(n) for n in range(40)]
    await asyncio.sleep(2)

    assert list(range(40)) == [one.body for one in asked]
    assert world.most_running == 6
