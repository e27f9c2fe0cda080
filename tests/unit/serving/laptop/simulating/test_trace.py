"""Traces as files: what is read, and what a line that is wrong is answered with."""

import pytest

from batchedapi_core.simulation import RecordedTrace, StepTrace
from batchedapi_serving.laptop.simulating.run import TraceError, parse_trace


def steps(text: str) -> StepTrace:
    """A CSV."""
    trace = parse_trace(text)
    assert isinstance(trace, StepTrace)
    return trace


def test_a_trace_of_less_than_a_second_is_refused() -> None:
    """There is no replica-second in it to compare with."""
    with pytest.raises(TraceError, match=r"expected a trace of a second or more, got 0\.3 s"):
        parse_trace("0,5\n0.3,0\n")


@pytest.mark.parametrize("heading", ["", "t,rate\n", "t, rate\n\n"])
def test_a_csv_is_steps_of_which_the_last_is_as_long_as_the_one_before(heading: str) -> None:
    """Nothing else says when it ends."""
    assert StepTrace((0.0, 10.0, 40.0), (5.0, 20.0, 7.5), 70.0) == steps(
        f"{heading}0,5\n10,20\n40,7.5\n"
    )


def test_a_last_rate_of_0_ends_the_trace() -> None:
    """The way to write a last step of any length."""
    assert 40.0 == steps("0,5\n10,20\n40,0\n").seconds


def test_a_single_line_is_a_constant_load() -> None:
    """For ten minutes."""
    assert StepTrace((0.0,), (100.0,), 600.0) == steps("0,100")


def test_times_count_from_the_first_line() -> None:
    """A recording by the wall clock is a trace, too."""
    assert StepTrace((0.0, 10.5), (5.0, 6.0), 20.5) == steps("1760000000.5,5\n1760000010.5,6\n")
    recorded = parse_trace('{"t": 1760000000.25, "rows": 1}\n{"t": 1760000003.5, "rows": 2}')
    assert 4.0 == recorded.seconds


def test_json_lines_are_recorded_requests_whatever_else_they_say() -> None:
    """Keys of a later version are not ours to refuse."""
    trace = parse_trace(
        '{"t": 1.5, "rows": 3, "requests": 1, "shape": [2]}\n\n{"t": 0.5, "rows": 1}\n'
    )

    assert isinstance(trace, RecordedTrace)
    assert (1, 3) == trace.sizes
    assert [1.0, 3.0] == [trace.rate(0.0), trace.rate(1.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got an empty file"),
        ("t,rate", "below the heading, got none"),
        ("0,5\nten,5", "line 2: expected t,rate \\(seconds, rows/s\\), got 'ten,5'"),
        ("0,5\n10", "line 2: expected t,rate"),
        ("0,5\n10,5,6", "line 2: expected t,rate"),
        ("0,5\n10,-5", "line 2: expected finite numbers >= 0"),
        ("0,nan", "line 1: expected finite numbers >= 0"),
        ("0,5\n10,5\n10,6", "line 3: expected t after 10, got 10"),
        ("0,5\n99999999,5", "at most 30 days and 1e\\+08 rows"),
        ("0,1e9", "6e\\+11 rows; cut the trace"),
        ("0,1\n1e308,1", "at most 30 days"),
        (f'{{"t": 1{"0" * 400}, "rows": 1}}', "line 1: expected .* with finite seconds"),
        ('{"t": 1, "rows": 1}\n{"t": }', "line 2: expected an object such as"),
        ('{"t": 1, "rows": 1}\n[1]', "line 2: expected an object such as"),
        ('{"t": -1, "rows": 1}', "finite seconds t >= 0, got t -1"),
        ('{"t": true, "rows": 1}', "finite seconds t >= 0, got t True"),
        ('{"t": 1e999, "rows": 1}', "finite seconds t >= 0, got t inf"),
        ('{"rows": 1}', "finite seconds t >= 0, got t None"),
        ('{"t": 1, "rows": 0}', "a whole number of rows >= 1, got rows 0"),
        ('{"t": 1, "rows": 1.5}', "got rows 1.5"),
        ('{"t": 1, "rows": true}', "got rows True"),
        ('{"t": 1}', "got rows None"),
        ('{"t": 1, "rows": 1, "lengths": 3}', "with lengths as .* got lengths 3"),
        ('{"t": 1, "rows": 1, "lengths": [1, -1]}', "got lengths .1, -1."),
        ('{"t": 1, "rows": 1, "lengths": [true]}', "got lengths .True."),
    ],
)
def test_a_line_that_is_no_trace_is_named(text: str, message: str) -> None:
    """The line, what was expected and what came."""
    with pytest.raises(TraceError, match=message):
        parse_trace(text)
