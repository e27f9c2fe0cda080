"""Say in one sentence why there are as many replicas as there are."""

from batchedapi_core.scaling.decision import Clamp, Reason, ScalingDecision, Terms
from batchedapi_core.scaling.hedge import overloaded
from batchedapi_core.scaling.policy import PolicyKind, ScalingPolicy
from batchedapi_core.words import per_second, percent, rate

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
    if decision.reason is Reason.SATURATED:
        parts.append("every lane is busy with full batches and more demand may wait upstream")
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
