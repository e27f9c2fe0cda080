"""Two pages of each replica as figures: what happened between them, by method."""

import math

import pytest
from tests.unit.operator.autoscaling.pages import CALLS, page

from batchedapi_operator.errors import MetricsUnavailableError
from batchedapi_operator.plugin.pages import Reading, Window, figures_of, parse_page, quantile

NOW = 5000.0


def reading(before: str, after: str, seconds: float = 2.0) -> Reading:
    """A reading of one replica."""
    return Reading(parse_page(before), parse_page(after), seconds, NOW)


def one(window: Window) -> object:
    """Rows, batches, their sizes and the reasons of the one method."""
    (found,) = window.methods
    return (
        found.rows_per_second,
        found.batches_per_second,
        dict(found.batches_by_rows),
        dict(found.released),
    )


def test_figures_are_of_the_time_between_the_pages() -> None:
    """A replica's counts since its start say nothing about now."""
    before = page(batches=10, rows=100, full=2)

    window = figures_of([reading(before, page(batches=14, rows=140, full=4, received=180))])

    assert not window.since_start
    assert 2.0 == window.seconds
    sizes = {8.0: 2.0, 16.0: 2.0, math.inf: 0.0}
    assert (20.0, 2.0, sizes, {"full": 2.0, "interval": 2.0}) == one(window)
    assert 40.0 == window.methods[0].rows_received_per_second
    assert {} == window.methods[0].rejected


def test_the_share_of_padding_is_of_the_time_between_the_pages() -> None:
    """Rows that have lengths; of others there is none."""
    lengths = (
        'batchedapi_batch_lengths_total{{method="predict"}} {}\n'
        'batchedapi_batch_padded_lengths_total{{method="predict"}} {}\n'
    )
    before, after = lengths.format(90, 100), lengths.format(120, 140)

    (found,) = figures_of([reading(page(extra=before), page(batches=14, extra=after))]).methods
    (without,) = figures_of([reading(page(), page(batches=14))]).methods

    assert 0.25 == found.padding
    assert without.padding is None


def test_replicas_are_added_each_by_its_own_time() -> None:
    """One that answers late was counted for longer; queues and what is in flight are sums."""
    two = [
        reading(page(), page(batches=14, rows=140)),
        reading(page(), page(batches=14, rows=140), seconds=4.0),
    ]

    (found,) = figures_of(two).methods

    assert (20.0 + 10.0, 2.0 + 1.0) == (found.rows_per_second, found.batches_per_second)
    assert (6.0, 10.0, 16.0) == (found.queue_rows, found.in_flight, found.max_batch_size)
    assert 10.0 == found.mean_rows


def test_replicas_that_did_nothing_are_shown_since_their_start() -> None:
    """A screen without a bar would tell nothing about an API that is asked once a minute."""
    window = figures_of([reading(page(start=1000.0), page(start=1000.0))])

    assert window.since_start
    assert NOW - 1000.0 == window.seconds
    sizes = {8.0: 5.0, 16.0: 5.0, math.inf: 0.0}
    assert (0.025, 0.0025, sizes, {"full": 2.0, "interval": 8.0}) == one(window)


def test_a_replica_that_began_anew_in_between_counts_from_there() -> None:
    """Its counters fell; nothing may be negative."""
    after = page(batches=2, rows=20, full=1, start=4999.0)

    window = figures_of([reading(page(), after)])

    assert not window.since_start
    assert (10.0, 1.0) == (window.methods[0].rows_per_second, window.methods[0].batches_per_second)


def test_revisions_with_other_edges_are_added_bucket_by_bucket() -> None:
    """Cumulative counts cannot be: an edge that one has not would lose its batches."""
    other = page().replace('le="8"', 'le="4"')
    after = other.replace('le="4"} 5.0', 'le="4"} 6.0').replace('le="16"} 10', 'le="16"} 11')

    window = figures_of([reading(page(), page(batches=14)), reading(other, after)])

    assert {4.0: 1.0, 8.0: 2.0, 16.0: 2.0, math.inf: 0.0} == dict(window.methods[0].batches_by_rows)


def test_each_method_has_its_own() -> None:
    """By name; what happens in one says nothing about another."""
    window = figures_of([reading(page() + CALLS, page(batches=14, rows=140) + CALLS)])

    assert ["ask", "predict"] == [found.method for found in window.methods]
    assert [None, 10.0] == [found.mean_rows for found in window.methods]


def test_a_terminal_obeys_nothing_of_a_method_s_name() -> None:
    """A pod runs its user's code, and the page says what that likes."""
    (found,) = figures_of([reading(*[page().replace("predict", "a\x1b[2Jb")] * 2)]).methods

    assert "a?[2Jb" == found.method


def test_no_replica_has_no_methods() -> None:
    """Nobody could be asked."""
    assert Window((), 0.0, since_start=True) == figures_of([])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<html>\n", "not a page of metrics"),
        ("batchedapi_queue_rows 1\n", "expected process_start_time_seconds"),
        (page(received=-1.0), "a value of -1.0"),
        (page(received=math.nan), "a value of nan"),
        (page(received=1e300), "a value of 1e\\+300"),
        (page().replace('le="8"', 'le="NaN"'), "an edge that is NaN"),
        (page().replace('le="8"', 'le="many"'), "could not convert"),
    ],
    ids=["html", "no start", "negative", "nan", "huge", "nan edge", "edge of letters"],
)
def test_a_page_that_cannot_be_true_is_none(text: str, words: str) -> None:
    """Better no figures of that replica than wrong ones of all."""
    with pytest.raises(MetricsUnavailableError, match=words):
        parse_page(text)


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ([], 0.5, None),
        ([(1.0, 0.0), (math.inf, 0.0)], 0.5, None),
        ([(1.0, 2.0), (3.0, 2.0)], 0.5, 1.0),
        ([(1.0, 2.0), (3.0, 2.0)], 0.75, 2.0),
        ([(1.0, 0.0), (3.0, 2.0)], 0.0, 1.0),
        ([(1.0, 1.0), (math.inf, 1.0)], 0.99, math.inf),
    ],
)
def test_a_quantile_is_what_prometheus_makes_of_the_buckets(
    buckets: list[tuple[float, float]], share: float, expected: float | None
) -> None:
    """Whoever compares with the dashboard finds the same."""
    assert expected == quantile(buckets, share)
