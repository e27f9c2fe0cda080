"""The reconciler's part of `status`, out of what was observed; and when to write it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from batchedapi_core import contract
from batchedapi_core.manifest import BatchedAPI, ConditionType, Phase, ScalingMode
from batchedapi_core.redaction import for_people
from batchedapi_operator.cluster import JsonObject, listed, section
from batchedapi_operator.errors import InvalidSpecError
from batchedapi_operator.outbox import News
from batchedapi_operator.reconcile import conditions
from batchedapi_operator.reconcile.canary import began
from batchedapi_operator.reconcile.conditions import Front, NewCondition
from batchedapi_operator.resources import (
    revision_name,
    selector_text,
    url,
    worker_selector_text,
)
from batchedapi_operator.resources.configmap import Revision
from batchedapi_operator.resources.revised import GivenUp
from batchedapi_operator.views import DeploymentView, Observed, PodView

OUR_CONDITIONS: Final = (
    ConditionType.READY,
    ConditionType.PROGRESSING,
    ConditionType.SPEC_VALID,
    ConditionType.MODEL_LOADED,
    ConditionType.SCHEDULED,
    ConditionType.COMPARED,
    ConditionType.RECONCILING,
    ConditionType.STALLED,
)
"""The others are the autoscaler's: an apply that named them would take them from it."""
_NO_WEB: Final = ("WebStarting", "WebNotStarting")
"""Reasons of Ready: however many workers there are, they answer nobody."""
_ASLEEP: Final = ("ScaledToZero", "Waking")
"""Others, of an API without a worker that is ready, unless something keeps the first from it."""
OUR_FIELDS: Final = (
    "observedGeneration", "phase", "replicas", "readyReplicas", "updatedReplicas",
    "desiredReplicas", "selector", "web", "url", "revision",
)  # fmt: skip


WORDS_SECONDS: Final = 120.0
"""For which a status keeps its words where they alone have changed. The kubelet words a failure
anew at each try; but what is read must not tell of pods and nodes that are long gone. Of a thousand
APIs that all fail these are eight writes a second, less than the pace of all."""


@dataclass(frozen=True, slots=True)
class StatusSubject:
    """The API whose status it is, as far as that can be told."""

    name: str
    generation: int
    api: BatchedAPI | None
    """None: the manifest cannot be parsed."""
    revision: Revision | None
    """None: none can be made; the one in the status is what runs."""
    image: str
    problem: InvalidSpecError | None
    hindrance: NewCondition | None = None
    """Progressing, where nothing can move before something else is gone."""
    given_up: GivenUp | None = None
    """The rollout to that revision, where pods of an earlier one are there in its place."""
    tried: bool = False
    """That revision has a canary, and nothing else yet."""

    @property
    def paused(self) -> bool:
        """Nothing of it is changed, so what runs may be of an earlier manifest."""
        return self.api is not None and self.api.spec.paused

    @property
    def queued(self) -> bool:
        """It has one queue for all replicas."""
        return self.api is not None and self.api.spec.server_side_batching.queue is not None


def build_status(subject: StatusSubject, observed: Observed, now: str) -> JsonObject:
    """Every field the reconciler owns; `now` is RFC 3339 and dates what has changed."""
    deployment, before = observed.deployment, observed.status
    found = _conditions(subject, observed, datetime.fromisoformat(now))
    for_tools = conditions.for_tools(found)
    lasting: JsonObject = {name: before[name] for name in ("url", "revision") if name in before}
    if subject.api is not None:
        lasting["url"] = url(subject.api)
    if subject.revision is not None and subject.problem is None and not subject.paused:
        lasting["revision"] = {"current": subject.revision.name, "image": subject.image}
        if subject.given_up is not None and deployment is not None:
            current = revision_name(subject.name, deployment.revision)
            lasting["revision"] = {
                "current": current, "image": deployment.image,
                "rolledBack": subject.given_up.revision,
            }  # fmt: skip
        elif subject.tried and deployment is not None:
            current = revision_name(subject.name, deployment.revision)
            lasting["revision"] = {
                "current": current, "image": deployment.image, "canary": subject.revision.name,
                "canarySince": began(subject.revision.name, before) or now,
            }  # fmt: skip
    return {
        "observedGeneration": subject.generation,
        "phase": _phase(subject, found, observed).value,
        "message": for_people(conditions.first_to_tell(found))[: conditions.MESSAGE_LENGTH],
        **_replica_counts(deployment, before),
        "updatedReplicas": deployment.updated if deployment else 0,
        "selector": (worker_selector_text if subject.queued else selector_text)(subject.name),
        **_web(subject, observed),
        **lasting,
        "conditions": conditions.dated(
            found if for_tools is None else (*found, for_tools),
            listed(before, "conditions"),
            subject.generation,
            now,
        ),
    }


def _conditions(
    subject: StatusSubject, observed: Observed, now: datetime
) -> tuple[NewCondition, ...]:
    """Ready, Progressing, and what may be the cause of either; not those for tools."""
    deployment, web, pods = observed.deployment, observed.web.deployment, observed.pods
    ready = ConditionType.READY
    _, said = conditions.states(observed.status, (ready,)).get(ready, ("", ""))
    front = Front(
        web,
        observed.web.pods,
        at_zero=at_zero(subject.api, observed),
        was_at_zero=said in _ASLEEP,
        replicas=_replicas(observed),
    )
    canary = observed.canary
    newest, new = (canary.deployment, canary.pods) if subject.tried else (deployment, pods)
    causes = (
        conditions.spec_valid(subject.problem, newest, new, front),
        conditions.scheduled((*pods, *front.pods, *canary.pods)),
        conditions.model_loaded(
            new,
            newest.revision if newest is not None else "",
            now,
            at_zero=front.at_zero,
            wanted=newest is not None and newest.replicas > 0,
        ),
        *_compared(subject, newest, new),
    )
    hindrance = (
        subject.hindrance
        or conditions.without_pods(((deployment, pods), (web, front.pods), (newest, new)))
        or conditions.rolled_back(subject.given_up)
    )
    # before what may yet be well
    why = sorted(filter(None, (*causes, hindrance)), key=lambda one: one.status != "False")
    current = _is_current(subject, observed)
    workers = conditions.ready(deployment, pods, why, current=current, now=now)
    queued = subject.queued
    return (
        conditions.ready_by_roles(workers, deployment, front, why, now) if queued else workers,
        hindrance
        or (conditions.tried(newest) if subject.tried else None)
        or conditions.progressing(deployment, front if queued else None),
        *causes,
    )


def _compared(
    subject: StatusSubject, newest: DeploymentView | None, pods: Sequence[PodView]
) -> Iterable[NewCondition]:
    """The condition of an API that compares revisions."""
    api = subject.api
    if api is not None and api.spec.update_strategy.compare.is_on:
        yield conditions.compared(pods, newest.revision if newest else "")


def _replica_counts(deployment: DeploymentView | None, before: JsonObject) -> JsonObject:
    return {
        "replicas": deployment.existing if deployment else 0,
        "readyReplicas": deployment.ready if deployment else 0,
        "desiredReplicas": _desired(deployment, before),
    }


def _web(subject: StatusSubject, observed: Observed) -> JsonObject:
    """The field `web`, where there are web pods or are to be some."""
    if not (subject.queued or observed.web.may_fill):
        return {}
    return {"web": _replica_counts(observed.web.deployment, section(observed.status, "web"))}


def _desired(deployment: DeploymentView | None, before: JsonObject) -> int:
    """Desired replicas; the last known where there is no Deployment, or nobody has set them yet."""
    if deployment is not None and deployment.replicas_owned:
        return deployment.replicas
    return int(before.get("desiredReplicas") or (deployment.replicas if deployment else 0))


def at_zero(api: BatchedAPI | None, observed: Observed) -> bool:
    """Whether no worker runs and none has to: rows would order the first ones."""
    deployment = observed.deployment
    return (
        api is not None
        and api.spec.server_side_batching.queue is not None
        and api.spec.autoscaling.mode is ScalingMode.NATIVE
        and api.spec.autoscaling.min_replicas == 0
        and deployment is not None
        and deployment.replicas == 0
    )


def _replicas(observed: Observed) -> int:
    """Number of pods that answer clients themselves."""
    return sum(one.ready and not one.gone and not one.role for one in observed.pods)


def hindered_status(
    before: JsonObject, hindrance: NewCondition, generation: int, now: str
) -> JsonObject:
    """The reconciler's part where nothing can be read: as it was told last, but for Progressing.

    Of an API of which nothing was told yet, at least that it is not ready, and why.
    """
    kept: JsonObject = {name: before[name] for name in OUR_FIELDS if name in before}
    known = listed(before, "conditions")
    told = [one for one in known if one["type"] in {kind.value for kind in OUR_CONDITIONS}]
    new = [hindrance]
    if not told:
        new.append(NewCondition(ConditionType.READY, "False", hindrance.reason, hindrance.message))
    replaced = {one.type for one in new}
    if all(one["type"] != ConditionType.STALLED for one in told):
        new.append(conditions.waited_for(hindrance))
        replaced |= {ConditionType.STALLED, ConditionType.RECONCILING}
    others = [one for one in told if one["type"] not in replaced]
    generation = kept.get("observedGeneration", generation)
    return {
        "phase": Phase.PENDING.value,
        **kept,
        "message": for_people(hindrance.message)[: conditions.MESSAGE_LENGTH],
        "conditions": [*others, *conditions.dated(new, told, generation, now)],
    }


def _is_current(subject: StatusSubject, observed: Observed) -> bool:
    """Whether a replica of what the manifest says answers; of a paused one, any replica."""
    deployment = observed.deployment
    if deployment is None or subject.paused:
        return deployment is not None
    if subject.revision is None:  # it cannot be told any more, and was told of this generation
        return any(
            (one["type"], one["status"]) == (ConditionType.READY, "True")
            and one.get("observedGeneration") == subject.generation
            for one in listed(observed.status, "conditions")
        )
    if subject.tried:
        return any(one.ready for one in observed.canary.of(subject.revision.digest))
    if deployment.revision != subject.revision.digest:
        return not deployment.revision  # without the label nothing tells that it is another
    if at_zero(subject.api, observed):
        return deployment.settled
    answering = (pod for pod in observed.pods if pod.ready and not pod.gone)
    all_of_it = deployment.settled and deployment.existing <= deployment.updated
    return all_of_it or any(pod.revision == deployment.revision for pod in answering)


def _phase(subject: StatusSubject, found: Iterable[NewCondition], observed: Observed) -> Phase:
    """The state in one word: what is out of our hands, what is broken, then what is under way."""
    if subject.hindrance is not None and subject.hindrance.reason == conditions.DELETING:
        return Phase.DELETING
    if subject.paused:
        return Phase.PAUSED
    state = {one.type: one for one in found}
    answering = _is_answering(state[ConditionType.READY], observed)
    if _is_broken(state):
        return Phase.DEGRADED if answering else Phase.ERROR
    if not answering:
        return Phase.PENDING
    if state[ConditionType.SCHEDULED].status == "False":
        return Phase.DEGRADED
    return Phase.UPDATING if state[ConditionType.PROGRESSING].status == "True" else Phase.LIVE


def _is_answering(ready: NewCondition, observed: Observed) -> bool:
    """Whether clients are answered, or would be as soon as the first replica starts for them."""
    if ready.status == "True" and ready.reason in _ASLEEP:
        return True
    if ready.reason in _NO_WEB:
        return _replicas(observed) > 0
    return observed.deployment is not None and observed.deployment.ready > 0


def _is_broken(state: Mapping[ConditionType, NewCondition]) -> bool:
    if state[ConditionType.PROGRESSING].reason in {conditions.STUCK, conditions.ROLLED_BACK}:
        return True
    if state[ConditionType.READY].reason == "WebNotStarting":
        return True
    return any(kind in state and state[kind].status == "False" for kind in conditions.BREAKING)


def news_in(before: JsonObject, after: JsonObject) -> News:
    """What `after`, our part of the status, says that `before`, the whole status, does not."""
    kinds = (conditions.states(status, OUR_CONDITIONS) for status in (before, after))
    changed = before.get("phase") != after["phase"] or next(kinds) != next(kinds)
    return News.CONDITION if changed else News.STATE


def same(before: JsonObject, after: JsonObject) -> bool:
    """Whether `before`, the whole status, already says what `after`, our part of it, would."""
    if any(before.get(name) != after.get(name) for name in OUR_FIELDS):
        return False
    if not before.get("message") and after["message"]:  # the CRD's default, or none at all
        return False
    ours = _ours(listed(before, "conditions"))
    return ours == _ours(after["conditions"])


def words_rest(metadata: JsonObject, before: JsonObject, after: JsonObject, now: datetime) -> float:
    """Seconds for which a status that is `same` keeps its words; 0: they are to be written.

    Args:
        metadata: Of the API; managedFields tell when we have changed its status last.
        before: The whole status.
        after: Our part of it as it would be.
        now: UTC.

    Returns:
        Infinite where no word is another.
    """
    if _words(before) == _words(after):
        return math.inf
    written = [
        datetime.fromisoformat(entry["time"])
        for entry in listed(metadata, "managedFields")
        if (entry.get("manager"), entry.get("subresource")) == (contract.FIELD_MANAGER, "status")
    ]
    passed = (now - max(written)).total_seconds() if written else WORDS_SECONDS
    return min(max(0.0, WORDS_SECONDS - passed), WORDS_SECONDS)


def _words(status: JsonObject) -> dict[str, str]:
    kinds = {kind.value for kind in OUR_CONDITIONS}
    said = {
        one["type"]: one.get("message", "")
        for one in listed(status, "conditions")
        if one["type"] in kinds
    }
    return {**said, "": status.get("message", "")}


def _ours(found: Sequence[JsonObject]) -> dict[str, JsonObject]:
    """Without messages that only tell details, which have a pace of their own: `words_rest`.

    So the message of the status is none of OUR_FIELDS: it is that of a condition.
    """
    kinds = {kind.value for kind in OUR_CONDITIONS}
    return {
        one["type"]: {
            name: value
            for name, value in one.items()
            if name != "message" or one["type"] == ConditionType.SPEC_VALID
        }
        for one in found
        if one["type"] in kinds
    }
