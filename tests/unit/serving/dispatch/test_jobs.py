"""What is run again after a failure or a death, and oversize requests put together."""

import math

import numpy as np
import pytest

from batchedapi_core.batching import Client, Entry
from batchedapi_serving.codecs import Answer, Decoded, Form
from batchedapi_serving.codecs.item_codec import ItemResults
from batchedapi_serving.codecs.tensor_codec import TensorResults
from batchedapi_serving.dispatch.jobs import Batch, Job, Part, PartEntry, predictor_failed
from batchedapi_serving.errors import PredictorError


class Nobody:
    """Asks, and does not listen."""

    def request_id(self) -> str | None:
        """See AnswerTo."""
        return "id"

    def deliver(self, answer: Answer) -> None:
        """See AnswerTo."""


def entries_of(count: int, rows: int = 1) -> list[PartEntry]:
    """Entries of as many requests."""
    jobs = [
        Job(Decoded(Form.ITEM, rows, [b"0"]), Client(), Nobody(), 0.0, math.inf)
        for _ in range(count)
    ]
    return [Entry(Part(job, [b"0"]), rows, rows, job.client, 0.0, math.inf) for job in jobs]


def parts(batches: list[Batch]) -> list[list[PartEntry]]:
    """The entries of each."""
    return [list(batch.entries) for batch in batches]


def test_a_batch_counts_rows_and_requests() -> None:
    """Both have a histogram."""
    batch = Batch(entries_of(3, rows=4), "full")

    assert (12, 12, 3, "full") == (batch.rows, batch.size, batch.requests, batch.reason)


@pytest.mark.parametrize("count", [2, 3, 8, 9])
def test_a_failed_batch_is_run_again_in_two_halves(count: int) -> None:
    """The culprit is in one of them; every entry is in exactly one."""
    entries = entries_of(count)

    halves = Batch(entries, "full").after_failure()

    assert [entries[: count // 2], entries[count // 2 :]] == parts(halves)
    assert {"retry"} == {half.reason for half in halves}


def test_a_lone_failure_is_the_culprit() -> None:
    """There is nobody else to blame."""
    assert [] == Batch(entries_of(1), "full").after_failure()


def test_the_last_one_who_still_waits_is_run_alone_before_it_is_blamed() -> None:
    """The row that failed may have been one whose client has left."""
    entries = entries_of(2)
    entries[0].cancelled = True

    assert [[entries[1]]] == parts(Batch(entries, "full").after_failure())


def test_nobody_who_left_is_run_again() -> None:
    """Neither after a failure nor after a death."""
    entries = entries_of(4)
    for entry in entries:
        entry.cancelled = True
    batch = Batch(entries, "full")

    assert [] == batch.after_failure() == batch.after_death()


def test_after_a_death_the_batch_is_run_whole_then_one_by_one_then_not_at_all() -> None:
    """A death is mostly nobody's fault (a kill, a node's memory); twice is somebody's."""
    entries = entries_of(3)

    (again,) = Batch(entries, "full").after_death()
    singles = again.after_death()
    last = [single.after_death() for single in singles]

    assert entries == again.entries
    assert [[entry] for entry in entries] == parts(singles)
    assert [[], [], []] == last


def test_a_lone_request_gets_a_second_try_and_no_third() -> None:
    """Else one that kills its process would kill it for ever."""
    (again,) = Batch(entries_of(1), "full").after_death()

    assert [] == again.after_death()


def test_halves_remember_the_deaths() -> None:
    """A batch that died, then failed, then dies again is not started from the beginning."""
    (again,) = Batch(entries_of(4), "full").after_death()
    half = again.after_failure()[0]

    assert [1, 1] == [len(batch.entries) for batch in half.after_death()]


def test_an_oversize_request_is_answered_once_its_last_part_is_there() -> None:
    """In whatever order the parts come back: they may run on different lanes."""
    job = Job(Decoded(Form.INSTANCES, 5, b""), Client(), Nobody(), 0.0, math.inf)
    job.missing, job.slices = 3, [None, None, None]
    rows = ItemResults([(200, "json", 1)] * 4, b"0123")

    assert job.part_answered(2, rows, 3, 4) is None
    assert job.part_answered(0, rows, 1, 3) is None
    answer = job.part_answered(1, rows, 0, 2)

    assert answer is not None
    assert answer.body == b'{"predictions":[1,2,0,1,3]}'


def test_parts_that_do_not_fit_are_the_predictors_error() -> None:
    """Seen only when the last one comes."""
    job = Job(Decoded(Form.INSTANCES, 2, b""), Client(), Nobody(), 0.0, math.inf)
    job.missing, job.slices = 2, [None, None]
    job.part_answered(0, TensorResults(_ones(1, 2), ()), 0, 1)

    with pytest.raises(PredictorError, match="different shapes"):
        job.part_answered(1, TensorResults(_ones(1, 3), ()), 0, 1)


def test_the_clients_message_points_to_the_log_and_shows_no_traceback() -> None:
    """What the user's code printed may be private."""
    message = str(predictor_failed("raised KeyError"))

    assert message == "the predictor raised KeyError; the server's log has the details"


def _ones(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.ones(shape)
