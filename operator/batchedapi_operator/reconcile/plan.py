"""The plan for one API: every write that would bring the cluster to what its user asked for.

Pure: the same world gives the same plan, and a plan that was carried out gives an empty one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from batchedapi_core import contract
from batchedapi_core.canary import GiveUp, Judged
from batchedapi_core.manifest import (
    SPREAD,
    BatchedAPI,
    ConditionType,
    ManifestError,
    Pod,
    ScalingMode,
    UnknownFields,
    WebSpec,
    parse_api,
)
from batchedapi_operator.cluster import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    SERVICES,
    JsonObject,
    ObjectKey,
    Resource,
    listed,
    section,
)
from batchedapi_operator.errors import InvalidSpecError, NotOwnedError
from batchedapi_operator.events import Note, notes_of
from batchedapi_operator.reconcile.canary import canary_count, is_tried, promoted, verdict_on
from batchedapi_operator.reconcile.conditions import (
    NewCondition,
    is_stuck,
    until_gone,
    until_told,
)
from batchedapi_operator.reconcile.ownership import (
    again,
    deletion,
    leaving,
    owned,
    refuse_foreign,
    without_others,
)
from batchedapi_operator.reconcile.rollback import asked_for, decided, given_up, to_give_up
from batchedapi_operator.reconcile.status import StatusSubject, build_status
from batchedapi_operator.resources import annotate
from batchedapi_operator.resources.configmap import (
    Revision,
    build_config_map,
    headed,
    revision_of,
)
from batchedapi_operator.resources.deployment import (
    build_canary,
    build_deployment,
    build_peers,
    build_service,
    build_web,
    without_account,
)
from batchedapi_operator.resources.exposure import ASKED_FOR, refuse_unserved
from batchedapi_operator.resources.policies import Policies, build_web_budget
from batchedapi_operator.resources.revised import GivenUp, noted
from batchedapi_operator.resources.setting import Running, setting_digest
from batchedapi_operator.views import (
    ChildView,
    DeploymentView,
    Observed,
    PodView,
)

REVISIONS_KEPT: Final = 5
"""Besides those in use: what `kubectl batchedapi rollback` may want to go back to."""
NO_POLICIES: Final = Policies(disruption_budgets=False)


@dataclass(frozen=True, slots=True)
class Apply:
    """One child to be applied; `existing` is what it replaces."""

    resource: Resource
    body: JsonObject
    existing: ChildView | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes, in this order."""

    apply: tuple[Apply, ...]
    replicas: int | None
    """For the Deployment's /scale; None leaves it alone."""
    delete: tuple[tuple[Resource, ChildView], ...]
    """Revisions that nothing uses, and what the API no longer asks for."""
    give_back: tuple[Apply, ...]
    """Labels and owner of older revisions, whose data nobody here knows; applied with it."""
    status: JsonObject
    """The reconciler's part, whole; whether it has changed is for the writer to see."""
    notes: tuple[Note, ...]
    """Events, to be recorded once the status that they tell of has been written."""
    retry_after: float | None
    """Seconds; None: the next change will bring the API up again."""
    web_replicas: int | None = None
    """For /scale of NAME-web; None leaves it alone, or there is none."""
    own_replicas: tuple[int, str] | None = None
    """Number for /scale of the API itself, and the version of the API that has none."""
    retire: ChildView | None = None
    """NAME-web of an API that has no queue any more: no web pod is to be there."""


def parsed(document: JsonObject) -> BatchedAPI:
    """The manifest as a model.

    Fields of a newer version are ignored: an operator that was rolled back must go on. Rules that
    are younger than a stored manifest do not bind it: what was accepted once goes on.

    Raises:
        InvalidSpecError: The manifest got past the apiserver, and still cannot be used.
    """
    try:
        return parse_api(document, UnknownFields.IGNORE, stored=True)
    except ManifestError as error:
        raise InvalidSpecError("Invalid", str(error)) from error


def plan(
    document: JsonObject,
    observed: Observed,
    default_image: str,
    now: str,
    *,
    policies: Policies = NO_POLICIES,
    refusal: InvalidSpecError | None = None,
    hindrance: NewCondition | None = None,
    defaults: Pod = SPREAD,
    image_volumes: bool = False,
    judged: Judged | None = None,
) -> Plan:
    """Decide what to write.

    Args:
        document: The BatchedAPI as it is in the cluster.
        observed: Its children.
        default_image: For a new revision whose manifest names no image.
        now: RFC 3339, dates what changes in the status.
        policies: What APIs tell drains and networks.
        refusal: What the apiserver said to the last try; its plan writes nothing but the status.
        hindrance: Why a write failed of which the API is not to blame; the same.
        defaults: What lies under the settings of the pods of a new revision.
        image_volumes: The cluster mounts images, so an `oci://` model is mounted.
        judged: What the counts of a canary and of the pods beside it have come to.
    """
    metadata, moment = document["metadata"], datetime.fromisoformat(now)
    ours = without_others(metadata["uid"], observed)
    subject, waits = _subject(
        document, observed, ours, default_image,
        defaults=defaults, policies=policies, image_volumes=image_volumes,
    )  # fmt: skip
    api, revision, problem = subject.api, subject.revision, refusal or subject.problem
    deleted = deletion(metadata)
    held = deleted or hindrance or (waits[0] if waits is not None and problem is None else None)
    taken = None if revision is None else promoted(document, revision, judged, observed.status)
    # while nothing is written the status tells of the canary, by which it is promoted
    over = subject.given_up or (held is None and taken)
    if api is not None and revision is not None and not over:
        subject = replace(subject, tried=is_tried(api, revision, ours))
    status = build_status(replace(subject, problem=problem, hindrance=held), ours, now)
    pods = (*observed.pods, *observed.web.pods, *observed.canary.pods)
    due = until_told(pods, moment)
    notes = notes_of(observed.status, status, subject.given_up, taken)
    nothing = Plan((), None, (), (), status, notes, due)
    if deleted is not None or hindrance is not None:
        return replace(nothing, notes=nothing.notes if deleted is None else ())
    if problem is not None or api is None or revision is None:
        if not isinstance(problem, NotOwnedError):
            return nothing  # the change that makes it good is told; a refusal has its own pace
        # but nobody tells that somebody has taken theirs away
        since = _since(status, ConditionType.SPEC_VALID)
        return replace(nothing, retry_after=again(since, now))
    if api.spec.paused:
        return nothing
    if waits is not None:
        since = waits[1] or _since(status, ConditionType.PROGRESSING)
        return replace(nothing, notes=(), retry_after=again(since, now))
    image = subject.image
    stage = stage_of(api, revision, without_overdue(observed, moment))
    spec = document["spec"]
    back, tried = subject.given_up, subject.tried
    if tried:
        verdict = verdict_on(revision, observed, judged, status)
        if isinstance(verdict, GiveUp) and observed.earlier is not None:
            beside, asked = observed.earlier.name, asked_for(api, revision)
            back, tried = GivenUp(revision.name, beside, verdict.why, asked), False
    else:
        back = back or to_give_up(api, revision, observed, status["message"])
    children = _children(
        api, revision, image, observed, policies, stage=stage, spec=spec, back=back, tried=tried
    )
    made = _written(replace(nothing, apply=children), api, revision, observed, stage)
    own = own_count(api, observed)
    return made if own is None else replace(made, own_replicas=(own, metadata["resourceVersion"]))


def _subject(
    document: JsonObject,
    observed: Observed,
    ours: Observed,
    default_image: str,
    *,
    defaults: Pod,
    policies: Policies,
    image_volumes: bool,
) -> tuple[StatusSubject, tuple[NewCondition, str] | None]:
    """As far as the manifest can be used, with the first thing that is wrong; and `leaving`."""
    metadata, key = document["metadata"], ObjectKey.of(document)
    known = StatusSubject(metadata["name"], metadata.get("generation", 0), None, None, "", None)
    try:
        api = parsed(document)
        if image_volumes:
            api = api.with_image_mounted()
        known = replace(known, api=api)
        revision = _revision(api, ours, defaults)
        known = replace(known, revision=revision)
        image = image_for(api, revision, observed.status, default_image)
        known = replace(known, image=image, given_up=given_up(api, revision, ours))
        refuse_unserved(api, policies.kinds)
        asked = _asked_for(api, observed, policies)
        refuse_foreign(key, metadata["uid"], asked)
    except InvalidSpecError as error:
        return replace(known, problem=error), None
    return known, leaving(key, metadata["uid"], asked)


def _asked_for(api: BatchedAPI, observed: Observed, policies: Policies) -> Observed:
    """Without children of a kind that the API has none of: such a name is anybody's."""
    kinds = observed.policies.items()
    asked = {kind: child for kind, child in kinds if policies.build(kind, api) is not None}
    return replace(observed, policies=asked)


def _written(
    plan: Plan, api: BatchedAPI, revision: Revision, observed: Observed, stage: "Stage"
) -> Plan:
    """The same plan with its writes beside `apply`."""
    queue, web = api.spec.server_side_batching.queue, observed.web.deployment
    surplus = surplus_revisions(api, revision, observed)
    made = {apply.resource for apply in plan.apply}
    unasked = (
        (kind, child)
        for kind, child in observed.policies.items()
        if kind in ASKED_FOR and kind not in made
        if owned(api.metadata.uid, child) and not child.deleting
    )
    return replace(
        plan,
        notes=(*plan.notes, *scaled_by_another(api, observed)),
        replicas=first_or_copied_count(api, observed),
        delete=(*unasked, *((CONFIG_MAPS, child) for child in surplus)),
        give_back=tuple(
            Apply(CONFIG_MAPS, headed(api, child.name, child.setting), child)
            for child in observed.revisions
            if child.name in observed.robbed - {revision.name} and child not in surplus
        ),
        web_replicas=None if queue is None else first_web_count(queue.web, observed),
        retire=web.child if stage.retire and web is not None else None,
    )


def _since(status: JsonObject, kind: ConditionType) -> str:
    """When that condition took its state, RFC 3339."""
    (told,) = (one for one in status["conditions"] if one["type"] == kind)
    return str(told["lastTransitionTime"])


def _revision(api: BatchedAPI, observed: Observed, defaults: Pod) -> Revision:
    source, deployment = api.spec.predictor.source, observed.deployment
    made_with = running(api, observed)
    if (
        made_with is not None
        and deployment is not None
        and deployment.ready <= 0
        and (is_stuck(deployment) or deployment.refusal(observed.pods) is not None)
    ):  # none will answer: nothing is lost, and what it lacks may be a default that came later
        made_with = replace(made_with, defaults=defaults)
    made = {one.revision: one.setting for one in observed.revisions}
    if source is None or source.config_map is None:
        return revision_of(api, {}, {}, made_with, defaults, made=made)
    if observed.source is None:
        raise InvalidSpecError(
            "SourceMissing",
            f"spec.predictor.source.configMap: there is no ConfigMap {source.config_map!r} in"
            f" namespace {api.metadata.namespace!r}; create it, or name another",
        )
    files = observed.source
    return revision_of(api, files.data, files.binary_data, made_with, defaults, made=made)


def running(api: BatchedAPI, observed: Observed) -> Running | None:
    """The revision and setting of the pods: by the Deployment, or the status where there is none.

    The status tells as well where the API is as it was when its children were written: then another
    setting or label in the Deployment is the work of others, to be put right under the same name.
    Not where a rollout was given up, or is tried: the Deployment alone tells what it has instead.
    """
    deployment, status = observed.deployment, observed.status
    told = section(status, "revision")
    other = told.get("rolledBack") or told.get("canary")
    named = other or told.get("current")
    setting = None if deployment is None else deployment.setting
    defaults = None if setting is None else setting.defaults
    digest = named and named.removeprefix(f"{api.metadata.name}-")
    written = Running(digest, None, defaults) if digest else None
    if deployment is None or not deployment.revision:
        return written
    accepted = status.get("observedGeneration") == api.metadata.generation and any(
        one["type"] == ConditionType.SPEC_VALID and one["status"] == "True"
        for one in listed(status, "conditions")
    )
    back = deployment.given_up is not None or other
    if written is not None and accepted and not back:
        return written
    return Running(deployment.revision, setting, defaults)


def image_for(api: BatchedAPI, revision: Revision, status: JsonObject, default_image: str) -> str:
    """The manifest's image, else the one this revision was pinned to, else the operator's."""
    if api.spec.predictor.image is not None:
        return api.spec.predictor.image
    pinned = section(status, "revision")
    if pinned.get("current") == revision.name and pinned.get("image"):
        return str(pinned["image"])
    return default_image


def _children(
    api: BatchedAPI,
    revision: Revision,
    image: str,
    observed: Observed,
    policies: Policies,
    *,
    stage: "Stage",
    spec: JsonObject,
    back: GivenUp | None,
    tried: bool,
) -> tuple[Apply, ...]:
    """The revision first: pods that name it must find it; and be guarded from the first on.

    The Service is before the pods, too: of workers that are to come, none may be sent a request.
    """
    known = {one.name: one for one in observed.revisions}
    web, of_web = observed.web, list[Apply]()
    if stage.web and DISRUPTION_BUDGETS in policies.kinds:
        of_web.append(Apply(DISRUPTION_BUDGETS, build_web_budget(api), web.budget))
    if stage.web:
        of_web.append(_deployed(build_web(api, revision, image), web.deployment))
    compares = api.spec.update_strategy.compare.is_on
    peers = [Apply(SERVICES, build_peers(api), observed.peers)] if compares else []
    body = build_deployment(api, revision, image, held=stage.held)
    annotate(body, noted(spec))
    body = decided(body, observed, back, tried=tried)
    count = canary_count(api, revision, observed, tried=tried, given_up=back is not None)
    if count is not None:
        canary = build_canary(api, revision, image, count)
        of_web.append(_deployed(canary, observed.canary.deployment))
    files = build_config_map(api, revision)
    setting = setting_digest(api.with_pod_defaults(revision.defaults))
    annotate(files, {contract.ANNOTATION_SETTING: setting})
    return (
        Apply(CONFIG_MAPS, files, known.get(revision.name)),
        Apply(SERVICES, build_service(api, roles=stage.roles), observed.service),
        *peers,
        *(
            Apply(kind, child, observed.policies.get(kind))
            for kind in policies.kinds
            if (child := policies.build(kind, api, roles=stage.roles)) is not None
        ),
        *of_web,
        _deployed(body, observed.deployment),
    )


def _deployed(body: JsonObject, there: DeploymentView | None) -> Apply:
    """A Deployment to be applied over what is there."""
    if there is not None and there.stray_account:
        body = without_account(body)
    return Apply(DEPLOYMENTS, body, there.child if there is not None else None)


def first_or_copied_count(api: BatchedAPI, observed: Observed) -> int | None:
    """Replicas to be written now; None where they are the autoscaler's, or right already.

    In mode Native, and where the API does not say it, that is the first count alone, or where the
    Deployment was deleted the last one.
    """
    deployment, scaling = observed.deployment, api.spec.autoscaling
    native = scaling.mode is ScalingMode.NATIVE
    there = deployment.replicas if deployment is not None and deployment.replicas_owned else None
    if not native and api.spec.replicas is not None:
        return None if there == api.spec.replicas else api.spec.replicas
    first = int(observed.status.get("desiredReplicas", 0))
    if native:
        first = min(max(first, scaling.min_replicas), scaling.max_replicas)
    # one at least: from a worker the web pods know what the methods are like
    return max(1, first) if there is None else None


def own_count(api: BatchedAPI, observed: Observed) -> int | None:
    """Replicas to be written into the API, where others scale it and it has none; else None.

    Without a number /scale cannot be read, and an HPA does nothing. One in Git would set back
    what the HPA has written.
    """
    if api.spec.autoscaling.mode is ScalingMode.NATIVE or api.spec.replicas is not None:
        return None
    first, deployment = first_or_copied_count(api, observed), observed.deployment
    return deployment.replicas if first is None and deployment is not None else first


def scaled_by_another(api: BatchedAPI, observed: Observed) -> tuple[Note, ...]:
    """An event where somebody else has just scaled what is the operator's to scale."""
    there, native = observed.deployment, api.spec.autoscaling.mode is ScalingMode.NATIVE
    if not native or there is None or not there.scaled_by:
        return ()
    if there.replicas == observed.status.get("desiredReplicas"):
        return ()  # that was told
    text = (
        f"{there.scaled_by} has set Deployment {there.child.name} to {there.replicas} replicas, and"
        " the operator decides anew: delete that autoscaler, or aim it at the BatchedAPI and set"
        " spec.autoscaling.mode External"
    )
    return (Note("Warning", "ScaledByAnother", "Scale", text),)


def first_web_count(web: WebSpec, observed: Observed) -> int | None:
    """The same of web pods, which only the autoscaler moves afterwards, in whichever mode."""
    there = observed.web.deployment
    if there is not None and there.replicas_owned and there.replicas > 0:
        return None
    had = int(section(observed.status, "web").get("desiredReplicas", 0))
    return min(max(had, web.min_replicas), web.max_replicas)


def surplus_revisions(
    api: BatchedAPI, revision: Revision, observed: Observed
) -> tuple[ChildView, ...]:
    """Revisions that nothing refers to any more, but for the youngest."""
    deployments = (
        observed.deployment, observed.web.deployment, observed.canary.deployment,
    )  # fmt: skip
    running = {one.revision for one in deployments if one is not None}
    used = {revision.digest, *running, *observed.revisions_in_use}
    source = api.spec.predictor.source
    kept = None if source is None else source.config_map  # after a rollback it may be one of them
    unused = [one for one in observed.revisions if one.revision not in used and one.name != kept]
    unused.sort(key=lambda child: (child.created, child.name), reverse=True)
    return tuple(unused[max(0, REVISIONS_KEPT - 1) :])


# How far an API is on its way to one queue for all replicas, or back.
#
# Pods of both shapes are there meanwhile, and nothing that a client has sent may be lost: whoever
# answers stays until those that take its place answer, and workers stay while somebody fills the
# queue. The Deployment's own controller replaces pods; what is decided here is whether it may.


@dataclass(frozen=True, slots=True)
class Stage:
    """Consequences for the children."""

    roles: bool = False
    """Not every pod answers: the Service selects those that do."""
    web: bool = False
    """NAME-web is to be there."""
    held: bool = False
    """New pods of the Deployment do not yet take the place of those before."""
    retire: bool = False
    """NAME-web is to go: replicas answer in its place."""


def without_overdue(observed: Observed, now: datetime) -> Observed:
    """Without pods that should be gone, such as those of a dead node, which never says that."""

    def kept(pods: Iterable[PodView]) -> tuple[PodView, ...]:
        return tuple(one for one in pods if until_gone(one, now) > 0)

    web = replace(observed.web, pods=kept(observed.web.pods))
    return replace(observed, pods=kept(observed.pods), web=web)


def stage_of(api: BatchedAPI, revision: Revision, observed: Observed) -> Stage:
    """From what is there.

    To a queue: workers start beside the replicas, and tell what the methods are like; so web pods
    become ready, and join the replicas behind the Service; then replicas go as workers come. A new
    revision goes the same way: rows of the one before need its workers until its web pods have
    ended. Back: as many replicas as workers start beside them and join the web pods behind the
    Service; the web pods go, and when the last has ended the workers do.
    """
    if api.spec.server_side_batching.queue is not None:
        before = any(one.revision != revision.digest and not one.gone for one in observed.pods)
        return Stage(
            roles=True, web=True, held=before and not web_is_current(api, revision, observed)
        )
    filling = observed.web.may_fill
    workers = any(one.role == contract.ROLE_WORKER for one in observed.pods if one.runs)
    return Stage(
        roles=filling or workers,
        held=filling,
        retire=observed.web.is_wanted and _replicas_answer(api, revision, observed),
    )


def web_is_current(api: BatchedAPI, revision: Revision, observed: Observed) -> bool:
    """Whether web pods of the revision answer, and none of another one is left."""
    web, queue = observed.web.deployment, api.spec.server_side_batching.queue
    if web is None or queue is None or web.revision != revision.digest:
        return False
    enough = web.ready >= min(queue.web.min_replicas, web.replicas) > 0
    others = any(one.revision != revision.digest for one in observed.web.pods if one.runs)
    return web.settled and enough and web.existing <= web.updated and not others


def _replicas_answer(api: BatchedAPI, revision: Revision, observed: Observed) -> bool:
    """Whether as many as are asked for do, or all that the cluster has room for beside workers."""
    deployment = observed.deployment
    if deployment is None or deployment.revision != revision.digest:
        return False
    if deployment.replicas == 0:  # nobody is to answer, by whoever chooses the number
        return api.spec.autoscaling.mode is not ScalingMode.NATIVE
    made = [one for one in observed.pods if one.revision == revision.digest and not one.gone]
    ready = sum(one.ready for one in made)
    homeless = sum(bool(one.unschedulable) for one in made)
    return ready > 0 and ready + homeless >= deployment.replicas
