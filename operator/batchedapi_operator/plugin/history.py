"""The last decisions about an API, one line each. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchedapi_operator.plugin.why import number, table

HEAD: Final = ("TIME", "TIMES", "REPLICAS", "REASON", "ROWS/S", "CAPACITY", "NEED", "BOUND")

Decision = Mapping[str, Any]


def joined(of_status: Decision, of_operator: Sequence[Decision]) -> list[Decision]:
    """All that is known, the newest first.

    The status may be a report behind the operator, or all that is left from before it restarted.
    Times are RFC 3339 in UTC, to the second, and compare as text.
    """
    time = of_status["time"]
    newer = [one for one in of_operator if one["time"] >= time]
    older = [one for one in of_operator if one["time"] < time]
    covers = newer and newer[-1]["since"] <= time
    return [*newer, *older] if covers else [*newer, of_status, *older]


def history_table(decisions: Sequence[Decision]) -> list[str]:
    """A line for each, under a head."""
    return table(HEAD, map(_line, decisions))


def _line(decision: Decision) -> tuple[str, ...]:
    record = decision.get("record") or {}
    terms = record.get("terms") or {}
    current, desired = terms.get("current"), decision["desired"]
    # the figures of a decision without measurements are zeros that nobody saw
    seen = terms.get("arrival_now") is not None
    figures = (
        number(terms[name]) if seen and (name != "capacity" or terms[name]) else "-"
        for name in ("base", "capacity", "need")
    )
    return (
        decision["time"],
        str(decision.get("count", 1)),
        str(desired) if current in {None, desired} else f"{current} -> {desired}",
        decision["reason"],
        *figures,
        record.get("bound") or "-",
    )
