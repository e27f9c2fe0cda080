"""What `kubectl batchedapi why` prints, out of an API's status. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

TERMS: Final = (
    ("arrival_now", "rows/s over the last look"),
    ("arrival_window", "rows/s over the window"),
    ("base", "rows/s planned for"),
    ("queue_rows", "rows waiting"),
    ("mean_batch", "rows of a batch"),
    ("fill", "of a full batch"),
    ("full_share", "of batches released full"),
    ("busy", "of the lanes' time"),
    ("capacity_batch", "rows of a batch at capacity"),
    ("capacity", "rows/s of one replica within the target"),
    ("target", "of the capacity is used"),
    ("boost", "on the need, while overloaded"),
    ("need", "replicas, before rounding"),
    ("raw", "replicas, before clamps"),
    ("ready", "pods ready"),
    ("current", "replicas before"),
    ("coverage", "of ready pods seen"),
)
"""Terms of a decision in the order of the formula, and what each is."""


@dataclass(frozen=True, slots=True)
class NoDecisionError(Exception):
    """There is nothing to explain yet; `message` says why, as far as the status tells."""

    message: str


def explain_status(name: str, status: Mapping[str, Any]) -> str:
    """The last decision as its sentence, its terms and its clamps.

    Raises:
        NoDecisionError: The autoscaler has not decided anything for this API.
    """
    decision = (status.get("autoscaling") or {}).get("lastDecision")
    if not decision:
        raise NoDecisionError(f"{name}: no decision yet{_inactive(status)}")
    record = decision.get("record") or {}
    parts = [f"{decision['text']}", f"decided {decision['time']}"]
    terms = record.get("terms") or {}
    rows = [(label, _number(terms[label]), unit) for label, unit in TERMS if label in terms]
    parts += ["", *_table(("TERM", "VALUE", ""), rows)]
    clamps = record.get("clamps") or ()
    if clamps:
        limits = [(c["name"], f"{c['before']} -> {c['after']}", c["detail"]) for c in clamps]
        parts += ["", *_table(("CLAMP", "REPLICAS", ""), limits)]
    else:
        parts += ["", "no clamp bound"]
    return "\n".join(parts)


def _inactive(status: Mapping[str, Any]) -> str:
    for one in status.get("conditions") or ():
        if one["type"] == "AutoscalingActive" and one["status"] != "True":
            return f": {one['reason']}, {one['message']}"
    return "; the operator decides every few seconds once a replica is ready"


def _number(value: object) -> str:
    match value:
        case None:
            return "unknown"
        case bool() | str():
            return str(value)
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
