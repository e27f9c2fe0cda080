"""A decision as JSON, complete enough to be taken again.

The record holds the policy and the evidence in full precision; every other number in it follows
from those two, and `replay` shows that it does.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from batchedapi_core.scaling.conclude import conclude
from batchedapi_core.scaling.decision import Evidence, ScalingDecision
from batchedapi_core.scaling.explain import explain
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.service_model.line import ServiceTime

RECORD_VERSION = 1


def record(policy: ScalingPolicy, decision: ScalingDecision) -> dict[str, Any]:
    """For the status and for `kubectl batchedapi why`: JSON, about 2 kB, no NaN or infinity."""
    return {
        "version": RECORD_VERSION,
        "desired": decision.desired,
        "reason": decision.reason.value,
        "bound": decision.bound,
        "text": explain(policy, decision),
        "terms": asdict(decision.terms),
        "clamps": [
            {
                "name": clamp.name.value,
                "before": clamp.before,
                "after": clamp.after,
                "detail": clamp.detail,
            }
            for clamp in decision.clamps
        ],
        "policy": asdict(policy),
    }


def replay(recorded: Mapping[str, Any]) -> int:
    """Take a recorded decision again, from its evidence alone.

    Returns:
        The replicas it comes to: `recorded["desired"]`, unless the record or the rules changed.

    Raises:
        ValueError: Not a record of this version.
    """
    if recorded.get("version") != RECORD_VERSION:
        raise ValueError(
            f"decision record: expected version {RECORD_VERSION}, got "
            f"{recorded.get('version')!r}; replay it with the release that wrote it"
        )
    try:
        terms = recorded["terms"]
        known = {field.name: terms[field.name] for field in fields(Evidence)}
        if known["service"] is not None:
            known["service"] = ServiceTime(**known["service"])
        policy = ScalingPolicy(**recorded["policy"])
    except (KeyError, TypeError) as missing:
        raise ValueError(f"decision record: incomplete or of other shape: {missing}") from missing
    return conclude(policy, Evidence(**known)).desired
