"""Kubernetes durations and quantities, converted once: text outside, plain numbers inside."""

import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer
from pydantic.fields import FieldInfo

DURATION_PATTERN: Final = r"^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$"
QUANTITY_PATTERN: Final = (
    r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"  # the positive part of Kubernetes' own
)

_SECONDS: Final = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_FACTORS: Final = {
    "": Decimal(1),
    "m": Decimal("1e-3"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
}
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s|m|h)")
_QUANTITY: Final = re.compile(QUANTITY_PATTERN)
_MAX_TEXT: Final = 32
INT64: Final = range(-(2**63), 2**63)
"""An integer, as the apiserver reads it."""
_MOST_SECONDS: Final = 86400.0
_A_DURATION: Final = "expected a duration such as 5ms, 2s or 1m30s"
_A_QUANTITY: Final = "expected a quantity such as 500m, 2 or 1Gi"


class UnitError(ValueError):
    """A text that is not a duration or a quantity."""


def parse_duration(text: str) -> float:
    """Seconds of a duration such as `5ms`, `1m30s` or `0s`.

    Raises:
        UnitError: `text` is not a sequence of numbers with units.
    """
    if len(text) > _MAX_TEXT or re.fullmatch(DURATION_PATTERN, text) is None:
        raise UnitError(f"{_A_DURATION}, got {text[:_MAX_TEXT]!r}")
    parts = _DURATION_PART.findall(text)
    return float(sum((Decimal(number) * _SECONDS[unit] for number, unit in parts), Decimal(0)))


def format_duration(seconds: float) -> str:
    """The shortest single-unit text of `seconds` (0.005 -> `5ms`), exact to the nanosecond."""
    nanoseconds = round(Decimal(repr(seconds)) * 10**9)
    for unit, size in (("h", 3600 * 10**9), ("m", 60 * 10**9), ("s", 10**9), ("ms", 10**6)):
        if nanoseconds % size == 0:
            return "0s" if nanoseconds == 0 else f"{nanoseconds // size}{unit}"
    return f"{nanoseconds // 1000}us" if nanoseconds % 1000 == 0 else f"{nanoseconds}ns"


def parse_quantity(value: str | float) -> float:
    """The number that a Kubernetes quantity such as `500m`, `2` or `1Gi` stands for.

    Raises:
        UnitError: `value` is not a positive number with a known suffix.
    """
    text = str(value)
    if isinstance(value, bool) or len(text) > _MAX_TEXT or _QUANTITY.fullmatch(text) is None:
        raise UnitError(f"{_A_QUANTITY}, got {text[:_MAX_TEXT]!r}")
    number = text.rstrip("mkMGTPKi")
    return float(Decimal(number) * _FACTORS[text[len(number) :]])


def format_quantity(value: float) -> str:
    """A quantity text for `value` with three decimals at most (0.5 -> `500m`, 2.0 -> `2`)."""
    thousandths = round(value * 1000)
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        return parse_duration(value)
    meant = ""
    if type(value) in {int, float} and 0 <= value <= _MOST_SECONDS:
        meant = f"; {value} seconds are written {format_duration(value)}"
    raise UnitError(f"{_A_DURATION}, got {value!r:.100}{meant}")


def _checked_quantity(value: Any) -> str:
    if isinstance(value, str) or (type(value) is int and value in INT64):
        parse_quantity(value)
        return str(value)
    quoted = f'; write "{value}", in quotes' if isinstance(value, float) else ""
    raise UnitError(f"{_A_QUANTITY}, got {value!r:.100}{quoted}")


Duration = Annotated[
    float,
    BeforeValidator(_seconds, json_schema_input_type=str),
    PlainSerializer(format_duration, return_type=str),
    Field(
        json_schema_extra={
            "type": "string",
            "format": "duration",
            "pattern": DURATION_PATTERN,
            "maxLength": _MAX_TEXT,
        }
    ),
]
"""Text such as `5ms` in a manifest, float seconds in Python."""


def duration_field(default: str | None, *, at_least: str, at_most: str, description: str) -> Any:
    """A pydantic field of type Duration with bounds that hold in Python and in the apiserver.

    `minimum` and `maximum` would be of a number, and a duration is text: the apiserver's bound is
    a CEL rule.
    """
    least, most = parse_duration(at_least), parse_duration(at_most)
    expected = f"expected {at_least} to {at_most}"
    schema: dict[str, Any] = {
        "x-kubernetes-validations": [
            {
                "rule": f"self >= duration('{at_least}') && self <= duration('{at_most}')",
                "message": expected,
            }
        ]
    }
    if default is not None:
        schema["default"] = default

    def within(seconds: float | None) -> float | None:
        if seconds is not None and not least <= seconds <= most:
            raise UnitError(f"{expected}, got {format_duration(seconds)}")
        return seconds

    value: Any = None if default is None else parse_duration(default)
    field: FieldInfo = Field(value, description=description, json_schema_extra=schema)
    field.metadata.append(AfterValidator(within))
    return field


Quantity = Annotated[
    str,
    BeforeValidator(_checked_quantity, json_schema_input_type=str),
    Field(
        json_schema_extra={
            "type": None,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
            "maxLength": _MAX_TEXT,
            "minimum": 0,  # of those that are written as a number
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""A Kubernetes quantity, kept as it was written; `parse_quantity` gives the number."""
