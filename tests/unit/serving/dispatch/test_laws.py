"""Laws for any traffic: no request is lost, answered twice or swapped with another."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.batching import Client, Strategy
from batchedapi_serving.errors import OverloadedError
from batchedapi_serving.metrics import slots
from dispatching import Asked, DiedError, World, run_virtually

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=150)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 5), st.integers(1, 1)),
        st.tuples(st.just("ask"), st.integers(0, 5), st.integers(1, 1)),
        st.tuples(st.just("rows"), st.integers(0, 5), st.integers(1, 20)),
        st.tuples(st.just("poison"), st.integers(0, 5), st.integers(1, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("kill"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("pass"), st.sampled_from([1, 3, 10, 30, 200, 900]), st.just(0)),
        st.tuples(st.just("drain"), st.just(0), st.just(0)),
    ),
    min_size=20,
    max_size=60,
)


def predict(items: list[Any]) -> list[Any]:
    """Answers each id with itself; raises over a poisoned one."""
    if any(item["poison"] for item in items):
        raise ValueError
    return [item["id"] for item in items]


class History:
    """Random traffic against one replica, and what became of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clients = [Client() for _ in range(6)]
        self.asked: list[Asked] = []
        self.cancelled: set[Asked] = set()
        self.refused = 0
        self._next = 0

    async def step(self, kind: str, which: int, count: int) -> None:
        """One event."""
        match kind:
            case "ask" | "rows" | "poison":
                self._ask(kind, which, count)
            case "cancel" if which < len(self.asked):
                asked = self.asked[which]
                if not asked.answers:
                    self.cancelled.add(asked)
                self.world.cancel(asked)
            case "leave":
                self.world.dispatcher.disconnected(self.clients[which])
            case "kill" if which < len(self.world.lanes):
                self.world.lanes[which].die()
            case "pass":
                await asyncio.sleep(which / 1000)
            case "drain":
                self.world.dispatcher.drain()

    def _ask(self, kind: str, which: int, count: int) -> None:
        ids = range(self._next, self._next + count)
        self._next += count
        items = [{"id": n, "poison": kind == "poison"} for n in ids]
        client = self.clients[which]
        try:
            asked = (
                self.world.ask_rows(items, client)
                if kind == "rows"
                else self.world.ask(items[0], client)
            )
        except OverloadedError:
            self.refused += 1
        else:
            self.asked.append(asked)

    def check(self) -> None:
        """After everything has settled."""
        for asked in self.asked:
            assert len(asked.answers) == (0 if asked in self.cancelled else 1), asked.value
            if not asked.answers:
                continue
            assert asked.status in {200, 500, 504}
            if asked.status == 200:
                value = asked.value
                expected = (
                    {"predictions": [item["id"] for item in value]}
                    if isinstance(value, list)
                    else value["id"]
                )
                assert expected == asked.body
        answered = sum(self.world.counted(slot) for slot in slots.CODE_SLOT.values())
        assert len(self.asked) == answered
        assert len(self.world.batches) == sum(self.world.reasons().values())
        batcher = self.world.dispatcher.served(None).batcher
        assert (0, 0) == (batcher.running_size, batcher.queue.size)
        assert batcher.lanes.total == batcher.lanes.free == len(self.world.lanes)
        self.world.dispatcher.update_gauges()
        for gauge in (slots.QUEUE_ROWS, slots.IN_FLIGHT):
            assert self.world.counted(gauge) == 0


@SETTINGS
@given(
    steps=STEPS,
    lanes=st.integers(1, 3),
    strategy=st.sampled_from(Strategy),
    max_latency=st.sampled_from([None, 0.05]),
    timeout=st.sampled_from([0.5, 30.0]),
    max_concurrency=st.sampled_from([5, 1024]),
)
def test_every_request_is_answered_once_with_its_own_rows(
    steps: list[tuple[str, int, int]], lanes: int, **options: Any
) -> None:
    """Id-echo under kills, poison, disconnects and overload; then every gauge is zero again."""

    async def live() -> None:
        world = World(predict, lanes=lanes, restart=0.1, max_batch_size=8, **options)
        history = History(world)
        for kind, which, count in steps:
            await history.step(kind, which, count)
        await asyncio.sleep(100)
        history.check()

    run_virtually(live())


@SETTINGS
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=20),
    deaths=st.sets(st.integers(0, 40), max_size=4),
)
def test_rows_of_split_requests_are_never_mixed_up(sizes: list[int], deaths: set[int]) -> None:
    """Parts on several lanes, some of which die: each request gets its own rows in its order."""
    batches = iter(range(10**6))

    def mortal(items: list[int]) -> list[int]:
        if next(batches) in deaths:
            raise DiedError
        return items

    async def live() -> None:
        world = World(mortal, lanes=2, restart=0.01, max_batch_size=8, timeout=1000.0)
        starts = [1000 * n for n in range(len(sizes))]
        asked = [
            world.ask_rows(list(range(start, start + size)))
            for start, size in zip(starts, sizes, strict=True)
        ]
        await asyncio.sleep(100)
        for one in asked:
            assert one.status == 500 or one.body == {"predictions": one.value}
        assert sum(one.status == 500 for one in asked) <= len(deaths)

    run_virtually(live())
