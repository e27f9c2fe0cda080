"""The autoscaler's part of `status`, out of a decision. Pure."""

import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, assert_never

from batchedapi_core.bottleneck import Filling, Kind, Level, Told, Verdict
from batchedapi_core.manifest import (
    BatchedAPI,
    ConditionType,
    UnitError,
    format_duration,
    parse_duration,
)
from batchedapi_core.placement import AdviceReason, SpecAdvice
from batchedapi_core.scaling.decision import Cause, ClampName, ScalingDecision
from batchedapi_core.scaling.observe import LoadWindow
from batchedapi_core.scaling.policy import ScalingPolicy
from batchedapi_core.scaling.recommendation import Batching, BatchingRecommendation
from batchedapi_core.scaling.record import explain, record
from batchedapi_operator.autoscaling.advice import spec_advice
from batchedapi_operator.autoscaling.metrics_page import MetricsPage
from batchedapi_operator.autoscaling.web import WebLook
from batchedapi_operator.cluster import JsonObject, listed, rfc3339, section
from batchedapi_operator.reconcile.conditions import NewCondition, dated, states, told

# Whether a report says something that the status does not: what a write is worth. Pure.

FIGURE_CHANGE: Final = 0.05
"""Share by which a figure must change to be worth a write."""
OLDEST: Final = 300.0
"""Seconds that the last decision and what was learned are old in a status, while there is load."""
POD_CHANGE: Final = 0.5
"""Web pods, or what is said of them, by which a number must change: an idle one uses some CPU."""
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
_WORDS: Final = ("serviceTime", "bottleneck", "advice", "oldestSeconds", "webReason")
OUR_CONDITIONS: Final = (
    ConditionType.METRICS_AVAILABLE,
    ConditionType.AUTOSCALING_ACTIVE,
    ConditionType.SCALING_LIMITED,
    ConditionType.SLO_MET,
    ConditionType.BATCHING_EFFECTIVE,
    ConditionType.SPEC_ADVICE,
)
BROKEN_OR_MENDED: Final = frozenset(OUR_CONDITIONS) - {ConditionType.SCALING_LIMITED}
"""Fields whose change is told at once. What limits a busy API changes with every look."""


def news(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether `after` says something that the status does not: a state, or a figure by 5 %.

    Times, sentences and the learned numbers are no news by themselves; they go along, and alone
    when they are old. But nothing else tells how many web pods there are and why.
    """
    return (
        states_differ(before, after)
        or _has_learned(before) != _has_learned(after)
        or bool(before.get("recommendation")) != bool(after.get("recommendation"))
        or _figures_differ(section(before, "batching"), section(after, "batching"))
        or _figures_differ(section(before, "effective"), section(after, "effective"))
        or _figures_differ(section(before, "queue"), section(after, "queue"))
        or _web_reason_differs(section(before, "queue"), section(after, "queue"))
    )


def states_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether replicas, reason or a condition changed: others' figures give way to that."""
    return _decided(before) != _decided(after) or conditions_differ(before, after)


def conditions_differ(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    kinds: Collection[ConditionType] = OUR_CONDITIONS,
) -> bool:
    """Whether the status or the reason of one of them changed."""
    return states(before, kinds) != states(after, kinds)


def is_old(before: Mapping[str, Any], uid: str, now: datetime) -> bool:
    """Whether the last decision and what was learned are to be written though nothing is new.

    Before `OLDEST` by as much as the write may have to wait, and spread over the APIs.
    """
    time = section(section(before, "autoscaling"), "lastDecision").get("time")
    try:
        age = (now - datetime.fromisoformat(str(time))).total_seconds()
    except (ValueError, TypeError):  # none yet, no date, or one without a zone
        return False
    spread = zlib.crc32(uid.encode()) % round(OLDEST / 5)
    return not 0 <= age < OLDEST * 0.8 - spread


def _has_learned(status: Mapping[str, Any]) -> bool:
    """The CRD's defaults alone, of an API that was never looked at, are nothing learned."""
    return bool(section(status, "autoscaling").get("learned"))


def _decided(status: Mapping[str, Any]) -> tuple[object, ...]:
    last = section(section(status, "autoscaling"), "lastDecision")
    return last.get("desired"), last.get("reason")


def _figures_differ(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    numeric = (before.keys() | after.keys()) - {*_WORDS, "releaseReasons"}
    old, new = section(before, "releaseReasons"), section(after, "releaseReasons")
    points = 100 * FIGURE_CHANGE  # five of a hundred batches
    return (
        (before.get("bottleneck") or "") != (after.get("bottleneck") or "")  # as _differ
        or any(_differ(before.get(name), after.get(name)) for name in numeric)
        or any(abs(new.get(name, 0) - old.get(name, 0)) >= points for name in {*old, *new})
    )


def _web_reason_differs(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether the sentence is another, or a number in it is another by as much as counts."""
    old, new = (str(queue.get("webReason") or "") for queue in (before, after))
    if _NUMBER.sub("0", old) != _NUMBER.sub("0", new):
        return True
    pairs = zip(map(float, _NUMBER.findall(old)), map(float, _NUMBER.findall(new)), strict=True)
    return not all(math.isclose(*one, rel_tol=FIGURE_CHANGE, abs_tol=POD_CHANGE) for one in pairs)


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


PAUSED: Final = "spec.paused is true: nothing of this API is changed"
_LASTING: Final = ("lastDecision", "lastScaleTime", "learned")
"""Fields of `status.autoscaling` that stay true while the autoscaler does nothing."""


@dataclass(frozen=True, slots=True)
class Decided:
    """Input and outcome of one look at an API."""

    policy: ScalingPolicy
    load: LoadWindow
    decision: ScalingDecision
    ready: int
    pages: tuple[MetricsPage, ...]
    """Pages of the ready pods that answered."""
    front: WebLook | None = None
    """Web pods; None without one queue for all replicas."""

    def has_load(self) -> bool:
        """Whether anything arrived within the window."""
        return self.load.demand is not None and self.load.demand.arrival_window > 0.0

    def sentence(self) -> str:
        """Why this many replicas."""
        return explain(self.policy, self.decision)


@dataclass(frozen=True, slots=True)
class Look:
    """Everything that came of one look at an API."""

    decided: Decided
    learned: Mapping[str, object]
    effective: JsonObject | None = None
    """The batching in effect, as the status has it; None: no pod has said it."""
    advice: tuple[SpecAdvice, ...] = ()
    verdict: Verdict | None = None
    """None: too little was seen since the operator started; what the status says stands."""
    released: Mapping[str, int] = field(default_factory=dict)
    """Batches by the reason of their release, in percent."""
    padding: int | None = None
    """In percent of what batches were padded to; None: none have lengths."""
    target: Told | None = None
    """Whether the latency target is met; None: there is none, or nothing is known."""
    filling: Told | None = None
    """Whether batches fill; None: nothing is known."""
    tuned: bool = False
    """Whether a batching is recommended."""
    unwritten: str = ""
    """The apiserver's answer to replicas that are still to be set, of whichever role."""

    @property
    def advised(self) -> frozenset[AdviceReason]:
        """All that is advised; the condition's reason is that of the first alone."""
        return frozenset(one.reason for one in self.advice)


def build_report(
    look: Look, before: Mapping[str, Any], generation: int, now: str, *, last_scale: str | None
) -> JsonObject:
    """Every field of the status that the autoscaler owns.

    Args:
        look: What was seen and decided.
        before: The API's status as it is.
        generation: Of the API.
        now: RFC 3339.
        last_scale: RFC 3339, when this operator changed the replicas last; None: not yet, and
            what the status says stands.
    """
    decided = look.decided
    scaled = last_scale or section(before, "autoscaling").get("lastScaleTime")
    found = (
        _metrics_available(decided),
        _active(decided, look.unwritten),
        _limited(decided.decision),
        *_target_met(look, before),
        *_batching_effective(look, before),
        spec_advice(look.advice),
    )
    effective = look.effective or before.get("effective")
    said = before.get("recommendation") if look.tuned else None
    return {
        **({"effective": effective} if effective else {}),
        "batching": _batching(look, section(before, "batching")),
        **({"queue": _queue(decided.front)} if decided.front is not None else {}),
        **({"recommendation": said} if said else {}),
        "autoscaling": {
            "policy": decided.policy.kind.value,
            "lastDecision": decision_json(decided.policy, decided.decision, now),
            **({"lastScaleTime": scaled} if scaled else {}),
            "learned": dict(look.learned),
        },
        "conditions": dated(found, listed(before, "conditions"), generation, now),
    }


def decision_json(policy: ScalingPolicy, decision: ScalingDecision, now: str) -> JsonObject:
    """A decision as users read it; `now` is RFC 3339."""
    recorded = record(policy, decision)
    return {
        "time": now,
        "desired": decision.desired,
        "reason": decision.reason.value,
        "text": recorded["text"],
        "record": recorded,
    }


DAY: Final = 86400.0
"""Seconds for which a recommendation is told in the same words and numbers."""


def recommendation(
    found: BatchingRecommendation, in_effect: Batching, before: Mapping[str, Any], now: datetime
) -> JsonObject:
    """`status.recommendation`; what is said there stands for a day unless a number is another.

    Args:
        found: At this look.
        in_effect: On the replicas.
        before: The API's status as it is.
        now: With a zone.
    """
    told = section(before, "recommendation")
    said = recommended(before)
    if said is None or found.batching is None:
        same = said is found.batching and told.get("effect") == found.effect
    else:
        same = said.alike(found.batching)
    try:
        age = (now - datetime.fromisoformat(str(told.get("time")))).total_seconds()
    except (ValueError, TypeError):  # none, no date, or one without a zone
        age = DAY
    open_still = not found.known and said is not None and not said.alike(in_effect)
    if open_still or (same and 0.0 <= age < DAY):
        return dict(told)
    made: JsonObject = {"effect": found.effect, "time": rfc3339(now)}
    if found.batching is not None:
        size, interval = found.batching
        made |= {"maxBatchSize": size, "batchInterval": format_duration(round(interval, 6))}
    return made


def recommended(status: Mapping[str, Any]) -> Batching | None:
    """The batching that a status recommends, which anybody may have edited; None: none."""
    told = section(status, "recommendation")
    try:
        return Batching(int(told["maxBatchSize"]), parse_duration(told["batchInterval"]))
    except (KeyError, TypeError, ValueError):
        return None


def inactive_report(
    api: BatchedAPI,
    advice: Sequence[SpecAdvice],
    before: Mapping[str, Any],
    generation: int,
    now: str,
    *,
    seen: Mapping[str, Any],
    front: WebLook | None = None,
    unwritten: str = "",
) -> JsonObject:
    """In modes External and Off, and while paused: the autoscaler says that it does nothing.

    An apply takes away every field that the last one had and this one has not. So what is still
    true is said again: what was learned, for the day on which the autoscaler goes on, and the last
    decision and scale, with their times. Figures, verdict, what is in effect and the policy are
    not: nobody looks any more. Web pods are looked at in every mode, and tell of their queue.

    Args:
        api: The API.
        advice: What the manifest alone gives reason for.
        before: The API's status as it is.
        generation: Of the API.
        now: RFC 3339.
        seen: Fields of `status.autoscaling` that are newer than in `before`.
        front: Of an API with one queue.
        unwritten: What the apiserver said to the web pods that it was sent.
    """
    mode = api.spec.autoscaling.mode.value
    why = ("WriteFailed", unwritten) if unwritten else (mode, "spec.replicas decides")
    why = ("Paused", PAUSED) if api.spec.paused else why
    idle = told(ConditionType.AUTOSCALING_ACTIVE, "False", *why)
    found = (idle, spec_advice(advice))
    known = {**section(before, "autoscaling"), **seen}
    lasting = {name: known[name] for name in _LASTING if known.get(name)}
    return {
        **({"queue": _queue(front)} if front is not None else {}),
        **({"autoscaling": lasting} if lasting else {}),
        "conditions": dated(found, listed(before, "conditions"), generation, now),
    }


def is_inactive(status: Mapping[str, Any]) -> bool:
    """Whether the last report was one of `inactive_report`: it alone names no policy."""
    return not section(status, "autoscaling").get("policy")


def _batching(look: Look, before: Mapping[str, Any]) -> JsonObject:
    """Figures, the verdict and what released batches; `before` is what the status says."""
    load = look.decided.load
    batching, service = load.batching, load.service
    known: tuple[tuple[str, float | None, Callable[[float], str | int]], ...] = (
        ("meanRows", batching.mean_rows, "{:.1f}".format),
        ("fillPercent", batching.fill_percent, round),
        ("fullPercent", batching.full_share, lambda share: round(100 * share)),
        (
            "rowsPerSecond",
            None if load.demand is None else load.demand.arrival_window,
            "{:.1f}".format,
        ),
        ("batchesPerSecond", batching.batches_per_second, "{:.1f}".format),
        ("paddingPercent", look.padding, round),
        ("busyPercent", batching.busy, lambda share: round(100 * share)),
    )
    figures: JsonObject = {"maxBatchSize": look.decided.policy.max_batch_size}
    figures |= {name: said(value) for name, value, said in known if value is not None}
    if service is not None:
        line = f"{1e3 * service.fixed:.1f}ms + {1e3 * service.per_row:.2f}ms/row"
        figures["serviceTime"] = line
    if look.verdict is None:  # nothing new can be said: what was said stands
        kept = ("bottleneck", "advice", "releaseReasons")
        return figures | {name: before[name] for name in kept if before.get(name)}
    figures["bottleneck"] = look.verdict.kind.value
    figures["advice"] = look.verdict.advice
    if look.released:
        figures["releaseReasons"] = dict(look.released)
    return figures


def _queue(front: WebLook) -> JsonObject:
    return {
        "rows": round(front.queue.rows),
        "oldestSeconds": f"{front.queue.oldest:.1f}",
        "webReason": front.text,
    }


def _metrics_available(decided: Decided) -> NewCondition:
    kind, answered, ready = ConditionType.METRICS_AVAILABLE, len(decided.pages), decided.ready
    if decided.front is not None:
        answered, ready = answered + decided.front.answered, ready + decided.front.queue.ready
    share = f"{answered} of {ready} ready pods answered"
    if ready == 0:
        return told(kind, "False", "NoneReady")
    if answered == 0:
        return told(kind, "False", "None", share)
    return told(kind, "True", "Partial" if answered < ready else "AllPods", share)


def _active(decided: Decided, unwritten: str) -> NewCondition:
    kind, decision = ConditionType.AUTOSCALING_ACTIVE, decided.decision
    if decided.policy.paused:
        return told(kind, "False", "Paused", f"{PAUSED}; {decided.sentence()}")
    if unwritten:
        return told(kind, "False", "WriteFailed", unwritten)
    if not decision.is_hold:
        return told(kind, "True", "Active")
    why = "ModelUnknown" if decision.reason is Cause.MODEL_UNKNOWN else "MetricsMissing"
    return told(kind, "False", why, decided.sentence())


def _limited(decision: ScalingDecision) -> NewCondition:
    kind = ConditionType.SCALING_LIMITED
    if not decision.clamps:
        return told(kind, "False", "NotLimited")
    clamp = decision.clamps[-1]
    match clamp.name:
        case ClampName.MAX_REPLICAS:
            reason = "AtMax"
        case ClampName.MIN_REPLICAS:
            reason = "AtMin"
        case ClampName.IDLE | ClampName.FIRST_REPLICA:
            return told(kind, "False", "NotLimited", clamp.detail)
        case (
            ClampName.SCALE_DOWN_STABILIZING
            | ClampName.SCALE_UP_STABILIZING
            | ClampName.BURSTS
            | ClampName.PARTIAL_METRICS
        ):
            reason = "Stabilizing"
        case ClampName.SURGE_LIMITED | ClampName.SCALE_DOWN_RATE:
            reason = "RateLimited"
        case (
            ClampName.WITHIN_TOLERANCE
            | ClampName.PAUSED
            | ClampName.NO_READY_PODS
            | ClampName.NO_METRICS
            | ClampName.MODEL_UNKNOWN
        ):
            return told(kind, "False", "NotLimited", clamp.detail)
        case _:
            assert_never(clamp.name)
    return told(kind, "True", reason, clamp.detail)


def _target_met(look: Look, before: Mapping[str, Any]) -> Iterable[NewCondition]:
    """None without a target. The remedy is the verdict's where that has found one."""
    kind = ConditionType.SLO_MET
    if look.decided.policy.latency_target is None:
        return ()
    if look.target is None:
        return _as_told(kind, before)
    met = look.target.word is Level.MET
    text, verdict = look.target.text, look.verdict
    if not met and verdict is not None and verdict.kind not in {Kind.IDLE, Kind.UNKNOWN}:
        text += f"; {verdict.advice}"
    return (told(kind, "True" if met else "False", look.target.word.value, text),)


def _batching_effective(look: Look, before: Mapping[str, Any]) -> Iterable[NewCondition]:
    kind = ConditionType.BATCHING_EFFECTIVE
    if look.filling is None:
        return _as_told(kind, before)
    match look.filling.word:
        case Filling.IDLE:
            status: Literal["True", "False", "Unknown"] = "Unknown"
        case Filling.FILLING | Filling.SATURATED:
            status = "True"
        case _:
            status = "False"
    return (told(kind, status, look.filling.word.value, look.filling.text),)


def _as_told(kind: ConditionType, before: Mapping[str, Any]) -> Iterable[NewCondition]:
    """The condition of an earlier operator; it stands until enough was seen for a new one."""
    return tuple(
        NewCondition(kind, one["status"], one["reason"], one.get("message", ""))
        for one in listed(before, "conditions")
        if one["type"] == kind
    )
