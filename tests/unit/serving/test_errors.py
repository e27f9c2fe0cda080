"""Every error has a status of the contract and a code of its own."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchedapi_core import contract
from batchedapi_serving import errors
from batchedapi_serving.errors import OverloadedError, ServingError, brief


def every_error() -> list[type[ServingError]]:
    """All classes of the module."""
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, ServingError)
    ]


def test_every_status_is_counted_under_its_own_code() -> None:
    """A status outside the contract would be counted as something else."""
    assert {error.status for error in every_error()} <= set(contract.STATUS_CODES)


def test_every_error_of_the_table_exists() -> None:
    """The statuses that the documentation promises (B21 and the error table)."""
    promised = {400, 401, 404, 405, 406, 408, 413, 415, 422, 429, 431, 500, 501, 503, 504}

    assert promised == {error.status for error in every_error()}


@pytest.mark.parametrize(("seconds", "expected"), [(0, 1), (0.2, 1), (1.01, 2), (30, 30)])
def test_retry_after_is_whole_seconds_and_never_zero(seconds: float, expected: int) -> None:
    """Zero would make well-behaved clients retry in a busy loop."""
    assert expected == OverloadedError("", seconds).retry_after


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab,", max_size=3),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("ab", max_size=3), inner),
    )
)
def test_a_brief_value_begins_as_its_repr(value: Any) -> None:
    """Errors have always quoted the repr."""
    assert repr(value)[:80] == brief(value)


def test_a_brief_value_is_not_written_in_full() -> None:
    """Four million numbers would take seconds to quote eighty characters of."""
    assert "[[], [], [" == brief([_Unprintable() if i > 4 else [] for i in range(100)], 10)


class _Unprintable:
    def __repr__(self) -> str:
        raise AssertionError("written although nobody reads it")
