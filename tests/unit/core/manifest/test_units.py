"""Durations and quantities: converted once, and back to the same text."""

import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchedapi_core.manifest import (
    UnitError,
    format_duration,
    format_quantity,
    parse_duration,
    parse_quantity,
)
from batchedapi_core.manifest.units import DURATION_PATTERN, QUANTITY_PATTERN

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=300)
NANOSECONDS = st.one_of(
    st.integers(0, 10**6),
    st.integers(0, 10**4).map(lambda ms: ms * 10**6),
    st.integers(0, 10**5).map(lambda s: s * 10**9),
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0.0),
        ("10ms", 0.010),
        ("1.5ms", 0.0015),
        ("250us", 0.00025),
        ("1ns", 1e-9),
        ("2s", 2.0),
        ("1m30s", 90.0),
        ("1h", 3600.0),
        ("1h1m1s1ms", 3661.001),
    ],
)
def test_durations_mean_what_they_mean_in_kubernetes(text: str, seconds: float) -> None:
    """1.6: the seeds disagree on the unit, so it is always written."""
    assert seconds == parse_duration(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "5 ms",
        "-5ms",
        "ms",
        "5min",
        "1e3s",
        "5ms\n",
        "\uff15ms",
        ".5s",
        "5.s",
        "9" * 40 + "s",
    ],
)
def test_anything_else_is_no_duration(text: str) -> None:
    """A number without a unit above all: 5 what?"""
    with pytest.raises(UnitError, match="expected a duration such as 5ms"):
        parse_duration(text)


@SETTINGS
@given(NANOSECONDS)
def test_a_duration_survives_being_written(nanoseconds: int) -> None:
    """To the nanosecond, as text that the schema accepts."""
    seconds = float(Decimal(nanoseconds) / 10**9)

    text = format_duration(seconds)

    assert seconds == parse_duration(text)
    assert re.fullmatch(DURATION_PATTERN, text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.005, "5ms"), (90.0, "90s"), (120.0, "2m"), (7200.0, "2h"), (0.00025, "250us"),
     (2.5e-8, "25ns")],
)  # fmt: skip
def test_the_shortest_text_with_one_unit_is_written(seconds: float, text: str) -> None:
    """A person would have written the same text."""
    assert text == format_duration(seconds)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("500m", 0.5),
        ("2", 2.0),
        (2, 2.0),
        (0.5, 0.5),
        ("1Ki", 1024.0),
        ("32Mi", 32 * 2**20),
        ("1.5Gi", 1.5 * 2**30),
        ("1Ti", 2.0**40),
        ("1Pi", 2.0**50),
        ("1k", 1e3),
        ("1M", 1e6),
        ("1G", 1e9),
        ("1T", 1e12),
        ("1P", 1e15),
    ],
)
def test_quantities_mean_what_they_mean_in_kubernetes(value: Any, number: float) -> None:
    """Decimal and binary suffixes are different numbers."""
    assert number == parse_quantity(value)


@pytest.mark.parametrize(
    "value", ["", "1g", "1 Gi", "-1", "1GiB", "m", True, "1e3", "9" * 40, "1\n"]
)
def test_anything_else_is_no_quantity(value: Any) -> None:
    """Among them `true`, which Python counts as 1."""
    with pytest.raises(UnitError, match="expected a quantity such as 500m"):
        parse_quantity(value)


@pytest.mark.parametrize(("value", "text"), [(2.0, "2"), (0.5, "500m"), (1.0625, "1062m")])
def test_a_quantity_is_written_in_thousandths_unless_it_is_whole(value: float, text: str) -> None:
    """As Kubernetes writes it."""
    assert text == format_quantity(value)


@SETTINGS
@given(st.integers(0, 10**9))
def test_a_quantity_survives_being_written(thousandths: int) -> None:
    """To a thousandth, as text that the schema accepts."""
    text = format_quantity(thousandths / 1000)

    assert parse_quantity(text) == pytest.approx(thousandths / 1000, abs=1e-9)
    assert re.fullmatch(QUANTITY_PATTERN, text)
