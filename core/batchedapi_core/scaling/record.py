"""A decision as JSON, complete enough to be taken again.

The record holds the policy and the evidence in full precision; every other number in it follows
from those two, and `replay` shows that it does.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from batchedapi_core.scaling.behavior import Behavior, Select, StepKind, StepPolicy
from batchedapi_core.scaling.bursts import Recurrence
from batchedapi_core.scaling.conclude import conclude
from batchedapi_core.scaling.decision import Evidence, ScalingDecision
from batchedapi_core.scaling.explain import explain
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy
from batchedapi_core.service_model.line import ServiceTime

RECORD_VERSION: Final = 4


def record(policy: ScalingPolicy, decision: ScalingDecision) -> dict[str, Any]:
    """For the status and for `kubectl batchedapi why`: JSON, 3 to 5 kB, no NaN or infinity."""
    return {
        "version": RECORD_VERSION,
        "desired": decision.desired,
        "reason": decision.reason.value,
        "bound": decision.bound,
        "text": explain(policy, decision),
        "terms": _plain(asdict(decision.terms)),
        "clamps": [
            {
                "name": clamp.name.value,
                "before": clamp.before,
                "after": clamp.after,
                "detail": clamp.detail,
            }
            for clamp in decision.clamps
        ],
        "policy": _plain(asdict(policy)),
    }


def replay(recorded: Mapping[str, Any]) -> int:
    """Take a recorded decision again, from its evidence alone.

    Returns:
        The replicas it comes to: `recorded["desired"]`, unless the record or the rules changed.

    Raises:
        ValueError: Not a record of this version.
    """
    return taken_again(recorded)[1].desired


def essence(policy: ScalingPolicy, decision: ScalingDecision) -> dict[str, Any]:
    """The part of a record that all of it follows from; half as long."""
    terms = asdict(decision.terms)
    return {
        "version": RECORD_VERSION,
        "terms": _plain({field.name: terms[field.name] for field in fields(Evidence)}),
        "policy": _plain(asdict(policy)),
    }


def taken_again(recorded: Mapping[str, Any]) -> tuple[ScalingPolicy, ScalingDecision]:
    """What an essence, or a whole record, was made of.

    Raises:
        ValueError: Not a record of this version.
    """
    policy, evidence = _read(recorded)
    return policy, conclude(policy, evidence)


def _read(recorded: Mapping[str, Any]) -> tuple[ScalingPolicy, Evidence]:
    if recorded.get("version") != RECORD_VERSION:
        raise ValueError(
            f"decision record: expected version {RECORD_VERSION}, got "
            f"{recorded.get('version')!r}; replay it with the release that wrote it"
        )
    try:
        return _policy(recorded["policy"]), _evidence(recorded["terms"])
    except (KeyError, TypeError, ValueError) as missing:
        raise ValueError(f"decision record: incomplete or of other shape: {missing}") from missing


def _plain(value: Any) -> Any:
    """As JSON has it: a list for a tuple, a text for an enumeration."""
    match value:
        case dict():
            return {key: _plain(member) for key, member in value.items()}
        case tuple():
            return [_plain(member) for member in value]
        case str():
            return str(value)
        case _:
            return value


def _evidence(terms: Mapping[str, Any]) -> Evidence:
    known = {field.name: terms[field.name] for field in fields(Evidence)}
    if known["service"] is not None:
        known["service"] = ServiceTime(**known["service"])
    known["recurring"] = tuple(Recurrence(**one) for one in known["recurring"])
    for name in ("shrunk_from", "grown_from"):
        known[name] = tuple(known[name])
    return Evidence(**known)


def _policy(recorded: Mapping[str, Any]) -> ScalingPolicy:
    return ScalingPolicy(
        **{
            **recorded,
            "kind": PolicyKind(recorded["kind"]),
            "up": _behavior(recorded["up"]),
            "down": _behavior(recorded["down"]),
        }
    )


def _behavior(recorded: Mapping[str, Any]) -> Behavior:
    steps = (
        StepPolicy(StepKind(one["kind"]), one["value"], one["period"])
        for one in recorded["policies"]
    )
    known = {**recorded, "policies": tuple(steps), "select": Select(recorded["select"])}
    return Behavior(**known)
