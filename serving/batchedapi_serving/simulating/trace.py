"""Reads the load of a simulation: CSV of rates, or JSON lines of recorded requests."""

import json
import math
import sys
from collections.abc import Sequence
from typing import Final

from batchedapi_core.simulation import RecordedTrace, StepTrace

MOST_ROWS: Final = 10**8
"""Of a whole trace: some minutes of simulation, some GiB of memory."""
LONGEST: Final = 30 * 86400.0
"""Seconds."""
SINGLE_STEP: Final = 600.0
"""Seconds that the only line of a CSV is taken to last."""


class TraceError(ValueError):
    """A file that is no trace; says the line, what was expected and what came."""


def parse_trace(text: str) -> StepTrace | RecordedTrace:
    """A trace from the text of a file; times count from the whole second of the first.

    Args:
        text: Lines `t,rate` (seconds, rows/s from then on, ascending), or JSON objects with `t`
            and `rows` in any order; other keys are ignored. Of a CSV the last step lasts as long as
            the one before it, unless its rate is 0: then the trace ends with it.

    Raises:
        TraceError: it is neither.
    """
    lines = [(i, line.strip()) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise TraceError("expected lines of t,rate or of JSON, got an empty file")
    if lines[0][1].startswith("{"):
        requests = [_request(i, line) for i, line in lines]
        first = math.floor(min(t for t, _ in requests))
        times = [t - first for t, _ in requests]
        rows = [n for _, n in requests]
        _check_extent(max(times), sum(rows))
        return RecordedTrace(times, rows)
    if [cell.strip() for cell in lines[0][1].split(",")] == ["t", "rate"]:
        lines = lines[1:]
    return _stepped(lines)


def _stepped(lines: Sequence[tuple[int, str]]) -> StepTrace:
    if not lines:
        raise TraceError("expected lines of t,rate below the heading, got none")
    times: list[float] = []
    rates: list[float] = []
    for i, line in lines:
        try:
            t, rate = (float(cell) for cell in line.split(","))
        except ValueError as error:
            raise TraceError(
                f"line {i}: expected t,rate (seconds, rows/s), got {line[:100]!r}"
            ) from error
        if not (math.isfinite(t) and t >= 0.0 and math.isfinite(rate) and rate >= 0.0):
            raise TraceError(f"line {i}: expected finite numbers >= 0, got {line[:100]!r}")
        if times and t <= times[-1]:
            raise TraceError(f"line {i}: expected t after {times[-1]:g}, got {t:g}")
        times.append(t)
        rates.append(rate)
    first = float(math.floor(times[0]))
    starts = [t - first for t in times]
    if len(starts) == 1:
        end = starts[0] + SINGLE_STEP
    elif rates[-1] == 0.0:
        end = starts[-1]
    else:
        end = 2 * starts[-1] - starts[-2]
    if end < 1.0:
        raise TraceError(f"expected a trace of a second or more, got {end:g} s")
    starts[0] = 0.0
    spans = zip([*starts[1:], end], starts, rates, strict=True)
    _check_extent(end, sum(rate * max(0.0, stop - start) for stop, start, rate in spans))
    return StepTrace(tuple(starts), tuple(rates), end)


def _check_extent(seconds: float, rows: float) -> None:
    if seconds >= LONGEST or rows > MOST_ROWS:
        raise TraceError(
            f"expected at most {LONGEST / 86400:g} days and {MOST_ROWS:g} rows, got"
            f" {seconds:g} s with {rows:g} rows; cut the trace, or thin it out"
        )


def _request(number: int, line: str) -> tuple[float, int]:
    expected = f'line {number}: expected an object such as {{"t": 0.25, "rows": 1}}'
    try:
        value = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{expected}, got {line[:100]!r}") from error
    if not isinstance(value, dict):
        raise TraceError(f"{expected}, got {line[:100]!r}")
    t, rows = value.get("t"), value.get("rows")
    if isinstance(t, bool) or not isinstance(t, int | float) or not 0.0 <= t <= sys.float_info.max:
        raise TraceError(f"{expected} with finite seconds t >= 0, got t {t!r:.100}")
    if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= MOST_ROWS:
        raise TraceError(f"{expected} with a whole number of rows >= 1, got rows {rows!r:.100}")
    return float(t), rows
