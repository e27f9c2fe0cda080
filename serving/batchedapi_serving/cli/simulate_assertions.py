"""`--assert 'p99<80ms'`: what a simulation must show for the exit code to be 0."""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from batchedapi_core.manifest import UnitError, parse_duration

DURATIONS: Final = ("p50", "p90", "p99")
SHARES: Final = ("miss_fraction",)
NUMBERS: Final = ("cost_ratio", "mean_rows", "replicas")
QUANTITIES: Final = (*DURATIONS, *SHARES, *NUMBERS)

_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FORM: Final = re.compile(r"\s*([a-z_0-9]+)\s*(<=|>=|<|>)\s*(\S+)\s*")


class AssertionFormError(ValueError):
    """A text that compares nothing we know."""


@dataclass(frozen=True, slots=True)
class Assertion:
    """A quantity of the outcome and its bound: seconds, a share of 0..1, or a number."""

    text: str
    quantity: str
    comparison: str
    bound: float

    def holds(self, value: float) -> bool:
        """Whether it is true of `value`; never of nan."""
        return _COMPARISONS[self.comparison](value, self.bound)

    def failure(self, value: float) -> str:
        """Why it does not hold, as a sentence."""
        if math.isnan(value):
            return f"{self.text} does not hold: no request was answered"
        return f"{self.text} does not hold: {self.quantity} is {shown(self.quantity, value)}"


def shown(quantity: str, value: float) -> str:
    """A value in the unit that an assertion about it is written in."""
    if math.isnan(value):
        return "-"
    if quantity in DURATIONS:
        return f"{1e3 * value:.4g}ms"
    return f"{100 * value:.3g}%" if quantity in SHARES else f"{value:.4g}"


def parse_assertion(text: str) -> Assertion:
    """An assertion such as `p99<80ms`, `miss_fraction<=5%` or `replicas<=8`.

    Raises:
        AssertionFormError: with what was expected.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise AssertionFormError(
            f"expected a quantity, one of < <= > >= and a bound, such as p99<80ms, got {text!r}"
        )
    quantity, comparison, bound = match.groups()
    if quantity not in QUANTITIES:
        raise AssertionFormError(f"expected one of {', '.join(QUANTITIES)}, got {quantity!r}")
    return Assertion(text.strip(), quantity, comparison, _bound(quantity, bound))


def _bound(quantity: str, text: str) -> float:
    try:
        if quantity in DURATIONS:
            return parse_duration(text)
        percent = quantity in SHARES and text.endswith("%")
        value = float(text.removesuffix("%")) / 100 if percent else float(text)
    except UnitError as error:
        raise AssertionFormError(f"{quantity}: {error}") from error
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        expected = "a share such as 0.05 or 5%" if quantity in SHARES else "a number"
        raise AssertionFormError(f"{quantity}: expected {expected}, got {text!r}")
    return value
