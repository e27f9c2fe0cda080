"""The text of a decision for `kubectl batchedapi why`. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchedapi_core.scaling.policy import PolicyKind
from batchedapi_operator.cluster import listed, section

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
    ("floor", "rows/s at least, as most hours or days brought them"),
    ("start_up", "seconds until a new replica is ready"),
    ("placement", "seconds more, until it has a node"),
    ("capacity_batch", "rows of a batch at capacity"),
    ("capacity", "rows/s of one replica within the target"),
    ("slowdown", "times longer than learned that batches take"),
    ("target", "of the capacity is used"),
    ("trust", "of it is counted on, by how long requests wait"),
    ("imbalance", "on the need, for the hottest replica"),
    ("boost", "on the need, while overloaded"),
    ("hedge", "the largest boost at present"),
    ("hedge_rule", "says so"),
    ("wanted", "places that pods of other APIs wait for"),
    ("unschedulable", "pods ordered and without a node"),
    ("failing", "pods ordered that cannot start"),
    ("oldest_start", "seconds since the first pod was ordered that never was ready"),
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
    decision: Mapping[str, Any] | None = section(status, "autoscaling").get("lastDecision")
    if not decision:
        why = standing_aside(status)
        raise NoDecisionError(f"{name}: no decision yet{f': {why}' if why else _WAIT}")
    return decision


def recommendation(status: Mapping[str, Any]) -> str:
    """The recommended batching, or the reason for none; may be empty."""
    told = section(status, "recommendation")
    if not told.get("effect"):
        return ""
    size, interval = told.get("maxBatchSize"), told.get("batchInterval")
    batching = f"maxBatchSize {size}, batchInterval {interval}: " if size and interval else ""
    return f"recommended batching: {batching}{told['effect']}"


def padding(status: Mapping[str, Any]) -> str:
    """The share of padding in batches; empty where rows have no lengths."""
    percent = section(status, "batching").get("paddingPercent")
    return "" if percent is None else f"padding: {percent} % of what batches compute"


def explain_decision(decision: Mapping[str, Any]) -> str:
    """A decision as its sentence, its terms and its clamps."""
    record = section(decision, "record")
    parts = [f"{decision['text']}", f"decided {decision['time']}"]
    terms = section(record, "terms")
    concurrency = section(record, "policy").get("kind") == PolicyKind.CONCURRENCY
    known = CONCURRENCY_TERMS if concurrency else TERMS
    rows = [(label, number(terms[label]), unit) for label, unit in known if label in terms]
    parts += ["", *table(("TERM", "VALUE", ""), rows)]
    clamps = listed(record, "clamps")
    if clamps:
        limits = [(c["name"], f"{c['before']} -> {c['after']}", c["detail"]) for c in clamps]
        parts += ["", *table(("CLAMP", "REPLICAS", ""), limits)]
    else:
        parts += ["", "no clamp bound"]
    return "\n".join(parts)


_WAIT: Final = "; the operator decides every few seconds once a replica is ready"


def standing_aside(status: Mapping[str, Any]) -> str:
    """Why the autoscaler decides nothing: reason and message; empty while it does."""
    for one in listed(status, "conditions"):
        if one["type"] == "AutoscalingActive" and one["status"] != "True":
            return f"{one['reason']}, {one['message']}"
    return ""


def number(value: object) -> str:
    """Four figures; what is not known is said to be."""
    if value is None:
        return "unknown"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines with columns of one width."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


# The last decisions about an API, one line each. Pure.

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
    lines: list[tuple[str, ...]] = []
    for decision in decisions:
        record = section(decision, "record")
        terms = section(record, "terms")
        current, desired = terms.get("current"), decision["desired"]
        # the figures of a decision without measurements are zeros that nobody saw
        seen = terms.get("arrival_now") is not None
        figures = [
            number(terms[name]) if seen and (name != "capacity" or terms[name]) else "-"
            for name in ("base", "capacity", "need")
        ]
        lines.append(
            (
                decision["time"],
                str(decision.get("count", 1)),
                str(desired) if current in {None, desired} else f"{current} -> {desired}",
                decision["reason"],
                *figures,
                record.get("bound") or "-",
            )
        )
    return table(HEAD, lines)
