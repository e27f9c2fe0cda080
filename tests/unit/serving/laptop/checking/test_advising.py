"""Suggestions for the manifest from the table."""

import json
from pathlib import Path

import pytest

from batchedapi_core.service_model import ServiceTime
from batchedapi_serving.laptop.checking.report import (
    BatchTiming,
    CheckOptions,
    MethodReport,
    Report,
    Weight,
    advise_memory,
    advise_method,
    render_method,
    render_table,
    unit_of,
)
from batchedapi_serving.predictor import SizeOf


def report_of(
    fixed: float, per_row: float, *, largest: int = 32, knee: int | None = None, cost: int = 1
) -> MethodReport:
    """A method whose batches take fixed + per_row * n seconds; above `knee`, n times the knee's."""
    sizes = [1 << i for i in range(largest.bit_length())]
    timings = tuple(
        BatchTiming(
            n,
            fixed + per_row * n
            if knee is None or n <= knee
            else (fixed + per_row * knee) * n / knee,
            3,
            n * cost,
        )
        for n in sizes
    )
    return MethodReport(
        "predict", True, largest * cost, 32, "random numbers", (), timings,
        ServiceTime(fixed, per_row), "rows" if cost == 1 else "4 of the length of text",
    )  # fmt: skip


def texts(report: MethodReport, interval: float = 0.01, latency: float | None = None) -> str:
    """All advice as one text."""
    advice = advise_method(report, interval=interval, max_latency=latency)
    return "\n".join(f"{one.weight}: {one.text}" for one in advice)


def test_batching_that_buys_nothing_is_said() -> None:
    """C29: t(n) is nearly a * n when the method loops over its rows."""
    assert "warning: batching buys next to nothing: 1.10 times" in texts(report_of(0.0001, 0.00096))


def test_a_rate_that_still_rises_asks_for_more() -> None:
    """C27: raising the maximum may help."""
    assert "note: the rate still rises at 32 rows: try maxBatchSize: 64" in texts(
        report_of(0.010, 0.0001)
    )


def test_a_smaller_size_with_nearly_the_rate_is_named() -> None:
    """C30: a large batch makes everybody in it wait."""
    text = texts(report_of(0.010, 0.0001, largest=64, knee=8))

    assert "note: maxBatchSize: 8 would do: 100% of the best rate" in text


def test_a_size_that_fits_is_confirmed() -> None:
    """Somebody asked: silence would be no answer."""
    timings = tuple(BatchTiming(n, t, 3, n) for n, t in ((1, 0.010), (2, 0.0115), (4, 0.0195)))
    report = MethodReport("predict", True, 4, 32, "random", (), timings, None)

    assert "maxBatchSize: 4 fits: 2.1 times" in texts(report)


@pytest.mark.parametrize(
    ("latency", "text"),
    [
        (0.012, "a full batch takes 13.2ms, more than maxLatency 12ms: no size meets it"),
        (0.025, "needs 26.4ms, more than maxLatency 25ms: set maxBatchSize: 16"),
    ],
)
def test_a_full_batch_above_the_target_is_a_warning(latency: float, text: str) -> None:
    """C30: t(max) above maxLatency, alone or with the batch that it waits for."""
    assert text in texts(report_of(0.010, 0.0001), latency=latency)


def test_a_target_that_is_met_is_not_mentioned() -> None:
    """C30: only what is to be done is said."""
    assert "maxLatency" not in texts(report_of(0.010, 0.0001), latency=0.1)


def test_an_interval_that_pales_is_noted() -> None:
    """C30: at large sizes the batch itself is the wait."""
    assert "batchInterval of 1ms hardly matters" in texts(report_of(0.010, 0.0001), interval=0.001)


@pytest.mark.parametrize(("interval", "said"), [(0.001, True), (0.02, False), (0.0, False)])
def test_an_interval_that_cannot_fill_a_batch_is_noted(interval: float, *, said: bool) -> None:
    """C23, C26, C28: rate times interval is what gathers; 0 means that nothing waits at all."""
    text = "2,424 rows/s, the rate of full batches, a batchInterval of 1ms gathers 2.4 of 32 rows"

    assert said == (text in texts(report_of(0.010, 0.0001), interval=interval))
    assert said == ("needs 13.2ms" in texts(report_of(0.010, 0.0001), interval=interval))


def test_sizes_are_told_as_the_manifest_counts_them() -> None:
    """8 rows of 100 units are 800 of maxBatchSize."""
    report = report_of(0.010, 0.0001, largest=64, knee=8, cost=100)

    assert "maxBatchSize: 800 would do" in texts(report)
    assert "gathers 60.6 of 3200 units" in texts(
        report_of(0.01, 0.0001, cost=100), interval=0.00025
    )
    assert "set maxBatchSize: 1600" in texts(report_of(0.010, 0.0001, cost=100), latency=0.025)
    rendered = render_method(report, [])
    assert "maxBatchSize counts units: 4 of the length of text" in rendered
    assert ["8", "800"] == rendered.splitlines()[6].split()[:2]


@pytest.mark.parametrize(
    ("size_of", "unit"),
    [
        (SizeOf.bytes(), "1 byte"),
        (SizeOf.bytes(per=1024), "1024 bytes"),
        (SizeOf.length(), "1 of the length"),
        (SizeOf.length("text", per=4), "4 of the length of text"),
    ],
)
def test_a_unit_has_its_words(size_of: SizeOf, unit: str) -> None:
    """As in `size_of`."""
    assert unit == unit_of(size_of)


def test_without_a_table_there_is_no_advice() -> None:
    """Nothing was measured."""
    report = MethodReport("predict", False, 1, 0, "nothing", (), (), None)

    assert advise_method(report, interval=0.01, max_latency=0.1) == []


@pytest.mark.parametrize(("limit", "count"), [(None, 0), (4 << 20, 0), ((4 << 20) - 1, 1)])
def test_copies_that_do_not_fit_are_a_warning(limit: int | None, count: int) -> None:
    """W07: each process has its own."""
    advice = advise_memory(1 << 20, 4, limit)

    assert count == len(advice)
    assert all(one.weight is Weight.WARNING and "4 processes of 1Mi" in one.text for one in advice)


def test_the_table_has_a_bar_for_every_size() -> None:
    """The longest is the best rate."""
    head, *rows = render_table(report_of(0.0, 0.001, largest=2).timings)

    assert head.split() == ["rows", "ms", "a", "batch", "ms", "a", "row", "rows/s"]
    assert rows[0].split() == ["1", "1.000", "1.000", "1000", "#" * 30]
    assert render_table(()) == []


def test_the_times_of_a_fast_model_are_not_rounded_to_nothing() -> None:
    """0.3 microseconds a row were 0.000 ms."""
    (_, row) = render_table(report_of(0.0, 3e-7, largest=1).timings)

    assert row.split()[1:3] == ["0.000300", "0.000300"]


def test_a_method_is_told_in_full() -> None:
    """Findings take the place of the good news."""
    good = report_of(0.010, 0.0001)
    bad = MethodReport("predict", True, 32, 32, "x", ("row 0 differs",), (), None)
    none = MethodReport("predict", True, 32, 0, "give it items", (), (), None)

    assert "  ok     32 rows (random numbers)" in render_method(good, [])
    assert "t(n) = 10 ms + 0.1 ms * n" in render_method(good, [])
    assert "  WRONG  row 0 differs" in render_method(bad, [])
    assert "not checked: give it items" in render_method(none, [])


def test_what_is_wanted_crosses_to_the_process_that_checks(tmp_path: Path) -> None:
    """Through a file."""
    wanted = CheckOptions([{"id": 1}], ["uuid"])

    wanted.write(tmp_path)

    assert wanted == CheckOptions.read(str(tmp_path))


def test_a_report_survives_json() -> None:
    """It crosses from the process with the predictor."""
    report = Report("api", (report_of(0.01, 0.001),), 1 << 30)

    assert report == Report.from_json(json.dumps(report.to_json()))
    assert report.good
    assert report.checked
