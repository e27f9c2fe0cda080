"""A decision as JSON, complete enough to be taken again.

The record holds the policy and the evidence in full precision; every other number in it follows
from those two, and `replay` shows that it does.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from batchedapi_core.contract import per_second, percent, rate
from batchedapi_core.scaling.decide import conclude
from batchedapi_core.scaling.decision import Clamp, Evidence, ScalingDecision, Terms
from batchedapi_core.scaling.forecast import Recurrence
from batchedapi_core.scaling.need import overloaded
from batchedapi_core.scaling.policy import (
    Behavior,
    PolicyKind,
    ScalingPolicy,
    Select,
    StepKind,
    StepPolicy,
)
from batchedapi_core.service_model import ServiceTime

RECORD_VERSION: Final = 5
READABLE_VERSIONS: Final = (4, RECORD_VERSION)
"""Version 4 has more terms, which are left out: none of them changed a decision that was seen."""


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
        ValueError: Not a record of these versions.
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
        ValueError: Not a record of these versions.
    """
    policy, evidence = _read(recorded)
    return policy, conclude(policy, evidence)


def _read(recorded: Mapping[str, Any]) -> tuple[ScalingPolicy, Evidence]:
    if recorded.get("version") not in READABLE_VERSIONS:
        versions = " or ".join(map(str, READABLE_VERSIONS))
        raise ValueError(
            f"decision record: expected version {versions}, got "
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
    known = {field.name: recorded[field.name] for field in fields(ScalingPolicy)}
    return ScalingPolicy(
        **{
            **known,
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


# Say in one sentence why there are as many replicas as there are.

_WORTH_SAYING = 1.05  # a factor; less is noise


def explain(policy: ScalingPolicy, decision: ScalingDecision) -> str:
    """One sentence for users: count, reason, the formula with its numbers, the limit that bound."""
    head = f"{decision.desired} {_plural(decision.desired)} ({decision.reason.value}): "
    body = "nothing moves" if decision.is_hold else _formula(policy, decision)
    return head + _and_limits(body, decision.clamps)


def _formula(policy: ScalingPolicy, decision: ScalingDecision) -> str:
    terms = decision.terms
    if policy.kind is PolicyKind.CONCURRENCY:
        return _concurrency(policy, terms)
    if terms.service is None:
        return "no rows arrive and none wait"
    line = f"{1e3 * terms.service.fixed:.1f} ms + {1e3 * terms.service.per_row:.2f} ms/row"
    model = f"batch {terms.capacity_batch}, {line}{_slow(terms)}"
    capacity = f"{per_second(terms.capacity)}/s {_condition(policy, terms)}"
    factors = f"{_uneven(terms)}{_boost(policy, terms)}"
    used = f"{percent(terms.target)} of it is used{_doubted(terms)}{factors} => {terms.need:.2f}"
    parts = [
        f"{_arrivals(policy, terms)}{_more(terms)}",
        f"one replica sustains {capacity} ({model}), {used}",
        *_batching(policy, terms),
    ]
    return "; ".join(parts)


def _concurrency(policy: ScalingPolicy, terms: Terms) -> str:
    flying = f"{terms.in_flight or 0.0:.1f} requests in flight over {policy.window:g} s"
    return f"{flying}; {terms.target:g} are the target of one replica => {terms.need:.2f}"


def _arrivals(policy: ScalingPolicy, terms: Terms) -> str:
    """What is planned for; where that is nothing, what came before, so that it is not missed."""
    if terms.base > 0.0 or not terms.arrival_window:
        return f"{rate(terms.base)} arrive"
    mean = f"{rate(terms.arrival_window)} over the last {policy.window:g} s"
    return f"next to nothing arrives at present, {mean}"


def _more(terms: Terms) -> str:
    """What is added to the demand."""
    lead = terms.start_up + (terms.interval or 0.0)
    parts = []
    if terms.forecast > 0.0:
        parts.append(f"{per_second(terms.forecast)} more are forecast for in {lead:.0f} s")
    if terms.margin > terms.forecast:
        parts.append(
            f"{per_second(terms.margin)} more are a margin as forecasts were too low by that"
        )
    if terms.backlog > 0.0:
        parts.append(f"{per_second(terms.backlog)} more clear the {terms.queue_rows:.0f} that wait")
    return "".join(f", {part}" for part in parts)


def _uneven(terms: Terms) -> str:
    if terms.imbalance < _WORTH_SAYING:
        return ""
    return f", times {terms.imbalance:.2f} because one replica has more load than the others"


def _slow(terms: Terms) -> str:
    if terms.slowdown < _WORTH_SAYING:
        return ""
    return f", {terms.slowdown:.2f} times that at present"


def _doubted(terms: Terms) -> str:
    if terms.trust * _WORTH_SAYING > 1.0:
        return ""
    return f", times {terms.trust:.2f} because requests wait longer than they should"


def _condition(policy: ScalingPolicy, terms: Terms) -> str:
    if policy.latency_target is None:
        return "in full batches"
    target = f"p{100 * policy.quantile:g} <= {1e3 * policy.latency_target:g} ms"
    if terms.feasible:
        return f"at {target}"
    return f"at best effort, as no batch size meets {target}"


def _boost(policy: ScalingPolicy, terms: Terms) -> str:
    if not overloaded(policy, base=terms.base, capacity=terms.capacity, ready=terms.ready):
        return ""
    late = f"{terms.ready} ready cannot keep up"
    if terms.boost <= 1.0:
        return f", not hedged although {late}: {terms.hedge_rule}"
    return (
        f", times {terms.boost:g} because {late}: what is not needed is"
        " cancelled once enough are ready"
    )


def _batching(policy: ScalingPolicy, terms: Terms) -> tuple[str, ...]:
    if terms.mean_batch is None or terms.full_share is None:
        return ()
    mean = f"mean batch {terms.mean_batch:.1f} of {policy.max_batch_size}"
    return (f"{mean}, {percent(terms.full_share)} released full",)


def _and_limits(sentence: str, clamps: tuple[Clamp, ...]) -> str:
    return "; ".join((sentence, *(_limit(clamp) for clamp in clamps)))


def _limit(clamp: Clamp) -> str:
    if clamp.before == clamp.after:
        return clamp.detail
    return f"{clamp.name.value} {clamp.before} -> {clamp.after}: {clamp.detail}"


def _plural(count: int) -> str:
    return "replica" if count == 1 else "replicas"
