"""Whether a report says something that the status does not: what a write is worth. Pure."""

import math
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from batchedapi_core.manifest import ConditionType, UnitError, parse_duration
from batchedapi_operator.keys import JsonObject

FIGURE_CHANGE: Final = 0.05
"""Share by which a figure must change to be worth a write."""
OLDEST: Final = 300.0
"""Seconds that the last decision and what was learned are old in a status, while there is load."""
_WORDS: Final = ("serviceTime", "bottleneck", "advice")
OUR_CONDITIONS: Final = (
    ConditionType.METRICS_AVAILABLE,
    ConditionType.AUTOSCALING_ACTIVE,
    ConditionType.SCALING_LIMITED,
    ConditionType.SPEC_ADVICE,
)


def news(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether `after` says something that the status does not: a state, or a figure by 5 %.

    Times, sentences and the learned numbers are no news by themselves; they go along, and alone
    when they are old.
    """
    return (
        states_differ(before, after)
        or _has_learned(before) != _has_learned(after)
        or _figures_differ(before.get("batching") or {}, after.get("batching") or {})
        or _figures_differ(before.get("effective") or {}, after.get("effective") or {})
    )


def states_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether replicas, reason or a condition changed: others' figures give way to that."""
    return _states(before) != _states(after)


def is_old(before: Mapping[str, Any], uid: str, now: datetime) -> bool:
    """Whether the last decision and what was learned are to be written though nothing is new.

    Before `OLDEST` by as much as the write may have to wait, and spread over the APIs.
    """
    time = ((before.get("autoscaling") or {}).get("lastDecision") or {}).get("time")
    try:
        age = (now - datetime.fromisoformat(str(time))).total_seconds()
    except (ValueError, TypeError):  # none yet, no date, or one without a zone
        return False
    spread = zlib.crc32(uid.encode()) % round(OLDEST / 5)
    return not 0 <= age < OLDEST * 0.8 - spread


def _has_learned(status: Mapping[str, Any]) -> bool:
    """The CRD's defaults alone, of an API that was never looked at, are nothing learned."""
    return bool((status.get("autoscaling") or {}).get("learned"))


def _states(status: Mapping[str, Any]) -> tuple[object, ...]:
    last = (status.get("autoscaling") or {}).get("lastDecision") or {}
    kinds = {kind.value for kind in OUR_CONDITIONS}
    found: Sequence[JsonObject] = status.get("conditions") or ()
    return (
        last.get("desired"),
        last.get("reason"),
        {one["type"]: (one["status"], one["reason"]) for one in found if one["type"] in kinds},
    )


def _figures_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    numeric = (before.keys() | after.keys()) - {*_WORDS, "releaseReasons"}
    return (
        (before.get("bottleneck") or "") != (after.get("bottleneck") or "")  # as _differ
        or any(_differ(before.get(name), after.get(name)) for name in numeric)
        or _shares_differ(before.get("releaseReasons") or {}, after.get("releaseReasons") or {})
    )


def _shares_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """By five of a hundred batches."""
    points = 100 * FIGURE_CHANGE
    names = before.keys() | after.keys()
    return any(abs(after.get(name, 0) - before.get(name, 0)) >= points for name in names)


def _differ(before: object, after: object) -> bool:
    if before in (None, "") or after in (None, ""):  # the CRD's default for a text is empty
        return (before or None) != (after or None)
    try:  # a duration first: in milliseconds, so that the tolerance below is of what is shown
        old, new = 1e3 * parse_duration(str(before)), 1e3 * parse_duration(str(after))
    except UnitError:
        try:
            old, new = float(str(before)), float(str(after))
        except ValueError:
            return True
    # abs_tol: the last digit that is shown
    return not math.isclose(old, new, rel_tol=FIGURE_CHANGE, abs_tol=0.1)
