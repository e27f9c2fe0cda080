"""What `kubectl batchedapi why` prints of a decision. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchedapi_core.scaling import PolicyKind

_SEEN: Final = (
    ("arrival_now", "rows/s over the last look"),
    ("arrival_window", "rows/s over the window"),
    ("queue_rows", "rows waiting"),
    ("in_flight", "requests in flight, over the window"),
    ("mean_batch", "rows of a batch"),
    ("fill", "of a full batch"),
    ("full_share", "of batches released full"),
    ("busy", "of the lanes' time"),
)
_OUTCOME: Final = (
    ("need", "replicas, before rounding"),
    ("raw", "replicas, before clamps"),
    ("ready", "pods ready"),
    ("current", "replicas before"),
    ("coverage", "of ready pods seen"),
)
TERMS: Final = (
    *_SEEN,
    ("base", "rows/s planned for"),
    ("forecast", "rows/s more, by the time that a new replica is ready"),
    ("margin", "rows/s more, as forecasts were too low by that"),
    ("backlog", "rows/s more, for what waits to be gone soon"),
    ("start_up", "seconds until a new replica is ready"),
    ("capacity_batch", "rows of a batch at capacity"),
    ("capacity", "rows/s of one replica within the target"),
    ("slowdown", "times longer than learned that batches take"),
    ("target", "of the capacity is used"),
    ("trust", "of it is counted on, by how long requests wait"),
    ("imbalance", "on the need, for the hottest replica"),
    ("boost", "on the need, while overloaded"),
    ("hedge", "the largest boost at present"),
    ("hedge_rule", "says so"),
    ("unschedulable", "pods ordered and without a node"),
    ("failing", "pods ordered that cannot start"),
    ("oldest_start", "seconds since the first pod was ordered that never was ready"),
    ("seasoned", "enough batches for a boost"),
    *_OUTCOME,
)
"""Terms of a decision by policy CapacitySLO in the order of the formula, and what each is."""
CONCURRENCY_TERMS: Final = (*_SEEN, ("target", "requests in flight of one replica"), *_OUTCOME)
"""The same by policy Concurrency."""


@dataclass(frozen=True, slots=True)
class NoDecisionError(Exception):
    """There is nothing to explain yet; `message` says why, as far as the status tells."""

    message: str


def newest(name: str, status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The decision that the status has.

    Raises:
        NoDecisionError: The autoscaler has not decided anything for this API.
    """
    decision: Mapping[str, Any] | None = (status.get("autoscaling") or {}).get("lastDecision")
    if not decision:
        why = standing_aside(status)
        raise NoDecisionError(f"{name}: no decision yet{f': {why}' if why else _WAIT}")
    return decision


def explain_decision(decision: Mapping[str, Any]) -> str:
    """A decision as its sentence, its terms and its clamps."""
    record = decision.get("record") or {}
    parts = [f"{decision['text']}", f"decided {decision['time']}"]
    terms = record.get("terms") or {}
    concurrency = (record.get("policy") or {}).get("kind") == PolicyKind.CONCURRENCY
    known = CONCURRENCY_TERMS if concurrency else TERMS
    rows = [(label, number(terms[label]), unit) for label, unit in known if label in terms]
    parts += ["", *table(("TERM", "VALUE", ""), rows)]
    clamps = record.get("clamps") or ()
    if clamps:
        limits = [(c["name"], f"{c['before']} -> {c['after']}", c["detail"]) for c in clamps]
        parts += ["", *table(("CLAMP", "REPLICAS", ""), limits)]
    else:
        parts += ["", "no clamp bound"]
    return "\n".join(parts)


_WAIT: Final = "; the operator decides every few seconds once a replica is ready"


def standing_aside(status: Mapping[str, Any]) -> str:
    """Why the autoscaler decides nothing: reason and message; empty while it does."""
    for one in status.get("conditions") or ():
        if one["type"] == "AutoscalingActive" and one["status"] != "True":
            return f"{one['reason']}, {one['message']}"
    return ""


def number(value: object) -> str:
    """Four figures; what is not known is said to be."""
    match value:
        case None:
            return "unknown"
        case bool() | str():
            return str(value)
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines with columns of one width."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
