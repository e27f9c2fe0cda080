"""Cutting oversize requests into parts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.batching import split_rows


def test_full_parts_come_first() -> None:
    """Only the last part leaves room that other requests can share."""
    assert [(0, 64), (64, 128), (128, 130)] == split_rows(130, 64)


def test_what_fits_stays_whole() -> None:
    """The common case is one part."""
    assert [(0, 64)] == split_rows(64, 64)


@settings(derandomize=True, database=None, deadline=None, max_examples=100)
@given(rows=st.integers(1, 5_000), max_rows=st.integers(1, 300))
def test_parts_cover_every_row_once_in_order_and_fit(rows: int, max_rows: int) -> None:
    """Answers are put together by concatenation, so a gap or an overlap would misplace rows."""
    parts = split_rows(rows, max_rows)

    assert list(range(rows)) == [row for start, stop in parts for row in range(start, stop)]
    assert max_rows >= max(stop - start for start, stop in parts)


@pytest.mark.parametrize(("rows", "max_rows"), [(0, 64), (-1, 64), (5, 0)])
def test_nothing_to_split_is_an_error_of_the_caller(rows: int, max_rows: int) -> None:
    """No rows means no part to answer with: the request must have been refused before."""
    with pytest.raises(ValueError, match=f"got {rows} and {max_rows}"):
        split_rows(rows, max_rows)
