"""Cutting oversize requests into parts."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.batching import RowSpan, split_parts, split_rows


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


def test_rows_of_one_shape_and_cost_are_full_parts_and_the_rest() -> None:
    """Without sizes and shapes it is split_rows."""
    assert [RowSpan(0, 64, 64), RowSpan(64, 70, 6)] == split_parts(70, None, 64)


def test_a_part_ends_where_the_shape_changes() -> None:
    """Rows of different shapes never share a batch, and a part is a range of rows."""
    expected = [RowSpan(0, 2, 2, "a"), RowSpan(2, 3, 1, "b"), RowSpan(3, 4, 1, "a")]

    assert expected == split_parts(4, ["a", "a", "b", "a"], 64)


def test_a_part_holds_as_much_as_its_costs_allow() -> None:
    """The unit may be tokens: three rows of 40 are not one batch of 100."""
    assert [RowSpan(0, 2, 80), RowSpan(2, 4, 90)] == split_parts([40, 40, 40, 50], None, 100)


def test_a_row_that_costs_more_than_a_batch_may_runs_alone_as_a_full_one() -> None:
    """It cannot be cut, and refusing it would refuse what the model can do."""
    expected = [RowSpan(0, 1, 10), RowSpan(1, 2, 100), RowSpan(2, 3, 10)]

    assert expected == split_parts([10, 400, 10], None, 100)


@pytest.mark.parametrize(("sizes", "max_size"), [(0, 64), ([], 64), ([1, 0], 64), ([1], 0), (0, 0)])
@pytest.mark.parametrize("ragged", [False, True])
def test_no_rows_or_no_costs_are_an_error_of_the_caller(
    sizes: int | list[int], max_size: int, *, ragged: bool
) -> None:
    """Such a request must have been refused before."""
    with pytest.raises(ValueError, match=r"expected rows .* got "):
        split_parts(sizes, ["a", "b"] if ragged else None, max_size)


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(
    rows=st.lists(st.tuples(st.integers(1, 12), st.sampled_from("ab")), min_size=1, max_size=60),
    max_size=st.integers(1, 20),
)
def test_spans_cover_every_row_once_are_of_one_shape_and_fit(
    rows: list[tuple[int, str]], max_size: int
) -> None:
    """And none could have been longer."""
    sizes, shapes = [size for size, _ in rows], [shape for _, shape in rows]
    spans = split_parts(sizes, shapes, max_size)

    assert list(range(len(rows))) == [row for span in spans for row in range(*span[:2])]
    for span in spans:
        assert {span.shape} == set(shapes[span.start : span.stop])
        assert min(max_size, sum(sizes[span.start : span.stop])) == span.size
        assert span.stop - span.start == 1 or sum(sizes[span.start : span.stop]) <= max_size
    for span, after in pairwise(spans):
        assert span.shape != after.shape or span.size + sizes[after.start] > max_size
