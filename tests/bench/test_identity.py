"""Counting who was answered what."""

import io
import json
from collections.abc import Sequence

import numpy as np
import pytest
from identity import FIRST_ID, Ids, Tally, decode, encode, rows_of

A, B, C = FIRST_ID, FIRST_ID + 1, FIRST_ID + 2


def ids(first: int, count: int = 1) -> range:
    """Ids of one request."""
    return range(first, first + count)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param([(ids(A), [A]), (ids(B), [B]), (ids(C), [C])], (0, 0, 0), id="all right"),
        pytest.param([(ids(A), [B]), (ids(B), [A]), (ids(C), [C])], (2, 0, 0), id="two swapped"),
        pytest.param([(ids(A), [A]), (ids(C), [C])], (0, 1, 0), id="one lost"),
        pytest.param([(ids(A), [A]), (ids(B), [A]), (ids(C), [C])], (1, 1, 1), id="one twice"),
        pytest.param([(ids(A, 3), [A, C, B])], (2, 0, 0), id="order within a request"),
        pytest.param([(ids(A, 3), [A, B])], (1, 1, 0), id="a row too few"),
        pytest.param([(ids(A, 3), [A, B, "x"])], (1, 1, 0), id="not an id"),
    ],
)
def test_every_kind_of_mistake_is_counted(
    answers: Sequence[tuple[range, list[object]]], expected: tuple[int, int, int]
) -> None:
    """Swapped, lost, duplicated; a counter that stays 0 whatever comes would prove nothing."""
    tally = Tally(3)

    for asked, answer in answers:
        tally.answered(asked, answer)

    assert expected == (tally.swapped, tally.lost, tally.duplicated)


def test_a_float_is_not_an_id() -> None:
    """2**53 + 1 as a float is another number; JSON hides that."""
    tally = Tally(1)

    tally.answered(ids(A), [float(A)])

    assert (1, 1) == (tally.swapped, tally.lost)


def test_requests_are_of_four_kinds() -> None:
    """Items, instances, arrays and requests larger than a batch must all be in the stream."""
    assert {1: 979, 5: 10, 7: 10, 100: 1} == {
        rows: sum(rows_of(n) == rows for n in range(1000)) for rows in (1, 5, 7, 100)
    }


@pytest.mark.parametrize(
    ("count", "body"),
    [(1, b"%d" % A), (2, b'{"predictions":[%d,%d]}' % (A, B))],
    ids=["item", "instances"],
)
def test_answers_are_read_as_their_requests_were_written(count: int, body: bytes) -> None:
    """An item is answered by a value, instances by predictions."""
    assert list(ids(A, count)) == decode(ids(A, count), body)


def test_an_array_comes_back_as_the_ids_that_were_sent() -> None:
    """The echo answers an .npy body with one of the same content."""
    sent = ids(A, 7)
    body = encode(sent).partition(b"\r\n\r\n")[2]

    assert list(sent) == decode(sent, body)


def test_each_id_is_asked_once_and_the_last_request_is_cut_to_fit() -> None:
    """Ids beyond the total would count as surplus, ids left out as lost."""
    exchange = Ids(60)
    asked = []

    while (ask := exchange.ask()) is not None:
        asked += list(ask.ids)

    assert list(range(FIRST_ID, FIRST_ID + 60)) == asked
    assert not exchange.running


def test_rows_have_lengths_where_they_are_to_have_some() -> None:
    """Each is its id again and again; those of an array have the length of the first."""
    exchange = Ids(8, lengths=True)
    asks = [exchange.ask() for _ in range(8)]

    rows = [json.loads(ask.data.partition(b"\r\n\r\n")[2]) for ask in asks if ask is not None]

    assert [[FIRST_ID + i] for i in range(8)] == [sorted(set(row)) for row in rows]
    assert {1, 3, 5, 8, 13, 21, 60} == {len(row) for row in rows}
    array = np.load(io.BytesIO(encode(ids(A, 7), lengths=True).partition(b"\r\n\r\n")[2]))
    assert [[A + i] * 3 for i in range(7)] == array.tolist()
