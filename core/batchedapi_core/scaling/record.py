"""A decision as JSON, complete enough to be taken again.

The record holds the policy and the evidence in full precision; every other number in it follows
from those two, and `replay` shows that it does.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from batchedapi_core.contract import per_second, percent, rate
from batchedapi_core.scaling.decide import conclude
from batchedapi_core.scaling.decision import Evidence, ScalingDecision, Terms
from batchedapi_core.scaling.forecast import Recurrence
from batchedapi_core.scaling.need import overloaded, wait_elsewhere
from batchedapi_core.scaling.policy import (
    Behavior,
    PolicyKind,
    ScalingPolicy,
    Select,
    StepKind,
    StepPolicy,
)
from batchedapi_core.scaling.schedule import DAY, MISSES, Expected
from batchedapi_core.service_model import RequestRows, ServiceTime

RECORD_VERSION: Final = 7


def record(policy: ScalingPolicy, decision: ScalingDecision) -> dict[str, Any]:
    """For the status and for `kubectl batchedapi why`: JSON, 3 to 5 kB, no NaN or infinity."""
    return {
        "version": RECORD_VERSION,
        "desired": decision.desired,
        "reason": decision.reason.value,
        "bound": decision.bound,
        "text": explain(policy, decision),
        "terms": _told(decision.terms),
        "clamps": [_plain(asdict(clamp)) for clamp in decision.clamps],
        "policy": _told(policy),
    }


_LATER: Final[Mapping[str, Any]] = {
    "idle_for": None, "oldest": 0.0, "told": True, "idle_timeout": 300.0,
    "expected": None,
}  # fmt: skip
"""Fields that came with one queue for all replicas, and with schedules that are learned; without
those they are not written."""


def _told(what: ScalingPolicy | Terms) -> dict[str, Any]:
    plain: dict[str, Any] = _plain(asdict(what))
    return {name: one for name, one in plain.items() if name not in _LATER or one != _LATER[name]}


def replay(recorded: Mapping[str, Any]) -> int:
    """Take a recorded decision again, from its evidence alone.

    Returns:
        The replicas it comes to: `recorded["desired"]`, unless the record or the rules changed.

    Raises:
        ValueError: Not a record of this version.
    """
    return taken_again(recorded)[1].desired


def taken_again(recorded: Mapping[str, Any]) -> tuple[ScalingPolicy, ScalingDecision]:
    """The policy of a record, and its decision taken again.

    Raises:
        ValueError: Not a record of this version.
    """
    if recorded.get("version") != RECORD_VERSION:
        raise ValueError(
            f"decision record: expected version {RECORD_VERSION}, got "
            f"{recorded.get('version')!r}; replay it with the release that wrote it"
        )
    try:
        policy = _policy({**_LATER, **recorded["policy"]})
        evidence = _evidence({**_LATER, **recorded["terms"]})
    except (KeyError, TypeError, ValueError) as missing:
        raise ValueError(f"decision record: incomplete or of other shape: {missing}") from missing
    return policy, conclude(policy, evidence)


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
    known["requests"] = RequestRows(**known["requests"])
    known["recurring"] = tuple(Recurrence(**one) for one in known["recurring"])
    if known["expected"] is not None:
        known["expected"] = Expected(**known["expected"])
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


_WORTH_SAYING = 1.05  # a factor; less is noise


def explain(policy: ScalingPolicy, decision: ScalingDecision) -> str:
    """One sentence for users: count, reason, the formula with its numbers, the limit that bound."""
    replicas = "1 replica" if decision.desired == 1 else f"{decision.desired} replicas"
    body = "nothing moves" if decision.is_hold else _formula(policy, decision.terms)
    limits = (
        clamp.detail
        if clamp.before == clamp.after
        else f"{clamp.name.value} {clamp.before} -> {clamp.after}: {clamp.detail}"
        for clamp in decision.clamps
    )
    terms = decision.terms
    others = [f"nothing is held as {wait_elsewhere(terms)}"] if terms.wanted else []
    return f"{replicas} ({decision.reason.value}): " + "; ".join((body, *limits, *others))


def _formula(policy: ScalingPolicy, terms: Terms) -> str:
    if policy.kind is PolicyKind.CONCURRENCY:
        flying = f"{terms.in_flight or 0.0:.1f} requests in flight over {policy.window:g} s"
        return f"{flying}; {terms.target:g} are the target of one replica => {terms.need:.2f}"
    if terms.service is None:
        if terms.idle_for is not None and terms.queue_rows > 0.0:
            return f"{terms.queue_rows:.0f} rows wait in the queue"
        return "no rows arrive and none wait"
    line = f"{1e3 * terms.service.fixed:.1f} ms + {1e3 * terms.service.per_row:.2f} ms/row"
    if terms.slowdown >= _WORTH_SAYING:
        line += f", {terms.slowdown:.2f} times that at present"
    condition = "in full batches"
    if policy.latency_target is not None:
        target = f"p{100 * policy.quantile:g} <= {1e3 * policy.latency_target:g} ms"
        best = "" if terms.feasible else "best effort, as no batch size meets "
        condition = f"at {best}{target}"
    capacity = f"{per_second(terms.capacity)}/s {condition}"
    model = f"batch {terms.capacity_batch}, {line}"
    used = f"{_used(policy, terms)} => {terms.need:.2f}"
    parts = [_demand(policy, terms), f"one replica sustains {capacity} ({model}), {used}"]
    if terms.mean_batch is not None and terms.full_share is not None:
        mean = f"mean batch {terms.mean_batch:.1f} of {policy.max_batch_size}"
        parts.append(f"{mean}, {percent(terms.full_share)} released full")
    return "; ".join(parts)


def _demand(policy: ScalingPolicy, terms: Terms) -> str:
    """Rows/s planned for; where that is nothing, those that came before, so that none is missed."""
    parts = [f"{rate(terms.base)} arrive"]
    if terms.base <= 0.0 and terms.arrival_window:
        mean = f"{rate(terms.arrival_window)} over the last {policy.window:g} s"
        parts = [f"next to nothing arrives at present, {mean}"]
    lead = terms.lead + (terms.interval or 0.0)
    if terms.forecast > 0.0:
        parts.append(f"{per_second(terms.forecast)} more are forecast for in {lead:.0f} s")
    if terms.margin > terms.forecast:
        parts.append(
            f"{per_second(terms.margin)} more are a margin as forecasts were too low by that"
        )
    if terms.backlog > 0.0:
        parts.append(f"{per_second(terms.backlog)} more clear the {terms.queue_rows:.0f} that wait")
    if terms.expected is not None and (terms.floor > 0.0 or terms.expected.given_up):
        parts.append(_scheduled(terms.expected, terms.floor))
    return ", ".join(parts)


def _scheduled(expected: Expected, floor: float) -> str:
    unit = "days" if expected.period == DAY else "hours"
    often = f"{expected.came} of the last {expected.occasions} {unit} brought"
    about = f"in {expected.after:.0f} s" if expected.after > 0.0 else "now"
    more = f"about {expected.ratio:.1f} times as much {about}"
    if expected.given_up:
        return f"{often} {more}, which is given up after {MISSES} misses in a row"
    return f"{often} {more}, so at least {per_second(floor)} are planned for"


def _used(policy: ScalingPolicy, terms: Terms) -> str:
    """The share of a replica to plan with, and the factors on how many that makes."""
    parts = [f"{percent(terms.target)} of it is used"]
    if terms.trust * _WORTH_SAYING <= 1.0:
        parts.append(f"times {terms.trust:.2f} because requests wait longer than they should")
    if terms.imbalance >= _WORTH_SAYING:
        hot = "because one replica has more load than the others"
        parts.append(f"times {terms.imbalance:.2f} {hot}")
    if overloaded(policy, base=terms.base, capacity=terms.capacity, ready=terms.ready):
        late = f"{terms.ready} ready cannot keep up"
        parts.append(
            f"not hedged although {late}: {terms.hedge_rule}"
            if terms.boost <= 1.0
            else f"times {terms.boost:g} because {late}: what is not needed is"
            " cancelled once enough are ready"
        )
    return ", ".join(parts)
