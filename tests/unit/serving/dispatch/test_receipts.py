"""Receipts: which batch an answer rode in; and the lines of the log that say the same."""

import asyncio
import logging
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.batching import Receipts, Strategy
from batchedapi_serving.dispatch.executor import ReceiptBook, base36, receipt_book
from dispatching import World

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=60)

pytestmark = pytest.mark.looptime


async def test_an_answer_says_which_batch_it_rode_in() -> None:
    """F8: seconds of waiting and running among it, and nothing of the neighbours' data."""
    world = World(receipts=Receipts.HEADERS, lanes=1, seconds=lambda _: 0.050)

    one, three = world.ask(1), world.ask_rows([2, 3, 4])
    await asyncio.sleep(1)

    assert one.receipt["batch-id"] == three.receipt["batch-id"]
    assert ("4", "2") == (one.receipt["batch-rows"], one.receipt["batch-requests"])
    assert ("1", "3") == (one.receipt["my-rows"], three.receipt["my-rows"])
    assert ("interval", "0") == (one.receipt["reason"], one.receipt["process"])
    assert pytest.approx(20.0, abs=1.5) == float(one.receipt["queue-ms"])
    assert pytest.approx(50.0, abs=1.5) == float(one.receipt["exec-ms"])
    assert one.receipt["replica"]


async def test_queue_and_execution_add_up_to_the_time_of_the_answer() -> None:
    """F8: within a millisecond, also while a lane goes on with the next batch at once."""
    world = World(receipts=Receipts.HEADERS, max_batch_size=4, seconds=lambda rows: 0.01 * rows)

    asked = [world.ask(n) for n in range(20)]
    await asyncio.sleep(2)

    for one in asked:
        total = float(one.receipt["queue-ms"]) + float(one.receipt["exec-ms"])
        assert pytest.approx(one.at * 1000, abs=1.0) == total


@SETTINGS
@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=40),
    st.sets(st.integers(0, 300), max_size=3),
)
async def test_the_rows_of_a_batch_are_the_sum_of_its_receipts(
    requests: list[int], poison: set[int]
) -> None:
    """F8: for every batch id, whatever was run again; no id twice."""

    def predict(items: list[Any]) -> list[Any]:
        if poison & set(items):
            raise ValueError
        return items

    world = World(predict, receipts=Receipts.ALL, max_batch_size=8, lanes=2, timeout=None)
    asked, number = [], 0
    for count in requests:
        asked.append(world.ask_rows(list(range(number, number + count))))
        number += count
    await asyncio.sleep(50)

    batches: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for one in asked:
        if one.status == 200:
            receipt = one.receipt
            mine = int(receipt["my-rows"])
            batches[receipt["batch-id"]].append((mine, int(receipt["batch-rows"])))
    for answers in batches.values():
        assert {sum(mine for mine, _ in answers)} == {rows for _, rows in answers}


async def test_by_default_no_receipt_is_made() -> None:
    """Off costs nothing: there is no book at all."""
    world = World()

    asked = world.ask(1)
    await asyncio.sleep(1)

    assert {} == asked.receipt
    assert receipt_book(Receipts.OFF) is None


def test_no_two_batches_of_a_replica_are_called_the_same() -> None:
    """Not even those of a web process and of the one that replaced it."""
    one, two = ReceiptBook("r", lambda: 1700000000.0), ReceiptBook("r", lambda: 1700000000.2)

    numbers = [book.number() for book in (one, two) for _ in range(100)]

    assert 200 == len(set(numbers))
    assert max(map(len, numbers)) <= 12


@given(st.integers(0, 1 << 60))
def test_numbers_are_written_in_base_36(number: int) -> None:
    """Short, and one word in a log."""
    assert number == int(base36(number), 36)


async def test_every_batch_is_one_line_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    """D14: `batch start: <waited>/<interval>, <size>/<most>`, as dynamic_batcher writes it."""
    with caplog.at_level(logging.DEBUG, "batchedapi_serving"):
        world = World(
            max_batch_size=64,
            batch_interval=2.0,
            strategy=Strategy.FIXED,
            seconds=lambda _: 0.064,
        )
        world.ask(1)
        await asyncio.sleep(3)
        world.ask(1)
        await asyncio.sleep(1.653)
        for n in range(63 + 64 + 36):
            world.ask(n)
        await asyncio.sleep(3)

    lines = [record for record in caplog.records if "batch start" in record.getMessage()]
    texts = [line.getMessage().removeprefix("batch start: ") for line in lines]
    waited, limits = zip(*(text.split("/", 1) for text in texts), strict=True)
    assert ("2, 1/64", "2, 64/64", "2, 64/64", "2, 36/64") == limits
    assert pytest.approx([2.0, 1.653, 0.064, 2.0], abs=0.005) == [float(one) for one in waited]
    assert [1, 64, 64, 36] == [len(batch) for batch in world.batches]
    assert ["interval", "full", "full", "interval"] == [vars(line)["reason"] for line in lines]
    assert {"predict"} == {vars(line)["method"] for line in lines}


async def test_above_debug_no_line_of_a_batch_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing per batch, let alone per request."""
    with caplog.at_level(logging.INFO, "batchedapi_serving"):
        world = World()
        world.ask(1)
        await asyncio.sleep(1)

    assert ["ready"] == [record.getMessage() for record in caplog.records]


async def test_the_start_line_has_the_three_values(caplog: pytest.LogCaptureFixture) -> None:
    """D13: `delay=0, batch_size=64 batch_time=2`, beside our own names for them."""
    with caplog.at_level(logging.INFO, "batchedapi_serving"):
        World(max_batch_size=64, batch_interval=2.0)
    await asyncio.sleep(0)

    (line,) = [vars(record) for record in caplog.records if record.getMessage() == "ready"]
    assert line["start"] == "delay=0, batch_size=64 batch_time=2"
    assert (64, 2.0, "predict") == (
        line["max_batch_size"],
        line["batch_interval"],
        line["method"],
    )
