"""Reading pages of pods that run somebody else's code."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.autoscaling.pages import CALLS, page

from batchedapi_core import contract
from batchedapi_operator.autoscaling.metrics_page import (
    MAX_BYTES,
    MAX_LINES,
    MAX_SERIES,
    REMEMBERED,
    Layout,
    MetricsPage,
    parse_page,
)
from batchedapi_operator.errors import MetricsUnavailableError
from batchedapi_serving.metrics import slots
from batchedapi_serving.metrics.page import scaling_page, whole_page
from thorough import examples


def parsed(text: str, layout: Layout | None = None) -> MetricsPage:
    """Read at a fixed time; a line that is added need not end."""
    whole = text if text.endswith("\n") else f"{text}\n"
    return parse_page(whole, "uid", time=50.0, unix_time=1060.0, layout=layout)


def test_every_figure_is_read_from_its_metric() -> None:
    """A wrong one here would be a wrong replica count."""
    found = parsed(page(squares=400))

    sample = found.sample
    assert ("uid", 50.0, 1000.0, 60.0) == (
        sample.pod,
        sample.time,
        sample.process_start,
        sample.uptime,
    )
    assert (100, 3) == (sample.rows_received, sample.rows_rejected)
    assert (10, 100, 2, 1.0) == (
        sample.batches,
        sample.rows,
        sample.full_batches,
        sample.batch_seconds,
    )
    assert 400 == sample.squares_received
    assert (3, 2) == (sample.queue_rows, sample.lanes)
    assert (16, 0.005) == (found.max_batch_size, found.batch_interval)


def test_what_explains_a_batch_is_read_too() -> None:
    """Release reasons, waiting and requests in flight become words in the status."""
    extra = (
        'batchedapi_queue_wait_seconds_sum{method="predict"} 1.5\n'
        'batchedapi_queue_wait_seconds_count{method="predict"} 30\n'
        'batchedapi_request_seconds_sum{method="predict"} 2.5\n'
        'batchedapi_request_seconds_count{method="predict"} 20\n'
    )

    found = parse_page(page(extra=extra), "uid", time=50.0, unix_time=1060.0, startup=21.0)

    assert (5, 100, 21.0) == (found.sample.in_flight, found.sample.requests, found.sample.startup)
    assert [2, 8, 0, 0, 0, 0, 0] == list(found.counted.released)
    assert [1, 2, 0, 0, 0] == list(found.counted.rejected)
    assert (1.5, 30, 2.5, 20) == (
        found.counted.queue_wait,
        found.counted.waited,
        found.counted.request_seconds,
        found.counted.answered,
    )


def test_a_page_that_was_read_before_reads_the_same() -> None:
    """The layout remembers the series of each line, and nothing of its number."""
    layout = Layout()
    first = parsed(page(extra=CALLS), layout)
    other = parsed(page(received=500, rows=400, batches=40, full=9, extra=CALLS), layout)

    assert first == parsed(page(extra=CALLS), layout)
    assert other == parsed(page(received=500, rows=400, batches=40, full=9, extra=CALLS))


def test_a_series_is_the_same_whatever_the_order_of_its_labels() -> None:
    """Else a page could count one twice, the second time under the other spelling."""
    twice = 'batchedapi_batches_total{reason="full",method="predict"} 5'
    layout = Layout()
    parsed(page(), layout)

    for known in (None, layout):
        with pytest.raises(MetricsUnavailableError, match="twice"):
            parsed(page(extra=twice), known)


def test_a_layout_stays_small_whatever_pods_say() -> None:
    """New labels with every page would else fill the operator's memory (O24)."""
    layout = Layout()
    for number in range(30):
        lines = (f'batchedapi_queue_rows{{method="{number}-{n}"}} 1' for n in range(100))
        noise = (f'mine{{n="{number}-{n}"}} 1' for n in range(200))
        parsed(page(extra="\n".join((*lines, *noise))), layout)

    assert 2 * REMEMBERED >= sum(map(len, layout.lines))
    assert parsed(page(), layout) == parsed(page())


@pytest.mark.parametrize("cut", [1, 2, 3, 10, 100])
def test_a_page_that_ends_early_is_refused(cut: int) -> None:
    """`1000` cut to `10` is a number, too; only the missing end of the line tells."""
    with pytest.raises(MetricsUnavailableError) as refused:
        parse_page(page()[:-cut], "uid", time=50.0, unix_time=1060.0)

    assert "malformed" == refused.value.result


def test_calls_that_occupy_no_lane_do_not_count() -> None:
    """N28: a method that awaits two others would look like slow batches and thrice the demand."""
    assert parsed(page()) == parsed(page(extra=CALLS))


def test_calls_count_where_there_is_nothing_else() -> None:
    """Then what is let in at once is what a replica can do."""
    found = parsed(f"process_start_time_seconds 1000\n{CALLS}")

    assert (70, 60, 1024) == (
        found.sample.rows_received,
        found.sample.batches,
        found.sample.lanes,
    )


@pytest.mark.parametrize("calls", [0, 1024])
def test_methods_without_lanes_are_not_known(calls: int) -> None:
    """Counted once with its calls and once without, the demand of a replica would jump."""
    text = page(lanes=0, extra=CALLS.replace(" 1024", f" {calls}"))

    with pytest.raises(MetricsUnavailableError, match="batchedapi_lanes"):
        parsed(text)


@pytest.mark.parametrize(
    "name",
    [
        "process_start_time_seconds",
        "batchedapi_rows_received_total",
        "batchedapi_batch_rows_sum",
        "batchedapi_batch_rows_count",
        "batchedapi_batch_seconds_sum",
        "batchedapi_batches_total",
        "batchedapi_queue_rows",
        "batchedapi_in_flight_requests",
        "batchedapi_lanes",
    ],
)
def test_a_missing_metric_is_not_a_zero(name: str) -> None:
    """Zero rows received would be a reason to remove replicas."""
    text = "\n".join(line for line in page().split("\n") if not line.startswith(name))

    with pytest.raises(MetricsUnavailableError, match=name) as refused:
        parsed(text)
    assert refused.value.result == "incomplete"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "-0.001"])
def test_impossible_values_void_the_page(value: str) -> None:
    """One of them in a sum would spread to every figure."""
    line = f'batchedapi_queue_rows{{method="b"}} {value}'

    with pytest.raises(MetricsUnavailableError) as refused:
        parsed(page(extra=line))
    assert refused.value.result == "invalid"


@pytest.mark.parametrize(
    ("extra", "result"),
    [
        pytest.param("x" * (MAX_BYTES + 1), "too_large", id="page"),
        pytest.param(
            "\n".join(f'batchedapi_lanes{{method="{n}"}} 1' for n in range(MAX_SERIES)),
            "too_large",
            id="series",
        ),
        pytest.param('batchedapi_lanes{method="' + "x" * 2000 + '"} 1', "too_large", id="one line"),
        pytest.param('batchedapi_lanes{method="predict"} 2', "invalid", id="series twice"),
        pytest.param('batchedapi_lanes{method="b} 1', "malformed", id="open quote"),
        pytest.param('batchedapi_lanes{method="b"} many', "malformed", id="no number"),
        pytest.param('batchedapi_lanes{method="b"} 1_0', "malformed", id="underscore"),
        pytest.param('batchedapi_lanes{method="b"} ' + "1" * 900, "malformed", id="digits"),
        pytest.param('batchedapi_lanes{method="b"} 1 1700000000', "malformed", id="timestamp"),
        pytest.param('batchedapi_lanes{method="b",method="c"} 1', "malformed", id="label twice"),
        pytest.param('batchedapi_lanes more{method="b"} 1', "malformed", id="two names"),
        pytest.param("batchedapi_lanes", "malformed", id="no value"),
        pytest.param('batchedapi_lanes{method="b"}', "malformed", id="labels, no value"),
        pytest.param('batchedapi_max_batch_size{method="b"} 1e9', "invalid", id="batch size"),
        pytest.param('batchedapi_max_batch_size{method="b"} 0', "invalid", id="no batch size"),
        pytest.param('batchedapi_batch_interval_seconds{method="b"} 1e9', "invalid", id="interval"),
        pytest.param("batchedapi_model_process_memory_bytes 1e300", "invalid", id="memory"),
    ],
)
def test_hostile_pages_are_refused_by_kind(extra: str, result: str) -> None:
    """The scrape counter's label tells an operator which defence held (O24)."""
    with pytest.raises(MetricsUnavailableError) as refused:
        parsed(page(extra=extra))
    assert result == refused.value.result


def test_more_lanes_than_a_replica_can_have_are_none() -> None:
    """Believed, they would be capacity without end, and a reason to remove all others."""
    with pytest.raises(MetricsUnavailableError, match="batchedapi_lanes"):
        parsed(page(lanes=10**9))


def test_other_metrics_cost_nothing() -> None:
    """Half a megabyte of them is read; more lines than a page of ours can have are not begun."""
    noise = "\n".join(f'mine{{n="{number}"}} {number}' for number in range(MAX_LINES - 100))

    assert parsed(page(extra=noise)).sample.lanes == 2
    with pytest.raises(MetricsUnavailableError, match="lines"):
        parsed(page(extra=noise + "\n" * 100))


@pytest.mark.parametrize(
    ("length", "methods", "fixed"), [(0.1, 1, 0.25), (0, 1, None), (0.1, 2, None)]
)
def test_the_fixed_cost_is_that_of_t_n_l_where_rows_of_one_method_have_lengths(
    length: float, methods: int, fixed: float | None
) -> None:
    """Of several methods nobody knows whose batches took what."""
    series = "".join(
        f'batchedapi_service_time_seconds{{method="m{number}",term="{term}"}} {value}\n'
        for number in range(methods)
        for term, value in (("batch", 0.25), ("row", 0.5), ("length", length))
    )

    assert fixed == parsed(page() + series).sample.fixed


@pytest.mark.parametrize("methods", [1, contract.MAX_METHODS])
def test_the_page_for_scaling_says_the_same_as_the_whole_in_fewer_bytes(
    tmp_path: Path, methods: int
) -> None:
    """One that lacked a series would be a wrong replica count; its size is what others wait for."""
    slots.create_memory(tmp_path / "metrics")
    memory = slots.map_memory(tmp_path / "metrics")
    for index in range(len(memory)):  # numbers as long as they get, also of histograms
        memory[index] = 1234567.0 + index / 1024  # sums of which are exact in any order
    for index in range(methods):  # of gauges there are limits
        block = slots.method_block(memory, index)
        block[slots.LANES], block[slots.MAX_BATCH_SIZE], block[slots.BATCH_INTERVAL] = 4, 65536, 0.1
    names = [(f"predict_in_{number:02d}_languages", 65536) for number in range(methods)]

    narrow = scaling_page(memory, names)

    assert parsed(narrow.decode()).failed
    assert parsed(narrow.decode()) == parsed(whole_page(memory, names).decode())
    most = contract.SCALING_PAGE_BYTES + methods * contract.SCALING_PAGE_BYTES_A_METHOD
    assert len(narrow) <= most


LINES = st.lists(
    st.one_of(
        st.text(max_size=60),
        st.builds(
            "{}{}{} {}".format,
            st.sampled_from(
                [
                    "batchedapi_lanes",
                    "batchedapi_request_seconds_bucket",
                    "batchedapi_batches_total",
                    "# TYPE batchedapi_lanes",
                    "process_start_time_seconds",
                ]
            ),
            st.sampled_from(["", "{", "{}", '{le="', '{le="1"}', '{a="\\"}', "{a=b}", "{,}", '"']),
            st.text(max_size=8),
            st.one_of(st.floats().map(str), st.text(max_size=12)),
        ),
    ),
    max_size=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(lines=LINES, first=st.booleans())
def test_any_page_is_either_possible_or_refused(lines: list[str], *, first: bool) -> None:
    """Whatever a pod answers, the loop sees a sample that could be true, or an error of ours."""
    noise = "\n".join(lines)
    text = f"{noise}\n{page()}" if first else page(extra=noise)

    try:
        found = parsed(text)
    except MetricsUnavailableError:
        return

    figures = (found.sample.rows, found.sample.lanes, found.sample.rows_received)
    assert all(math.isfinite(figure) and figure >= 0 for figure in figures)


def test_lanes_that_methods_share_are_counted_once() -> None:
    """Each method says all of them: a sum would plan with twice the replica."""
    text = page(extra='batchedapi_lanes{method="embed"} 2\n')

    assert 2.0 == parse_page(text, "pod", time=0.0, unix_time=2000.0).sample.lanes


@pytest.mark.parametrize(
    ("extra", "expected"), [("", None), ("batchedapi_model_process_memory_bytes 5e8\n", 5e8)]
)
def test_the_memory_of_a_model_process_is_read_where_it_is_exported(
    extra: str, expected: float | None
) -> None:
    """Replicas of an earlier version do not."""
    assert expected == parse_page(page(extra=extra), "p", time=0.0, unix_time=2e3).process_memory
