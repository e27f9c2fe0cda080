"""What is run again after a failure or a death, and requests in parts put together."""

import asyncio
import math

import pytest

from batchedapi_core.batching import Client, Entry
from batchedapi_serving.codecs import Answer, Decoded
from batchedapi_serving.codecs.replies import INSTANCES, ITEM
from batchedapi_serving.codecs.results import Item, ItemResults
from batchedapi_serving.dispatch.batch import Batch, predictor_failed
from batchedapi_serving.dispatch.jobs import Job, Part, PartEntry, cut
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
    decoded = Decoded(rows, [b"0"] * rows, ITEM if rows == 1 else INSTANCES)
    return Job(line, decoded, Client(), Nobody(), 0.0, math.inf)


def entries_of(line: MethodLine, count: int, rows: int = 1) -> list[PartEntry]:
    """Entries of as many requests."""
    jobs = [job_of(line, rows) for _ in range(count)]
    return [Entry(Part(job, [b"0"] * rows), rows, rows, job.client, 0.0, math.inf) for job in jobs]


def parts(batches: list[Batch]) -> list[list[PartEntry]]:
    """The entries of each."""
    return [list(batch.entries) for batch in batches]


async def test_a_batch_counts_rows_and_requests(line: MethodLine) -> None:
    """Both have a histogram."""
    batch = Batch(line, entries_of(line, 3, rows=4), "full")

    assert (12, 12, 3, "full") == (batch.rows, batch.size, batch.requests, batch.reason)


@pytest.mark.parametrize("count", [2, 3, 8, 9])
async def test_a_failed_batch_is_run_again_in_two_halves(line: MethodLine, count: int) -> None:
    """The culprit is in one of them; every entry is in exactly one."""
    entries = entries_of(line, count)

    halves = Batch(line, entries, "full").after_failure()

    assert [entries[: count // 2], entries[count // 2 :]] == parts(halves)
    assert {"retry"} == {half.reason for half in halves}


async def test_a_lone_failure_is_the_culprit(line: MethodLine) -> None:
    """There is nobody else to blame."""
    batch = Batch(line, entries_of(line, 1), "full")

    assert [] == batch.after_failure() == batch.after_memory_error()


async def test_the_last_one_who_still_waits_is_run_alone_before_it_is_blamed(
    line: MethodLine,
) -> None:
    """The row that failed may have been one whose client has left."""
    entries = entries_of(line, 2)
    entries[0].cancelled = True

    assert [[entries[1]]] == parts(Batch(line, entries, "full").after_failure())


async def test_nobody_who_left_is_run_again(line: MethodLine) -> None:
    """Neither after a failure nor after a death."""
    entries = entries_of(line, 4)
    for entry in entries:
        entry.cancelled = True
    batch = Batch(line, entries, "full")

    assert [] == batch.after_failure() == batch.after_death() == batch.after_memory_error()
    assert batch.still_wanted(0.0) is None


async def test_whoever_left_or_is_late_when_its_turn_comes_is_not_run(line: MethodLine) -> None:
    """S18: a batch that is run again may have waited for a lane."""
    entries = entries_of(line, 4)
    batch = Batch(line, entries, "retry", deaths=1)
    assert batch.still_wanted(5.0) is batch
    entries[0].cancelled = True
    entries[1].deadline = 5.0

    wanted = batch.still_wanted(5.0)

    assert wanted is not None
    assert (entries[2:], 1) == (list(wanted.entries), wanted.deaths)


async def test_after_a_death_the_batch_is_run_whole_then_one_by_one_then_not_at_all(
    line: MethodLine,
) -> None:
    """A death is mostly nobody's fault (a kill, a node's memory); twice is somebody's."""
    entries = entries_of(line, 3)

    (again,) = Batch(line, entries, "full").after_death()
    singles = again.after_death()
    last = [single.after_death() for single in singles]

    assert entries == again.entries
    assert [[entry] for entry in entries] == parts(singles)
    assert [[], [], []] == last


async def test_a_lone_request_gets_a_second_try_and_no_third(line: MethodLine) -> None:
    """Else one that kills its process would kill it for ever."""
    (again,) = Batch(line, entries_of(line, 1), "full").after_death()

    assert [] == again.after_death()


async def test_halves_remember_the_deaths(line: MethodLine) -> None:
    """A batch that died, then failed, then dies again is not started from the beginning."""
    (again,) = Batch(line, entries_of(line, 4), "full").after_death()
    half = again.after_failure()[0]

    assert [1, 1] == [len(batch.entries) for batch in half.after_death()]


async def test_a_lone_request_of_many_rows_is_halved_when_memory_runs_out(
    line: MethodLine,
) -> None:
    """Its rows, sizes and place in the answer are those of the whole."""
    (entry,) = entries_of(line, 1, rows=7)

    one, two = Batch(line, [entry], "full").after_memory_error()
    halves = [*one.entries, *two.entries]

    assert [(3, 3), (4, 4)] == [(half.rows, half.size) for half in halves]
    assert [0, 3] == [half.payload.first for half in halves]
    assert [0, 7] == [half.returning for half in halves]
    assert halves == entry.payload.job.entries
    assert entry.payload.job.missing == 7


async def test_a_part_may_be_cut_again(line: MethodLine) -> None:
    """Until one row is left; the answer is put together in order."""
    (entry,) = entries_of(line, 1, rows=4)
    job = entry.payload.job

    one, two = cut(entry, [(0, 2), (2, 4)])
    three, four = cut(two, [(0, 1), (1, 2)])

    assert [one, three, four] == job.entries
    assert [0, 2, 3] == [piece.payload.first for piece in job.entries]
    rows = ItemResults([Item(200, "json", b"%d" % n) for n in range(4)])
    assert job.part_answered(3, rows, 3, 4, None) is None
    assert job.part_answered(0, rows, 0, 2, None) is None
    answer = job.part_answered(2, rows, 2, 3, None)
    assert answer is not None
    assert answer.body == b'{"predictions":[0,1,2,3]}'


async def test_an_oversize_request_is_answered_once_its_last_part_is_there(
    line: MethodLine,
) -> None:
    """In whatever order the parts come back: they may run on different lanes."""
    job = job_of(line, 5)
    job.missing = 5
    rows = ItemResults([Item(200, "json", b"%d" % n) for n in range(4)])

    assert job.part_answered(4, rows, 3, 4, None) is None
    assert job.part_answered(0, rows, 1, 3, None) is None
    answer = job.part_answered(2, rows, 0, 2, None)

    assert answer is not None
    assert answer.body == b'{"predictions":[1,2,0,1,3]}'


async def test_the_clients_message_points_to_the_log_and_shows_no_traceback() -> None:
    """What the user's code printed may be private."""
    error = predictor_failed("raised KeyError")

    assert isinstance(error, PredictorError)
    assert str(error) == "the predictor raised KeyError; the server's log has the details"
