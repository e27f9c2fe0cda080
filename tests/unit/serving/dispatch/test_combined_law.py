"""One law for all that a replica can meet at once: methods, shapes, sizes, hurry, death and drain.

What other laws hold apart (`test_laws`, `test_deadlines`, `test_several_methods`) may still fail
where two of them meet.
"""

import asyncio
import math
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from batchedapi_core.batching import Client, LaneChoice, QueueOrder, Receipts, Strategy
from batchedapi_serving.errors import OverloadedError
from batchedapi_serving.metrics import slots
from batchedapi_serving.predictor import MethodSpec
from dispatching import Asked, DiedError, HangsError, KilledForMemoryError, World, run_virtually
from thorough import examples

# Not shrunk: an example takes long enough.
SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=examples(150),
    phases=[Phase.explicit, Phase.generate],
)
METHODS = ("predict", "embed", "fetch")
MEMORY = {"a": 6, "b": 3}
"""Items of each shape that memory has room for."""
TIMEOUT = 4.0
ITEM = st.fixed_dictionaries(
    {
        "what": st.sampled_from(["good"] * 12 + ["raise", "die", "killed", "hang"]),
        "shape": st.sampled_from("ab"),
        "size": st.integers(1, 3),
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"),
            st.tuples(
                st.sampled_from(METHODS),
                st.lists(ITEM, min_size=1, max_size=12),
                st.none() | st.floats(0.01, 6.0),
                st.integers(0, 3),
            ),
        ),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("leave"), st.integers(0, 3)),
        st.tuples(st.just("kill"), st.integers(0, 1)),
        st.tuples(st.just("pass"), st.sampled_from([0.001, 0.01, 0.03, 0.2, 0.9, 3.0])),
        st.tuples(st.just("drain"), st.none()),
    ),
    min_size=10,
    max_size=30,
)


def behave(items: list[dict[str, Any]]) -> list[int]:
    """Each item's id, unless memory runs out or one of them does what it says it does."""
    if len(items) > MEMORY[items[0]["shape"]]:
        raise MemoryError
    for item in items:
        match item["what"]:
            case "raise":
                raise ValueError
            case "die":
                raise DiedError
            case "killed":
                raise KilledForMemoryError
            case "hang":
                raise HangsError
            case _:
                pass
    return [item["id"] for item in items]


async def behave_later(items: list[dict[str, Any]]) -> list[int]:
    """The same of an async method, for which to hang is to await what never comes."""
    await asyncio.sleep(0.02)
    try:
        return behave(items)
    except HangsError:
        await asyncio.sleep(math.inf)
        raise


class Observed(World):
    """A replica that notes what each batch was made of when it began."""

    def __init__(self, **options: Any) -> None:
        self.deadlines: dict[int, float] = {}
        """By item."""
        self.begun: list[tuple[float, str, list[dict[str, Any]]]] = []
        specs = [
            MethodSpec(name, batched=True, is_async=name == "fetch", max_batch_size=size)
            for name, size in zip(METHODS, (8, 5, 4), strict=True)
        ]
        calls = (behave, behave, behave_later)
        super().__init__(
            methods=list(zip(specs, calls, strict=True)), max_batch_size=None, restart=0.1,
            timeout=TIMEOUT, receipts=Receipts.ALL, **options,
        )  # fmt: skip

    def began(self, meta: dict[str, Any], payload: bytes) -> None:
        """A batch reached the model."""
        super().began(meta, payload)
        self.begun.append((self.loop.time(), meta["method"], self.batches[-1]))


class History:
    """Random traffic, and what became of it."""

    def __init__(self, world: Observed) -> None:
        self.world = world
        self.clients = [Client() for _ in range(4)]
        self.asked: list[tuple[str, Asked, SimpleNamespace]] = []
        self.cancelled: set[Asked] = set()
        self.received: dict[str, int] = defaultdict(int)
        self.kills = 0

    async def step(self, kind: str, what: Any) -> None:
        """One event."""
        match kind:
            case "ask":
                self._ask(*what)
            case "cancel" if what < len(self.asked):
                _, asked, _ = self.asked[what]
                if not asked.answers:
                    self.cancelled.add(asked)
                self.world.cancel(asked)
            case "leave":
                self.world.dispatcher.disconnected(self.clients[what])
            case "kill" if what < len(self.world.processes):
                self.kills += 1
                self.world.processes[what].die()
            case "pass":
                await asyncio.sleep(what)
            case "drain":
                self.world.dispatcher.drain()
            case _:
                pass

    def _ask(
        self, method: str, kinds: list[dict[str, Any]], timeout: float | None, client: int
    ) -> None:
        first = sum(self.received.values())
        self.received[method] += len(kinds)
        items = [{**kind, "id": first + n} for n, kind in enumerate(kinds)]
        own = TIMEOUT if timeout is None else min(timeout, TIMEOUT)
        for item in items:
            self.world.deadlines[item["id"]] = self.world.loop.time() + own
        try:
            asked = self.world.ask_rows(
                items,
                self.clients[client],
                method=method,
                timeout=timeout,
                sizes=[item["size"] for item in items],
                shapes=[item["shape"] for item in items],
            )
        except OverloadedError:
            return
        self.asked.append((method, asked, SimpleNamespace(at=self.world.loop.time(), own=own)))

    # ------------------------------------------------------------ after everything has settled

    def check(self) -> None:
        """All of it."""
        self._everybody_is_answered_once_in_time_with_its_own_rows()
        self._only_the_guilty_fail()
        self._batches_are_of_one_method_and_shape_and_in_time()
        self._receipts_name_batches_that_ran()
        self._figures_add_up()
        self._nothing_is_left()

    def _everybody_is_answered_once_in_time_with_its_own_rows(self) -> None:
        for _, asked, limits in self.asked:
            assert len(asked.answers) == (0 if asked in self.cancelled else 1), asked.value
            if asked.answers:
                assert asked.at <= limits.at + limits.own + 0.002
                assert asked.status in {200, 500, 504}
                if asked.status == 200:
                    assert {"predictions": [i["id"] for i in asked.value]} == asked.body

    def _only_the_guilty_fail(self) -> None:
        """A bystander may be blamed for the deaths of several rows, but not for those of one row.

        Of want of memory a process may die several times, of one row after another half of it.
        """
        kinds = Counter(item["what"] for _, asked, _ in self.asked for item in asked.value)
        if self.kills or kinds["hang"] or kinds["killed"] or kinds["die"] > 1:
            return
        for _, asked, _ in self.asked:
            if asked.answers and asked.status == 500:
                assert {"good"} != {item["what"] for item in asked.value}

    def _batches_are_of_one_method_and_shape_and_in_time(self) -> None:
        method_of = {item["id"]: method for method, asked, _ in self.asked for item in asked.value}
        for at, method, items in self.world.begun:
            assert {method} == {method_of[item["id"]] for item in items}
            assert len({item["shape"] for item in items}) == 1
            assert all(at < self.world.deadlines[item["id"]] for item in items)
            served = self.world.dispatcher.served(method)
            if (
                not served.method.memory.any
            ):  # else a row larger than the limit of then counts as that much
                assert sum(item["size"] for item in items) <= served.batcher.policy.max_batch_size

    def _receipts_name_batches_that_ran(self) -> None:
        mine: dict[str, int] = defaultdict(int)
        rows: dict[str, int] = {}
        for _, asked, _ in self.asked:
            if asked.answers and asked.status == 200:
                receipt = asked.receipt
                mine[receipt["batch-id"]] += int(receipt["my-rows"])
                assert rows.setdefault(receipt["batch-id"], int(receipt["batch-rows"])) == int(
                    receipt["batch-rows"]
                )
        assert all(mine[batch] <= rows[batch] for batch in mine)

    def _figures_add_up(self) -> None:
        world = self.world
        batches = executed = 0.0
        for index, method in enumerate(METHODS):
            ran = sum(1 for name in world.methods_run if name == method)
            assert ran == sum(world.reasons(index).values())
            batches += ran
            sizes = slots.method_block(world.memory, index)[slots.BATCH_ROWS :][: slots.SIZE_SUM]
            executed += sum(sizes)
            assert self.received[method] == world.counted(slots.ROWS_RECEIVED, index)
            answered = sum(world.counted(slot, index) for slot in slots.CODE_SLOT.values())
            assert sum(name == method for name, _, _ in self.asked) == answered
        assert batches == executed + world.lost

    def _nothing_is_left(self) -> None:
        world = self.world
        world.dispatcher.update_gauges()
        assert len(world.dispatcher._in_flight.by_id) == 0
        for index, method in enumerate(METHODS):
            batcher = world.dispatcher.served(method).batcher
            assert (0, 0) == (batcher.running_size, batcher.queue.size)
            assert batcher.lanes.total == batcher.lanes.free
            for gauge in (slots.QUEUE_ROWS, slots.IN_FLIGHT):
                assert world.counted(gauge, index) == 0
        assert len(world.lanes) == world.dispatcher.served("predict").batcher.lanes.total


@SETTINGS
@given(
    steps=STEPS,
    lanes=st.integers(1, 2),
    threads=st.integers(1, 2),
    strategy=st.sampled_from(Strategy),
    queue_order=st.sampled_from(QueueOrder),
    lane_choice=st.sampled_from(LaneChoice),
    max_concurrency=st.sampled_from([6, 1024]),
)
def test_whatever_meets_everybody_is_answered_once_and_all_figures_add_up(
    steps: list[tuple[str, Any]], **options: Any
) -> None:
    """Never lost, never twice, never swapped, never late, never mixed, and every batch counted."""

    async def live() -> None:
        world = Observed(**options)
        history = History(world)
        for kind, what in steps:
            await history.step(kind, what)
        await asyncio.sleep(40)
        history.check()

    run_virtually(live())
